//! Records a whole machine.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::launch::Launch;
use crate::{Error, Scope, Trace};

/// A machine that boots a kernel, and records its branches from the first instruction on. The
/// guest needs no driver for that, and no Branch Trace Store.
///
/// Its serial console is on this process' standard output and input unless told otherwise.
pub type Machine = Launch<Kernel>;

/// The kernel of a [`Machine`].
#[derive(Debug)]
pub struct Kernel(PathBuf);

impl Machine {
    /// A machine that boots `kernel`, a `vmlinux` or a `bzImage`. Points need its symbols, which a
    /// `vmlinux` has.
    pub fn new(kernel: impl Into<PathBuf>) -> Self {
        Self::of(Kernel(kernel.into()))
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

    /// Runs the machine to its end.
    ///
    /// A panic of the guest is no error: [`Trace::end`] is then [`crate::End::Incomplete`].
    ///
    /// # Errors
    /// `vbts` cannot be started, or it has failed, as for a kernel that does not exist.
    pub fn run(self) -> Result<Trace, Error> {
        let kernel = self.target.0.clone();
        self.option("--kernel", kernel)
            .start(&["run", "--record"], [""; 0])
    }
}
