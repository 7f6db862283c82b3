//! A run of `vbts` that keeps a trace.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;

use tempfile::TempDir;

use crate::trace::check;
use crate::{Error, Trace, child};

/// What a [`crate::Tracer`] and a [`crate::Machine`] have in common.
#[derive(Debug, Default)]
pub struct TraceRun {
    /// Options of `vbts`.
    pub options: Vec<OsString>,
    /// The file for the trace. `None` is a temporary one.
    pub keep: Option<PathBuf>,
    /// The program `vbts`.
    pub vbts: Option<PathBuf>,
    /// Standard input, output and error. `None` is that of this process.
    pub streams: [Option<Stdio>; 3],
}

impl TraceRun {
    /// Adds an option that has a value.
    pub fn option(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.options.extend([name.into(), value.into()]);
    }

    /// Runs `vbts` with the words `first`, the file for the trace, the options, and the words
    /// `last`.
    ///
    /// # Errors
    /// `vbts` cannot be started, or has failed and made no trace that has an end.
    pub fn run(self, first: &[&str], last: &[impl AsRef<OsStr>]) -> Result<Trace, Error> {
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
