//! Events of the program that stop it for the client: signals, forks, execs and system calls.

use vbts_cpu::Breakpoint;
use vbts_gdb::{Stop, StopReason, SyscallBoundary, SyscallFilter, ThreadId};

use crate::debugger::Debugger;
use crate::replay::{EventKind, TaskEvent};

impl Debugger {
    /// Returns whether a signal, from 1 on, does not stop the process.
    pub(crate) fn is_passed(&self, signal: u8) -> bool {
        self.passed_signals >> (signal - 1) & 1 != 0
    }

    /// The stop for an event, if the client is to know of it.
    pub(crate) fn stop_for_event(&self, event: &TaskEvent) -> Option<Stop> {
        let child = |process| ThreadId {
            process,
            thread: process,
        };
        let reason = match event.kind {
            EventKind::Signal(signal, _) => {
                (!self.is_passed(signal)).then_some(StopReason::Signal(signal))?
            }
            EventKind::Fork(process) => StopReason::Fork {
                child: child(process),
            },
            EventKind::Vfork(process) => StopReason::Vfork {
                child: child(process),
            },
            EventKind::Exec => self.exec_reason(event.time)?,
            EventKind::Exit { .. } => return None,
        };
        Some(Stop {
            thread: event.thread,
            reason,
        })
    }

    /// The last event from `start` on and before `end`, virtual times in ns, that stops the client:
    /// its position, the thread and the reason.
    pub(crate) fn last_event(&self, start: u64, end: u64) -> Option<(u64, ThreadId, StopReason)> {
        let events = self.replay.events.iter().rev();
        let mut events = events
            .skip_while(|event| event.time >= end)
            .take_while(|event| event.time >= start)
            .filter(|event| event.thread.process == self.process);
        let found = events.find_map(|event| Some((event.time, self.stop_for_event(event)?)));
        found.map(|(time, stop)| (time, stop.thread, stop.reason))
    }

    /// The end of a vfork, which the client waits for after the vfork itself. Stop points are not
    /// in the memory that the child shares, so nothing has to be waited for.
    pub(crate) fn end_of_vfork(&self) -> Option<Stop> {
        let thread = self.stop.thread;
        matches!(self.stop.reason, StopReason::Vfork { .. }).then_some(Stop {
            thread,
            reason: StopReason::VforkDone,
        })
    }

    /// The breakpoints in the kernel for system calls that are caught in the address space `space`.
    pub(crate) fn call_breakpoints(&self, space: u64) -> Vec<Breakpoint> {
        let addresses = match self.caught_calls {
            SyscallFilter::None => None,
            _ => self.replay.system_call(),
        };
        let addresses = addresses.into_iter().flatten();
        addresses
            .map(|address| Breakpoint {
                address,
                space: Some(space),
            })
            .collect()
    }

    /// The system call at whose breakpoint the processor is, if that is caught.
    pub(crate) fn caught_call(&self, address: u64) -> Option<StopReason> {
        let [entry, _] = self
            .replay
            .system_call()
            .filter(|addresses| addresses.contains(&address))?;
        let number = u32::try_from(self.replay.tasks()?.current_call()?).ok()?;
        let is_caught = match &self.caught_calls {
            SyscallFilter::None => false,
            SyscallFilter::All => true,
            SyscallFilter::Numbers(numbers) => numbers.contains(&number),
        };
        let boundary = match address == entry {
            true => SyscallBoundary::Entry,
            false => SyscallBoundary::Return,
        };
        is_caught.then_some(StopReason::Syscall { number, boundary })
    }
}
