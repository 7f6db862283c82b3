//! The machine: processor, board and memory, and the loop that runs them on virtual time.
//!
//! Nothing that reaches the guest depends on the host's clock, but for input that was not there when the guest asked
//! for it, and signals.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vbts_cpu::Model;
use vbts_cpu::{Cpu, CpuState, Exit, SoftCpu};
use vbts_devices::{DirtyPages, Shared, lock};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MmapRegion};

use crate::board::Board;
use crate::console::Console;
use crate::exit::Failure;
use crate::host::{Alarm, Event, input};
use crate::memory::{self, GuestMemory};
use crate::sandbox::Sandbox;

/// Timer expiries that a processor with interrupts off may sleep through, waiting for an NMI, before it counts as dead.
const MAX_SLEEPS_WITH_INTERRUPTS_OFF: u32 = 64;

const PAGE: u64 = 4096;

/// How a guest has ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It wrote this status to the exit port.
    Status(u8),
    /// It reset the machine.
    Reset,
}

/// The host's part in a run: what reads the guest's output and gives it input.
pub trait Attendant {
    /// Called after each exit of the processor that is determined by virtual time.
    ///
    /// # Errors
    /// The run has to end.
    fn attend(&mut self, board: &Board, now: u64) -> Result<(), Failure>;

    /// Something happened outside.
    ///
    /// # Errors
    /// The run has to end.
    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure>;

    /// The input that the guest waits for, if it may still come.
    fn awaited_input(&self) -> Option<BorrowedFd<'_>>;

    /// The guest is idle and waits for input.
    ///
    /// # Errors
    /// The run has to end.
    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A machine with a guest in it.
#[derive(Debug)]
pub struct Machine {
    soft: SoftCpu,
    board: Arc<Board>,
    memory: GuestMemory,
    console: Shared<Console>,
    alarm: Arc<Alarm>,
    sandbox: Option<Sandbox>,
}

impl Machine {
    /// A machine whose processor is in `state`. `console` is where the board's serial port goes. `alarm` may end the
    /// run. The whole process enters `sandbox` as the run begins.
    pub fn new(
        model: &'static Model,
        board: Board,
        memory: GuestMemory,
        state: &CpuState,
        console: Shared<Console>,
        alarm: Arc<Alarm>,
        sandbox: Option<Sandbox>,
    ) -> Self {
        let signals = board.signals();
        let board = Arc::new(board);
        let mut cpu = Cpu::new(model, memory::cpu_view(&memory), board.clone(), signals);
        cpu.load_state(state);
        Self {
            soft: SoftCpu::new(cpu),
            board,
            memory,
            console,
            alarm,
            sandbox,
        }
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Instructions that the guest has retired.
    pub fn instructions(&self) -> u64 {
        self.soft.cpu.instructions()
    }

    /// Virtual time in ns.
    pub fn now(&self) -> u64 {
        self.soft.cpu.now()
    }

    /// Runs the guest until it ends.
    ///
    /// # Errors
    /// It crashed, its time was up, or `attendant` ended it.
    pub fn run(&mut self, attendant: &mut dyn Attendant) -> Result<End, Failure> {
        self.alarm.start_timer()?;
        // The last file is open and the last thread has been started.
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.enter()?;
        }
        let outcome = self.run_until_the_end(attendant);
        let mut console = lock(&self.console);
        console.flush();
        let error = console.take_error();
        drop(console);
        match (outcome, error) {
            (Ok(_), Some(error)) => Err(self.name_interruption(error.into_failure())),
            (Ok(end), None) => Ok(end),
            (Err(failure), _) => Err(self.name_interruption(failure)),
        }
    }

