//! Traces a program.

use std::ffi::OsString;

use crate::launch::Launch;
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
pub type Tracer = Launch<Program>;

/// The program of a [`Tracer`], and its arguments.
#[derive(Debug)]
pub struct Program(Vec<OsString>);

impl Tracer {
    /// Traces `program`, which is looked up in `PATH` if it has no slash.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self::of(Program(vec![program.into()]))
    }

    /// Adds an argument of the program.
    #[must_use]
    pub fn arg(self, arg: impl Into<OsString>) -> Self {
        self.args([arg])
    }

    /// Adds arguments of the program.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        let Program(words) = &mut self.target;
        words.extend(args.into_iter().map(Into::into));
        self
    }

    /// Records these branches.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Self {
        self.option("--scope", scope.name())
    }

    /// Runs the program to its end.
    ///
    /// A status of the program other than 0 is no error: [`Trace::end`] has it.
    ///
    /// # Errors
    /// `vbts` cannot be started, or it has failed, as for a program that does not exist.
    pub fn run(mut self) -> Result<Trace, Error> {
        let mut words = vec!["--".into()];
        words.append(&mut self.target.0);
        let first = ["trace", "--quiet", "--format", "btrace", "--output"];
        self.start(&first, words)
    }
}
