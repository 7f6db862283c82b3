//! Where a trace and the program's own output go.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use thiserror::Error;

/// A partial line of the program is held back at most this long, in bytes.
const MAX_PARTIAL_LINE: usize = 64 << 10;

/// Why output could not be written.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The reader has gone.
    #[error("nobody reads {0} any more")]
    Closed(String),
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

/// A file that is written, with a name for messages.
#[derive(Debug)]
pub struct Output {
    file: File,
    name: String,
}

impl Output {
    /// Standard output. Not through the standard library's buffer, so that nothing is left in it on the way out.
    ///
    /// # Errors
    /// It is closed, or the host is out of file descriptors.
    pub fn stdout() -> Result<Self, OutputError> {
        Self::duplicate(io::stdout().as_fd().try_clone_to_owned(), "standard output")
    }

    /// Standard error.
    ///
    /// # Errors
    /// It is closed, or the host is out of file descriptors.
    pub fn stderr() -> Result<Self, OutputError> {
        Self::duplicate(io::stderr().as_fd().try_clone_to_owned(), "standard error")
    }

    fn duplicate(fd: io::Result<std::os::fd::OwnedFd>, name: &str) -> Result<Self, OutputError> {
        match fd {
            Ok(fd) => Ok(Self {
                file: fd.into(),
                name: name.into(),
            }),
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
        let file = File::create(path).map_err(|source| OutputError::Create {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            file,
            name: path.display().to_string(),
        })
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The disk is full, the reader has gone, and so on.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(n) => rest = &rest[n.min(rest.len())..],
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    // Somebody else made our end of the pipe non-blocking: wait for room.
                    io::ErrorKind::WouldBlock => self.wait_for_room(),
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

    fn wait_for_room(&self) {
        let fd = rustix::event::PollFd::new(&self.file, rustix::event::PollFlags::OUT);
        let _ = rustix::event::poll(&mut [fd], None);
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        rustix::termios::isatty(&self.file)
    }
}

/// Where the trace goes, and where the program's standard output goes because of that.
#[derive(Debug)]
pub struct Destination {
    trace: Output,
    stdout: Output,
    stderr: Output,
    /// The trace and the program's standard output are one stream of lines: the program's last, unfinished line.
    mixed: Option<Vec<u8>>,
    progress: ProgressBar,
}

impl Destination {
    /// The trace goes to `file`, or to standard output. There it is mixed with the program's standard output if it
    /// is `readable` text; a format for machines has standard output to itself, and the program's goes to
    /// standard error.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn new(file: Option<&Path>, readable: bool) -> Result<Self, OutputError> {
        let file = file.filter(|path| *path != Path::new("-"));
        let trace = file.map_or_else(Output::stdout, Output::create)?;
        let stdout = if file.is_none() && !readable {
            Output::stderr()?
        } else {
            Output::stdout()?
        };
        let mixed = (file.is_none() && readable).then(Vec::new);
        Ok(Self {
            trace,
            stdout,
            stderr: Output::stderr()?,
            mixed,
            progress: ProgressBar::hidden(),
        })
    }

    /// Whatever the program prints, it does not run into `progress`.
    pub fn keep_clear_of(&mut self, progress: ProgressBar) {
        self.progress = progress;
    }

    /// Writes a piece of the trace: whole lines, or whole records.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_trace(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.trace.write(bytes)
    }

    /// Writes what the program has written to its standard output. Lines stay whole when the trace goes there as well.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_stdout(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let Some(partial) = &mut self.mixed else {
            let stdout = &mut self.stdout;
            return self.progress.suspend(|| stdout.write(bytes));
        };
        partial.extend_from_slice(bytes);
        let whole = match partial.iter().rposition(|b| *b == b'\n') {
            Some(at) => at + 1,
            None if partial.len() > MAX_PARTIAL_LINE => partial.len(),
            None => return Ok(()),
        };
        self.stdout.write(&partial[..whole])?;
        partial.drain(..whole);
        Ok(())
    }

    /// Writes what the program has written to its standard error.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_stderr(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let stderr = &mut self.stderr;
        self.progress.suspend(|| stderr.write(bytes))
    }

    /// Writes the program's unfinished line, because it waits for input (it may be a prompt) or has ended.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush_line(&mut self) -> Result<(), OutputError> {
        if let Some(partial) = &mut self.mixed
            && !partial.is_empty()
        {
            self.stdout.write(partial)?;
            partial.clear();
        }
        Ok(())
    }

    /// Ends the program's unfinished line with a line break of ours, so that the trace can go on.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end_line(&mut self) -> Result<(), OutputError> {
        match &mut self.mixed {
            Some(partial) if !partial.is_empty() => {
                partial.push(b'\n');
                self.flush_line()
            }
            _ => Ok(()),
        }
    }

    /// Whether the trace goes to standard output.
    pub fn trace_is_stdout(&self) -> bool {
        self.trace.name == "standard output"
    }

    /// Whether the trace goes to a terminal, where progress would disturb it.
    pub fn trace_is_terminal(&self) -> bool {
        self.trace.is_terminal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    fn scratch() -> (Output, File) {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        (
            Output {
                file: file.try_clone().unwrap(),
                name: "test".into(),
            },
            file,
        )
    }

    #[test]
    fn lines_of_the_program_stay_whole() {
        let (out, mut file) = scratch();
        let again = Output {
            file: file.try_clone().unwrap(),
            name: "test".into(),
        };
        let mut d = Destination {
            trace: out,
            stdout: again,
            stderr: scratch().0,
            mixed: Some(Vec::new()),
            progress: ProgressBar::hidden(),
        };
        d.write_stdout(b"one\ntw").unwrap();
        d.write_trace(b"A -> B\n").unwrap();
        d.write_stdout(b"o\n> ").unwrap();
        d.flush_line().unwrap();
        d.write_stdout(b"end").unwrap();
        d.end_line().unwrap();
        d.write_trace(b"C -> D\n").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\nA -> B\ntwo\n> end\nC -> D\n");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = Output::create(Path::new("/dev/full")).unwrap();
        let error = format!("{:#}", anyhow::Error::from(full.write(b"x").unwrap_err()));
        assert!(
            error.contains("/dev/full") && error.contains("No space left"),
            "{error}"
        );
    }

    #[test]
    fn a_reader_that_goes_is_told_apart() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut out = Output {
            file,
            name: "pipe".into(),
        };
        assert!(matches!(out.write(b"x"), Err(OutputError::Closed(_))));
        assert!(matches!(
            Output::create(Path::new("/nonexistent/x")),
            Err(OutputError::Create { .. })
        ));
    }
}
