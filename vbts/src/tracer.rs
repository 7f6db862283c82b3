//! Traces a program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::run::TraceRun;
use crate::{Error, Trace};

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
    pub(crate) fn name(self) -> &'static str {
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
    run: TraceRun,
}

impl Tracer {
    /// Traces `program`, which is looked up in `PATH` if it has no slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            run: TraceRun::default(),
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
        self.run.option(name, value);
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
        self.run.keep = Some(path.into());
        self
    }

    /// Starts this program `vbts` ([`crate::child_main`] says which one without).
    #[must_use]
    pub fn vbts(mut self, path: impl Into<PathBuf>) -> Self {
        self.run.vbts = Some(path.into());
        self
    }

    /// The standard input of the program.
    #[must_use]
    pub fn stdin(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[0] = Some(stream.into());
        self
    }

    /// The standard output of the program.
    #[must_use]
    pub fn stdout(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[1] = Some(stream.into());
        self
    }

    /// The standard error of the program, and of `vbts`.
    #[must_use]
    pub fn stderr(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[2] = Some(stream.into());
        self
    }

    /// Runs the program to its end.
    ///
    /// A status of the program other than 0 is no error: [`Trace::end`] has it.
    ///
    /// # Errors
    /// `vbts` cannot be started, or it has failed, as for a program that does not exist.
    pub fn run(self) -> Result<Trace, Error> {
        let mut words = vec![OsString::from("--"), self.program];
        words.extend(self.args);
        let first = ["trace", "--quiet", "--format", "btrace", "--output"];
        self.run.run(&first, &words)
    }
}
