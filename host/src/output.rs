//! The files, pipes and terminals to which vbts writes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, FlockOperation, SeekFrom, flock, fstat, seek};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use thiserror::Error;

use super::Alarm;
use super::unit::Unit;
use super::write_monitor::WriteMonitor;
use crate::exit::Failure;

const STDOUT: &str = "standard output";
const STDERR: &str = "standard error";

/// Number of bytes of a created file that stay in the page cache for its next reader. The host
/// writes them to the disk later, which takes no time of the trace. Later bytes do not stay: a
/// trace fills gigabytes in seconds, and finding memory for them takes longer than writing them.
const CACHED: u64 = 1 << 30;
/// Flag of `pwritev2(2)` since Linux 6.14: the kernel writes the data back at once, and then drops
/// it from the page cache.
const UNCACHED: ReadWriteFlags = ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE as u32);
/// Offset that makes `pwritev2(2)` write at the file offset, as `write(2)` does.
const FILE_OFFSET: u64 = u64::MAX;
/// Interval at which a wait for room looks whether it has to end.
const STOP_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Makes a write beyond the file size limit of this process an error, as it is on a full disk.
/// Without this, the host's kernel ends the process by SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: the call changes the action for a signal, and no code runs for an ignored one.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Why output could not be written.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The reader has closed its end.
    #[error("the reader of {0} has closed it")]
    Closed(String),
    /// The reader did not read before an event of the [`Alarm`].
    #[error("interrupted while writing to {0}")]
    Interrupted(String),
    /// The file would exceed the limit of this process, or the largest size of its file system.
    #[error(
        "Cannot write to {0}: the file size limit is reached (ulimit -f, or that of the file system)"
    )]
    TooLarge(String),
    /// Another error, for example a full disk.
    #[error("Cannot write to {name}")]
    Write {
        /// Name of the output.
        name: String,
        /// The host's error.
        source: io::Error,
    },
    /// Another process of vbts writes to the file.
    #[error("Cannot write to {0}: another vbts is writing to it")]
    InUse(String),
    /// A file cannot be created.
    #[error("Cannot create {}", .path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

impl OutputError {
    /// Converts the error into the failure of the command.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Closed(_) => Failure::Signal(signal_hook::consts::SIGPIPE),
            Self::Interrupted(_) => Failure::Interrupted,
            error => Failure::Error(error.into()),
        }
    }
}

/// An output, with a name for messages.
///
/// A write waits for a slow reader. A signal or the time limit ends the wait.
#[derive(Debug)]
pub struct Output {
    file: File,
    name: String,
    alarm: Option<Arc<Alarm>>,
    /// Observes the writes, and ends them as soon as they have written whole units.
    monitor: Option<Arc<WriteMonitor>>,
    /// A write has failed. Later ones fail at once.
    failed: bool,
    /// Bytes so far.
    written: u64,
    /// Number of bytes that still go to the page cache.
    to_cache: u64,
    /// vbts has opened the file by its name.
    own: bool,
    /// It is a regular file, which has no reader to wait for.
    is_file: bool,
}

impl Output {
    /// Standard output. It bypasses the standard library's buffer, which could keep bytes when the
    /// process ends.
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

