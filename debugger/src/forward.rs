//! Execution forward.

use std::ops::Range;

use vbts_cpu::{StopCause, StopPoints};
use vbts_gdb::{Stop, StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::{EventKind, Outcome};

/// Virtual time in ns that is executed between two looks for an interrupt by the user.
pub(crate) const SLICE: u64 = 2_000_000;
/// Instructions that are executed one by one between them.
const STEPS: usize = 1000;

impl Debugger {
    /// Executes for a short time, up to a stop.
    pub(crate) fn run_forward(&mut self) -> Result<Option<Stop>, Failure> {
        match self.stepped() {
            Some((thread, range)) => self.step_forward(thread, range.as_ref()),
            None => {
                let points = self.stop_points(false);
                let (outcome, stop) = self.run_slice(&points, None)?;
                Ok(match outcome {
                    Outcome::Stopped(causes) => {
                        self.accessed_by = causes.iter().find_map(|cause| match cause {
                            StopCause::Watchpoint { rip, .. } => Some(*rip),
                            _ => None,
                        });
                        self.stop_for(&causes)
                    }
                    _ => stop,
                })
            }
        }
    }

    /// Runs up to the next one of `points`, event or end, or behind the next step of `processor`,
    /// for a slice of time at most. Returns the stop of an event, too.
    fn run_slice(
        &mut self,
        points: &StopPoints,
        processor: Option<usize>,
    ) -> Result<(Outcome, Option<Stop>), Failure> {
        if self.replay.departure.is_some() {
            return self.run_departed(points, processor);
        }
        let now = self.replay.now();
        if now >= self.end {
            let stop = self.stop_here(StopReason::HistoryEnd);
            return Ok((Outcome::Ended, Some(stop)));
        }
        let event = match self.is_kernel_view {
            true => None,
            false => self.replay.next_event(self.process).cloned(),
        };
        let until = event.as_ref().map_or(self.end, |event| event.time);
        let until = until.min(self.end).min(now.saturating_add(SLICE));
        let outcome = self.replay.step(until, points, processor)?;
        let now = self.replay.now();
        let stop = match event {
            _ if matches!(outcome, Outcome::Stopped(_)) => None,
            Some(event) if event.time == now => {
                if matches!(event.kind, EventKind::Signal(..)) {
                    self.replay.forget_faults();
                }
                self.stop_for_event(&event)
            }
            _ => None,
        };
        let is_end = match outcome {
            Outcome::Ended => true,
            Outcome::Paused => now >= self.end,
            Outcome::Stopped(_) | Outcome::Stepped => false,
        };
        let stop = stop.or_else(|| is_end.then(|| self.stop_here(StopReason::HistoryEnd)));
        Ok((outcome, stop))
    }

    /// Executes an instruction of `thread`, or its instructions in `range`. In the kernel's view,
    /// the delivery of an event counts as one.
    fn step_forward(
        &mut self,
        thread: ThreadId,
        range: Option<&Range<u64>>,
    ) -> Result<Option<Stop>, Failure> {
        for _ in 0..STEPS {
            let Some(processor) = self.processor_of(thread) else {
                return self.return_to(thread, range);
            };
            let (began, before) = (self.replay.now(), self.registers_on(processor));
            let points = self.stop_points(false);
            let (outcome, stop) = self.run_slice(&points, Some(processor))?;
            let stop = match &outcome {
                Outcome::Stopped(causes) => self.stop_for(causes),
                _ => stop,
            };
            if stop.is_some() {
                self.interrupted = None;
                return Ok(stop);
            }
            let [last, _] = self.replay.last_steps(processor);
            if last.is_none_or(|last| last < began) {
                // It waits for its turn, or for an event that wakes it.
                return Ok(None);
            }
            if self.processor_of(thread) != Some(processor) {
                self.interrupted = before;
            } else if self.has_left(processor, range) {
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
        if self.interrupted.is_none() {
            self.interrupted = self.interrupted_registers(thread);
        }
        let points = self.stop_points(true);
        let (outcome, stop) = self.run_slice(&points, None)?;
        let stop = match &outcome {
            Outcome::Stopped(causes) => self.stop_for(causes),
            _ => stop,
        };
        if stop.is_some() {
            self.interrupted = None;
            return Ok(stop);
        }
        let Some(processor) = self.processor_of(thread) else {
            return Ok(None);
        };
        let interrupted = self.interrupted.take();
        if interrupted.is_some() && interrupted == self.registers_on(processor) {
            return Ok(None);
        }
        let has_left = self.has_left(processor, range);
        Ok(has_left.then(|| self.stepped_stop(thread)))
    }

    fn stepped_stop(&self, thread: ThreadId) -> Stop {
        Stop {
            thread,
            reason: StopReason::Step,
        }
    }

    fn has_left(&self, processor: usize, range: Option<&Range<u64>>) -> bool {
        let cpu = self.replay.processor(processor);
        let rip = cpu.map(|cpu| cpu.linear_ip(cpu.rip));
        range.is_none_or(|range| rip.is_none_or(|rip| !range.contains(&rip)))
    }

    /// RIP and the general registers of a thread that no processor executes, because an interrupt
    /// or an exception has come. `None`: it is in a system call, whose end is a step.
    fn interrupted_registers(&self, thread: ThreadId) -> Option<(u64, [u64; 16])> {
        let registers = self.registers_of(thread)?;
        (!registers.is_in_system_call()).then_some((registers.rip, registers.general))
    }

    /// RIP and the general registers of a processor.
    fn registers_on(&self, processor: usize) -> Option<(u64, [u64; 16])> {
        let cpu = self.replay.processor(processor)?;
        Some((cpu.rip, cpu.state().gpr))
    }
}
