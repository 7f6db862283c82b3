//! The opening of a session: where the debugged process begins and ends, and the position that the
//! user sees first.

use anyhow::anyhow;
use vbts_cpu::state::{ArchState, gpr};
use vbts_cpu::{Breakpoint, StopPoints};
use vbts_gdb::{Stop, StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::calls::Transfer;
use crate::debugger::Debugger;
use crate::processes::Process;
use crate::replay::{EventKind, Outcome};

/// The name of the entry point in an auxiliary vector.
const AT_ENTRY: u64 = 9;
/// Instructions from the entry point to the first call at most, with those that are repeated.
const MAX_ENTRY_CODE: usize = 200;
/// Bytes of a program at most, as far as its `main` is looked for.
const MAX_PROGRAM: u64 = 1 << 31;
/// Bytes of the kernel's description of an address space in which that vector is looked for.
const MAX_MM: usize = 4096;
/// Arguments and variables of the environment of a program, at most.
const MAX_STRINGS: u64 = 1 << 16;

impl Debugger {
    /// Goes to where the process that `name` selects has crashed, or else to `main`, or to the
    /// first instruction. Without a name it is the first process that has crashed, or else the
    /// first.
    pub(crate) fn open_process(&mut self, name: Option<&str>) -> Result<(), Failure> {
        let processes = &self.replay.agent.processes;
        let selected = processes.select(name).map_err(|error| anyhow!(error))?;
        let (begin, process) = (selected.begin(), &selected.process.clone());
        self.programs = selected.programs();
        (self.process, self.start) = (process.id, process.start);
        self.stop.thread = ThreadId {
            process: process.id,
            thread: process.id,
        };
        self.find_auxiliary_of_first()?;
        self.find_end(process, begin);
        self.begin = self.enter_program(process.id, begin)?;
        self.replay.agent.shown = self.begin;
        let crash = self.crash_of(process);
        self.crash = crash.map(|(time, ..)| time);
        if let Some((time, thread, signal)) = crash.filter(|(time, ..)| self.program_at(*time) == 0)
        {
            self.replay.seek(time)?;
            self.stop = Stop {
                thread,
                reason: StopReason::Signal(signal),
            };
            return Ok(());
        }
        match process.has_program() {
            true => self.go_to_main(),
            false => Ok(()),
        }
    }

    /// Finds where the process, which is debugged from `begin` on, ends: at its call of
    /// `exit_group`, at the end of the thread that has crashed, or when its last thread ends.
    pub(crate) fn find_end(&mut self, process: &Process, begin: u64) {
        let crash = process.crash.map(|(thread, _)| thread);
        let until = process.end_time().unwrap_or(u64::MAX);
        let exits = self
            .replay
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Exit { of_process }
                    if event.thread.process == process.id
                        && (begin..until).contains(&event.time) =>
                {
                    let is_first = of_process || crash == Some(event.thread.thread);
                    Some((event.time, is_first))
                }
                _ => None,
            });
        let exits: Vec<(u64, bool)> = exits.collect();
        let first = exits.iter().find(|(_, is_first)| *is_first);
        let end = first.or(exits.last()).map(|(time, _)| *time);
        self.end = end.unwrap_or(self.replay.end);
    }

    /// Goes to the first instruction that `process` executes from `begin` on, a virtual time in ns,
    /// and notes whether that is 32-bit code. Returns the time of the instruction.
    fn enter_program(&mut self, process: u32, begin: u64) -> Result<u64, Failure> {
        self.replay.seek(begin)?;
        loop {
            let tasks = self.tasks()?;
            let entered = tasks.in_user_mode();
            if entered.is_some_and(|thread| thread.process == process) {
                break;
            }
            let leader = tasks.leader(process);
            let points = StopPoints {
                user_mode_of: leader.and_then(|task| tasks.space(task)),
                ..StopPoints::default()
            };
            let outcome = self.replay.run(self.replay.end, &points)?;
            if !matches!(outcome, Outcome::Stopped(_)) {
                return Err(anyhow!("the process has executed nothing").into());
            }
        }
        if let Some(thread) = self.current_thread() {
            self.note_width(thread);
        }
        Ok(self.replay.now())
    }

    /// The signal that has ended the process, if it has crashed in the session: the last one before
    /// that, its position, the thread and its number.
    pub(crate) fn crash_of(&self, process: &Process) -> Option<(u64, ThreadId, u8)> {
        let (thread, crash) = process.crash.filter(|(_, time)| *time >= self.begin)?;
        let mut signals = self
            .replay
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Signal(signal, _) => Some((event.time, event.thread, signal)),
                _ => None,
            });
        signals.rfind(|(time, id, _)| *time <= crash && id.thread == thread)
    }

    /// Goes to `main`. The code at the entry point, which is the C library's, passes its address to
    /// the first function that it calls, in RDI (`__libc_start_main`). A program without such code
    /// stays at its first instruction.
    fn go_to_main(&mut self) -> Result<(), Failure> {
        if let (Some(entry), Some(space)) = (self.entry_point(), self.space())
            && self.run_to(entry, Some(space))?
            && let Some(main) = self.passed_main(entry, space)?
            && self.run_to(main, Some(space))?
        {
            return Ok(());
        }
        self.replay.seek(self.begin)
    }

    /// Runs to a breakpoint in the address space `space`, or in all. Returns whether it is reached.
    pub(crate) fn run_to(&mut self, address: u64, space: Option<u64>) -> Result<bool, Failure> {
        let points = StopPoints {
            breakpoints: vec![Breakpoint { address, space }],
            ..StopPoints::default()
        };
        Ok(matches!(
            self.replay.run(self.end, &points)?,
            Outcome::Stopped(_)
        ))
    }

    /// The address in RDI, if that is one of the program with this entry point, at the first call
    /// from here on.
    fn passed_main(&mut self, entry: u64, space: u64) -> Result<Option<u64>, Failure> {
        for _ in 0..MAX_ENTRY_CODE {
            let thread = self.tasks()?.in_user_mode();
            let Some(thread) = thread.filter(|thread| thread.process == self.process) else {
                let points = StopPoints {
                    user_mode_of: Some(space),
                    ..StopPoints::default()
                };
                self.replay.run(self.end, &points)?;
                continue;
            };
            let Some(cpu) = self.replay.cpu() else {
                return Ok(None);
            };
            if self.transfer_at(thread, cpu.rip) == Transfer::Call {
                let state = cpu.state();
                let passed = self.first_argument(&state, space);
                let is_near = passed.abs_diff(entry) < MAX_PROGRAM && passed != entry;
                return Ok(is_near.then_some(passed));
            }
            let next = self.replay.now() + 1;
            self.replay.run(next, &StopPoints::default())?;
        }
        Ok(None)
    }

    /// The first argument of a call that is about to be made.
    fn first_argument(&self, state: &ArchState, space: u64) -> u64 {
        if !self.is_32_bit {
            return state.gpr[gpr::RDI];
        }
        let mut bytes = [0; 4];
        if let Some(tasks) = self.replay.tasks() {
            tasks.read(space, state.gpr[gpr::RSP], &mut bytes);
        }
        u32::from_le_bytes(bytes).into()
    }

    /// The entry point of the program.
    pub(crate) fn entry_point(&self) -> Option<u64> {
        let auxiliary = self.read_auxiliary()?;
        let mut pairs = auxiliary.chunks_exact(2 * self.word_size());
        pairs.find_map(|pair| {
            let (name, value) = pair.split_at_checked(self.word_size())?;
            (number(name) == AT_ENTRY).then(|| number(value))
        })
    }

    /// Looks at the stack of the first process, whose program begins, for its auxiliary vector.
    fn find_auxiliary_of_first(&mut self) -> Result<(), Failure> {
        let first = self.replay.agent.processes.first();
        if let Some((id, start)) = first.map(|process| (process.id, process.start)) {
            self.enter_program(id, start)?;
            self.auxiliary = self.find_auxiliary();
        }
        Ok(())
    }

    /// Offset of `saved_auxv` in `struct mm_struct`: the auxiliary vector is on the stack of a
    /// program that begins, behind its arguments and its environment, and there once more.
    fn find_auxiliary(&self) -> Option<u64> {
        let tasks = self.replay.tasks()?;
        let current = tasks.current()?;
        let space = tasks.space(current)?;
        let size = self.word_size();
        let word = |address: u64| {
            let mut bytes = vec![0; size];
            let read = tasks.read(space, address, &mut bytes);
            (read == size).then(|| number(&bytes))
        };
        let size = size as u64;
        let mut at = tasks.registers(current)?.general[gpr::RSP];
        let arguments = word(at)?.min(MAX_STRINGS);
        at = at.wrapping_add(size * (arguments + 2));
        for _ in 0..MAX_STRINGS {
            let variable = word(at)?;
            at = at.wrapping_add(size);
            if variable == 0 {
                break;
            }
        }
        let mut vector = vec![0; 8 * self.word_size()];
        if tasks.read(space, at, &mut vector) != vector.len() {
            return None;
        }
        let mut mm = vec![0; MAX_MM];
        tasks.read_kernel(tasks.mm(current)?, &mut mm);
        let found = mm.chunks_exact(8).enumerate().find(|(n, _)| {
            let here = mm.get(8 * n..8 * n + vector.len());
            here == Some(&vector[..])
        });
        found.map(|(n, _)| 8 * n as u64)
    }
}

/// The number in the bytes of a word.
fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
}
