//! The writable layer above the host's root, which is lost with the machine: what the program has
//! changed in it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use vbts_protocol::{ErrorKind, Names, ToHost};

use crate::failure::Failure;
use crate::port::Port;

/// Number of changes that a message names.
const NAMED: usize = 4;
/// Number of files and directories of the layer that are looked at.
const MOST: usize = 20_000;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The writable layer of the root.
#[derive(Debug)]
pub struct Layer {
    upper: OwnedFd,
    lower: OwnedFd,
    /// Directories of the layer that the agent has made, to mount file systems there.
    own: BTreeSet<PathBuf>,
}

/// What has changed in a layer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    count: u32,
    more: bool,
    names: Vec<PathBuf>,
}

impl Layer {
    /// The layer of an overlay with these directories, which only the agent has changed so far.
    pub fn open(upper: &Path, lower: &Path) -> Result<Self, Failure> {
        let open = |path: &Path| {
            rustix::fs::open(path, DIRECTORY, Mode::empty())
                .map_err(|error| Failure::os(ErrorKind::Mount, path.display(), error))
        };
        Ok(Self {
            upper: open(upper)?,
            lower: open(lower)?,
            own: BTreeSet::new(),
        })
    }

    /// Notes what is in the layer, before the program starts: directories for mounts.
    pub fn note_mount_points(&mut self) {
        let mut found = BTreeSet::new();
        self.walk(&mut |path, _| {
            found.insert(path.to_owned());
            found.len() < MOST
        });
        self.own = found;
    }

    /// Tells the host which changes are lost, if there are any.
    pub fn report(&self, port: &mut Port) -> Result<(), Failure> {
        let changes = self.changes();
        if changes.count == 0 {
            return Ok(());
        }
        let mut names = Vec::new();
        for name in &changes.names {
            Names::push(&mut names, name.as_os_str().as_bytes());
        }
        port.send(&ToHost::Discarded {
            count: changes.count,
            more: changes.more,
            names: Names::new(&names).unwrap_or_default(),
        })
    }

    fn changes(&self) -> Changes {
        let mut changes = Changes::default();
        let mut seen = 0;
        // The last new directory that was named: the names of its contents add nothing.
        let mut named = PathBuf::new();
        self.walk(&mut |path, stat| {
            seen += 1;
            if seen > MOST {
                changes.more = true;
                return false;
            }
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_directory = kind == FileType::Directory;
            if is_directory && (self.own.contains(path) || self.is_below(path)) {
                return true;
            }
            changes.count += 1;
            let is_inside = !named.as_os_str().is_empty() && path.starts_with(&named);
            if changes.names.len() < NAMED && !is_inside {
                let mut name = Path::new("/").join(path).into_os_string();
                if is_directory {
                    named = path.to_owned();
                    name.push("/");
                } else if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
                    // The overlay's mark of a deleted file.
                    name.push(" (deleted)");
                }
                changes.names.push(name.into());
            }
            true
        });
        changes
    }

    /// Whether the host's root has this directory, too: its copy in the layer only holds the files
    /// below it.
    fn is_below(&self, path: &Path) -> bool {
        statat(&self.lower, path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Calls `visit` for everything in the layer, by path, a directory before its contents. Stops
    /// when it returns false.
    fn walk(&self, visit: &mut dyn FnMut(&Path, &Stat) -> bool) {
        let mut rest = vec![PathBuf::new()];
        while let Some(path) = rest.pop() {
            if !path.as_os_str().is_empty() {
                let Ok(stat) = statat(&self.upper, &path, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                if !visit(&path, &stat) {
                    return;
                }
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    continue;
                }
            }
            let first = rest.len();
            rest.extend(self.entries(&path).into_iter().map(|name| path.join(name)));
            if let Some(new) = rest.get_mut(first..) {
                new.sort_by(|a, b| b.cmp(a));
            }
        }
    }

    /// The names in a directory. A directory that cannot be read counts as empty.
    fn entries(&self, path: &Path) -> Vec<PathBuf> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let Ok(directory) = openat(self.upper.as_fd(), path, DIRECTORY, Mode::empty()) else {
            return Vec::new();
        };
        let entries = Dir::new(directory).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_bytes().to_vec())
            .filter(|name| name != b"." && name != b"..")
            .take(MOST + 1)
            .map(|name| OsStr::from_bytes(&name).into())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_changes_are_those_after_the_mounts() {
        let directory = tempfile::tempdir().unwrap();
        let (upper, lower) = (directory.path().join("u"), directory.path().join("l"));
        for path in ["u/proc", "u/mnt/share", "l/tmp", "l/etc"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        let mut layer = Layer::open(&upper, &lower).unwrap();
        layer.note_mount_points();
        assert_eq!(layer.changes(), Changes::default());

        for path in ["tmp/new/deep", "etc"] {
            fs::create_dir_all(upper.join(path)).unwrap();
        }
        for path in ["etc/hosts", "mnt/file", "tmp/new/deep/file", "tmp/new/file"] {
            fs::write(upper.join(path), "").unwrap();
        }
        std::os::unix::fs::symlink("x", upper.join("tmp/link")).unwrap();
        let expected = Changes {
            count: 7,
            more: false,
            names: ["/etc/hosts", "/mnt/file", "/tmp/link", "/tmp/new/"]
                .map(PathBuf::from)
                .to_vec(),
        };
        assert_eq!(layer.changes(), expected);
    }

    #[test]
    fn the_walk_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let layer = Layer::open(directory.path(), directory.path()).unwrap();
        for n in 0..=MOST {
            fs::write(directory.path().join(n.to_string()), "").unwrap();
        }
        let changes = layer.changes();
        assert_eq!(changes.count as usize, MOST);
        assert!(changes.more && changes.names.len() == NAMED);
    }
}