    /// Creates or truncates the file at `path`. Another process can do the same.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path) -> Result<Self, OutputError> {
        Self::opened(File::create(path), path)
    }

    /// Opens the file at `path`, or creates it. An existing file keeps its contents until
    /// [`Self::truncate`]. While it is open, the lock (flock) of a regular file excludes other
    /// calls.
    ///
    /// # Errors
    /// The file cannot be opened, or is open so already.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let output = Self::opened(options.open(path), path)?;
        let lock = FlockOperation::NonBlockingLockExclusive;
        // Some file systems have no locks.
        if output.is_file && flock(&output.file, lock) == Err(Errno::WOULDBLOCK) {
            return Err(OutputError::InUse(output.name));
        }
        Ok(output)
    }

    fn opened(file: io::Result<File>, path: &Path) -> Result<Self, OutputError> {
        match file {
            Ok(file) => Ok(Self {
                to_cache: CACHED,
                own: true,
                ..Self::new(file, &path.display().to_string())
            }),
            Err(source) => Err(OutputError::Create {
                path: path.into(),
                source,
            }),
        }
    }

    /// Discards the former contents of a regular file that [`Self::open`] has opened.
    ///
    /// # Errors
    /// The host refuses it.
    pub fn truncate(&self) -> Result<(), OutputError> {
        // Others are as the user has opened them.
        if !self.own {
            return Ok(());
        }
        let truncated = self.file.metadata().and_then(|status| {
            let has_contents = status.is_file() && status.len() > 0;
            if has_contents {
                self.file.set_len(0)
            } else {
                Ok(())
            }
        });
        truncated.map_err(|source| self.error(source))
    }

    /// Whether the file at `path` is the one to which this writes.
    pub fn is_at(&self, path: &Path) -> bool {
        let identity = |status: std::fs::Metadata| (status.dev(), status.ino());
        let at_path = std::fs::symlink_metadata(path).map(identity);
        let own = self.file.metadata().map(identity);
        matches!((at_path, own), (Ok(at_path), Ok(own)) if at_path == own)
    }

    /// The position in a regular file at which this and other processes that share it write; 0 for
    /// another output.
    pub fn position(&self) -> u64 {
        seek(&self.file, SeekFrom::Current(0)).unwrap_or(0)
    }

    /// Creates an output to `file`. Messages call it `name`.
    pub fn new(file: File, name: &str) -> Self {
        let file = unblocked(&file).unwrap_or(file);
        let is_file = file.metadata().is_ok_and(|status| status.is_file());
        Self {
            file,
            name: name.into(),
            alarm: None,
            monitor: None,
            failed: false,
            written: 0,
            to_cache: u64::MAX,
            own: false,
            is_file,
        }
    }

    /// Makes events of `alarm` interrupt a wait for the reader.
    #[must_use]
    pub fn interruptible(self, alarm: Arc<Alarm>) -> Self {
        Self {
            alarm: Some(alarm),
            ..self
        }
    }

    /// Makes `monitor` observe the writes. It can end them early, with whole units.
    pub fn observe(&mut self, monitor: Arc<WriteMonitor>) {
        self.monitor = Some(monitor);
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// See [`OutputError`]. Each write after the first error fails too.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.write_units(bytes, Unit::BYTE)
    }

    /// Writes all of `bytes`, which consist of whole units.
    ///
    /// # Errors
    /// See [`OutputError`]. A regular file then ends with a whole unit. Each write after the first
    /// error fails too.
    pub fn write_units(&mut self, bytes: &[u8], unit: Unit) -> Result<(), OutputError> {
        if self.failed {
            return Err(OutputError::Closed(self.name.clone()));
        }
        let mut written = 0;
        if let Some(monitor) = &self.monitor {
            monitor.begin(self.is_file);
        }
        let result = self.write_all(bytes, unit, &mut written);
        if let Some(monitor) = &self.monitor {
            monitor.end();
        }
        self.failed = result.is_err();
        self.written += written as u64;
        if self.failed {
            let part = bytes.get(..written).unwrap_or_default();
            self.remove(written - unit.whole(part));
        }
        result
    }

    fn write_all(
        &mut self,
        bytes: &[u8],
        unit: Unit,
        written: &mut usize,
    ) -> Result<(), OutputError> {
        let mut end = bytes.len();
        while *written < end {
            if self.is_stopped() {
                end = unit.end(bytes, *written);
            }
            match bytes.get(*written..end) {
                None | Some([]) => break,
                Some(rest) => match self.write_some(rest) {
                    Ok(n) => {
                        *written += n;
                        if let Some(monitor) = &self.monitor {
                            monitor.advance();
                        }
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::Interrupted => {}
                        io::ErrorKind::WouldBlock => self.wait_for_room()?,
                        _ => return Err(self.error(error)),
                    },
                },
            }
        }
        if *written < bytes.len() {
            return Err(OutputError::Interrupted(self.name.clone()));
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let monitor = self.monitor.as_ref().filter(|_| !self.is_file);
        monitor.is_some_and(|monitor| monitor.is_stopped())
    }

    /// Removes the last `n` bytes of a regular file, which this process has just written. It is
    /// left as it is if another process has written more since, and if the host refuses.
    fn remove(&mut self, n: usize) {
        let end = seek(&self.file, SeekFrom::Current(0)).ok();
        let size = self.file.metadata().ok().filter(std::fs::Metadata::is_file);
        if n > 0
            && let Some(end) = end
            && size.is_some_and(|status| status.len() == end)
            && let Some(end) = end.checked_sub(n as u64)
            && self.file.set_len(end).is_ok()
        {
            let _ = seek(&self.file, SeekFrom::Start(end));
            self.written = self.written.saturating_sub(n as u64);
        }
    }

    fn error(&self, source: io::Error) -> OutputError {
        let name = self.name.clone();
        match source.kind() {
            io::ErrorKind::BrokenPipe => OutputError::Closed(name),
            io::ErrorKind::FileTooLarge => OutputError::TooLarge(name),
            _ => OutputError::Write { name, source },
        }
    }

    /// Writes as `write(2)` does. After the first [`CACHED`] bytes of a created file, it keeps the
    /// data out of the page cache if the kernel and the file system can.
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
        // The next write reports the outcome.
        let limit = self.monitor.as_ref().map(|_| &STOP_CHECK_INTERVAL);
        let _ = poll(&mut fds, limit);
        Ok(())
    }

    /// Number of bytes that were written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the output is a terminal.
    pub fn is_terminal(&self) -> bool {
        rustix::termios::isatty(&self.file)
    }
}

/// Opens the pipe or terminal `file` again in non-blocking mode, so that other processes that write
/// to it stay in blocking mode.
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
mod tests;
