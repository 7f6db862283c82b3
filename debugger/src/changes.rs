//! Changes that the client makes to a program: its memory and its registers.

use vbts_cpu::state::{ArchState, gpr, rflags};
use vbts_cpu::{Breakpoint, StopCause, StopPoints};
use vbts_gdb::{Avx, Fxsave, Registers, Result, TargetError, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::{Debugger, EFAULT, ESRCH, fatal};
use crate::replay::Outcome;
use crate::task_registers::FRAME_WORDS;
use crate::tasks::Task;

/// Programs have the addresses below.
const USER_END: u64 = 1 << 47;
/// Flags that a program can change by POPF at CPL 3, apart from TF and NT.
const USER_FLAGS: u64 =
    rflags::CF | rflags::PF | rflags::AF | rflags::ZF | rflags::SF | rflags::DF | rflags::OF;
/// `mov %al, (%rdi)`
const STORE: [u8; 2] = [0x88, 0x07];
/// Virtual time in ns that a store of the guest may take, with its page fault.
const STORE_TIME: u64 = 50_000_000;
/// The segment registers FS and GS by number.
const FS: usize = 4;
const GS: usize = 5;

pub(crate) fn refused(reason: impl Into<String>) -> TargetError {
    TargetError::Refused(reason.into())
}

impl Debugger {
    /// Writes memory of the process, all bytes or none.
    pub(crate) fn change_memory(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let end = address.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > USER_END) {
            return Err(TargetError::Errno(EFAULT));
        }
        let space = self.space().ok_or(TargetError::Errno(ESRCH))?;
        let mut old = vec![0; bytes.len()];
        let read = self.tasks().map_err(fatal)?.read(space, address, &mut old);
        if read == bytes.len() && old == bytes {
            return Ok(());
        }
        self.write_by_pages(address, bytes, |debugger, at, byte| {
            debugger.writable_place(space, at, byte)
        })
    }

    /// Departs from the recorded run, and writes memory in parts that are in a page each, all of
    /// them or none: at the guest-physical address that `place` returns for the linear address and
    /// the first byte of a part.
    pub(crate) fn write_by_pages(
        &mut self,
        address: u64,
        bytes: &[u8],
        place: impl Fn(&mut Self, u64, u8) -> std::result::Result<Option<u64>, Failure>,
    ) -> Result<()> {
        self.replay.depart();
        let mut places = Vec::new();
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let at = address.wrapping_add(done as u64);
            let here = rest.len().min(0x1000 - (at & 0xFFF) as usize);
            let place = place(self, at, rest[0]).map_err(fatal)?;
            let place = place.ok_or(TargetError::Errno(EFAULT))?;
            places.push((place, &rest[..here]));
            done += here;
        }
        for (place, bytes) in places {
            let written = self.replay.machine.write_memory(place, bytes);
            written.map_err(fatal)?;
        }
        Ok(())
    }

    /// The guest-physical address at which the process has its own byte for `address`. The guest's
    /// kernel gives it a page if it has none yet, or shares it.
    fn writable_place(
        &mut self,
        space: u64,
        address: u64,
        byte: u8,
    ) -> std::result::Result<Option<u64>, Failure> {
        let translate = |debugger: &Self| {
            let cpu = debugger.replay.cpu()?;
            cpu.translate_write_in(space, address)
        };
        if let Some(place) = translate(self) {
            return Ok(Some(place));
        }
        self.store_by_guest(space, address, byte)?;
        if let Some(place) = translate(self) {
            return Ok(Some(place));
        }
        // The program itself may not write there, as to its code.
        let Some(cpu) = self.replay.cpu() else {
            return Ok(None);
        };
        let zeros = cpu.translate_quietly(self.replay.zero_page());
        let place = cpu.translate_in(space, address);
        let is_of_all = |place: u64| zeros.is_none_or(|zeros| zeros >> 12 == place >> 12);
        Ok(place.filter(|place| !is_of_all(*place)))
    }

    /// Has a thread of the process that is in user mode store `byte` at `address`, so that the
    /// kernel handles the page fault. Everything but that page is as before, apart from what other
    /// processors execute meanwhile.
    fn store_by_guest(
        &mut self,
        space: u64,
        address: u64,
        byte: u8,
    ) -> std::result::Result<(), Failure> {
        let Some((number, thread)) = self.tasks()?.user_mode_thread(self.process) else {
            return Ok(());
        };
        let Some(cpu) = self.replay.processor(number) else {
            return Ok(());
        };
        let before = cpu.state();
        // No other thread executes the program's entry point.
        let is_in_page = |at: &u64| at & 0xFFF <= 0x1000 - STORE.len() as u64;
        let places = [self.entry_point(), Some(before.rip)];
        let mut places = places.into_iter().flatten().filter(is_in_page);
        let found = places.find_map(|at| Some((at, cpu.translate_in(space, at)?)));
        let Some((code, place)) = found else {
            return Ok(());
        };
        let mut old = STORE;
        cpu.read_in(space, code, &mut old);
        let mut state = before.clone();
        state.rip = code;
        state.gpr[gpr::RDI] = address;
        state.gpr[gpr::RAX] = byte.into();
        self.replay.machine.write_memory(place, &STORE)?;
        self.replay.machine.set_state(number, &state);
        self.run_store(space, thread, code + STORE.len() as u64)?;
        self.replay.machine.write_memory(place, &old)?;
        // The kernel may have moved it to another processor.
        if let Some(number) = self.tasks()?.user_mode_processor(thread)
            && let Some(now) = self.replay.processor(number).map(|cpu| cpu.state())
        {
            let state = ArchState {
                gpr: before.gpr,
                rip: before.rip,
                rflags: before.rflags,
                ..now
            };
            self.replay.machine.set_state(number, &state);
        }
        Ok(())
    }

    /// Runs until `thread` is at `end`, behind its store, in user mode.
    fn run_store(
        &mut self,
        space: u64,
        thread: ThreadId,
        end: u64,
    ) -> std::result::Result<(), Failure> {
        let tracer = self.replay.ptrace_stop();
        let points = StopPoints {
            breakpoints: vec![
                Breakpoint {
                    address: end,
                    space: Some(space),
                },
                Breakpoint {
                    address: tracer,
                    space: None,
                },
            ],
            ..StopPoints::default()
        };
        let until = self.replay.now().saturating_add(STORE_TIME);
        while let Outcome::Stopped(causes) = self.replay.run(until, &points)? {
            let is_at_end = causes.contains(&StopCause::Breakpoint { address: end });
            if is_at_end && self.tasks()?.in_user_mode() == Some(thread) {
                break;
            }
            if self.held_signal().is_some_and(|(held, _)| held == thread) {
                // The page cannot be written: the store is skipped.
                let tasks = self.tasks()?;
                let task = tasks.current();
                let registers = task.and_then(|task| Some((task, tasks.registers(task)?)));
                if let Some((task, mut registers)) = registers {
                    registers.rip = end;
                    self.write_frame(task, &registers)?;
                }
                self.answer_for_tracer(0);
            }
        }
        Ok(())
    }

    /// Replaces the registers of a thread.
    pub(crate) fn change_registers(&mut self, thread: ThreadId, new: &Registers) -> Result<()> {
        let tasks = self.tasks().map_err(fatal)?;
        let task = tasks.find(thread).ok_or(TargetError::Errno(ESRCH))?;
        let old = tasks.registers(task).ok_or(TargetError::Errno(ESRCH))?;
        let executing = tasks.user_mode_processor(thread);
        let new = &Registers {
            rflags: new.rflags & USER_FLAGS | old.rflags & !USER_FLAGS,
            // An address of the kernel in them would be its own, and GDB sets the last one to
            // prevent that a call is begun again.
            orig_rax: old.orig_rax,
            ..new.clone()
        };
        if *new == old {
            return Ok(());
        }
        if new.segments != old.segments {
            return Err(refused("the segment registers cannot be changed"));
        }
        let addresses = [new.rip, new.fs_base, new.gs_base];
        if addresses.iter().any(|address| *address >= USER_END) {
            return Err(refused(
                "an address of the kernel cannot be in RIP, FS or GS",
            ));
        }
        let is_held = self.held_signal().is_some_and(|(held, _)| held == thread);
        let holding = self.replay.current_number().filter(|_| is_held);
        if let Some(number) = executing.or(holding)
            && let Some(mut state) = self.replay.processor(number).map(|cpu| cpu.state())
        {
            self.replay.depart();
            if is_held {
                self.write_frame(task, new).map_err(fatal)?;
            }
            set_registers(&mut state, new, executing.is_some());
            self.replay.change_state(number, &state);
            return Ok(());
        }
        // Outside of a system call it was interrupted, and continues with what it has saved.
        if old.is_in_system_call() {
            return Err(refused(format!(
                "{thread} is in a system call, so that its registers cannot be changed"
            )));
        }
        let is_same = |a: &Registers| (a.fs_base, a.gs_base, a.fxsave.clone(), a.avx.clone());
        if is_same(new) != is_same(&old) {
            return Err(refused(format!(
                "the processor does not execute {thread}: only its general registers can be changed"
            )));
        }
        self.replay.depart();
        self.write_frame(task, new).map_err(fatal)
    }

    /// Writes the general registers, RIP and flags of a task where its entry has saved them.
    fn write_frame(
        &mut self,
        task: Task,
        registers: &Registers,
    ) -> std::result::Result<(), Failure> {
        let tasks = self.tasks()?;
        let frame = tasks.frame_with(task, registers);
        let place = frame.and_then(|(address, words)| {
            let cpu = self.replay.cpu()?;
            // The stacks of tasks are aligned to their size.
            Some((cpu.translate_quietly(address)?, words))
        });
        let Some((place, words)) = place else {
            return Ok(());
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        debug_assert_eq!(bytes.len(), 8 * FRAME_WORDS);
        self.replay.machine.write_memory(place, &bytes)
    }
}

