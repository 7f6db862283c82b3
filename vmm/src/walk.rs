//! Paths of the guest, resolved on the host without leaving the guest's root.
//!
//! `openat2` with RESOLVE_IN_ROOT does the same, but its flags lie in memory, where the sandbox
//! cannot see whether they ask to write.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use vbts_devices::ninep::check_openable;

/// Symbolic links that Linux follows in one path (MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

/// What of a path is still to be walked, its last component first.
#[derive(Debug, Default)]
struct Rest(Vec<Step>);

#[derive(Debug)]
enum Step {
    Root,
    Up,
    Down(OsString),
}

impl Rest {
    fn push(&mut self, path: &Path) {
        for component in path.components().rev() {
            self.0.push(match component {
                Component::RootDir => Step::Root,
                Component::ParentDir => Step::Up,
                Component::Normal(name) => Step::Down(name.into()),
                Component::CurDir | Component::Prefix(_) => continue,
            });
        }
    }
}

/// Opens `path` below the directory `root` as a process would whose root directory that is. Without
/// O_PATH it opens what the guest itself can open: neither devices nor what the host's kernel shows
/// of itself as files.
///
/// # Errors
/// As `open` has them.
pub fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let place = find(root, path)?;
    if flags.contains(OFlags::PATH) {
        return Ok(place);
    }
    check_openable(&place, FileType::from_raw_mode(fstat(&place)?.st_mode))?;
    // Not by its name again, which may be another file by now.
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    Ok(openat(CWD, name, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// An O_PATH descriptor of what `path` leads to; never of a symbolic link.
fn find(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut rest = Rest::default();
    let mut links = 0;
    rest.push(path);
    while let Some(step) = rest.0.pop() {
        let name = match step {
            Step::Root => {
                above.clear();
                continue;
            }
            Step::Up => {
                above.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        let here = above.last().map_or(root, AsFd::as_fd);
        let found = at(here, &name)?;
        let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
        if kind == FileType::Symlink {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = readlinkat(&found, c"", Vec::new())?;
            rest.push(Path::new(&OsString::from_vec(target.into_bytes())));
        } else if rest.0.is_empty() {
            return Ok(found);
        } else if kind == FileType::Directory {
            above.push(found);
        } else {
            return Err(Errno::NOTDIR.into());
        }
    }
    at(above.last().map_or(root, AsFd::as_fd), OsStr::new("."))
}

fn at(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name.as_bytes(), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct Tree(PathBuf);

    impl Tree {
        /// `/file` and `/a/b/file` inside the root, `secret` beside it.
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("vbts-walk-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("root/a/b")).unwrap();
            fs::write(path.join("secret"), "secret").unwrap();
            fs::write(path.join("root/file"), "top").unwrap();
            fs::write(path.join("root/a/b/file"), "deep").unwrap();
            Self(path)
        }

        fn link(&self, target: &str, name: &str) {
            symlink(target, self.0.join("root").join(name)).unwrap();
        }

        fn read(&self, path: &str) -> io::Result<String> {
            let root = File::open(self.0.join("root")).unwrap();
            let mut text = String::new();
            File::from(open(root.as_fd(), Path::new(path), OFlags::RDONLY)?)
                .read_to_string(&mut text)?;
            Ok(text)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn paths_are_those_of_the_guest() {
        let tree = Tree::new("paths");
        tree.link("/a/b", "absolute");
        tree.link("a/b/../b/./file", "relative");
        tree.link("absolute/file", "twice");
        for (path, text) in [
            ("/file", "top"),
            ("file", "top"),
            ("//a/./b//file", "deep"),
            ("/a/b/../../file", "top"),
            ("/absolute/file", "deep"),
            ("/absolute/../../file", "top"),
            ("/relative", "deep"),
            ("/twice", "deep"),
        ] {
            assert_eq!(tree.read(path).unwrap(), text, "{path}");
        }
    }

    #[test]
    fn nothing_leaves_the_root() {
        let tree = Tree::new("leave");
        tree.link("../secret", "up");
        tree.link(tree.0.join("secret").to_str().unwrap(), "host");
        tree.link("/../../../../etc/passwd", "far");
        for path in [
            "/../secret",
            "../secret",
            "/a/../../secret",
            "/up",
            "/host",
            "/far",
        ] {
            let error = tree.read(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{path}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let tree = Tree::new("errors");
        tree.link("loop", "loop");
        let errno = |path: &str| tree.read(path).unwrap_err().raw_os_error().unwrap();
        assert_eq!(errno("/loop"), libc::ELOOP);
        assert_eq!(errno("/file/x"), libc::ENOTDIR);
        assert_eq!(errno("/nothing/x"), libc::ENOENT);
        assert_eq!(errno("/a/b"), libc::EISDIR);
        assert_eq!(errno("/"), libc::EISDIR);
    }

    #[test]
    fn devices_and_kernel_files_stay_closed() {
        let root = File::open("/").unwrap();
        for path in ["/dev/null", "/proc/self/status", "/proc/version"] {
            let error = open(root.as_fd(), Path::new(path), OFlags::RDONLY).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{path}");
        }
    }

    #[test]
    fn a_place_can_be_held_without_opening_it() {
        let tree = Tree::new("place");
        let root = File::open(tree.0.join("root")).unwrap();
        for (path, kind) in [
            ("/", FileType::Directory),
            ("/a", FileType::Directory),
            ("/file", FileType::RegularFile),
        ] {
            let place = open(root.as_fd(), Path::new(path), OFlags::PATH).unwrap();
            assert_eq!(
                FileType::from_raw_mode(fstat(&place).unwrap().st_mode),
                kind
            );
        }
    }
}
