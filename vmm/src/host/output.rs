//! Files, pipes and terminals that output goes to.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use thiserror::Error;

use super::Alarm;
use crate::exit::Failure;

const STDOUT: &str = "standard output";
const STDERR: &str = "standard error";

/// So much of a file that we create stays in the page cache, for who reads it next, in bytes. The
/// rest does not: a trace fills gigabytes in seconds, and to find memory for them takes longer than
/// to write them.
const CACHED: u64 = 64 << 20;
/// `pwritev2(2)`, since Linux 6.14: written back at once, and dropped from the page cache after
/// that.
const UNCACHED: ReadWriteFlags = ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE as u32);
/// `pwritev2(2)`: where `write(2)` would write, too.
const FILE_OFFSET: u64 = u64::MAX;

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
    /// So many bytes are written before the page cache is to be spared.
    to_cache: u64,
}

impl Output {
    /// Standard output. Not through the standard library's buffer, so that nothing is left in it on
    /// the way out.
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
            Ok(file) => Ok(Self {
                to_cache: CACHED,
                ..Self::new(file, &path.display().to_string())
            }),
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
            to_cache: u64::MAX,
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
            match self.write_some(rest) {
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

    /// As `write(2)`, but spares the page cache once enough is in it, if the kernel and the file
    /// system can.
    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.to_cache == 0 {
            let slice = [IoSlice::new(bytes)];
            match pwritev2(&self.file, &slice, FILE_OFFSET, UNCACHED) {
                Err(Errno::OPNOTSUPP) => self.to_cache = u64::MAX,
                result => return Ok(result?),
            }
        }
        let n = self.file.write(bytes)?;
        self.to_cache = self.to_cache.saturating_sub(n as u64);
        Ok(n)
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

/// The same pipe or terminal, opened anew: so it can be non-blocking without being so for others
/// who write to it.
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
    use std::io::{Read, Seek};
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
    fn a_large_file_is_written_whole_whether_or_not_it_can_spare_the_page_cache() {
        let path = std::env::temp_dir().join(format!("vbts-output-{}", std::process::id()));
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let spared = Output::create(&path).unwrap();
        let whole = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let in_memory = File::from(memory);
        let cached = Output {
            to_cache: CACHED,
            ..Output::new(in_memory.try_clone().unwrap(), "memory")
        };
        for (mut out, mut file) in [(spared, whole), (cached, in_memory)] {
            let mut expected = Vec::new();
            for n in 0..=CACHED / (1 << 20) {
                // Not whole pages, and each piece different.
                let piece = vec![n as u8; (1 << 20) + 24];
                out.write(&piece).unwrap();
                expected.extend_from_slice(&piece);
            }
            let mut written = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut written).unwrap();
            assert!(written == expected, "{out:?}");
        }
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
