//! The host side: a traced process. Its tracer sets its registers and memory before each run. The
//! process stops at the INT3 after the code, or at the signal of an exception.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use iced_x86::code_asm;
use nix::errno::Errno;
use nix::libc::{self, user_fpregs_struct, user_regs_struct};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use vbts_testkit::assemble;

use super::layout::{self, CODE, CODE_LEN, MEMORY_LEN};
use super::{Event, FloatState, Mode, Outcome, State};
use crate::oracle::Pinned;
use crate::programs;

/// Where the stub expects the shared memory.
const SHARED_FD: i32 = 3;

/// Linux's user segments.
const USER_CS: u64 = 0x33;
const USER32_CS: u64 = 0x23;
const USER_DS: u64 = 0x2B;

/// RFLAGS.ID.
const ID: u64 = 1 << 21;

/// The traced process.
#[derive(Debug)]
pub struct Host {
    child: Child,
    pid: Pid,
    shared: File,
    base: user_regs_struct,
    _pinned: Pinned,
}

impl Host {
    /// Builds and starts the process. The calling thread becomes its tracer and is the only one
    /// that may use it.
    ///
    /// # Errors
    /// If it cannot be built, started or traced.
    pub fn new(directory: &Path) -> Result<Self> {
        // Random registers rarely point near this address.
        let stub = programs::compile(
            &programs::source("stub.S"),
            &directory.join("stub"),
            &["-Wl,-Ttext-segment=0x6d7f3e2c5000"],
        )?;
        let pinned = Pinned::new()?;
        let shared = File::from(memfd_create("vbts-differential", MFdFlags::empty())?);
        shared.set_len((CODE_LEN + MEMORY_LEN) as u64)?;
        let fd = shared.as_raw_fd();
        let mut command = Command::new(stub);
        command.env_clear().stdin(Stdio::null());
        // SAFETY: the closure makes only system calls that are async-signal-safe. `shared` is still
        // open.
        unsafe {
            command.pre_exec(move || {
                if fd == SHARED_FD {
                    libc::fcntl(fd, libc::F_SETFD, 0);
                } else if libc::dup2(fd, SHARED_FD) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                let second = libc::timeval {
                    tv_sec: 1,
                    tv_usec: 0,
                };
                let tick = libc::itimerval {
                    it_interval: second,
                    it_value: second,
                };
                if libc::setitimer(libc::ITIMER_PROF, &raw const tick, std::ptr::null_mut()) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(ptrace::traceme()?)
            });
        }
        let child = command.spawn().context("cannot start the stub")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        waitpid(pid, None)?;
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        ptrace::cont(pid, None)?;
        let stop = waitpid(pid, None)?;
        ensure!(
            stop == WaitStatus::Stopped(pid, Signal::SIGTRAP),
            "the stub did not map its memory: {stop:?}"
        );
        let base = ptrace::getregs(pid)?;
        Ok(Self {
            child,
            pid,
            shared,
            base,
            _pinned: pinned,
        })
    }

    /// Runs `code` from `state`. It ignores `state.rip`.
    ///
    /// # Errors
    /// If the process is lost.
    pub fn run(&mut self, code: &[u8; CODE_LEN], state: &State) -> Result<Outcome> {
        let mut signal = self.start(code, state)?;
        // A virtual machine that was stopped for seconds counts them as time of the process.
        // Endless code reaches the limit again.
        if signal == Signal::SIGPROF {
            signal = self.start(code, state)?;
        }
        let info = ptrace::getsiginfo(self.pid)?;
        let regs = ptrace::getregs(self.pid)?;
        let mut memory = vec![0; MEMORY_LEN];
        self.shared.read_exact_at(&mut memory, CODE_LEN as u64)?;
        let event = match (signal, info.si_code) {
            (Signal::SIGTRAP, libc::SI_KERNEL) => Event::Completed,
            (Signal::SIGTRAP, _) => Event::Debug,
            (Signal::SIGFPE, 1) => Event::Divide, // FPE_INTDIV
            // #MF and #XM have the same codes. The comparison treats them alike.
            (Signal::SIGFPE, _) => Event::X87,
            (Signal::SIGILL, _) => Event::InvalidOpcode,
            (Signal::SIGSEGV, libc::SI_KERNEL) => Event::GeneralProtection,
            // SAFETY: SIGSEGV from a page fault carries an address.
            (Signal::SIGSEGV, _) => Event::Page(unsafe { info.si_addr() } as u64),
            (Signal::SIGBUS, libc::BUS_ADRALN) => Event::Alignment,
            (Signal::SIGBUS, _) => Event::Stack,
            (other, _) => Event::Other(other as u32),
        };
        let state = self.state(state.mode, &regs, memory)?;
        if regs.eflags & ID != 0 {
            self.clear_id()?;
        }
        Ok(Outcome { event, state })
    }

