//! The files that this process can open while a guest runs, restricted by Landlock
//! (Documentation/userspace-api/landlock.rst of Linux).
//!
//! A seccomp filter sees numbers and no names: it cannot tell one file from another. Landlock
//! restricts by directory. It concerns files that are opened later. What is open stays as it is.

use std::path::Path;

use anyhow::Context as _;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
};

/// The oldest version of Landlock that restricts all that vbts relies on: it has a right to
/// truncate files (Linux 6.2).
const NEEDED: ABI = ABI::V3;
/// The version whose further restrictions are used where the host has them: the ioctls of devices
/// (Linux 6.10).
const WANTED: ABI = ABI::V5;

/// What this process does with the files below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It reads them.
    Read,
    /// It reads, writes, makes and removes them.
    Write,
    /// It makes files and writes to them.
    Create,
}

impl Reach {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let create = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
        match self {
            Self::Read => read,
            Self::Create => create,
            Self::Write => {
                let make = AccessFs::MakeDir | AccessFs::MakeSock | AccessFs::MakeFifo;
                let move_ = AccessFs::MakeSym | AccessFs::Refer;
                let remove = AccessFs::RemoveFile | AccessFs::RemoveDir;
                read | create | make | move_ | remove
            }
        }
    }
}

/// The directories in which this process can open files.
#[derive(Debug, Default)]
pub struct FileRules(Vec<(PathFd, Reach)>);

impl FileRules {
    /// Allows `reach` below `directory`.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn allow(&mut self, directory: &Path, reach: Reach) -> anyhow::Result<()> {
        let name = || format!("Cannot open {}", directory.display());
        let opened = PathFd::new(directory).with_context(name)?;
        self.0.push((opened, reach));
        Ok(())
    }

    /// Restricts this thread, and those that it starts later, to these rules. Returns whether all
    /// restrictions are in force: a host without Landlock has none.
    ///
    /// # Errors
    /// The host's kernel has Landlock, and refuses.
    pub fn enter(self) -> Result<bool, RulesetError> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let mut created = ruleset
            .handle_access(AccessFs::from_all(WANTED))?
            .handle_access(AccessNet::from_all(WANTED))?
            .create()?;
        for (directory, reach) in self.0 {
            created = created.add_rule(PathBeneath::new(directory, reach.rights()))?;
        }
        let RestrictionStatus { ruleset, .. } = created.restrict_self()?;
        Ok(ruleset != RulesetStatus::NotEnforced && is_available())
    }
}

/// Whether this host restricts files by directory as vbts needs it.
pub fn is_available() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let created = ruleset
        .handle_access(AccessFs::from_all(NEEDED))
        .and_then(Ruleset::create);
    created.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::{ErrorKind, Write as _};

    /// Runs `test` in a thread that the rules restrict. Other tests go on unrestricted.
    fn restricted(rules: FileRules, test: impl FnOnce() + Send + 'static) {
        let run = || {
            assert!(rules.enter().unwrap());
            test();
        };
        std::thread::spawn(run).join().unwrap();
    }

    fn is_denied<T>(result: std::io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    #[test]
    fn files_are_opened_below_the_given_directories_only() {
        if !is_available() {
            vbts_testkit::skips::note("sandbox::files", "this host has no Landlock");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["read", "write", "create", "other"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("file"), name).unwrap();
        }
        let mut rules = FileRules::default();
        rules.allow(&path("read"), Reach::Read).unwrap();
        rules.allow(&path("write"), Reach::Write).unwrap();
        rules.allow(&path("create"), Reach::Create).unwrap();
        assert!(rules.allow(&path("missing"), Reach::Read).is_err());
        let mut opened = OpenOptions::new()
            .append(true)
            .open(path("other/file"))
            .unwrap();
        let root = directory.path().to_owned();
        restricted(rules, move || {
            let path = |name: &str| root.join(name);
            let append = |name: &str| OpenOptions::new().append(true).open(path(name));
            assert_eq!(fs::read_to_string(path("read/file")).unwrap(), "read");
            assert_eq!(fs::read_dir(path("read")).unwrap().count(), 1);
            assert!(is_denied(append("read/file")));
            assert!(is_denied(File::create(path("read/file"))));
            assert!(is_denied(fs::remove_file(path("read/file"))));

            append("write/file").unwrap();
            fs::create_dir(path("write/new")).unwrap();
            fs::rename(path("write/file"), path("write/new/file")).unwrap();
            assert_eq!(fs::read_to_string(path("write/new/file")).unwrap(), "write");
            assert!(fs::rename(path("write/new/file"), path("other/new")).is_err());

            File::create(path("create/new")).unwrap();
            append("create/new").unwrap();
            assert!(is_denied(File::open(path("create/file"))));
            assert!(is_denied(fs::create_dir(path("create/directory"))));

            assert!(is_denied(File::open(path("other/file"))));
            assert!(is_denied(fs::read_dir(path("other"))));
            assert!(is_denied(File::create(path("other/new"))));
            // What was open stays open.
            opened.write_all(b"more").unwrap();
        });
    }
}
