//! The host's side of a run.

use std::os::fd::BorrowedFd;

use vbts_host::Event;
use vbts_host::exit::Failure;

use crate::board::Board;

/// The host's side of a run. It reads the guest's output and gives it input.
pub trait RunObserver {
    /// Called after each exit of the processor that is determined by virtual time.
    ///
    /// # Errors
    /// The run has to end.
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure>;

    /// Whether [`Self::after_exit`] needs the log of branches up to now.
    fn reads_log(&self) -> bool {
        false
    }

    /// Called for each signal to `vbts`, which ends the run unless the observer does something
    /// else with it.
    ///
    /// # Errors
    /// The run has to end.
    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        let _ = board;
        match event {
            Event::Signal(signal) => Err(Failure::Signal(signal)),
            Event::Timeout => Ok(()),
        }
    }

    /// Called when the time limit has passed. Returns whether the run goes on, up to a limit that
    /// the observer has set.
    ///
    /// # Errors
    /// The run has to end.
    fn outlasts_timeout(&mut self, board: &Board) -> Result<bool, Failure> {
        let _ = board;
        Ok(false)
    }

    /// The open inputs that the guest waits for, or can take at any time. A replay has none.
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Called when the guest is idle and waits for input.
    ///
    /// # Errors
    /// The run has to end.
    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
