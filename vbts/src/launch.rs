//! The start of a `vbts` that keeps a trace.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::trace::check;
use crate::{Error, Trace, child};

/// The start of a `vbts` that traces `T`: a [`crate::Tracer`] or a [`crate::Machine`].
#[derive(Debug)]
pub struct Launch<T> {
    pub(crate) target: T,
    /// Options of `vbts`.
    options: Vec<OsString>,
    /// The file for the trace. `None` is a temporary one.
    keep: Option<PathBuf>,
    /// The program `vbts`.
    vbts: Option<PathBuf>,
    /// Standard input, output and error. `None` is that of this process.
    streams: [Option<Stdio>; 3],
}

impl<T> Launch<T> {
    pub(crate) fn of(target: T) -> Self {
        Self {
            target,
            options: Vec::new(),
            keep: None,
            vbts: None,
            streams: [None, None, None],
        }
    }

    /// Adds an option of the command that has a value, such as `("--cpu", "nehalem")`: of `vbts
    /// trace` for a program, of `vbts run` for a machine.
    #[must_use]
    pub fn option(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Ends the run after this time. What was recorded until then is the trace.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        self.option("--timeout", limit.as_secs_f64().to_string())
    }

    /// Gives the guest so many processors.
    #[must_use]
    pub fn processors(self, number: u32) -> Self {
        self.option("--smp", number.to_string())
    }

    /// Keeps the trace in this file. Without, it is in a temporary one.
    #[must_use]
    pub fn keep(mut self, path: impl Into<PathBuf>) -> Self {
        self.keep = Some(path.into());
        self
    }

    /// Starts this program `vbts` ([`crate::child_main`] says which one without).
    #[must_use]
    pub fn vbts(mut self, path: impl Into<PathBuf>) -> Self {
        self.vbts = Some(path.into());
        self
    }

    /// The standard input of the program, or the input of the guest's console.
    #[must_use]
    pub fn stdin(mut self, stream: impl Into<Stdio>) -> Self {
        self.streams[0] = Some(stream.into());
        self
    }

    /// The standard output of the program, or the output of the guest's console.
    #[must_use]
    pub fn stdout(mut self, stream: impl Into<Stdio>) -> Self {
        self.streams[1] = Some(stream.into());
        self
    }

    /// The standard error of the program, and of `vbts`.
    #[must_use]
    pub fn stderr(mut self, stream: impl Into<Stdio>) -> Self {
        self.streams[2] = Some(stream.into());
        self
    }

    /// Runs `vbts` with the words `first`, the file for the trace, the options, and the words
    /// `last`.
    ///
    /// # Errors
    /// `vbts` cannot be started, or has failed and made no trace that has an end.
    pub(crate) fn start(
        self,
        first: &[&str],
        last: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Trace, Error> {
        let (path, directory) = match self.keep {
            Some(path) => (path, None),
            None => temporary()?,
        };
        let mut command = child::command(self.vbts.as_deref());
        command.args(first).arg(&path).args(self.options).args(last);
        let [stdin, stdout, stderr] = self.streams;
        if let Some(stdin) = stdin {
            command.stdin(stdin);
        }
        if let Some(stdout) = stdout {
            command.stdout(stdout);
        }
        if let Some(stderr) = stderr {
            command.stderr(stderr);
        }
        // What was in a file that is kept is no trace of this run.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Keep(error));
            }
            _ => {}
        }
        let status = command.status().map_err(Error::Start)?;
        // The status is that of the program or of the guest if there is a trace with an end.
        match Trace::new(path, self.vbts, directory) {
            Ok(trace) if !trace.summary().end.is_empty() => Ok(trace),
            Ok(_) | Err(_) if !status.success() => {
                Err(check(status).err().unwrap_or(Error::Failed(0)))
            }
            other => other,
        }
    }
}

/// A file in a temporary directory.
fn temporary() -> Result<(PathBuf, Option<TempDir>), Error> {
    let directory = tempfile::Builder::new().prefix("vbts-").tempdir();
    let directory = directory.map_err(Error::Keep)?;
    Ok((directory.path().join("trace.btrace"), Some(directory)))
}
