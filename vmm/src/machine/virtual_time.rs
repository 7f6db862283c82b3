//! The run loop on virtual time, which retired instructions advance.
//!
//! Several processors take turns. While one runs, time stands still for the others, so the effects
//! of one processor and its time stamps precede what the next one observes, and two runs are the
//! same.
//!
//! Nothing that the guest observes depends on the host's clock, except input that arrives after the
//! guest has asked for it, and signals. All of that is an input of the run ([`crate::inputs`]).
//!
//! An event of the host, such as a signal, interrupts a processor wherever it is. That has no
//! effect on the guest. It sets a virtual time soon after, at which the run loop stops as at a
//! deadline and handles the event, so that a replay can stop there, too.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vbts_cpu::Exit;
use vbts_devices::lock;

use super::end::MAX_SLEEPS_WITH_INTERRUPTS_OFF;
use super::{End, Machine, RunObserver};
use crate::board::MAX_DEADLINE;
use crate::vcpu::Vcpu;
use vbts_host::exit::Failure;

/// Length of a processor's turn in ns while others can run: far shorter than any timeout of the
/// kernel, and long enough to amortise a switch.
const TURN: u64 = 20_000;
/// Turns that a processor runs at once while no other can run. Their number bounds the time until
/// an event of the host is seen that has interrupted another processor.
const TURNS_ALONE: u64 = 50;
/// Time in ns from an event of the host to the stop at which it is handled.
const EVENT_DELAY: u64 = 1;

/// The position of the run loop: with the states of the processors and the devices it decides how
/// the machine continues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Schedule {
    /// Virtual time in ns.
    pub now: u64,
    /// The processor whose turn it is.
    cpu: usize,
    /// Virtual time in ns at which its turn ends.
    turn_ends: u64,
    /// Timer expiries in a row while all processors were halted with interrupts off.
    sleeps_with_interrupts_off: u32,
    /// The run of the processor that a pause, a stop or an event of the host has interrupted.
    interrupted: Option<Run>,
}

/// A run of a processor between two exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// Virtual time in ns at which it ends for other processors.
    limit: u64,
    /// No other processor could run when it began.
    is_alone: bool,
}

impl Schedule {
    /// The processor whose turn it is.
    pub(super) fn cpu(&self) -> usize {
        self.cpu
    }

    /// Whether the next step is certain to be one of `cpu`: its run is under way.
    pub(super) fn is_in_run_of(&self, cpu: usize) -> bool {
        let run = self.interrupted.filter(|run| run.limit > self.now);
        self.cpu == cpu && run.is_some()
    }

    /// Begins the turns that have followed the last one while its processor ran on alone: a turn
    /// ends at the same time as if each had been a run of its own.
    fn end_turns(&mut self) {
        let passed = self.now.saturating_sub(self.turn_ends);
        self.turn_ends += passed.next_multiple_of(TURN);
    }

    /// Whether the run loop of a machine with `processors` processors can be here.
    pub(super) fn is_possible(&self, processors: usize) -> bool {
        self.now < MAX_DEADLINE
            && self.turn_ends <= MAX_DEADLINE
            && self.cpu < processors
            && self.sleeps_with_interrupts_off <= MAX_SLEEPS_WITH_INTERRUPTS_OFF
            && self.interrupted.is_none_or(|run| run.limit >= self.now)
    }
}

