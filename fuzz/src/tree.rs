//! Directories to share with a guest, beside a file that it must never see.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::canary;

/// The files whose change is a defect.
const WATCHED: [&str; 7] = [
    "canary",
    "share",
    "share/d",
    "share/d/e",
    "share/d/g",
    "share/f",
    ".",
];

/// The time of a file's last change, in seconds and nanoseconds, and its size in bytes.
pub type Stamp = (i64, i64, u64);

/// The stamps of files below `top`.
///
/// # Panics
/// One does not exist.
pub fn stamps(top: &Path, names: &[&str]) -> Vec<Stamp> {
    let stamp = |name| {
        let m = fs::symlink_metadata(top.join(name)).expect("the file is still there");
        (m.ctime(), m.ctime_nsec(), m.len())
    };
    names.iter().map(stamp).collect()
}

/// A directory with a canary file, a share with a few files, and an empty share.
#[derive(Debug)]
pub struct Tree {
    top: PathBuf,
    before: Vec<Stamp>,
}

impl Tree {
    /// Creates it in the temporary directory of the host. It is not removed: `ci/fuzz` gives each
    /// run a temporary directory of its own.
    ///
    /// # Panics
    /// The host's temporary directory cannot be written.
    pub fn new() -> Self {
        let top = tempfile::tempdir()
            .expect("the temporary directory can be written")
            .keep();
        let share = top.join("share");
        let make = || -> std::io::Result<()> {
            fs::create_dir_all(share.join("d/e"))?;
            fs::create_dir(top.join("empty"))?;
            fs::write(top.join("canary"), canary::contents())?;
            fs::write(share.join("f"), "contents of f\n".repeat(100))?;
            fs::write(share.join("d/g"), "g")?;
            symlink("../canary", share.join("out"))?;
            symlink("..", share.join("up"))?;
            symlink(top.join("canary"), share.join("abs"))?;
            symlink("d/e", share.join("in"))?;
            symlink("l", share.join("l"))?;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                share.join("p"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )?;
            Ok(())
        };
        make().expect("the temporary directory can be written");
        let mut tree = Self {
            top,
            before: Vec::new(),
        };
        tree.before = stamps(&tree.top, &WATCHED);
        tree
    }

    /// The share with files in it.
    pub fn share(&self) -> PathBuf {
        self.top.join("share")
    }

    /// The share that is empty.
    pub fn empty(&self) -> PathBuf {
        self.top.join("empty")
    }

    /// Asserts that neither the canary nor the share with files has changed.
    ///
    /// # Panics
    /// It has.
    pub fn assert_unchanged(&self) {
        assert_eq!(
            self.before,
            stamps(&self.top, &WATCHED),
            "a file of the host has changed"
        );
    }

    /// Removes what has been made in the empty share.
    ///
    /// # Panics
    /// It cannot be removed.
    pub fn clean(&self) {
        remove_contents(&self.empty()).expect("what the guest made can be removed");
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

/// Removes everything in `directory`. It first restores the permissions, because a guest may have
/// removed those that a user without privileges needs.
///
/// # Errors
/// Those of the host.
pub fn remove_contents(directory: &Path) -> std::io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_contents(&entry.path())?;
            fs::remove_dir(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
