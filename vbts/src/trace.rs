//! A trace that is kept in a file.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use tempfile::TempDir;
use vbts_trace::{Reader, Summary};

use crate::child;
use crate::{Error, Function};

/// How the run of a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The program has exited with this status.
    Exited(u8),
    /// This signal has killed the program.
    Signal(u8),
    /// A machine has reached the point at which it is to stop.
    Stopped,
    /// The time limit, a signal to `vbts` or a crash of the guest has ended the run.
    Incomplete,
}

/// What a program has executed. The file goes away with the value, unless it is kept
/// ([`crate::Tracer::keep`]) or was there before ([`Trace::open`]).
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    summary: Summary,
    /// The program `vbts`, unless it is found otherwise.
    vbts: Option<PathBuf>,
    /// The directory of the file, if it is temporary.
    _directory: Option<TempDir>,
}

impl Trace {
    /// Opens a trace that `vbts trace --output FILE.btrace` or `vbts run --record FILE` has kept.
    ///
    /// # Errors
    /// The file is no trace, or it has no end.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::new(path.into(), None, None)
    }

    pub(crate) fn new(
        path: PathBuf,
        vbts: Option<PathBuf>,
        directory: Option<TempDir>,
    ) -> Result<Self, Error> {
        let file = File::open(&path).map_err(vbts_trace::Error::from)?;
        let reader = Reader::new(BufReader::new(file))?;
        Ok(Self {
            summary: reader.summary().cloned().unwrap_or_default(),
            path,
            vbts,
            _directory: directory,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The end of the run, with the number of branches.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// How the program has ended.
    pub fn end(&self) -> End {
        match (self.summary.exit, self.summary.signal) {
            (Some(status), _) => End::Exited(status),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) if self.summary.end == "stopped" => End::Stopped,
            (None, None) => End::Incomplete,
        }
    }

    /// Reads the branches and the events between them, in the order of time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn reader(&self) -> Result<Reader<BufReader<File>>, Error> {
        let file = File::open(&self.path).map_err(vbts_trace::Error::from)?;
        Ok(Reader::new(BufReader::new(file))?)
    }

    /// The `most` functions that have executed most instructions, the first ones first. What an
    /// inlined function executes counts for its caller: nothing says how often it was called.
    ///
    /// # Errors
    /// `vbts` cannot be started or fails.
    pub fn functions(&self, most: usize) -> Result<Vec<Function>, Error> {
        let limit = most.to_string();
        let words = ["functions", "--json", "--no-inline", "--limit", &limit];
        let answer = self.report(&words)?;
        let lines = answer.split(|byte| *byte == b'\n');
        let rows = lines
            .filter(|line| !line.is_empty())
            .map(serde_json::from_slice);
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The report that `vbts report` makes with these words, such as `["calls", "--least", "1"]`.
    /// Its messages go to standard error.
    ///
    /// # Errors
    /// `vbts` cannot be started or fails.
    pub fn report(&self, words: &[&str]) -> Result<Vec<u8>, Error> {
        let mut command: Command = child::command(self.vbts.as_deref());
        command.arg("report").args(words).arg("--").arg(&self.path);
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(Error::Start)?;
        check(output.status)?;
        Ok(output.stdout)
    }
}

/// Checks how `vbts` has ended.
pub fn check(status: ExitStatus) -> Result<(), Error> {
    use std::os::unix::process::ExitStatusExt as _;

    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Error::Failed(code)),
        (None, signal) => Err(Error::Killed(signal.unwrap_or_default())),
    }
}
