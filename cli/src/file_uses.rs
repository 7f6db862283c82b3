//! What a command does with the files that its options name: a file that it writes is used for
//! nothing else.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::bail;

use vbts_vmm::config::MachineConfig;

/// What identifies a file, under all its names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Identity {
    /// A regular file or a directory: device and inode.
    File(u64, u64),
    /// A block device: its number.
    Device(u64),
    /// A file that does not exist yet: device and inode of its directory, and its name there.
    Missing(u64, u64, OsString),
}

impl Identity {
    /// The identity of the file at `path`. Pipes, terminals and other devices may be used several
    /// times. So may what cannot be found: opening it fails with a better message.
    fn of(path: &Path) -> Option<Self> {
        match std::fs::metadata(path) {
            Ok(status) => Self::of_status(&status),
            Err(_) => {
                let target = std::fs::read_link(path).ok();
                let directory = path.parent()?;
                // The target of a link that leads nowhere yet.
                let path = target.map_or(path.to_owned(), |target| directory.join(target));
                let status = std::fs::metadata(parent(&path)?).ok()?;
                let name = path.file_name()?.to_owned();
                Some(Self::Missing(status.dev(), status.ino(), name))
            }
        }
    }

    fn of_status(status: &Metadata) -> Option<Self> {
        let kind = status.file_type();
        if kind.is_file() || kind.is_dir() {
            Some(Self::File(status.dev(), status.ino()))
        } else if kind.is_block_device() {
            Some(Self::Device(status.rdev()))
        } else {
            None
        }
    }
}

/// The directory of `path`.
fn parent(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    })
}

/// A use of a file.
#[derive(Debug)]
struct Use {
    /// The option, or what the file is.
    what: String,
    path: PathBuf,
    identity: Identity,
}

/// The files of a command. Those that do not matter here are left out.
#[derive(Debug, Default)]
pub(crate) struct FileUses {
    read: Vec<Use>,
    written: Vec<Use>,
    /// Directories in which the guest may write.
    shared: Vec<Use>,
}

impl FileUses {
    /// The files of the machine options.
    pub(crate) fn of_machine(config: &MachineConfig) -> Self {
        let mut uses = Self::default();
        for disk in &config.disks {
            uses.reads("--disk", &disk.file);
        }
        for share in config.shares.iter().filter(|share| share.writable) {
            push(&mut uses.shared, "--share", &share.directory);
        }
        if let Some(path) = &config.console {
            uses.writes("--console", path);
        }
        if let Ok(input) = std::fs::metadata("/dev/stdin")
            && let Some(identity) = Identity::of_status(&input)
        {
            uses.read.push(Use {
                what: "standard input".into(),
                path: "/dev/stdin".into(),
                identity,
            });
        }
        uses
    }

    /// Adds a file that is read, or a disk.
    pub(crate) fn reads(&mut self, what: &str, path: &Path) {
        push(&mut self.read, what, path);
    }

    /// Adds a file that is created or truncated.
    pub(crate) fn writes(&mut self, what: &str, path: &Path) {
        push(&mut self.written, what, path);
    }

    /// Checks that no file that is written has another use.
    ///
    /// # Errors
    /// One has.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (n, written) in self.written.iter().enumerate() {
            let others = self.written.get(n + 1..).unwrap_or_default();
            for other in self.read.iter().chain(others) {
                if other.identity == written.identity {
                    let Use { what, path, .. } = written;
                    bail!(
                        "{what} {} would overwrite {} {}: it is the same file",
                        path.display(),
                        other.what,
                        other.path.display()
                    );
                }
            }
            for share in &self.shared {
                if is_within(&written.path, &share.identity) {
                    bail!(
                        "{} {} is in the directory of --share {}:rw, where the guest could change \
                         it: write it somewhere else",
                        written.what,
                        written.path.display(),
                        share.path.display()
                    );
                }
            }
        }
        Ok(())
    }
}

fn push(uses: &mut Vec<Use>, what: &str, path: &Path) {
    if let Some(identity) = Identity::of(path) {
        uses.push(Use {
            what: what.into(),
            path: path.into(),
            identity,
        });
    }
}

/// Whether `path` is somewhere below `directory`, or is it.
fn is_within(path: &Path, directory: &Identity) -> bool {
    let place = path.canonicalize().or_else(|error| match parent(path) {
        Some(parent) => parent.canonicalize(),
        None => Err(error),
    });
    place.is_ok_and(|place| {
        place
            .ancestors()
            .any(|place| Identity::of(place).as_ref() == Some(directory))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// The message about a file that is read, and two that are written.
    fn check(read: &Path, written: [&Path; 2]) -> Result<(), String> {
        let mut uses = FileUses::default();
        uses.reads("--disk", read);
        uses.writes("--output", written[0]);
        uses.writes("--console", written[1]);
        uses.check().map_err(|error| error.to_string())
    }

    #[test]
    fn files_are_the_same_under_all_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a", "b"] {
            fs::write(path(name), name).unwrap();
        }
        fs::hard_link(path("a"), path("hard")).unwrap();
        symlink("a", path("soft")).unwrap();
        symlink("missing", path("dangling")).unwrap();
        fs::create_dir(path("within")).unwrap();
        for (read, output, console, words) in [
            ("a", "a", "b", ["--output", "--disk"]),
            ("a", "b", "hard", ["--console", "--disk"]),
            ("soft", "hard", "b", ["--output", "--disk"]),
            ("b", "missing", "missing", ["--output", "--console"]),
            (
                "b",
                "missing",
                "within/../missing",
                ["--output", "--console"],
            ),
            ("b", "dangling", "missing", ["--output", "--console"]),
        ] {
            let error = check(&path(read), [&path(output), &path(console)]).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
        let null = Path::new("/dev/null");
        assert_eq!(check(null, [null, null]), Ok(()));
        assert_eq!(check(&path("a"), [&path("b"), &path("c")]), Ok(()));
        assert_eq!(check(&path("missing"), [&path("within/a"), null]), Ok(()));
    }

    #[test]
    fn the_guest_cannot_change_what_vbts_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("share/deep")).unwrap();
        symlink("share/deep", path("link")).unwrap();
        for (output, accepted) in [
            ("share/trace", false),
            ("share/deep/trace", false),
            ("link/trace", false),
            ("link/../trace", false),
            ("trace", true),
        ] {
            let mut uses = FileUses::default();
            push(&mut uses.shared, "--share", &path("share"));
            uses.writes("--output", &path(output));
            assert_eq!(uses.check().is_ok(), accepted, "{output}");
        }
    }
}
