//! Our own guest: its kernel, and the initial RAM file system with its agent.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::boot::cpio::Cpio;
use crate::exit::Failure;
use crate::launch;

/// Environment variables that say where the files are.
const KERNEL_VARIABLE: &str = "VBTS_KERNEL";
const AGENT_VARIABLE: &str = "VBTS_AGENT";
/// Where the files are, relative to the directory of the executable: where the build leaves them beside
/// `target/release/vbts`, and where an installation has them.
const DIRECTORIES: [&str; 2] = ["../guest", "../lib/vbts"];

/// `/dev/console`.
const CONSOLE: (u32, u32) = (5, 1);

/// The files of the guest that `vbts trace` boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// Its kernel.
    pub kernel: PathBuf,
    /// The program that becomes its first process.
    pub agent: PathBuf,
}

impl GuestFiles {
    /// Finds them; `kernel` overrides.
    ///
    /// # Errors
    /// They are not there.
    pub fn find(kernel: Option<&Path>) -> Result<Self, Failure> {
        let kernel = kernel.map(PathBuf::from);
        Ok(Self {
            kernel: locate(kernel, KERNEL_VARIABLE, "vmlinux")?,
            agent: locate(None, AGENT_VARIABLE, "agent")?,
        })
    }

    /// The initial RAM file system.
    ///
    /// # Errors
    /// The agent cannot be read.
    pub fn initramfs(&self) -> Result<Vec<u8>, Failure> {
        let agent = launch::read(&self.agent)?;
        let mut cpio = Cpio::new();
        cpio.directory("dev", 0o755);
        cpio.character_device("dev/console", 0o600, CONSOLE);
        cpio.file("init", 0o755, &agent);
        Ok(cpio.finish())
    }
}

fn locate(given: Option<PathBuf>, variable: &str, name: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = given.or_else(|| std::env::var_os(variable).map(PathBuf::from)) {
        return Ok(path);
    }
    let own = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("."));
    let candidates = DIRECTORIES.map(|d| directory.join(d).join(name));
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let looked = candidates.map(|c| c.display().to_string()).join(" and ");
        anyhow!("the guest's {name} is not there: build it with guest-kernel/build, or set {variable} (looked for {looked})")
            .into()
    })
}
