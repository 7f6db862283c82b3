//! Our own guests: their kernels, and what becomes their first process.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::boot::{self, cpio::Cpio};
use crate::exit::Failure;

/// Environment variables that say where the files are.
const KERNEL_VARIABLE: &str = "VBTS_KERNEL";
const AGENT_VARIABLE: &str = "VBTS_AGENT";
const SUITE_VARIABLE: &str = "VBTS_SUITE";
/// Where the files are, relative to the directory of the executable: where the build leaves them
/// beside `target/release/vbts`, and where an installation has them.
const DIRECTORIES: [&str; 2] = ["../guest", "../lib/vbts"];

/// `/dev/console` and `/dev/kmsg`.
const CONSOLE: (u32, u32) = (5, 1);
const KMSG: (u32, u32) = (1, 11);

/// A generation of the API, each of which has cases of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `PTRACE_BTS_CONFIG`, `_STATUS`, `_SIZE`, `_GET`, `_CLEAR`, `_DRAIN`
    New,
    /// As posted in November 2007
    November2007,
    /// As posted in December 2007
    December2007,
}

impl Api {
    /// The one called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::New, Self::November2007, Self::December2007]
            .into_iter()
            .find(|api| api.name() == name)
    }

    /// Its name, as the suite's program and `guest-kernel/build --api` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::November2007 => "2007-11",
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
        Ok(Self {
            kernel: self::kernel(kernel, Api::New)?,
            agent: locate(None, AGENT_VARIABLE, "agent")?,
        })
    }

    /// The initial RAM file system.
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

/// Adds the devices that a first process needs before it can mount anything.
pub fn add_devices(cpio: &mut Cpio) {
    cpio.directory("dev", 0o755);
    cpio.character_device("dev/console", 0o600, CONSOLE);
    cpio.character_device("dev/kmsg", 0o600, KMSG);
}

/// The kernel that has a generation of the API; `given` overrides.
///
/// # Errors
/// It is not there.
pub fn kernel(given: Option<&Path>, api: Api) -> Result<PathBuf, Failure> {
    let (variable, name) = match api {
        Api::New => (KERNEL_VARIABLE, "vmlinux"),
        Api::November2007 => ("VBTS_KERNEL_2007_11", "2007-11/vmlinux"),
        Api::December2007 => ("VBTS_KERNEL_2007_12", "2007-12/vmlinux"),
    };
    locate(given.map(PathBuf::from), variable, name)
}

/// The program of the regression suite.
///
/// # Errors
/// It is not there.
pub fn suite() -> Result<PathBuf, Failure> {
    locate(None, SUITE_VARIABLE, "ptrace_bts")
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
        let build = match name.split_once('/') {
            Some((api, _)) => format!("guest-kernel/build --api {api}"),
            None => "guest-kernel/build".into(),
        };
        anyhow!("the guest's {name} is not there: build it with {build}, or set {variable} (looked for {looked})")
            .into()
    })
}
