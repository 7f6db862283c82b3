//! Whether a process waits for input at the program's terminal.
//!
//! What is typed for the next reader, such as the user's shell, must stay in the host's terminal.
//! So the agent requests input only when a process has found none. Between two reads the host's
//! terminal sends the signals of keys such as Ctrl-C. A program that takes single keys, such as an
//! editor, has a terminal that does not process them. That is read ahead from its first read on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::terminal::modes;

/// The input for which a reader waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Nothing,
    /// A line, of a terminal in canonical mode.
    Line,
    /// Any bytes.
    Any,
}

/// The readers of a terminal.
#[derive(Debug)]
pub struct Reader {
    /// The agent's side of the terminal.
    terminal: OwnedFd,
    /// Gets an event each time a process finds no input: the guest's kernel then wakes a poll for
    /// POLLPRI. poll itself would report it again until the process has read.
    starved: OwnedFd,
    /// A process has looked for input.
    has_read: bool,
    /// A process waits for more than it has got.
    waits: bool,
}

impl Reader {
    /// The readers of the terminal whose agent's side is `terminal`.
    pub fn new(terminal: OwnedFd) -> io::Result<Self> {
        let starved = epoll::create(CreateFlags::CLOEXEC)?;
        let events = EventFlags::PRI | EventFlags::ET;
        epoll::add(&starved, &terminal, EventData::new_u64(0), events)?;
        Ok(Self {
            terminal,
            starved,
            has_read: false,
            waits: false,
        })
    }

    /// Is readable when a process has found no input since [`Self::update`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.starved.as_fd()
    }

    /// Notes whether a process has found no input.
    pub fn update(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(1);
        let now = Timespec::default();
        epoll::wait(&self.starved, spare_capacity(&mut events), Some(&now))?;
        for epoll::Event { flags, .. } in events {
            if flags.contains(EventFlags::PRI) {
                (self.has_read, self.waits) = (true, true);
            }
        }
        Ok(())
    }

    /// Notes that `bytes` are about to be written to the terminal.
    pub fn gets(&mut self, bytes: &[u8]) -> io::Result<()> {
        // What was found before has this answer.
        self.update()?;
        let modes = modes(&self.terminal)?;
        let complete = bytes.last().is_none_or(|last| ends_line(&modes, *last));
        self.waits = modes.c_lflag & libc::ICANON != 0 && !complete;
        Ok(())
    }

    /// No process gets input any more.
    pub fn end(&mut self) {
        // What was found before does not count.
        let _ = self.update();
        (self.has_read, self.waits) = (false, false);
    }

    /// The input for which a process waits.
    pub fn wanted(&self) -> io::Result<Wanted> {
        if !self.has_read {
            return Ok(Wanted::Nothing);
        }
        let canonical = modes(&self.terminal)?.c_lflag & libc::ICANON != 0;
        Ok(match (canonical, self.waits) {
            (false, _) => Wanted::Any,
            (true, true) => Wanted::Line,
            (true, false) => Wanted::Nothing,
        })
    }
}

/// Whether a character that is typed on a terminal in canonical mode ends a line.
fn ends_line(modes: &libc::termios, typed: u8) -> bool {
    let has = |flag| modes.c_iflag & flag != 0;
    let typed = match typed {
        b'\r' if has(libc::IGNCR) => return false,
        b'\r' if has(libc::ICRNL) => b'\n',
        b'\n' if has(libc::INLCR) => b'\r',
        typed => typed,
    };
    let codes = [libc::VEOF, libc::VEOL, libc::VEOL2];
    let mut codes = codes.iter().filter_map(|code| modes.c_cc.get(*code));
    typed == b'\n' || typed != 0 && codes.any(|code| *code == typed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_say_what_ends_a_line() {
        // SAFETY: all-zero is a valid termios.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        modes.c_cc[libc::VEOF] = 4;
        assert!(ends_line(&modes, b'\n') && ends_line(&modes, 4));
        assert!(!ends_line(&modes, b'\r') && !ends_line(&modes, 0));
        modes.c_iflag = libc::ICRNL;
        assert!(ends_line(&modes, b'\r') && !ends_line(&modes, b'a'));
        modes.c_iflag |= libc::IGNCR | libc::INLCR;
        assert!(!ends_line(&modes, b'\r') && !ends_line(&modes, b'\n'));
    }
}