/// Puts registers into the state of a processor. `is_in_user_mode` is false if they are those of a
/// program for which the processor executes the kernel: memory has its general ones then.
pub(crate) fn set_registers(state: &mut ArchState, new: &Registers, is_in_user_mode: bool) {
    state.seg[FS].base = new.fs_base;
    if is_in_user_mode {
        state.gpr = new.general;
        state.rip = new.rip;
        state.rflags = new.rflags;
        state.seg[GS].base = new.gs_base;
    } else {
        state.msr.kernel_gs_base = new.gs_base;
    }
    if let Some(registers) = &new.fxsave {
        set_fxsave(state, registers);
    }
    if let Some(Avx { ymmh }) = &new.avx {
        state.ymm_high = *ymmh;
    }
}

fn set_fxsave(state: &mut ArchState, new: &Fxsave) {
    let x87 = &mut state.x87;
    (x87.fcw, x87.fsw, x87.fop) = (new.fcw, new.fsw, new.fop);
    let is_used = |n: &u32| new.ftw >> (2 * n) & 3 != 3;
    x87.ftw = (0..8).filter(is_used).fold(0, |tags, n| tags | 1 << n);
    x87.fip = u64::from(new.fcs) << 32 | u64::from(new.fip);
    x87.fdp = u64::from(new.fds) << 32 | u64::from(new.fdp);
    let top = x87.top();
    for (n, value) in new.st.iter().enumerate() {
        let mut bytes = [0; 16];
        bytes[..10].copy_from_slice(value);
        x87.r[(top + n) & 7] = u128::from_le_bytes(bytes);
    }
    state.xmm = new.xmm;
    state.mxcsr = new.mxcsr & MXCSR_MASK;
}

/// Bits of MXCSR that are not reserved (SDM Vol. 1 10.2.3).
const MXCSR_MASK: u32 = 0xFFFF;
