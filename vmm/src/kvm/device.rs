//! Opens /dev/kvm, and checks that it has the capabilities that the accelerator needs.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use kvm_ioctls::{Cap, Kvm};
use std::os::fd::FromRawFd;
use thiserror::Error;

/// The device node of KVM.
pub const DEVICE: &str = "/dev/kvm";

/// The only stable version of the API (Documentation/virt/kvm/api.rst, 4.1).
const API_VERSION: i32 = 12;

/// The capabilities that the accelerator needs.
pub const CAPABILITIES: &[(Cap, &str)] = &[
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::UserNmi, "KVM_CAP_USER_NMI"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
    (Cap::Debugregs, "KVM_CAP_DEBUGREGS"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR"),
    (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER"),
];

/// Why the host's KVM cannot be used.
#[derive(Debug, Error)]
pub enum KvmUnavailable {
    /// The device node does not exist, or the module is not loaded.
    #[error(
        "there is no {}: load kvm_intel or kvm_amd (modprobe), enable virtualisation in the firmware, or nested \
         virtualisation if this is a virtual machine", .0.display()
    )]
    Missing(PathBuf),
    /// The user has no permission to open the device.
    #[error("{} cannot be opened: permission denied; {advice}", .path.display())]
    Permission {
        /// Path of the device.
        path: PathBuf,
        /// How to get permission.
        advice: String,
    },
    /// The device cannot be opened for another reason.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// Path of the device.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// The file is not a KVM device.
    #[error("{} is not a KVM: {what}", .path.display())]
    NotKvm {
        /// Path of the device.
        path: PathBuf,
        /// The kind of file, or the error of the first ioctl.
        what: String,
    },
    /// The API has an unknown version.
    #[error("{}: the KVM API has version {version}, but vbts needs version {API_VERSION}", .path.display())]
    Version {
        /// Path of the device.
        path: PathBuf,
        /// The version of the device.
        version: i32,
    },
    /// KVM lacks capabilities.
    #[error("{}: this KVM lacks {}; a newer kernel (5.10 or later) has it", .path.display(), .missing.join(" and "))]
    Capabilities {
        /// Path of the device.
        path: PathBuf,
        /// Names of the missing capabilities.
        missing: Vec<&'static str>,
    },
}

/// Opens the KVM device at `path`, which is [`DEVICE`] except in tests.
///
/// # Errors
/// Why it cannot be used, and how to solve that.
pub fn open(path: &Path) -> Result<Kvm, KvmUnavailable> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(source) => return Err(cannot_open(path, source)),
    };
    let not_kvm = |what: String| KvmUnavailable::NotKvm {
        path: path.into(),
        what,
    };
    match file.metadata() {
        Ok(metadata) if metadata.file_type().is_char_device() => {}
        Ok(metadata) => return Err(not_kvm(kind(&metadata).into())),
        Err(source) => return Err(cannot_open(path, source)),
    }
    let kvm = from_file(file);
    match kvm.get_api_version() {
        API_VERSION => {}
        version if version < 0 => {
            let error = io::Error::last_os_error();
            return Err(not_kvm(format!("KVM_GET_API_VERSION: {error}")));
        }
        version => {
            return Err(KvmUnavailable::Version {
                path: path.into(),
                version,
            });
        }
    }
    let missing = missing(|cap| kvm.check_extension(cap));
    if missing.is_empty() {
        Ok(kvm)
    } else {
        Err(KvmUnavailable::Capabilities {
            path: path.into(),
            missing,
        })
    }
}

fn from_file(file: File) -> Kvm {
    // SAFETY: the descriptor is open, and the result owns it from here on.
    unsafe { Kvm::from_raw_fd(file.into_raw_fd()) }
}

/// The names of the [`CAPABILITIES`] for which `has` returns false.
fn missing(has: impl Fn(Cap) -> bool) -> Vec<&'static str> {
    CAPABILITIES
        .iter()
        .filter(|&&(cap, _)| !has(cap))
        .map(|&(_, name)| name)
        .collect()
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_file() {
        "a regular file"
    } else if kind.is_fifo() {
        "a pipe"
    } else {
        "not a character device"
    }
}