    fn start(&mut self, code: &[u8; CODE_LEN], state: &State) -> Result<Signal> {
        self.shared.write_all_at(code, 0)?;
        self.shared.write_all_at(&state.memory, CODE_LEN as u64)?;
        ptrace::setregs(self.pid, self.registers(state))?;
        self.set_float(&to_fxsave(&state.float))?;
        self.resume()
    }

    /// Runs to the next stop. SIGPROF stops code that has not ended by the third tick of its timer.
    fn resume(&self) -> Result<Signal> {
        let mut ticks = 0;
        loop {
            ptrace::cont(self.pid, None)?;
            match waitpid(self.pid, None)? {
                WaitStatus::Stopped(_, Signal::SIGPROF) if ticks < 2 => ticks += 1,
                WaitStatus::Stopped(_, signal) => return Ok(signal),
                other => bail!("the stub is gone: {other:?}"),
            }
        }
    }

    /// Clears RFLAGS.ID, which ptrace cannot change: otherwise a POPF affects the cases after it.
    fn clear_id(&mut self) -> Result<()> {
        let code = assemble(64, CODE, |a| {
            a.pushfq()?;
            a.and(code_asm::dword_ptr(code_asm::rsp), !(ID as u32))?;
            a.popfq()?;
            a.int3()
        });
        self.shared.write_all_at(&code, 0)?;
        ptrace::setregs(
            self.pid,
            user_regs_struct {
                rip: layout::CODE,
                orig_rax: u64::MAX,
                ..self.base
            },
        )?;
        let signal = self.resume()?;
        ensure!(
            signal == Signal::SIGTRAP,
            "cannot clear RFLAGS.ID: {signal}"
        );
        Ok(())
    }

    /// The FXSAVE image. PTRACE_GETREGSET is not used, because its layout is different while the
    /// process runs 32-bit code.
    fn float(&self) -> Result<user_fpregs_struct> {
        // SAFETY: a plain structure of integers, for which zero is a value.
        let mut image: user_fpregs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one such structure to its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETFPREGS,
                self.pid.as_raw(),
                std::ptr::null_mut::<libc::c_void>(),
                &raw mut image,
            )
        };
        Errno::result(result)?;
        Ok(image)
    }

    fn set_float(&self, image: &user_fpregs_struct) -> Result<()> {
        // SAFETY: the request reads one such structure from its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SETFPREGS,
                self.pid.as_raw(),
                std::ptr::null_mut::<libc::c_void>(),
                &raw const *image,
            )
        };
        Errno::result(result)?;
        Ok(())
    }

    fn registers(&self, state: &State) -> user_regs_struct {
        let [
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
        ] = state.gpr;
        user_regs_struct {
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip: CODE,
            eflags: state.rflags,
            cs: match state.mode {
                Mode::Bits64 => USER_CS,
                Mode::Bits32 => USER32_CS,
            },
            // Only 32-bit code uses these.
            ds: USER_DS,
            es: USER_DS,
            // The kernel restarts no system call.
            orig_rax: u64::MAX,
            ..self.base
        }
    }

    fn state(&self, mode: Mode, regs: &user_regs_struct, memory: Vec<u8>) -> Result<State> {
        let r = regs;
        // INT3 is a trap, so RIP is after it.
        Ok(State {
            mode,
            gpr: [
                r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15,
            ],
            rip: r.rip,
            rflags: r.eflags,
            float: from_fxsave(&self.float()?),
            memory,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The FXSAVE image that ptrace exchanges.
fn to_fxsave(float: &FloatState) -> user_fpregs_struct {
    // SAFETY: a plain structure of integers, for which zero is a value.
    let mut image: user_fpregs_struct = unsafe { std::mem::zeroed() };
    image.cwd = float.fcw;
    image.swd = float.fsw;
    image.ftw = u16::from(float.ftw);
    image.mxcsr = float.mxcsr;
    for (slot, st) in image.st_space.chunks_exact_mut(4).zip(&float.st) {
        let mut bytes = [0; 16];
        bytes[..10].copy_from_slice(st);
        for (word, bytes) in slot.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
    for (slot, xmm) in image.xmm_space.chunks_exact_mut(4).zip(&float.xmm) {
        for (word, bytes) in slot.iter_mut().zip(xmm.to_le_bytes().as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
    image
}

fn from_fxsave(image: &user_fpregs_struct) -> FloatState {
    let mut float = FloatState {
        fcw: image.cwd,
        fsw: image.swd,
        ftw: image.ftw as u8,
        mxcsr: image.mxcsr,
        ..FloatState::default()
    };
    let wide = |words: &[u32]| {
        words
            .iter()
            .rev()
            .fold(0u128, |wide, &word| wide << 32 | u128::from(word))
    };
    for (st, words) in float.st.iter_mut().zip(image.st_space.chunks_exact(4)) {
        st.copy_from_slice(&wide(words).to_le_bytes()[..10]);
    }
    for (xmm, words) in float.xmm.iter_mut().zip(image.xmm_space.chunks_exact(4)) {
        *xmm = wide(words);
    }
    float
}
