//! A share whose files the host replaces and moves while a server answers from it, beside a
//! directory that the guest must never see.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use crate::canary;
use crate::tree::{Stamp, remove_contents, stamps};

/// What the host does, and then undoes: two paths below the directory of the share exchange their
/// names, or the first takes the name of the second if there is none.
///
/// `share/to_outside` and `share/to_file` are symbolic links out of the share. A file or directory
/// that was in the share may be read in `away`, too, where the guest has reached it before.
const CHANGES: [(&str, &str, RenameFlags); 8] = [
    ("share/d", "share/to_outside", RenameFlags::EXCHANGE),
    ("share/f", "share/to_file", RenameFlags::EXCHANGE),
    ("share/d/g", "share/d/to_file", RenameFlags::EXCHANGE),
    ("share/d/e", "share/to_outside", RenameFlags::EXCHANGE),
    ("share/d/e", "share/f", RenameFlags::EXCHANGE),
    ("share/f", "share/p", RenameFlags::EXCHANGE),
    ("share/d/e", "away/e", RenameFlags::NOREPLACE),
    ("share/d", "away/d", RenameFlags::NOREPLACE),
];

/// The files outside of the share whose change is a defect.
const OUTSIDE: [&str; 5] = [
    "outside",
    "outside/f",
    "outside/g",
    "outside/e",
    "outside/e/g",
];

/// The directory of the share, and what is around it.
#[derive(Debug)]
pub struct MovingTree {
    top: PathBuf,
    before: Vec<Stamp>,
}

impl MovingTree {
    /// Creates it, with an empty share, in the temporary directory of the host. It is not removed.
    ///
    /// # Panics
    /// The host's temporary directory cannot be written.
    pub fn new() -> Self {
        let top = tempfile::tempdir()
            .expect("the temporary directory can be written")
            .keep();
        let make = || -> io::Result<()> {
            for name in ["share", "away", "outside", "outside/e"] {
                fs::create_dir(top.join(name))?;
            }
            for name in ["f", "g", "e/g"] {
                fs::write(top.join("outside").join(name), canary::contents())?;
            }
            Ok(())
        };
        make().expect("the temporary directory can be written");
        let mut tree = Self {
            top,
            before: Vec::new(),
        };
        tree.before = stamps(&tree.top, &OUTSIDE);
        tree
    }

    /// The share.
    pub fn share(&self) -> PathBuf {
        self.top.join("share")
    }

    /// Puts files into the share, instead of those that are there.
    ///
    /// # Panics
    /// The share cannot be written.
    pub fn fill(&self) {
        let share = self.share();
        let make = || -> io::Result<()> {
            remove_contents(&self.top.join("away"))?;
            remove_contents(&share)?;
            fs::create_dir_all(share.join("d/e"))?;
            for name in ["f", "d/g", "d/e/g"] {
                fs::write(share.join(name), "contents\n".repeat(20))?;
            }
            symlink("../outside", share.join("to_outside"))?;
            symlink(self.top.join("outside/f"), share.join("to_file"))?;
            symlink("../../outside/g", share.join("d/to_file"))?;
            mknodat(CWD, share.join("p"), FileType::Fifo, Mode::RUSR, 0)?;
            Ok(())
        };
        make().expect("the share can be written");
    }

    /// Runs `session` while another thread makes the changes whose bits are set in `changes`, and
    /// undoes them, again and again.
    pub fn change_during(&self, changes: u8, session: impl FnOnce()) {
        let chosen = (0..)
            .zip(CHANGES)
            .filter(|(bit, _)| changes >> bit & 1 != 0);
        let chosen: Vec<_> = chosen
            .map(|(_, (a, b, flags))| (self.top.join(a), self.top.join(b), flags))
            .collect();
        let ended = AtomicBool::new(chosen.is_empty());
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for (a, b, flags) in &chosen {
                        // The guest may have removed the files, or changed their permissions.
                        let _ = renameat_with(CWD, a, CWD, b, *flags);
                        let _ = renameat_with(CWD, b, CWD, a, *flags);
                    }
                }
            });
            // A panic ends the process.
            session();
            ended.store(true, Ordering::Relaxed);
        });
    }

    /// Asserts that no file outside of the share has changed.
    ///
    /// # Panics
    /// One has.
    pub fn assert_outside_unchanged(&self) {
        assert_eq!(
            self.before,
            stamps(&self.top, &OUTSIDE),
            "a file of the host has changed"
        );
    }
}

impl Default for MovingTree {
    fn default() -> Self {
        Self::new()
    }
}
