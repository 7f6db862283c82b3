//! The files of vbts's own guests: kernels, and the programs that become the first process.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use crate::boot::{self, cpio::Cpio};
use crate::exit::Failure;
use crate::host::whole_file;

/// Environment variables with the paths of the files.
const KERNEL_VARIABLE: &str = "VBTS_KERNEL";
const AGENT_VARIABLE: &str = "VBTS_AGENT";
const SUITE_VARIABLE: &str = "VBTS_SUITE";
/// Directories of the files relative to that of the executable: the build's, from
/// `target/release/vbts`, and an installation's.
const DIRECTORIES: [&str; 2] = ["../guest", "../lib/vbts"];

/// Device numbers of `/dev/console` and `/dev/kmsg`.
const CONSOLE: (u32, u32) = (5, 1);
const KMSG: (u32, u32) = (1, 11);

/// A generation of the `PTRACE_BTS` API. Each has its own cases in the regression suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `PTRACE_BTS_CONFIG`, `_STATUS`, `_SIZE`, `_GET`, `_CLEAR`, `_DRAIN`.
    New,
    /// The requests posted in November 2007.
    November2007,
    /// The requests of the manual page that was proposed on 30 November 2007.
    Man2007,
    /// The requests posted in December 2007.
    December2007,
}

impl Api {
    /// The generation with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::New,
            Self::November2007,
            Self::Man2007,
            Self::December2007,
        ]
        .into_iter()
        .find(|api| api.name() == name)
    }

    /// Its name for the suite's program and for `guest-kernel/build --api`.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::November2007 => "2007-11",
            Self::Man2007 => "2007-man",
            Self::December2007 => "2007-12",
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The files of the guest that `vbts trace` boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// The kernel.
    pub kernel: PathBuf,
    /// The program that becomes its first process.
    pub agent: PathBuf,
}

impl GuestFiles {
    /// Finds the files. `kernel` replaces the default kernel.
    ///
    /// # Errors
    /// A file is missing.
    pub fn find(kernel: Option<&Path>) -> Result<Self, Failure> {
        Ok(Self {
            kernel: self::kernel(kernel, Api::New)?,
            agent: locate(None, AGENT_VARIABLE, "agent")?,
        })
    }

    /// The initial RAM file system with the agent.
    ///
    /// # Errors
    /// The agent cannot be read.
    pub fn initramfs(&self) -> Result<Vec<u8>, Failure> {
        let agent = boot::read_file(&self.agent)?;
        let mut cpio = Cpio::new();
        add_devices(&mut cpio);
        cpio.file("init", 0o755, &agent);
        Ok(cpio.finish())
    }
}

/// Adds the device files that the first process needs before it can mount a file system.
pub fn add_devices(cpio: &mut Cpio) {
    cpio.directory("dev", 0o755);
    cpio.character_device("dev/console", 0o600, CONSOLE);
    cpio.character_device("dev/kmsg", 0o600, KMSG);
}

/// Finds the kernel with a generation of the API. `given` replaces the default kernel.
///
/// # Errors
/// The file is missing, or no regular file.
pub fn kernel(given: Option<&Path>, api: Api) -> Result<PathBuf, Failure> {
    let (variable, name) = match api {
        Api::New => (KERNEL_VARIABLE, "vmlinux"),
        Api::November2007 => ("VBTS_KERNEL_2007_11", "2007-11/vmlinux"),
        Api::Man2007 => ("VBTS_KERNEL_2007_MAN", "2007-man/vmlinux"),
        Api::December2007 => ("VBTS_KERNEL_2007_12", "2007-12/vmlinux"),
    };
    locate(given.map(PathBuf::from), variable, name)
}

/// Whether the environment names the default kernel.
pub fn has_default_kernel_variable() -> bool {
    std::env::var_os(KERNEL_VARIABLE).is_some()
}

/// Finds the program of the regression suite.
///
/// # Errors
/// The file is missing, or no regular file.
pub fn suite() -> Result<PathBuf, Failure> {
    locate(None, SUITE_VARIABLE, "ptrace_bts")
}

/// The directory of an installation with the files.
pub fn installation() -> PathBuf {
    own_directory().join(DIRECTORIES[1])
}

/// The directory of the executable.
fn own_directory() -> PathBuf {
    let own = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .unwrap_or_default();
    own.parent().unwrap_or(Path::new(".")).to_owned()
}

fn locate(given: Option<PathBuf>, variable: &str, name: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = given.or_else(|| std::env::var_os(variable).map(PathBuf::from)) {
        // Its symbols may be read before it is booted.
        whole_file::open(&path).with_context(|| format!("Cannot read {}", path.display()))?;
        return Ok(path);
    }
    let directory = own_directory();
    let candidates = DIRECTORIES.map(|d| directory.join(d).join(name));
    candidates
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .ok_or_else(|| {
            let looked = candidates.map(|c| c.display().to_string()).join(" and ");
            let build = match name.split_once('/') {
                Some((api, _)) => format!("guest-kernel/build --api {api}"),
                None => "guest-kernel/build or vbts setup".into(),
            };
            anyhow!(
                "the guest's {name} is missing: build it with {build}, or set {variable} \
             (searched for {looked})"
            )
            .into()
        })
}
