//! Standard input, which is read only when the guest asks for it.
//!
//! Data that is available when the guest asks (a file, `/dev/null`, a pipe that has been filled or
//! closed) is handed over on the guest's time line, so such a run is reproducible. The time at
//! which the guest sees data that arrives later depends on the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait for a pipe's writer to continue once it has begun. A writer that only copies
/// then always gives the guest full pieces, which keeps the run reproducible.
const GRACE: Duration = Duration::from_millis(10);

/// Result of reading an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The number of bytes read, at least one.
    Bytes(usize),
    /// Nothing yet.
    NotReady,
    /// Nothing, and no more will come.
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
            // The parent process has closed it: an input without bytes.
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

    /// Returns whether more bytes can come.
    pub fn is_open(&self) -> bool {
        !self.ended
    }

    /// Is readable when [`Self::read`] has bytes or an end to report.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads the available bytes up to the first of `ends`, as [`Self::read`] does. What follows
    /// stays for another reader.
    pub fn read_to(&mut self, ends: &[u8], buffer: &mut [u8]) -> ReadOutcome {
        let mut got = 0;
        while let Some(next) = buffer.get_mut(got..=got) {
            match self.read(next) {
                ReadOutcome::Bytes(n) => got += n,
                outcome if got == 0 => return outcome,
                _ => break,
            }
            if next.iter().any(|byte| ends.contains(byte)) {
                break;
            }
        }
        ReadOutcome::Bytes(got)
    }

    /// Reads the available bytes without waiting for the first one. A read error ends the input, as
    /// the end of the file does.
    pub fn read(&mut self, buffer: &mut [u8]) -> ReadOutcome {
        if self.ended {
            return ReadOutcome::End;
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
            // A terminal gives a line at a time, and its user waits for the answer.
            if self.terminal {
                break;
            }
        }
        match got {
            0 if self.ended => ReadOutcome::End,
            0 => ReadOutcome::NotReady,
            n => ReadOutcome::Bytes(n),
        }
    }
}

/// Waits up to `patience` for `fd` to have bytes or an end. A signal ends the wait early.
///
/// It calls poll(2) and not the event loop: no other event may be served here, and poll accepts
/// regular files, which epoll refuses.
fn readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let limit = Timespec::try_from(patience).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(ready) => ready > 0,
        // The read reports the error.
        Err(error) => error != Errno::INTR,
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
        assert_eq!(input.read(&mut buffer), ReadOutcome::NotReady);
        writer.write_all(b"0123456789").unwrap();
        assert_eq!(input.read(&mut buffer), ReadOutcome::Bytes(8));
        drop(writer);
        assert_eq!(input.read(&mut buffer), ReadOutcome::Bytes(2));
        assert!(!input.is_open());
        assert_eq!(input.read(&mut buffer), ReadOutcome::End);
    }

    #[test]
    fn what_follows_a_line_stays() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut other = reader.try_clone().unwrap();
        let mut input = Input::new(File::from(std::os::fd::OwnedFd::from(reader)));
        let mut buffer = [0; 8];
        let mut read = |input: &mut Input| input.read_to(b"\n\x04", &mut buffer);
        assert_eq!(read(&mut input), ReadOutcome::NotReady);
        writer.write_all(b"one\ntwo\x04three").unwrap();
        assert_eq!(read(&mut input), ReadOutcome::Bytes(4));
        assert_eq!(read(&mut input), ReadOutcome::Bytes(4));
        let mut rest = [0; 8];
        let n = other.read(&mut rest).unwrap();
        assert_eq!(&rest[..n], b"three");
        drop(writer);
        assert_eq!(read(&mut input), ReadOutcome::End);
    }

    #[test]
    fn files_and_null_are_always_ready() {
        let mut buffer = [0; 16];
        let mut null = Input::new(File::open("/dev/null").unwrap());
        assert_eq!(null.read(&mut buffer), ReadOutcome::End);
        let mut file = Input::new(File::open("/proc/self/exe").unwrap());
        assert_eq!(file.read(&mut buffer), ReadOutcome::Bytes(16));
        let mut directory = Input::new(File::open("/").unwrap());
        assert_eq!(directory.read(&mut buffer), ReadOutcome::End);
    }
}
