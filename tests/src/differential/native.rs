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
use nix::libc::{self, user_regs_struct};
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

/// The register set with the XSAVE image, and more than any has.
const NT_X86_XSTATE: libc::c_uint = 0x202;
const MAX_XSAVE: usize = 0x4000;

/// RFLAGS.ID.
const ID: u64 = 1 << 21;

/// The traced process.
#[derive(Debug)]
pub struct Host {
    child: Child,
    pid: Pid,
    shared: File,
    base: user_regs_struct,
    /// The XSAVE image before the first run.
    image: Vec<u8>,
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
        let mut host = Self {
            child,
            pid,
            shared,
            base,
            image: Vec::new(),
            _pinned: pinned,
        };
        host.image = host.float()?;
        ensure!(
            host.image.len() >= YMM_HIGH + 16 * 16,
            "the host has no AVX"
        );
        Ok(host)
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
        let mut image = self.image.clone();
        to_xsave(&state.float, &mut image);
        self.set_float(&mut image)?;
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

    /// The XSAVE image, which has the same layout while the process runs 32-bit code.
    fn float(&self) -> Result<Vec<u8>> {
        let mut image = vec![0; MAX_XSAVE];
        let mut io = libc::iovec {
            iov_base: image.as_mut_ptr().cast(),
            iov_len: image.len(),
        };
        self.regset(libc::PTRACE_GETREGSET, &mut io)?;
        image.truncate(io.iov_len);
        Ok(image)
    }

    fn set_float(&self, image: &mut [u8]) -> Result<()> {
        let mut io = libc::iovec {
            iov_base: image.as_mut_ptr().cast(),
            iov_len: image.len(),
        };
        self.regset(libc::PTRACE_SETREGSET, &mut io)
    }

    fn regset(&self, request: libc::c_uint, io: &mut libc::iovec) -> Result<()> {
        // SAFETY: the request reads or writes at most the bytes that `io` describes, which are the
        // caller's.
        let result =
            unsafe { libc::ptrace(request, self.pid.as_raw(), NT_X86_XSTATE, &raw mut *io) };
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
            float: from_xsave(&self.float()?)?,
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

/// Offsets of an XSAVE image (SDM Vol. 1 10.5.1, 13.4.2), and that of AVX state in it, which
/// CPUID.(EAX=0DH,ECX=2) gives: processors agree on it.
const MXCSR: usize = 24;
const ST: usize = 32;
const XMM: usize = 160;
const XSTATE_BV: usize = 512;
const YMM_HIGH: usize = 576;

/// x87, SSE and AVX state are not in their initial configurations.
const COMPONENTS: u8 = 7;

fn to_xsave(float: &FloatState, image: &mut [u8]) {
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &float.fcw.to_le_bytes());
    put(2, &float.fsw.to_le_bytes());
    put(4, &[float.ftw]);
    put(MXCSR, &float.mxcsr.to_le_bytes());
    put(XSTATE_BV, &[COMPONENTS]);
    for (n, st) in float.st.iter().enumerate() {
        put(ST + 16 * n, st);
    }
    for (n, (low, high)) in float.xmm.iter().zip(&float.ymm_high).enumerate() {
        put(XMM + 16 * n, &low.to_le_bytes());
        put(YMM_HIGH + 16 * n, &high.to_le_bytes());
    }
}

fn from_xsave(image: &[u8]) -> Result<FloatState> {
    let get = |at: usize, len: usize| {
        let bytes = image
            .get(at..at + len)
            .context("the XSAVE image is short")?;
        let wide = bytes.iter().rev();
        anyhow::Ok(wide.fold(0u128, |wide, byte| wide << 8 | u128::from(*byte)))
    };
    let mut float = FloatState {
        fcw: get(0, 2)? as u16,
        fsw: get(2, 2)? as u16,
        ftw: get(4, 1)? as u8,
        mxcsr: get(MXCSR, 4)? as u32,
        ..FloatState::default()
    };
    for (n, st) in float.st.iter_mut().enumerate() {
        st.copy_from_slice(&get(ST + 16 * n, 10)?.to_le_bytes()[..10]);
    }
    for n in 0..16 {
        float.xmm[n] = get(XMM + 16 * n, 16)?;
        float.ymm_high[n] = get(YMM_HIGH + 16 * n, 16)?;
    }
    Ok(float)
}
