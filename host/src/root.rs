//! The directory that is the guest's root. Paths in it, and symbolic links on them, are resolved on
//! the host without leaving it.
//!
//! `openat2` with RESOLVE_IN_ROOT would do this, but its flags are in memory, where the sandbox
//! cannot check whether they ask to write.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use vbts_devices::ninep::check_openable;

/// Symbolic links that Linux follows in one path (MAXSYMLINKS).
const MAX_LINKS: u32 = 40;

/// A directory of the host that is the guest's root.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    /// Opens the directory `path` of the host.
    ///
    /// # Errors
    /// `path` is not a directory that can be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { path, fd })
    }

    /// Its canonical path on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading by its path in the guest.
    ///
    /// # Errors
    /// Those of `open`. Devices and files that the host's kernel generates (in `/proc`, say) are
    /// refused, as the guest cannot open them either.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        let place = self.find(path)?;
        let kind = FileType::from_raw_mode(fstat(&place)?.st_mode);
        check_openable(&place, kind)?;
        // By its descriptor: its name may lead to another file by now. Non-blocking, because a
        // pipe would block vbts.
        let name = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(CWD, name, flags, Mode::empty())?.into())
    }

    /// Returns an O_PATH descriptor of the file that `path`, a path in the guest, leads to. It is
    /// never of a symbolic link. No permission to read the file is needed.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn find(&self, path: &Path) -> io::Result<OwnedFd> {
        // Directories on the way from the root to the current one.
        let mut parents: Vec<OwnedFd> = Vec::new();
        let mut rest = Rest::default();
        let mut links = 0;
        rest.push(path);
        while let Some(step) = rest.0.pop() {
            let name = match step {
                Step::Root => {
                    parents.clear();
                    continue;
                }
                Step::Parent => {
                    parents.pop();
                    continue;
                }
                Step::Child(name) => name,
            };
            let found = open_path(self.current(&parents), &name)?;
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
                parents.push(found);
            } else {
                return Err(Errno::NOTDIR.into());
            }
        }
        open_path(self.current(&parents), OsStr::new("."))
    }

    fn current<'a>(&'a self, parents: &'a [OwnedFd]) -> BorrowedFd<'a> {
        parents.last().unwrap_or(&self.fd).as_fd()
    }

    /// The path in the guest of `path`, a path of the host, or `None` if that is outside the root.
    pub fn guest_path(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.path)
            .ok()
            .map(|inside| Path::new("/").join(inside))
    }
}

/// The part of a path that is not resolved yet, last component first.
#[derive(Debug, Default)]
struct Rest(Vec<Step>);

#[derive(Debug)]
enum Step {
    Root,
    Parent,
    Child(OsString),
}

impl Rest {
    fn push(&mut self, path: &Path) {
        for component in path.components().rev() {
            self.0.push(match component {
                Component::RootDir => Step::Root,
                Component::ParentDir => Step::Parent,
                Component::Normal(name) => Step::Child(name.into()),
                Component::CurDir | Component::Prefix(_) => continue,
            });
        }
    }
}

fn open_path(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name.as_bytes(), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    struct Tree(TempDir);

    impl Tree {
        /// `/file` and `/a/b/file` inside the root, `secret` beside it.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            fs::create_dir_all(path.join("root/a/b")).unwrap();
            fs::write(path.join("secret"), "secret").unwrap();
            fs::write(path.join("root/file"), "top").unwrap();
            fs::write(path.join("root/a/b/file"), "deep").unwrap();
            Self(directory)
        }

        fn root(&self) -> Root {
            Root::open(&self.0.path().join("root")).unwrap()
        }

        fn link(&self, target: &str, name: &str) {
            symlink(target, self.0.path().join("root").join(name)).unwrap();
        }

        fn read(&self, path: &str) -> io::Result<String> {
            let mut text = String::new();
            let mut file = self.root().open_file(Path::new(path))?;
            file.read_to_string(&mut text)?;
            Ok(text)
        }
    }

    #[test]
    fn paths_are_those_of_the_guest() {
        let tree = Tree::new();
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
        let tree = Tree::new();
        tree.link("../secret", "up");
        tree.link(tree.0.path().join("secret").to_str().unwrap(), "host");
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
    fn errors_are_those_of_open() {
        let tree = Tree::new();
        tree.link("loop", "loop");
        let errno = |path: &str| tree.read(path).unwrap_err().raw_os_error().unwrap();
        assert_eq!(errno("/loop"), libc::ELOOP);
        assert_eq!(errno("/file/x"), libc::ENOTDIR);
        assert_eq!(errno("/nothing/x"), libc::ENOENT);
        assert_eq!(errno("/a/b"), libc::EISDIR);
        assert_eq!(errno("/"), libc::EISDIR);
    }

    #[test]
    fn devices_and_kernel_files_are_refused() {
        let root = Root::open(Path::new("/")).unwrap();
        for path in ["/dev/null", "/proc/self/status", "/proc/version"] {
            let error = root.open_file(Path::new(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{path}");
        }
    }

    #[test]
    fn a_file_can_be_found_without_opening_it() {
        let tree = Tree::new();
        let root = tree.root();
        for (path, kind) in [
            ("/", FileType::Directory),
            ("/a", FileType::Directory),
            ("/file", FileType::RegularFile),
        ] {
            let place = root.find(Path::new(path)).unwrap();
            let mode = fstat(&place).unwrap().st_mode;
            assert_eq!(FileType::from_raw_mode(mode), kind);
        }
    }

    #[test]
    fn paths_of_the_host_have_a_place_in_the_guest() {
        let tree = Tree::new();
        let root = tree.root();
        let inside = root.path().join("a/b");
        assert_eq!(root.guest_path(&inside), Some("/a/b".into()));
        assert_eq!(root.guest_path(Path::new("/nonexistent")), None);
    }
}
