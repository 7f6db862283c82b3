//! The configuration of a machine and of the kernel in it, as plain data.
//!
//! The command line makes a configuration; `vbts test` and tests make others.
//! [`crate::accel::resolve`] checks it against the host.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vbts_cpu::NativeOptions;
use vbts_devices::virtio::net::MacAddress;

use crate::memory::Size;

/// Default size of guest memory (decision 0016). It is the same on each host, because the bytes of
/// a trace depend on it.
pub const DEFAULT_MEMORY: Size = Size(1 << 30);
/// Default processor model of a machine: the processor that the kernel patches of 2007 target.
pub const DEFAULT_MODEL: &str = vbts_cpu::MODELS[0];

/// Default processor model for traced programs: the highest level for which distributions and
/// libraries compile and that the host has, so that KVM can run the guest, too.
#[must_use]
pub fn trace_model() -> &'static str {
    const LATEST: &str = "x86-64-v3";
    match vbts_cpu::model(LATEST) {
        Some(model) if model.missing_on_host().is_empty() => LATEST,
        _ => "x86-64-v2",
    }
}

/// Selects what executes the guest's instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accelerator {
    /// KVM if it passes its checks and is faster than the software CPU, else the software CPU.
    #[default]
    Auto,
    /// The host's KVM.
    Kvm,
    /// The software CPU.
    Soft,
}

/// Selects the implementation of the Branch Trace Store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BtsMode {
    /// [`Self::Passthrough`] if the host supports it, else [`Self::Emulate`].
    #[default]
    Auto,
    /// The software CPU of vbts stores the branches.
    Emulate,
    /// The host's processor stores the branches.
    Passthrough,
    /// The guest's processor has no Branch Trace Store.
    Off,
}

/// Selects whether the software CPU makes native code of what runs often. Traces are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JitMode {
    /// It does if the host can execute native code.
    #[default]
    Auto,
    /// It does.
    On,
    /// It does, and interprets as well, to compare the results.
    Check,
    /// It interprets.
    Off,
}

/// Selects the guest's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockSource {
    /// [`Self::Virtual`] on the software CPU, [`Self::Host`] on KVM.
    #[default]
    Auto,
    /// Retired instructions of the software CPU. Its processors take turns, and two runs are the
    /// same.
    Virtual,
    /// The host's clock. Each processor has a thread of its own.
    Host,
}

/// Selects the source of the guest's random numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RandomSource {
    /// [`Self::Fixed`] on virtual time, on which two runs are the same; [`Self::Host`] on the
    /// host's.
    #[default]
    Auto,
    /// A generator that returns the same numbers on every run. They are not fit for secrets.
    Fixed,
    /// The host's random number generator.
    Host,
}

/// Selects what vbts reports about itself on standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Errors.
    Error,
    /// Errors and warnings.
    #[default]
    Warn,
    /// Decisions as well, such as the accelerator.
    Info,
    /// Events as well.
    Debug,
    /// Every exit of the processor as well.
    Trace,
}

/// A directory of the host that the guest can mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareConfig {
    /// Path on the host.
    #[serde(with = "os_path")]
    pub directory: PathBuf,
    /// Whether the guest may write.
    pub writable: bool,
}

/// A disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskConfig {
    /// File or block device of the host.
    #[serde(with = "os_path")]
    pub file: PathBuf,
    /// Whether the guest may write.
    pub writable: bool,
}

/// A network device of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkConfig {
    /// Name of the host's TAP device.
    pub tap: String,
    /// The guest's station address.
    #[serde(with = "mac_address")]
    pub address: MacAddress,
}

/// How the process is confined while the guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SandboxMode {
    /// To the system calls that it needs, and, where the host has Landlock, to the files.
    #[default]
    Auto,
    /// To the system calls and the files that it needs. A host that cannot do so runs no guest.
    Strict,
    /// Not at all.
    Off,
}

