//! Records a whole machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::run::TraceRun;
use crate::{Error, Scope, Trace};

/// A machine that boots a kernel, and records its branches from the first instruction on. The
/// guest needs no driver for that, and no Branch Trace Store.
///
/// Its serial console is on this process' standard output and input unless told otherwise.
#[derive(Debug)]
pub struct Machine {
    kernel: PathBuf,
    run: TraceRun,
}

impl Machine {
    /// A machine that boots `kernel`, a `vmlinux` or a `bzImage`. Points need its symbols, which a
    /// `vmlinux` has.
    pub fn new(kernel: impl Into<PathBuf>) -> Self {
        Self {
            kernel: kernel.into(),
            run: TraceRun::default(),
        }
    }

    /// Adds an option of `vbts run` that has a value, such as `("--disk", "image.raw,ro")`.
    #[must_use]
    pub fn option(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.run.option(name, value);
        self
    }

    /// The initial RAM disk.
    #[must_use]
    pub fn initrd(self, path: impl Into<PathBuf>) -> Self {
        self.option("--initrd", path.into())
    }

    /// Words to add to the kernel's command line.
    #[must_use]
    pub fn append(self, words: impl Into<OsString>) -> Self {
        self.option("--append", words)
    }

    /// The number of processors.
    #[must_use]
    pub fn processors(self, number: u32) -> Self {
        self.option("--smp", number.to_string())
    }

    /// Ends the run after this time. What was recorded until then is the trace.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        self.option("--timeout", limit.as_secs_f64().to_string())
    }

    /// Records these branches.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Self {
        self.option("--record-scope", scope.name())
    }

    /// Records from the first branch to `point` on, such as `"start_kernel"`, `"exit.c:905"` or
    /// `"0xffffffff81000000"`.
    #[must_use]
    pub fn record_from(self, point: impl Into<OsString>) -> Self {
        self.option("--record-from", point)
    }

    /// Stops the machine at the first branch to `point` after the recording has begun.
    #[must_use]
    pub fn record_until(self, point: impl Into<OsString>) -> Self {
        self.option("--record-until", point)
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

    /// What the guest reads from its console.
    #[must_use]
    pub fn stdin(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[0] = Some(stream.into());
        self
    }

    /// What receives the guest's console.
    #[must_use]
    pub fn stdout(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[1] = Some(stream.into());
        self
    }

    /// What receives the messages of `vbts`.
    #[must_use]
    pub fn stderr(mut self, stream: impl Into<Stdio>) -> Self {
        self.run.streams[2] = Some(stream.into());
        self
    }

    /// Runs the machine to its end.
    ///
    /// A panic of the guest is no error: [`Trace::end`] is then [`crate::End::Incomplete`].
    ///
    /// # Errors
    /// `vbts` cannot be started, or it has failed, as for a kernel that does not exist.
    pub fn run(mut self) -> Result<Trace, Error> {
        self.run.option("--kernel", self.kernel);
        self.run.run(&["run", "--record"], &[] as &[OsString])
    }
}
