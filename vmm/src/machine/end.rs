//! Ends of a run, and the conditions for them.

use serde::{Deserialize, Serialize};
use vbts_devices::{Shared, lock};
use vbts_host::exit::Failure;
use vbts_host::{Alarm, Event};

use super::RunObserver;
use crate::board::Board;
use crate::console::Console;

/// Timer expiries while all processors are halted with interrupts off, after which the run ends: an
/// NMI could still wake them, but none has come.
pub(super) const MAX_SLEEPS_WITH_INTERRUPTS_OFF: u32 = 64;

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The guest wrote this status to the exit port.
    Status(u8),
    /// The guest reset the machine.
    Reset,
    /// The guest switched the machine off.
    Off,
    /// A processor has reached a probe with [`vbts_cpu::ProbeAction::Stop`], or a stop point of a
    /// debugger ([`take_stop_causes`](super::Machine::take_stop_causes)), or has made a step
    /// ([`set_step`](super::Machine::set_step)).
    Stop,
    /// The recording that is replayed ends here, and the guest did not end the run.
    Recorded,
}

/// The parts of a machine that can end the run, and that are accessible while the processors run.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineStatus<'a> {
    pub(super) board: &'a Board,
    pub(super) console: &'a Shared<Console>,
    pub(super) alarm: &'a Alarm,
}

impl MachineStatus<'_> {
    /// How the guest has ended the run, if it has.
    ///
    /// # Errors
    /// The guest crashed, or the console cannot be written.
    pub(super) fn ended(&self) -> Result<Option<End>, Failure> {
        if let Some(status) = self.board.exit_status() {
            return Ok(Some(End::Status(status)));
        }
        let mut console = lock(self.console);
        if let Some(error) = console.take_error() {
            return Err(error.into_failure());
        }
        let (dead, panicked) = (console.is_dead(), console.panicked());
        drop(console);
        if dead || panicked && self.board.reset_requested() {
            return Err(self.crashed("the guest's kernel panicked"));
        }
        if self.board.is_off() {
            return Ok(Some(End::Off));
        }
        Ok(self.board.reset_requested().then_some(End::Reset))
    }

    pub(super) fn crashed(&self, reason: &str) -> Failure {
        Failure::Guest {
            reason: reason.into(),
            console: lock(self.console).tail(),
        }
    }

    pub(super) fn shut_down(&self) -> Failure {
        self.crashed("the guest's processor shut down (triple fault)")
    }

    pub(super) fn halted_with_interrupts_off(&self) -> Failure {
        self.crashed("guest halted with interrupts disabled; no NMI has woken it")
    }

    pub(super) fn no_wakeup_source(&self) -> Failure {
        self.crashed("guest halted; no wake-up source is armed")
    }

    pub(super) fn timed_out(&self) -> Failure {
        Failure::Timeout {
            after: self.alarm.limit().unwrap_or_default(),
            console: Some(lock(self.console).tail()),
        }
    }

    pub(super) fn take_events(&self, observer: &mut dyn RunObserver) -> Result<(), Failure> {
        while let Some(event) = self.alarm.take() {
            if event != Event::Timeout {
                observer.event(self.board, event)?;
            } else if !observer.outlasts_timeout(self.board)? {
                return Err(self.timed_out());
            }
        }
        self.alarm.go_on();
        Ok(())
    }
}
