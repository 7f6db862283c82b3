//! Standard input, read only when the guest wants it.
//!
//! What is there when the guest asks (a file, `/dev/null`, a pipe that has been filled or closed)
//! is answered on the guest's own time line, so such a run is reproducible. What comes later comes
//! when it comes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait for a pipe's writer to go on, once it has begun: a writer that only copies then
/// always gives the guest full pieces, which keeps the run reproducible.
const GRACE: Duration = Duration::from_millis(10);

/// What an input has to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet.
    NotReady,
    /// Nothing, for ever.
    End,
}

/// An input of the host.
#[derive(Debug)]
pub struct Input {
    file: File,
    terminal: bool,
    ended: bool,
}

impl Input {
    /// Standard input.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn stdin() -> io::Result<Self> {
        let fd = match io::stdin().as_fd().try_clone_to_owned() {
            Ok(fd) => fd,
            // Closed by whoever started us: an input without bytes.
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {
                File::open("/dev/null")?.into()
            }
            Err(error) => return Err(error),
        };
        Ok(Self::new(File::from(fd)))
    }

    /// Reads from `file`.
    pub fn new(file: File) -> Self {
        let terminal = rustix::termios::isatty(&file);
        Self {
            file,
            terminal,
            ended: false,
        }
    }

    /// Whether bytes can still come.
    pub fn is_open(&self) -> bool {
        !self.ended
    }

    /// For waiting until [`Self::read`] has something to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads what is there, without waiting. A read error ends the input like an end of file.
    pub fn read(&mut self, buffer: &mut [u8]) -> Offer {
        if self.ended {
            return Offer::End;
        }
        let mut got = 0;
        while let Some(rest) = buffer.get_mut(got..).filter(|rest| !rest.is_empty()) {
            let patience = if got == 0 { Duration::ZERO } else { GRACE };
            if !readable(self.fd(), patience) {
                break;
            }
            match self.file.read(rest) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(n) => got += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.ended = true;
                    break;
                }
            }
            // A terminal gives a line at a time, and a person waits for the answer.
            if self.terminal {
                break;
            }
        }
        match got {
            0 if self.ended => Offer::End,
            0 => Offer::NotReady,
            n => Offer::Bytes(n),
        }
    }
}

/// Waits up to `patience` for `fd` to have bytes or an end.
fn readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    wait(&[fd], Some(patience)).unwrap_or(true)
}

/// Waits until one of `fds` is readable or has ended (true), or `limit` has passed or a signal
/// arrived (false).
///
/// # Errors
/// `poll` failed.
pub fn wait(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut polled, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_pipe_is_read_when_it_has_something() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut input = Input::new(File::from(std::os::fd::OwnedFd::from(reader)));
        let mut buffer = [0; 8];
        assert_eq!(input.read(&mut buffer), Offer::NotReady);
        writer.write_all(b"0123456789").unwrap();
        assert_eq!(input.read(&mut buffer), Offer::Bytes(8));
        drop(writer);
        assert_eq!(input.read(&mut buffer), Offer::Bytes(2));
        assert!(!input.is_open());
        assert_eq!(input.read(&mut buffer), Offer::End);
    }

    #[test]
    fn files_and_null_are_always_ready() {
        let mut buffer = [0; 16];
        let mut null = Input::new(File::open("/dev/null").unwrap());
        assert_eq!(null.read(&mut buffer), Offer::End);
        let mut file = Input::new(File::open("/proc/self/exe").unwrap());
        assert_eq!(file.read(&mut buffer), Offer::Bytes(16));
        let mut directory = Input::new(File::open("/").unwrap());
        assert_eq!(directory.read(&mut buffer), Offer::End);
    }
}