impl Machine {
    /// Runs the guest until it ends the run, or until virtual time `pause` in ns, which an idle
    /// guest skips. Returns `None` in the latter case: the next call continues as if there had been
    /// no pause. A pause between two exits is none itself: devices and inputs do not notice it, and
    /// neither do they notice the end of a step.
    pub(super) fn run_on_virtual_time(
        &mut self,
        pause: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<End>, Failure> {
        self.confine()?;
        if self.schedule.now >= pause {
            return Ok(None);
        }
        loop {
            if self.inputs.is_replay() {
                self.event_at = self.inputs.next_stop();
                // Events of the host end a replay, and are no inputs.
                if self.alarm.has_pending() {
                    self.status().take_events(observer)?;
                }
            } else if self.alarm.has_pending() {
                self.expect_event();
            }
            let start = self.schedule.now;
            let exit = self.run_turn(self.next_deadline(), pause)?;
            let cpu = self.schedule.cpu;
            let has_stepped = self.steps.note(cpu, start, self.schedule.now);
            let stop = has_stepped.then_some(End::Stop);
            self.inputs.check()?;
            let Some(exit) = exit else {
                lock(&self.console).flush();
                return Ok(stop);
            };
            match exit {
                Exit::Shutdown => return Err(self.status().shut_down()),
                Exit::Stop => return Ok(Some(End::Stop)),
                Exit::Kick => {
                    if !self.inputs.is_replay() {
                        self.expect_event();
                    }
                    match stop {
                        Some(stop) => return Ok(Some(stop)),
                        None => continue,
                    }
                }
                Exit::Halt { interrupts_off } => {
                    if interrupts_off {
                        self.schedule.sleeps_with_interrupts_off += 1;
                        if self.schedule.sleeps_with_interrupts_off > MAX_SLEEPS_WITH_INTERRUPTS_OFF
                        {
                            return Err(self.status().halted_with_interrupts_off());
                        }
                    }
                    self.sleep(observer, interrupts_off)?;
                }
                Exit::Pause => {
                    self.schedule.turn_ends = self.schedule.now;
                    self.schedule.sleeps_with_interrupts_off = 0;
                }
                Exit::Deadline | Exit::Bus | Exit::Init => {
                    self.schedule.sleeps_with_interrupts_off = 0;
                }
            }
            if exit != Exit::Bus {
                lock(&self.console).flush();
            }
            let now = self.schedule.now;
            self.board.tick(now);
            self.inputs.exit(now, || self.progress());
            if self.event_at.take_if(|at| *at <= now).is_some() && !self.inputs.is_replay() {
                self.inputs.set_event(true);
                self.status().take_events(observer)?;
                self.inputs.set_event(false);
            }
            if self.inputs.are_over() {
                return Ok(Some(End::Recorded));
            }
            if observer.reads_log()
                && let Some(vcpu) = self.vcpus.get_mut(self.schedule.cpu)
            {
                vcpu.flush_log();
            }
            observer.after_exit(&self.board, now)?;
            self.inputs.check()?;
            if let Some(end) = self.status().ended()?.or(stop) {
                return Ok(Some(end));
            }
            if self.schedule.now >= pause {
                return Ok(None);
            }
        }
    }

    /// The virtual time in ns at which the run loop has to do something next.
    fn next_deadline(&self) -> u64 {
        let deadlines = [self.board.next_deadline(), self.event_at];
        deadlines.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Stops soon for an event of the host.
    fn expect_event(&mut self) {
        let at = self.schedule.now.saturating_add(EVENT_DELAY);
        self.event_at.get_or_insert(at);
    }

    /// Runs the processor that has its turn, up to `deadline` or `pause`, in ns. Returns `None` at
    /// the pause, unless that is an exit, too, and [`Exit::Halt`] only if all processors are
    /// halted.
    fn run_turn(&mut self, deadline: u64, pause: u64) -> Result<Option<Exit>, Failure> {
        let count = self.vcpus.len();
        let run = match self.schedule.interrupted.take() {
            Some(run) => run,
            None => self.begin_run(),
        };
        let limit = deadline.min(run.limit);
        let Some(vcpu) = self.vcpus.get_mut(self.schedule.cpu) else {
            return Err(anyhow::anyhow!("the machine has no processor").into());
        };
        let start = self.schedule.now;
        let pause = match self.steps.awaited == Some(self.schedule.cpu) {
            true => pause.min(start.saturating_add(1)),
            false => pause,
        };
        vcpu.soft_mut().advance_to(start);
        let began = self.host_time.map(|_| Instant::now());
        let exit = vcpu.run(limit.min(pause))?;
        if let (Some(time), Some(began)) = (&mut self.host_time, began) {
            time.executing += began.elapsed();
        }
        self.schedule.now = vcpu.soft().cpu.now();
        let is_pause = exit == Exit::Deadline && self.schedule.now < limit;
        // A halted processor that only the event has woken had no run.
        let had_run = self.schedule.now > start || !vcpu.is_idle();
        if is_pause || exit == Exit::Stop || exit == Exit::Kick && had_run {
            self.schedule.interrupted = Some(run);
        } else if run.is_alone {
            self.schedule.end_turns();
        }
        if is_pause {
            return Ok(None);
        }
        let rip = vcpu.soft().cpu.rip;
        tracing::trace!(
            now = self.schedule.now,
            cpu = self.schedule.cpu,
            ?exit,
            rip = format_args!("{rip:#x}")
        );
        let Exit::Halt { interrupts_off } = exit else {
            return Ok(Some(exit));
        };
        if (0..count).any(|cpu| self.can_run(cpu)) {
            return Ok(Some(Exit::Deadline));
        }
        Ok(Some(Exit::Halt {
            interrupts_off: interrupts_off && self.vcpus.iter().all(Vcpu::interrupts_masked),
        }))
    }

    /// Begins a run of the processor that has its turn.
    fn begin_run(&mut self) -> Run {
        let count = self.vcpus.len();
        let is_alone = count > 1 && self.begin_turn();
        let turn_ends = self.schedule.turn_ends;
        let limit = match count {
            1 => u64::MAX,
            // What lets another processor run is a deadline, or ends the run.
            _ if is_alone => turn_ends + (TURNS_ALONE - 1) * TURN,
            _ => turn_ends,
        };
        Run { limit, is_alone }
    }

    /// Gives the turn to the next processor that can run, if the last turn has ended. Returns
    /// whether no other can.
    fn begin_turn(&mut self) -> bool {
        let count = self.vcpus.len();
        let Schedule { now, cpu, .. } = self.schedule;
        if now >= self.schedule.turn_ends || !self.can_run(cpu) {
            let mut others = (1..=count).map(|n| (cpu + n) % count);
            let next = others.find(|cpu| self.can_run(*cpu)).unwrap_or(cpu);
            self.pass_log(cpu, next);
            self.schedule.cpu = next;
            self.schedule.turn_ends = now + TURN;
        }
        let cpu = self.schedule.cpu;
        let mut others = (1..count).map(|n| (cpu + n) % count);
        !others.any(|cpu| self.can_run(cpu))
    }

    /// Passes the log of branches, if there is one, from one processor to another.
    fn pass_log(&mut self, from: usize, to: usize) {
        if from != to
            && let Some(log) = self.vcpus.get_mut(from).and_then(Vcpu::detach_log)
            && let Some(vcpu) = self.vcpus.get_mut(to)
        {
            vcpu.attach_log(log);
        }
    }

    /// Whether processor `cpu` has an instruction to execute.
    fn can_run(&self, cpu: usize) -> bool {
        self.vcpus.get(cpu).is_some_and(|vcpu| !vcpu.is_idle())
    }

    /// Advances time, while all processors are halted, to the next deadline or to the arrival of
    /// input that the guest waits for.
    fn sleep(
        &mut self,
        observer: &mut dyn RunObserver,
        interrupts_off: bool,
    ) -> Result<(), Failure> {
        let (now, deadline) = (self.schedule.now, self.board.next_deadline());
        if let Some(until) = self.inputs.take_wait(now) {
            observer.idle()?;
            self.schedule.now = until;
            return Ok(());
        }
        let waits = self.event_at.is_none()
            && !interrupts_off
            && !self.inputs.is_replay()
            && !observer.awaited_inputs().is_empty();
        if !waits {
            if deadline.is_none() && self.event_at.is_none() {
                return Err(self.status().no_wakeup_source());
            }
            self.schedule.now = self.next_deadline().max(now);
            return Ok(());
        }
        observer.idle()?;
        self.inputs.flush();
        let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let began = Instant::now();
        let awaited = observer.awaited_inputs();
        let woken = awaited.is_empty() || !self.events.wait(&awaited, limit)?.timer;
        if self.alarm.is_pending() {
            self.expect_event();
        }
        let slept = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let until = if woken {
            now.saturating_add(slept)
        } else {
            u64::MAX
        };
        let until = until.min(deadline.unwrap_or(now.saturating_add(slept)));
        self.inputs.record_wait(now, until);
        self.schedule.now = until;
        if let Some(at) = &mut self.event_at {
            *at = until.saturating_add(EVENT_DELAY);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::board::VcpuPlatform;
    use crate::layout::LAPIC;
    use crate::machine::tests::{TestObserver, assembled, machine};
    use vbts_cpu::Platform;

    #[test]
    fn an_interrupted_wait_does_not_move_time_to_the_deadline() {
        let mut machine = machine(&assembled(|a| a.hlt()), None);
        let platform = VcpuPlatform::new(machine.board.clone(), 0);
        let lapic =
            |offset, value: u32| platform.mmio_write(0, LAPIC + offset, &value.to_le_bytes());
        // Enabled; timer vector 0x40, divided by 128: it expires after 550 s.
        lapic(0xF0, 0x1FF);
        lapic(0x320, 0x40);
        lapic(0x3E0, 0xA);
        lapic(0x380, u32::MAX);
        let deadline = machine.board.next_deadline().unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let mut observer = TestObserver::awaiting(reader);
        machine.events.waker().unwrap().wake();
        machine.sleep(&mut observer, false).unwrap();
        assert!(
            machine.schedule.now < deadline,
            "{} {deadline}",
            machine.schedule.now
        );
    }
}
