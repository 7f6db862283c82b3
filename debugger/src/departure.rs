//! The future of a program that was changed, by a write to its memory or its registers, or by a
//! call that the client makes.
//!
//! The machine goes on from there without a comparison with the recording. It gets inputs of the
//! recording as long as it asks for the same ones in the same order, and ends where it asks for
//! another one. Snapshots of it do not exist: a jump to another time, or a step backward, drops it.
//!
//! The recorded events of the program do not come there. The debugger takes the place of the
//! program's tracer, and sees the signals of the process where they wait for that.

use vbts_cpu::state::{ArchState, gpr};
use vbts_cpu::{Breakpoint, StopCause, StopPoints};
use vbts_gdb::{Stop, StopReason, ThreadAction, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::forward::SLICE;
use crate::replay::{EXIT_GROUP, Outcome, Replay};
use crate::tracer_stop::TracerStop;

/// The future of a program that was changed.
#[derive(Debug)]
pub(crate) struct Departure {
    /// Virtual time in ns of the first change.
    pub from: u64,
    /// The agent's [`shown`](crate::agent::Agent::shown) at that time.
    shown: u64,
    /// The processor that the client has put at another instruction since the last run.
    moved: Option<usize>,
    /// Why it goes no further.
    pub end: Option<String>,
}

impl Replay {
    /// Leaves the recorded run, which the program is about to be changed in.
    pub(crate) fn depart(&mut self) {
        if self.departure.is_some() {
            return;
        }
        self.history.leave(&self.machine);
        let from = self.now();
        self.departure = Some(Departure {
            from,
            shown: self.agent.shown,
            moved: None,
            end: None,
        });
        self.agent.say(&format!(
            "The program was changed at {from} ns. What it does from here on is not recorded, and \
             is dropped when you go back or to another time.\n"
        ));
    }

    /// Departs with other registers of a processor. It stops at a breakpoint to which they put it.
    pub(crate) fn change_state(&mut self, number: usize, state: &ArchState) {
        self.depart();
        let rip = self.processor(number).map(|cpu| cpu.rip);
        if rip != Some(state.rip) {
            // One at which it has stopped counts as passed until the stop points are set again.
            self.points = None;
            if let Some(departure) = &mut self.departure {
                departure.moved = Some(number);
            }
        }
        self.machine.set_state(number, state);
    }

    /// Has `processor` not stop at the breakpoint at which it is, unless the client has put it
    /// there.
    pub(crate) fn leave_breakpoint(&mut self, processor: Option<usize>) {
        let departure = self.departure.as_mut();
        let moved = departure.and_then(|departure| departure.moved.take());
        self.leaves = processor.filter(|number| moved != Some(*number));
    }

    /// The replay is about to be put at another time.
    pub(crate) fn end_departure(&mut self) {
        if let Some(departure) = self.departure.take() {
            self.agent.shown = departure.shown;
            self.agent.say(&format!(
                "The change at {} ns is dropped: the program is again that of the recorded run.\n",
                departure.from
            ));
        }
    }

    /// Returns whether the program goes no further.
    pub(crate) fn is_at_end(&self) -> bool {
        match &self.departure {
            Some(departure) => departure.end.is_some(),
            None => self.now() >= self.end,
        }
    }
}

impl Debugger {
    /// Goes back to where the program was changed, and drops the change. Returns whether there was
    /// one.
    pub(crate) fn drop_departure(&mut self) -> Result<bool, Failure> {
        let Some(departure) = &self.replay.departure else {
            return Ok(false);
        };
        let from = departure.from;
        self.replay.seek(from)?;
        Ok(true)
    }

    /// As [`Self::run_slice`], for a program that was changed.
    pub(crate) fn run_departed(
        &mut self,
        points: &StopPoints,
        processor: Option<usize>,
    ) -> Result<(Outcome, Option<Stop>), Failure> {
        let mut points = points.clone();
        let tracer = self.replay.ptrace_stop();
        if !self.is_kernel_view {
            points.breakpoints.push(Breakpoint {
                address: tracer,
                space: None,
            });
        }
        let until = self.replay.now().saturating_add(SLICE);
        let outcome = self.replay.step(until, &points, processor)?;
        if let Outcome::Stopped(causes) = &outcome
            && !self.is_kernel_view
            && causes.contains(&StopCause::Breakpoint { address: tracer })
        {
            let stop = self.stop_for_tracer();
            return Ok((Outcome::Paused, stop));
        }
        let ended = (outcome == Outcome::Ended).then(|| {
            let why = self.replay.departure.as_ref();
            let why = why.and_then(|departure| departure.end.clone());
            let why = why.unwrap_or_else(|| "the recording ends".into());
            self.replay
                .agent
                .say(&format!("The changed program goes no further: {why}.\n"));
            self.stop_here(StopReason::HistoryEnd)
        });
        Ok((outcome, ended))
    }

    /// The stop of the current task for its tracer, if it is one for the client.
    fn stop_for_tracer(&mut self) -> Option<Stop> {
        if let Some((thread, signal)) = self.held_signal() {
            if self.is_passed(signal) || self.stopped_threads.contains(&thread) {
                self.answer_for_tracer(signal);
                return None;
            }
            return Some(Stop {
                thread,
                reason: StopReason::Signal(signal),
            });
        }
        let tasks = self.replay.tasks()?;
        let thread = tasks.current().and_then(|task| tasks.id(task))?;
        let Some(TracerStop::Exit(status)) = TracerStop::of(self.replay.cpu()?, &tasks) else {
            return None;
        };
        let is_killed = status & 0x7F != 0;
        let is_last = is_killed
            || tasks.current_call() == Some(EXIT_GROUP)
            || tasks.threads(self.process).len() == 1;
        if thread.process != self.process || !is_last {
            return None;
        }
        if let Some(departure) = &mut self.replay.departure {
            departure.end = Some("it exits here".into());
        }
        // The next run says so.
        None
    }

    /// The signal that the current thread of the process waits for its tracer with.
    pub(crate) fn held_signal(&self) -> Option<(ThreadId, u8)> {
        let (tasks, cpu) = (self.replay.tasks()?, self.replay.cpu()?);
        if cpu.cpl == 3 || cpu.rip != self.replay.ptrace_stop() {
            return None;
        }
        let thread = tasks.current().and_then(|task| tasks.id(task))?;
        match TracerStop::of(cpu, &tasks)? {
            TracerStop::Signal(signal, _) if thread.process == self.process => {
                Some((thread, signal))
            }
            _ => None,
        }
    }

    /// Has the kernel's `ptrace_stop` return `signal`, which the thread then receives, or none if
    /// that is 0. Its real tracer, the agent, does not learn of it.
    pub(crate) fn answer_for_tracer(&mut self, signal: u8) {
        let Some(mut state) = self.replay.cpu().map(|cpu| cpu.state()) else {
            return;
        };
        let mut address = [0; 8];
        let stack = state.gpr[gpr::RSP];
        let cpu = self.replay.cpu();
        if cpu.is_none_or(|cpu| !cpu.read_quietly(stack, &mut address)) {
            return;
        }
        state.rip = u64::from_le_bytes(address);
        state.gpr[gpr::RSP] = stack.wrapping_add(8);
        state.gpr[gpr::RAX] = signal.into();
        if let Some(number) = self.replay.current_number() {
            self.replay.machine.set_state(number, &state);
        }
    }

    /// Resumes a changed program with the signal that the client gives to the thread that waits
    /// with one.
    pub(crate) fn resume_departed(&mut self, threads: &[(ThreadId, ThreadAction)]) {
        if self.replay.departure.is_none() || self.is_kernel_view {
            return;
        }
        let Some((waiting, _)) = self.held_signal() else {
            return;
        };
        let action = threads.iter().find(|(thread, _)| *thread == waiting);
        let signal = match action {
            Some((_, ThreadAction::Continue { signal } | ThreadAction::Step { signal })) => *signal,
            _ => 0,
        };
        self.answer_for_tracer(signal);
    }
}