fn cannot_open(path: &Path, source: io::Error) -> KvmUnavailable {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => KvmUnavailable::Missing(path),
        io::ErrorKind::PermissionDenied => KvmUnavailable::Permission {
            advice: std::fs::metadata(&path).map_or_else(
                |_| "its directory cannot be searched".into(),
                |m| advice(m.mode(), m.gid(), &group_name(m.gid())),
            ),
            path,
        },
        io::ErrorKind::IsADirectory => KvmUnavailable::NotKvm {
            path,
            what: "a directory".into(),
        },
        // The device node exists, but the module is not loaded.
        _ if source.raw_os_error() == Some(libc::ENODEV)
            || source.raw_os_error() == Some(libc::ENXIO) =>
        {
            KvmUnavailable::Missing(path)
        }
        _ => KvmUnavailable::Open { path, source },
    }
}

/// How a user gets access to a device with this mode and group.
fn advice(mode: u32, gid: u32, group: &str) -> String {
    const GROUP_READ_WRITE: u32 = 0o060;
    if gid != 0 && mode & GROUP_READ_WRITE == GROUP_READ_WRITE {
        format!("join its group with 'sudo usermod -aG {group} $USER', and log in again")
    } else {
        "only root may open it; to allow the group kvm, create /etc/udev/rules.d/65-kvm.rules with the line \
         'KERNEL==\"kvm\", GROUP=\"kvm\", MODE=\"0660\"', and join the group with 'sudo usermod -aG kvm $USER'"
            .into()
    }
}

/// The name of a group, or its number if it has no name.
fn group_name(gid: u32) -> String {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    groups
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
        })
        .unwrap_or_else(|| gid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::NamedTempFile;

    fn refusal(path: &Path) -> String {
        open(path).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_device_is_named() {
        let message = refusal(Path::new("/no/such/kvm"));
        assert!(message.contains("there is no /no/such/kvm"), "{message}");
    }

    #[test]
    fn other_files_are_not_a_kvm() {
        let file = NamedTempFile::new().unwrap();
        for (path, what) in [
            (file.path(), "a regular file"),
            (Path::new("/dev/null"), "KVM_GET_API_VERSION"),
            (Path::new("/dev"), "a directory"),
        ] {
            let message = refusal(path);
            assert!(message.contains("is not a KVM"), "{message}");
            assert!(message.contains(what), "{message}");
        }
    }

    #[test]
    fn a_refused_permission_comes_with_advice() {
        let file = NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
        let path = file.path().to_owned();
        // Root is never denied: this thread takes the file-system identity of another user.
        let message = std::thread::spawn(move || {
            // SAFETY: setfsuid changes the identity of this thread alone.
            unsafe { libc::setfsuid(65534) };
            refusal(&path)
        });
        let message = message.join().unwrap();
        assert!(message.contains("permission denied"), "{message}");
        assert!(message.contains("udev"), "{message}");
    }

    #[test]
    fn advice_depends_on_the_group() {
        assert!(advice(0o660, 107, "kvm").contains("usermod -aG kvm"));
        assert!(!advice(0o660, 107, "kvm").contains("udev"));
        for (mode, gid) in [(0o600, 107), (0o660, 0), (0o640, 107)] {
            assert!(advice(mode, gid, "x").contains("udev"), "{mode:o} {gid}");
        }
        assert_eq!(group_name(0), "root");
        assert_eq!(group_name(4_000_000_000), "4000000000");
    }

    #[test]
    fn capabilities_that_are_missing_are_named() {
        assert_eq!(missing(|_| true), [""; 0]);
        let lacking = missing(|cap| cap != Cap::X86MsrFilter && cap != Cap::UserNmi);
        assert_eq!(lacking, ["KVM_CAP_USER_NMI", "KVM_CAP_X86_MSR_FILTER"]);
        let error = KvmUnavailable::Capabilities {
            path: DEVICE.into(),
            missing: lacking,
        };
        let message = error.to_string();
        assert!(
            message.contains("KVM_CAP_USER_NMI and KVM_CAP_X86_MSR_FILTER"),
            "{message}"
        );
    }
}