/// The machine: its processors, memory and devices, and the limits of its run.
///
/// ```
/// use vbts_vmm::config::{Accelerator, MachineConfig};
///
/// let config = MachineConfig {
///     accelerator: Accelerator::Soft,
///     memory: "1G".parse()?,
///     ..MachineConfig::default()
/// };
/// assert_eq!(config.memory.0, 1 << 30);
/// assert_eq!((config.processors, config.model.as_str()), (1, "core2"));
/// # Ok::<(), vbts_vmm::memory::SizeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// What executes the guest.
    pub accelerator: Accelerator,
    /// With [`Accelerator::Kvm`]: uses a KVM that has failed its checks.
    pub kvm_unchecked: bool,
    /// Implementation of the Branch Trace Store.
    pub bts: BtsMode,
    /// The guest's clock.
    pub clock: ClockSource,
    /// Whether the software CPU makes native code.
    pub jit: JitMode,
    /// Runs of a block after which it becomes native code.
    pub jit_threshold: u32,
    /// Names native code for perf in a file.
    pub perf_map: bool,
    /// Name of the processor model, one of [`vbts_cpu::MODELS`].
    pub model: String,
    /// Guest memory in bytes.
    pub memory: Size,
    /// Number of processors, 1 to [`crate::layout::MAX_PROCESSORS`].
    pub processors: u32,
    /// Host time after which the run ends.
    pub time_limit: Option<Duration>,
    /// File that receives a copy of the serial console.
    #[serde(with = "optional_os_path")]
    pub console: Option<PathBuf>,
    /// Directory of the host that is the guest's root, read-only.
    #[serde(with = "optional_os_path")]
    pub root: Option<PathBuf>,
    /// Directories of the host that the guest can mount.
    pub shares: Vec<ShareConfig>,
    /// Disks, in the order in which the guest finds them.
    pub disks: Vec<DiskConfig>,
    /// Network devices, in the order in which the guest finds them.
    pub networks: Vec<NetworkConfig>,
    /// Source of random numbers.
    pub random: RandomSource,
    /// The guest's real-time clock at its start, in seconds since 1970. `None` is
    /// `SOURCE_DATE_EPOCH`, or else a constant.
    pub start_date: Option<u64>,
    /// How the process is confined while the guest runs.
    pub sandbox: SandboxMode,
    /// What vbts reports about itself.
    pub log: LogLevel,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            accelerator: Accelerator::default(),
            kvm_unchecked: false,
            bts: BtsMode::default(),
            clock: ClockSource::default(),
            jit: JitMode::default(),
            jit_threshold: NativeOptions::default().threshold,
            perf_map: false,
            model: DEFAULT_MODEL.into(),
            memory: DEFAULT_MEMORY,
            processors: 1,
            time_limit: None,
            console: None,
            root: None,
            shares: Vec::new(),
            disks: Vec::new(),
            networks: Vec::new(),
            random: RandomSource::default(),
            start_date: None,
            sandbox: SandboxMode::default(),
            log: LogLevel::default(),
        }
    }
}

/// The initial RAM disk of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Initrd {
    /// A file of the host.
    File(#[serde(with = "os_path")] PathBuf),
    /// The archive itself.
    Contents(Vec<u8>),
}

/// The kernel to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelConfig {
    /// File of the host: an uncompressed vmlinux or a bzImage.
    #[serde(with = "os_path")]
    pub image: PathBuf,
    /// Its initial RAM disk.
    pub initrd: Option<Initrd>,
    /// Words to add to its command line.
    pub append: String,
}

/// A guest: a machine and the kernel to boot in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// The machine.
    pub machine: MachineConfig,
    /// The kernel.
    pub kernel: KernelConfig,
}

/// Serialises a path as the host's bytes. Serde's own form refuses paths that are not UTF-8.
mod os_path {
    use std::ffi::{OsStr, OsString};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        path: impl AsRef<Path>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        AsRef::<OsStr>::as_ref(path.as_ref()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

/// [`os_path`] for a path that may be absent.
mod optional_os_path {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Path::as_os_str).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<OsString>::deserialize(from)?.map(PathBuf::from))
    }
}

/// Serialises a station address as text, `02:00:00:00:00:01`.
mod mac_address {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use vbts_devices::virtio::net::MacAddress;

    pub(super) fn serialize<S: Serializer>(address: &MacAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MacAddress, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_configuration_survives_serialisation() {
        let odd_path = || PathBuf::from(OsString::from_vec(b"/a \xFF\"b".to_vec()));
        let first = GuestConfig {
            machine: MachineConfig {
                accelerator: Accelerator::Soft,
                kvm_unchecked: true,
                bts: BtsMode::Off,
                clock: ClockSource::Host,
                jit: JitMode::On,
                jit_threshold: 5,
                perf_map: true,
                model: "nehalem".into(),
                memory: Size(1 << 30),
                processors: 4,
                time_limit: Some(Duration::from_millis(1500)),
                console: Some("console".into()),
                root: Some(odd_path()),
                shares: vec![ShareConfig {
                    directory: odd_path(),
                    writable: true,
                }],
                disks: vec![DiskConfig {
                    file: odd_path(),
                    writable: false,
                }],
                networks: vec![NetworkConfig {
                    tap: "tap0".into(),
                    address: MacAddress::of_name("tap0"),
                }],
                random: RandomSource::Host,
                start_date: Some(1),
                sandbox: SandboxMode::Off,
                log: LogLevel::Off,
            },
            kernel: KernelConfig {
                image: odd_path(),
                initrd: Some(Initrd::File(odd_path())),
                append: "quiet".into(),
            },
        };
        let second = GuestConfig {
            machine: MachineConfig::default(),
            kernel: KernelConfig {
                image: "vmlinux".into(),
                initrd: Some(Initrd::Contents(vec![0, 255])),
                append: String::new(),
            },
        };
        for config in [first, second] {
            let text = serde_json::to_vec(&config).unwrap();
            let read: GuestConfig = serde_json::from_slice(&text).unwrap();
            assert_eq!(read, config);
        }
    }
}
