//! Traces a program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::trace::check;
use crate::{Error, Trace, child};

/// Which branches are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Those of the program and its libraries.
    #[default]
    User,
    /// Those of the kernel while it works for the program.
    Kernel,
    /// Both.
    All,
}

impl Scope {
    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
            Self::All => "all",
        }
    }
}

/// A program to trace, as [`std::process::Command`] describes one: it gets this process' working
/// directory, environment and open files, and standard streams unless told otherwise.
#[derive(Debug)]
pub struct Tracer {
    program: OsString,
    args: Vec<OsString>,
    options: Vec<OsString>,
    keep: Option<PathBuf>,
    vbts: Option<PathBuf>,
    streams: [Option<Stdio>; 3],
}

impl Tracer {
    /// Traces `program`, which is looked up in `PATH` if it has no slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            options: Vec::new(),
            keep: None,
            vbts: None,
            streams: [None, None, None],
        }
    }

    /// Adds an argument of the program.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments of the program.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an option of `vbts trace` that has a value, such as `("--last", "1000")`.
    #[must_use]
    pub fn option(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Records these branches.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Self {
        self.option("--scope", scope.name())
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

    /// The standard input of the program.
    #[must_use]
    pub fn stdin(mut self, stream: impl Into<Stdio>) -> Self {
        self.streams[0] = Some(stream.into());
        self
    }

    /// The standard output of the program.
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

    /// Runs the program to its end.
    ///
    /// A status of the program other than 0 is no error: [`Trace::end`] has it.
    ///
    /// # Errors
    /// `vbts` cannot be started, or it has failed, as for a program that does not exist.
    pub fn run(self) -> Result<Trace, Error> {
        let (path, directory) = match self.keep {
            Some(path) => (path, None),
            None => {
                let directory = tempfile::Builder::new().prefix("vbts-").tempdir();
                let directory = directory.map_err(Error::Keep)?;
                (directory.path().join("trace.btrace"), Some(directory))
            }
        };
        let mut command = child::command(self.vbts.as_deref());
        command.args(["trace", "--quiet", "--format", "btrace", "--output"]);
        command.arg(&path).args(self.options).arg("--");
        command.arg(self.program).args(self.args);
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
        // The status is the program's if there is a trace with an end.
        match Trace::new(path, self.vbts, directory) {
            Ok(trace) if !trace.summary().end.is_empty() => Ok(trace),
            Ok(_) | Err(_) if !status.success() => {
                Err(check(status).err().unwrap_or(Error::Failed(0)))
            }
            other => other,
        }
    }
}
