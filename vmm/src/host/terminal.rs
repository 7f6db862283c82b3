//! The terminal in raw mode.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Keeps a terminal in raw mode, so that every key goes to the guest. Dropping it restores the
/// terminal.
#[derive(Debug)]
pub struct RawTerminal {
    fd: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode, if it is a terminal.
    ///
    /// # Errors
    /// The terminal rejects the mode.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let fd = stdin.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&fd)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&fd, OptionalActions::Drain, &raw)?;
        Ok(Some(Self { fd, before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.fd, OptionalActions::Drain, &self.before);
    }
}