    fn run_until_the_end(&mut self, attendant: &mut dyn Attendant) -> Result<End, Failure> {
        let mut sleeps_with_interrupts_off = 0;
        loop {
            let deadline = self.board.next_deadline().unwrap_or(u64::MAX);
            let exit = self.soft.run(deadline);
            let now = self.now();
            tracing::trace!(now, ?exit, rip = format_args!("{:#x}", self.soft.cpu.rip));
            match exit {
                Exit::Shutdown => {
                    return Err(self.crashed("the guest's processor shut down (triple fault)"));
                }
                Exit::Kick => self.take_events(attendant)?,
                Exit::Halt { interrupts_off } => {
                    if interrupts_off {
                        sleeps_with_interrupts_off += 1;
                        if sleeps_with_interrupts_off > MAX_SLEEPS_WITH_INTERRUPTS_OFF {
                            return Err(
                                self.crashed("the guest has halted for ever, with interrupts off")
                            );
                        }
                    }
                    self.sleep(attendant, interrupts_off)?;
                }
                Exit::Deadline | Exit::Bus => sleeps_with_interrupts_off = 0,
            }
            if exit != Exit::Bus {
                lock(&self.console).flush();
            }
            let now = self.now();
            self.board.tick(now);
            if exit != Exit::Kick {
                attendant.attend(&self.board, now)?;
            }
            if self.board.take_dma() {
                self.forget_overwritten_code();
            }
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
        }
    }

    /// Whether the guest has ended or cannot go on.
    fn ended(&self) -> Result<Option<End>, Failure> {
        if let Some(status) = self.board.exit_status() {
            return Ok(Some(End::Status(status)));
        }
        let mut console = lock(&self.console);
        if let Some(error) = console.take_error() {
            return Err(error.into_failure());
        }
        let (dead, panicked) = (console.is_dead(), console.panicked());
        drop(console);
        if dead || panicked && self.board.reset_requested() {
            return Err(self.crashed("the guest's kernel panicked"));
        }
        Ok(self.board.reset_requested().then_some(End::Reset))
    }

    /// A guest that crashed.
    pub fn crashed(&self, reason: &str) -> Failure {
        Failure::Guest {
            reason: reason.into(),
            console: lock(&self.console).tail(),
        }
    }

    fn timed_out(&self) -> Failure {
        Failure::Timeout {
            after: self.alarm.limit().unwrap_or_default(),
            console: lock(&self.console).tail(),
        }
    }

    /// Says what it was that interrupted a wait for the reader of some output.
    fn name_interruption(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Interrupted => match self.alarm.take() {
                Some(Event::Timeout) => self.timed_out(),
                Some(Event::Signal(signal)) => Failure::Signal(signal),
                None => failure,
            },
            failure => failure,
        }
    }

    fn take_events(&self, attendant: &mut dyn Attendant) -> Result<(), Failure> {
        while let Some(event) = self.alarm.take() {
            if event == Event::Timeout {
                return Err(self.timed_out());
            }
            attendant.event(&self.board, event)?;
        }
        Ok(())
    }

    /// The processor halts: time passes until the next deadline, or until input comes that the guest waits for.
    fn sleep(
        &mut self,
        attendant: &mut dyn Attendant,
        interrupts_off: bool,
    ) -> Result<(), Failure> {
        let (now, deadline) = (self.now(), self.board.next_deadline());
        let awaited = attendant.awaited_input().is_some() && !interrupts_off;
        match deadline {
            Some(deadline) if !awaited => self.soft.advance_to(deadline),
            None if !awaited => {
                return Err(self.crashed("the guest has halted and nothing can wake it"));
            }
            _ => {
                attendant.idle()?;
                let limit = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
                let began = Instant::now();
                let woken = match attendant.awaited_input() {
                    Some(fd) => input::wait(&[fd, self.alarm.fd()], limit)?,
                    None => true,
                };
                self.take_events(attendant)?;
                let slept = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let until = if woken {
                    now.saturating_add(slept)
                } else {
                    u64::MAX
                };
                self.soft
                    .advance_to(until.min(deadline.unwrap_or(now.saturating_add(slept))));
            }
        }
        Ok(())
    }

    /// Devices have written memory: decoded code in those pages is stale.
    fn forget_overwritten_code(&mut self) {
        for region in self.memory.iter() {
            let first = region.start_addr().0 / PAGE;
            // The mapping's own bitmap; the trait has a view of it only, which cannot be taken as a whole.
            let mapping: &MmapRegion<DirtyPages> = region;
            mapping.bitmap().take(|page| {
                let gpa = (first + page) * PAGE;
                if self.soft.is_code_page(gpa) {
                    self.soft.invalidate_page(gpa);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
