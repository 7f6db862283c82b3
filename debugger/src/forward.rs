//! Execution forward.

use std::ops::Range;

use vbts_cpu::StopCause;
use vbts_gdb::{Stop, StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::{EventKind, Outcome};

/// Virtual time in ns that is executed between two looks for an interrupt by the user.
const SLICE: u64 = 2_000_000;
/// Instructions that are executed one by one between them.
const STEPS: usize = 1000;

impl Debugger {
    /// Executes for a short time, up to a stop.
    pub(crate) fn run_forward(&mut self) -> Result<Option<Stop>, Failure> {
        match self.stepped() {
            Some((thread, range)) => self.step_forward(thread, range.as_ref()),
            None => {
                let (outcome, stop) = self.run_slice(false)?;
                Ok(match outcome {
                    Outcome::Stopped(causes) => self.stop_for(&causes),
                    Outcome::Paused | Outcome::Ended => stop,
                })
            }
        }
    }

    /// Runs up to the next stop point, event or end, for a slice of time at most. Returns the stop
    /// of an event, too.
    fn run_slice(&mut self, with_user_mode: bool) -> Result<(Outcome, Option<Stop>), Failure> {
        let now = self.replay.now();
        if now >= self.end {
            let stop = self.stop_here(StopReason::HistoryEnd);
            return Ok((Outcome::Ended, Some(stop)));
        }
        let event = self.replay.next_event(self.process).cloned();
        let until = event.as_ref().map_or(self.end, |event| event.time);
        let until = until.min(self.end).min(now.saturating_add(SLICE));
        let points = self.stop_points(with_user_mode);
        let outcome = self.replay.run(until, &points)?;
        let now = self.replay.now();
        let stop = match event {
            _ if matches!(outcome, Outcome::Stopped(_)) => None,
            Some(event) if event.time == now => match event.kind {
                EventKind::Signal(signal, _) => {
                    self.replay.forget_faults();
                    let is_passed = self.passed_signals >> (signal - 1) & 1 != 0;
                    (!is_passed).then_some(Stop {
                        thread: event.thread,
                        reason: StopReason::Signal(signal),
                    })
                }
                EventKind::Exec | EventKind::Exit { .. } => None,
            },
            _ => None,
        };
        let is_end = outcome == Outcome::Ended || outcome == Outcome::Paused && now >= self.end;
        let stop = stop.or_else(|| is_end.then(|| self.stop_here(StopReason::HistoryEnd)));
        Ok((outcome, stop))
    }

    /// Executes an instruction of `thread`, or its instructions in `range`.
    fn step_forward(
        &mut self,
        thread: ThreadId,
        range: Option<&Range<u64>>,
    ) -> Result<Option<Stop>, Failure> {
        for _ in 0..STEPS {
            if self.tasks()?.in_user_mode() != Some(thread) {
                return self.return_to(thread, range);
            }
            let before = self.user_registers();
            let points = self.stop_points(false);
            let outcome = self.replay.run(self.replay.now() + 1, &points)?;
            if let Outcome::Stopped(causes) = &outcome
                && let Some(stop) = self.stop_for(causes)
            {
                self.interrupted = None;
                return Ok(Some(stop));
            }
            if self.tasks()?.in_user_mode() != Some(thread) {
                self.interrupted = before;
            } else if self.has_left(range) {
                return Ok(Some(self.stepped_stop(thread)));
            }
        }
        Ok(None)
    }

    /// Runs until `thread` is back in user mode. An instruction at which an interrupt or an
    /// exception has come is then repeated.
    fn return_to(
        &mut self,
        thread: ThreadId,
        range: Option<&Range<u64>>,
    ) -> Result<Option<Stop>, Failure> {
        let (outcome, stop) = self.run_slice(true)?;
        if stop.is_some() {
            self.interrupted = None;
            return Ok(stop);
        }
        let Outcome::Stopped(causes) = outcome else {
            return Ok(None);
        };
        if let Some(stop) = self.stop_for(&causes) {
            self.interrupted = None;
            return Ok(Some(stop));
        }
        let is_back = causes.contains(&StopCause::EntersUserMode)
            && self.tasks()?.in_user_mode() == Some(thread);
        if !is_back {
            return Ok(None);
        }
        let interrupted = self.interrupted.take();
        if interrupted.is_some() && interrupted == self.user_registers() {
            return Ok(None);
        }
        Ok(self.has_left(range).then(|| self.stepped_stop(thread)))
    }

    fn stepped_stop(&self, thread: ThreadId) -> Stop {
        Stop {
            thread,
            reason: StopReason::Step,
        }
    }

    fn has_left(&self, range: Option<&Range<u64>>) -> bool {
        let rip = self.replay.cpu().map(|cpu| cpu.rip);
        range.is_none_or(|range| rip.is_none_or(|rip| !range.contains(&rip)))
    }

    /// RIP and the general registers of the processor.
    fn user_registers(&self) -> Option<(u64, [u64; 16])> {
        let cpu = self.replay.cpu()?;
        Some((cpu.rip, cpu.state().gpr))
    }
}
