//! The search for the files.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use vbts_cpu::Model;

use crate::arch::Arch;
use vbts_host::exit::Failure;
use vbts_host::whole_file;
use vbts_vmm::boot::{self, Protocol, cpio::Cpio};

/// Environment variables with the paths of the files.
const KERNEL_VARIABLE: &str = "VBTS_KERNEL";
const AGENT_VARIABLE: &str = "VBTS_AGENT";
const SUITE_VARIABLE: &str = "VBTS_SUITE";

/// Device numbers of `/dev/console` and `/dev/kmsg`.
const CONSOLE: (u32, u32) = (5, 1);
const KMSG: (u32, u32) = (1, 11);

/// The architecture of the kernel in a file. A file that is no kernel is refused when it is booted.
pub fn arch_of(kernel: &Path) -> Arch {
    match boot::protocol_of(kernel) {
        Ok(Protocol::Bits32) => Arch::I386,
        Ok(Protocol::Bits64) | Err(_) => Arch::X86_64,
    }
}

/// The subdirectory of `target` in which `guest-kernel/build` leaves the files.
pub fn build_directory(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "guest",
        Arch::I386 => "guest-i386",
    }
}

/// The directory of an installation with the files.
pub fn installation(arch: Arch) -> PathBuf {
    let directory = own_directory().join("../lib/vbts");
    match arch {
        Arch::X86_64 => directory,
        Arch::I386 => directory.join("i386"),
    }
}

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
    /// The architecture of both.
    pub arch: Arch,
}

impl GuestFiles {
    /// Finds the files for a processor model. `kernel` replaces the default kernel.
    ///
    /// # Errors
    /// A file is missing.
    pub fn find(kernel: Option<&Path>, model: &Model) -> Result<Self, Failure> {
        let kernel = self::kernel(kernel, Api::New, Arch::of_model(model))?;
        let arch = arch_of(&kernel);
        let agent = locate(None, AGENT_VARIABLE, "agent", arch)?;
        Ok(Self {
            kernel,
            agent,
            arch,
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

/// Finds the kernel with a generation of the API. `given` replaces the default kernel of `arch`.
///
/// # Errors
/// The file is missing, or no regular file.
pub fn kernel(given: Option<&Path>, api: Api, arch: Arch) -> Result<PathBuf, Failure> {
    let (variable, name) = match api {
        Api::New => (KERNEL_VARIABLE, "vmlinux"),
        Api::November2007 => ("VBTS_KERNEL_2007_11", "2007-11/vmlinux"),
        Api::Man2007 => ("VBTS_KERNEL_2007_MAN", "2007-man/vmlinux"),
        Api::December2007 => ("VBTS_KERNEL_2007_12", "2007-12/vmlinux"),
    };
    locate(given.map(PathBuf::from), variable, name, arch)
}

/// Whether the environment names the default kernel.
pub fn has_default_kernel_variable() -> bool {
    from_environment(KERNEL_VARIABLE).is_some()
}

/// The path in an environment variable. An empty one is none.
fn from_environment(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

/// Finds the program of the regression suite for kernels of `arch`.
///
/// # Errors
/// The file is missing, or no regular file.
pub fn suite(arch: Arch) -> Result<PathBuf, Failure> {
    locate(None, SUITE_VARIABLE, "ptrace_bts", arch)
}

/// The directory of the executable. Cargo builds examples and tests in directories of that.
fn own_directory() -> PathBuf {
    let own = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("."));
    match directory.parent() {
        Some(above) if directory.ends_with("examples") || directory.ends_with("deps") => above,
        _ => directory,
    }
    .to_owned()
}

fn locate(
    given: Option<PathBuf>,
    variable: &str,
    name: &str,
    arch: Arch,
) -> Result<PathBuf, Failure> {
    if let Some(path) = given.or_else(|| from_environment(variable)) {
        // Its symbols may be read before it is booted.
        whole_file::open(&path).with_context(|| format!("Cannot read {}", path.display()))?;
        return Ok(path);
    }
    // The executable of a build is in target/release.
    let built = own_directory().join("..").join(build_directory(arch));
    let candidates = [built, installation(arch)].map(|directory| directory.join(name));
    candidates
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .ok_or_else(|| {
            let looked = candidates.map(|c| c.display().to_string()).join(" and ");
            let option = match arch {
                Arch::X86_64 => String::new(),
                Arch::I386 => format!(" --arch {}", arch.name()),
            };
            let build = match (name.split_once('/'), arch) {
                (Some((api, _)), _) => {
                    format!("build it with guest-kernel/build{option} --api {api}")
                }
                (None, Arch::X86_64) => "fetch it with vbts setup --download, build it with \
                     guest-kernel/build or vbts setup"
                    .into(),
                (None, Arch::I386) => {
                    format!("build it with guest-kernel/build{option} or vbts setup{option}")
                }
            };
            anyhow!(
                "the guest's {name} is missing: {build}, or set {variable} (searched for {looked})"
            )
            .into()
        })
}
