//! Files, pipes and terminals that output goes to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use thiserror::Error;

use super::Alarm;
use crate::exit::Failure;

const STDOUT: &str = "standard output";
const STDERR: &str = "standard error";

/// Why output could not be written.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The reader has gone.
    #[error("nobody reads {0} any more")]
    Closed(String),
    /// The reader does not read, and something happened meanwhile: see the [`Alarm`].
    #[error("interrupted while writing to {0}")]
    Interrupted(String),
    /// Anything else: a full disk, for example.
    #[error("Cannot write to {name}")]
    Write {
        /// Where.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be created.
    #[error("Cannot create {}", .path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OutputError {
    /// What this means for the command.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Closed(_) => Failure::Signal(signal_hook::consts::SIGPIPE),
            Self::Interrupted(_) => Failure::Interrupted,
            error => Failure::Error(error.into()),
        }
    }
}

/// Something that is written, with a name for messages.
///
/// Writing waits for a slow reader, but not beyond a signal or the time limit.
#[derive(Debug)]
pub struct Output {
    file: File,
    name: String,
    alarm: Option<Arc<Alarm>>,
    /// A write has failed: there will be no other.
    failed: bool,
}

impl Output {
    /// Standard output. Not through the standard library's buffer, so that nothing is left in it on the way out.
    ///
    /// # Errors
    /// It is closed, or the host is out of file descriptors.
    pub fn stdout() -> Result<Self, OutputError> {
        Self::duplicate(io::stdout().as_fd().try_clone_to_owned(), STDOUT)
    }

    /// Standard error.
    ///
    /// # Errors
    /// It is closed, or the host is out of file descriptors.
    pub fn stderr() -> Result<Self, OutputError> {
        Self::duplicate(io::stderr().as_fd().try_clone_to_owned(), STDERR)
    }

    fn duplicate(fd: io::Result<OwnedFd>, name: &str) -> Result<Self, OutputError> {
        match fd {
            Ok(fd) => Ok(Self::new(fd.into(), name)),
            Err(source) => Err(OutputError::Write {
                name: name.into(),
                source,
            }),
        }
    }

    /// Creates or truncates the file at `path`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path) -> Result<Self, OutputError> {
        match File::create(path) {
            Ok(file) => Ok(Self::new(file, &path.display().to_string())),
            Err(source) => Err(OutputError::Create {
                path: path.into(),
                source,
            }),
        }
    }

    /// Writes to `file`, which messages call `name`.
    pub fn new(file: File, name: &str) -> Self {
        let file = unblocked(&file).unwrap_or(file);
        Self {
            file,
            name: name.into(),
            alarm: None,
            failed: false,
        }
    }

    /// Lets `alarm` interrupt a wait for the reader.
    #[must_use]
    pub fn interruptible(self, alarm: Arc<Alarm>) -> Self {
        Self {
            alarm: Some(alarm),
            ..self
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The disk is full, the reader has gone, and so on.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        if self.failed {
            return Err(OutputError::Closed(self.name.clone()));
        }
        let result = self.write_all(bytes);
        self.failed = result.is_err();
        result
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => self.wait_for_room()?,
                    io::ErrorKind::BrokenPipe => {
                        return Err(OutputError::Closed(self.name.clone()));
                    }
                    _ => {
                        return Err(OutputError::Write {
                            name: self.name.clone(),
                            source: error,
                        });
                    }
                },
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) -> Result<(), OutputError> {
        let mut fds = vec![PollFd::new(&self.file, PollFlags::OUT)];
        if let Some(alarm) = &self.alarm {
            if alarm.is_pending() {
                return Err(OutputError::Interrupted(self.name.clone()));
            }
            fds.push(PollFd::from_borrowed_fd(alarm.fd(), PollFlags::IN));
        }
        // Whatever it says, the next write tells.
        let _ = poll(&mut fds, None);
        Ok(())
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        rustix::termios::isatty(&self.file)
    }

    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.name == STDOUT
    }
}

/// The same pipe or terminal, opened anew: so it can be non-blocking without being so for others who write to it.
fn unblocked(file: &File) -> Option<File> {
    let kind = FileType::from_raw_mode(fstat(file).ok()?.st_mode);
    if kind != FileType::Fifo && !rustix::termios::isatty(file) {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vbts_cpu::Signals;

    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = Output::create(Path::new("/dev/full")).unwrap();
        let error = format!("{:#}", anyhow::Error::from(full.write(b"x").unwrap_err()));
        assert!(
            error.contains("/dev/full") && error.contains("No space left"),
            "{error}"
        );
        assert!(
            matches!(full.write(b"x"), Err(OutputError::Closed(_))),
            "no second try"
        );
    }

    #[test]
    fn a_reader_that_goes_is_told_apart() {
        let (reader, writer) = io::pipe().unwrap();
        let mut out = Output::new(File::from(OwnedFd::from(writer)), "pipe");
        drop(reader);
        assert!(matches!(out.write(b"x"), Err(OutputError::Closed(_))));
        let error = Output::create(Path::new("/nonexistent/x")).unwrap_err();
        assert!(matches!(error, OutputError::Create { .. }));
    }

    #[test]
    fn a_reader_that_does_not_read_cannot_hold_up_the_time_limit() {
        let (_reader, writer) = io::pipe().unwrap();
        let limit = Some(Duration::from_millis(20));
        let alarm = Arc::new(Alarm::new(Arc::new(Signals::default()), limit).unwrap());
        let mut out =
            Output::new(File::from(OwnedFd::from(writer)), "pipe").interruptible(alarm.clone());
        alarm.start_timer().unwrap();
        let error = out.write(&vec![0; 1 << 20]).unwrap_err();
        assert!(matches!(error, OutputError::Interrupted(_)), "{error}");
    }
}
