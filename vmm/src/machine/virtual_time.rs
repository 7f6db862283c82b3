//! The loop for virtual time, which instructions advance.
//!
//! Several processors take turns: while one runs, time stands still for the others. So what one
//! does, with its time stamps, always comes before what the next one sees of it, as on a machine
//! whose processors are synchronised, and two runs are the same.
//!
//! Nothing that reaches the guest depends on the host's clock, but for input that was not there
//! when the guest asked for it, and signals.

use std::time::{Duration, Instant};

use vbts_cpu::{Exit, Signals};
use vbts_devices::{DirtyPages, lock};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MmapRegion};

use super::{End, MAX_SLEEPS_WITH_INTERRUPTS_OFF, Machine, RunObserver};
use crate::exit::Failure;
use crate::host::input;

const PAGE: u64 = 4096;
/// How long a processor's turn is while others want to run, in ns: far less than any timeout of the
/// kernel's, and enough to be worth a turn.
const TURN: u64 = 20_000;

/// Whose turn it is.
#[derive(Debug, Clone, Copy)]
struct Turn {
    cpu: usize,
    ends: u64,
}

impl Machine {
    pub(super) fn run_on_virtual_time(
        &mut self,
        observer: &mut dyn RunObserver,
    ) -> Result<End, Failure> {
        // The last file is open and the last thread has been started.
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.enter()?;
        }
        let mut sleeps_with_interrupts_off = 0;
        let mut turn = Turn { cpu: 0, ends: 0 };
        loop {
            let deadline = self.board.next_deadline().unwrap_or(u64::MAX);
            let exit = self.run_turn(&mut turn, deadline)?;
            match exit {
                Exit::Shutdown => return Err(self.witness().shut_down()),
                Exit::Kick => self.witness().take_events(observer)?,
                Exit::Halt { interrupts_off } => {
                    if interrupts_off {
                        sleeps_with_interrupts_off += 1;
                        if sleeps_with_interrupts_off > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                            return Err(self.witness().halted_for_ever());
                        }
                    }
                    self.sleep(observer, interrupts_off)?;
                }
                Exit::Pause => {
                    turn.ends = self.now;
                    sleeps_with_interrupts_off = 0;
                }
                Exit::Deadline | Exit::Bus | Exit::Init => sleeps_with_interrupts_off = 0,
            }
            if exit != Exit::Bus {
                lock(&self.console).flush();
            }
            self.board.tick(self.now);
            if exit != Exit::Kick {
                observer.after_exit(&self.board, self.now)?;
            }
            if self.board.take_dma() {
                self.forget_overwritten_code();
            }
            if let Some(end) = self.witness().ended()? {
                return Ok(end);
            }
        }
    }

    /// Runs the processor whose turn it is. [`Exit::Halt`]: all of them sleep.
    fn run_turn(&mut self, turn: &mut Turn, deadline: u64) -> Result<Exit, Failure> {
        let count = self.vcpus.len();
        let limit = if count == 1 {
            deadline
        } else {
            if self.now >= turn.ends || !self.wants_to_run(turn.cpu) {
                let others = (1..=count).map(|n| (turn.cpu + n) % count);
                turn.cpu = others
                    .into_iter()
                    .find(|cpu| self.wants_to_run(*cpu))
                    .unwrap_or(turn.cpu);
                turn.ends = self.now + TURN;
            }
            deadline.min(turn.ends)
        };
        let Some(vcpu) = self.vcpus.get_mut(turn.cpu) else {
            return Err(anyhow::anyhow!("the machine has no processor").into());
        };
        vcpu.soft_mut().advance_to(self.now);
        let began = self.timed.map(|_| Instant::now());
        let exit = vcpu.run(limit)?;
        if let (Some(timed), Some(began)) = (&mut self.timed, began) {
            timed.processors += began.elapsed();
        }
        self.now = vcpu.soft().cpu.now();
        let rip = vcpu.soft().cpu.rip;
        tracing::trace!(
            now = self.now,
            cpu = turn.cpu,
            ?exit,
            rip = format_args!("{rip:#x}")
        );
        let Exit::Halt { interrupts_off } = exit else {
            return Ok(exit);
        };
        if (0..count).any(|cpu| self.wants_to_run(cpu)) {
            return Ok(Exit::Deadline);
        }
        let deaf = |vcpu: &crate::vcpu::Vcpu| vcpu.deaf();
        Ok(Exit::Halt {
            interrupts_off: interrupts_off && self.vcpus.iter().all(deaf),
        })
    }

    fn wants_to_run(&self, cpu: usize) -> bool {
        let kicked = self
            .board
            .signals()
            .get(cpu)
            .is_some_and(|signals| signals.get() & Signals::KICK != 0);
        kicked || self.vcpus.get(cpu).is_some_and(|vcpu| !vcpu.asleep())
    }

    /// The processors sleep: time passes until the next deadline, or until input comes that the
    /// guest waits for.
    fn sleep(
        &mut self,
        observer: &mut dyn RunObserver,
        interrupts_off: bool,
    ) -> Result<(), Failure> {
        let (now, deadline) = (self.now, self.board.next_deadline());
        let awaited = !observer.awaited_inputs().is_empty() && !interrupts_off;
        match deadline {
            Some(deadline) if !awaited => self.now = deadline,
            None if !awaited => return Err(self.witness().nothing_can_wake_it()),
            _ => {
                observer.idle()?;
                let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
                let began = Instant::now();
                let mut awaited = observer.awaited_inputs();
                let woken = awaited.is_empty() || {
                    awaited.push(self.alarm.fd());
                    input::wait(&awaited, limit)?
                };
                self.witness().take_events(observer)?;
                let slept = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let until = if woken {
                    now.saturating_add(slept)
                } else {
                    u64::MAX
                };
                self.now = until.min(deadline.unwrap_or(now.saturating_add(slept)));
            }
        }
        Ok(())
    }

    /// Devices have written memory: what the processors keep of those pages is stale.
    fn forget_overwritten_code(&mut self) {
        for region in self.memory.iter() {
            let first = region.start_addr().0 / PAGE;
            // The mapping's own bitmap; the trait has a view of it only, which cannot be taken as a
            // whole.
            let mapping: &MmapRegion<DirtyPages> = region;
            mapping.bitmap().take(|page| {
                let gpa = (first + page) * PAGE;
                for vcpu in &mut self.vcpus {
                    vcpu.soft_mut().invalidate_page(gpa);
                }
            });
        }
    }
}
