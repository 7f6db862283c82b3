//! Fids of files whose descriptors have been closed, because there may only be a few.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;

/// Descriptors of a server here, the fewest possible.
const FEW: usize = 8;
/// Files of [`Client::use_others`].
const OTHERS: u32 = 20;
/// The first of their fids.
const OTHER_FIDS: u32 = 10_000;

impl Client {
    /// A client of a server with few descriptors, for a directory that has [`others`].
    fn with_few(root: &Path, access: Access, by_handle: bool) -> Self {
        let mut server = Server::with_descriptors(root, access, FEW).unwrap();
        if !by_handle {
            server.tree.open_by_name_only();
        }
        Self::attached(server)
    }

    /// Uses other files, so that the server closes the paths of those before.
    fn use_others(&mut self) {
        self.walk_others();
        assert!(self.server.tree.descriptors() <= FEW);
    }

    pub(super) fn walk_others(&mut self) {
        for i in 0..OTHERS {
            let name = format!("other{i}");
            self.walk(ROOT, OTHER_FIDS + i, &[b"others", name.as_bytes()])
                .unwrap();
        }
        for i in 0..OTHERS {
            self.clunk(OTHER_FIDS + i);
        }
    }

    fn clunk(&mut self, fid: u32) {
        self.ok(t::CLUNK, b().u32(fid));
    }

    /// Inode number, number of links and size.
    pub(super) fn attributes(&mut self, fid: u32) -> Result<(u64, u64, u64), Errno> {
        let reply = self.call(t::GETATTR, b().u32(fid).u64(u64::MAX))?;
        let mut r = Reader::new(&reply[8 + 5..]);
        let inode = r.u64().unwrap();
        r.bytes(12).unwrap();
        let links = r.u64().unwrap();
        r.u64().unwrap();
        Ok((inode, links, r.u64().unwrap()))
    }

    /// Contents of a file, read through a fid of its own.
    pub(super) fn contents(&mut self, fid: u32) -> Result<Vec<u8>, Errno> {
        const COPY: u32 = 20_000;
        self.walk(fid, COPY, &[])?;
        let contents = self.open(COPY, 0).and_then(|()| self.read(COPY, 0, 1000));
        self.clunk(COPY);
        contents
    }

    fn unlink(&mut self, directory: u32, name: &str) {
        self.ok(t::UNLINKAT, b().u32(directory).s(name).u32(0));
    }

    fn rename(&mut self, from: u32, name: &str, to: u32, new_name: &str) {
        self.ok(t::RENAMEAT, b().u32(from).s(name).u32(to).s(new_name));
    }
}

/// A directory with other files.
pub(super) fn others() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("others")).unwrap();
    for i in 0..OTHERS {
        write_file(&dir, &format!("others/other{i}"), b"other");
    }
    dir
}

/// Runs a test on a server that opens files by handle, if this process can, and on one that opens
/// them by name.
fn both_ways(access: Access, test: impl Fn(&mut Client, &TempDir, bool)) {
    for by_handle in [true, false] {
        let dir = others();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        write_file(&dir, "a/b/file", b"data");
        write_file(&dir, "a/b/second", b"second");
        let mut client = Client::with_few(dir.path(), access, by_handle);
        test(&mut client, &dir, by_handle && can_open_handles());
        client.server.reset();
        assert_eq!(client.server.tree.nodes(), 1);
    }
}

/// Whether this process can open files of the temporary directory by their handles.
fn can_open_handles() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let directory = fs::File::open(dir.path()).unwrap();
    handle::Handle::of(&directory).is_some_and(|(handle, _)| handle.open(&directory).is_ok())
}

#[test]
fn many_fids_need_few_descriptors() {
    both_ways(Access::ReadOnly, |c, dir, _| {
        let mut fid = 100;
        let mut files = Vec::new();
        for i in 0..10 {
            let directory = format!("deep{i}/x/y/z");
            fs::create_dir_all(dir.path().join(&directory)).unwrap();
            for j in 0..30 {
                let name = format!("file{j}");
                let contents = format!("{i} {j}");
                write_file(dir, &format!("{directory}/{name}"), contents.as_bytes());
                let path = [directory.split('/').collect(), vec![name.as_str()]].concat();
                let names: Vec<&[u8]> = path.iter().map(|n| n.as_bytes()).collect();
                assert_eq!(c.walk(ROOT, fid, &names), Ok(5));
                assert!(c.server.tree.descriptors() <= FEW);
                files.push((fid, dir.path().join(&directory).join(&name), contents));
                fid += 1;
            }
        }
        // Neighbours are far apart in this order.
        for i in 0..files.len() {
            let (fid, path, contents) = &files[i * 7 % files.len()];
            let inode = fs::metadata(path).unwrap().ino();
            let expected = (inode, 1, contents.len() as u64);
            assert_eq!(c.attributes(*fid), Ok(expected), "{path:?}");
            assert_eq!(c.contents(*fid).unwrap(), contents.as_bytes());
            assert!(c.server.tree.descriptors() <= FEW);
        }
        for (fid, ..) in files {
            c.clunk(fid);
        }
        assert_eq!(c.server.tree.nodes(), 1, "the root's alone");
    });
}

#[test]
fn directories_are_opened_again() {
    both_ways(Access::ReadOnly, |c, _, _| {
        c.walk(ROOT, 1, &[b"a", b"b"]).unwrap();
        c.use_others();
        assert_eq!(c.walk(1, 2, &[b"file"]), Ok(1));
        c.use_others();
        c.open(1, open::DIRECTORY).unwrap();
        c.use_others();
        assert_eq!(c.names(1, 1000), [&b"."[..], b"..", b"file", b"second"]);
        assert_eq!(c.walk(1, 3, &[b"second"]), Ok(1));
    });
}

#[test]
fn a_file_renamed_by_the_guest_keeps_its_fids() {
    both_ways(Access::ReadWrite, |c, dir, _| {
        c.walk(ROOT, 1, &[b"a", b"b"]).unwrap();
        c.walk(1, 2, &[b"file"]).unwrap();
        c.walk(ROOT, 3, &[b"a"]).unwrap();
        c.use_others();
        c.rename(1, "file", ROOT, "moved");
        c.use_others();
        assert_eq!(c.contents(2).unwrap(), b"data");
        // Now a directory, with the file's new name in it.
        c.rename(ROOT, "moved", 1, "file");
        c.use_others();
        c.rename(ROOT, "a", ROOT, "c");
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        write_file(dir, "a/b/file", b"another");
        c.use_others();
        assert_eq!(c.contents(2).unwrap(), b"data");
        assert_eq!(c.walk(3, 4, &[b"b", b"file"]), Ok(2));
        assert_eq!(c.contents(4).unwrap(), b"data");
        assert_eq!(c.walk(ROOT, 5, &[b"a", b"b", b"file"]), Ok(3));
        assert_eq!(c.contents(5).unwrap(), b"another");
    });
}

#[test]
fn a_file_replaced_by_the_guest_keeps_its_fids() {
    both_ways(Access::ReadWrite, |c, _, _| {
        c.walk(ROOT, 1, &[b"a", b"b"]).unwrap();
        c.walk(1, 2, &[b"file"]).unwrap();
        c.walk(1, 3, &[b"second"]).unwrap();
        c.use_others();
        c.rename(1, "second", 1, "file");
        c.use_others();
        assert_eq!(c.attributes(2).map(|(_, links, _)| links), Ok(0));
        assert_eq!(c.contents(2).unwrap(), b"data");
        assert_eq!(c.contents(3).unwrap(), b"second");
        c.walk(1, 4, &[b"file"]).unwrap();
        assert_eq!(c.contents(4).unwrap(), b"second");
    });
}

#[test]
fn a_file_removed_by_the_guest_keeps_its_fids() {
    both_ways(Access::ReadWrite, |c, dir, _| {
        c.walk(ROOT, 1, &[b"a", b"b"]).unwrap();
        c.walk(1, 2, &[b"file"]).unwrap();
        c.use_others();
        c.unlink(1, "file");
        write_file(dir, "a/b/file", b"another");
        c.use_others();
        assert_eq!(c.attributes(2).map(|(_, links, _)| links), Ok(0));
        assert_eq!(c.contents(2).unwrap(), b"data");
        c.walk(1, 3, &[b"file"]).unwrap();
        assert_eq!(c.contents(3).unwrap(), b"another");
        // A directory.
        c.ok(t::MKDIR, b().u32(1).s("d").u32(0o755).u32(0));
        c.walk(1, 4, &[b"d"]).unwrap();
        c.use_others();
        c.ok(t::UNLINKAT, b().u32(1).s("d").u32(AT_REMOVEDIR));
        c.use_others();
        assert!(c.attributes(4).is_ok());
        assert_eq!(c.walk(4, 5, &[b"x"]), Err(Errno::NOENT));
    });
}

#[test]
fn a_file_with_another_hard_link_keeps_its_fids() {
    both_ways(Access::ReadWrite, |c, dir, _| {
        fs::hard_link(dir.path().join("a/b/file"), dir.path().join("hard")).unwrap();
        c.walk(ROOT, 1, &[b"a", b"b"]).unwrap();
        c.walk(1, 2, &[b"file"]).unwrap();
        c.walk(ROOT, 3, &[b"hard"]).unwrap();
        c.use_others();
        c.unlink(1, "file");
        c.use_others();
        for fid in [2, 3] {
            assert_eq!(c.attributes(fid).map(|(_, links, _)| links), Ok(1));
            assert_eq!(c.contents(fid).unwrap(), b"data");
            c.use_others();
        }
        c.unlink(ROOT, "hard");
        c.use_others();
        for fid in [2, 3] {
            assert_eq!(c.contents(fid).unwrap(), b"data");
            c.use_others();
        }
    });
}

#[test]
fn a_file_removed_on_the_host_is_never_another() {
    both_ways(Access::ReadOnly, |c, dir, _| {
        // Removed while its fid has a descriptor: it stays readable.
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        fs::remove_file(dir.path().join("a/b/file")).unwrap();
        c.use_others();
        assert_eq!(c.contents(1).unwrap(), b"data");
        // Removed later: the fid is stale, also if new files get the inode number.
        c.walk(ROOT, 2, &[b"a", b"b", b"second"]).unwrap();
        c.use_others();
        fs::remove_file(dir.path().join("a/b/second")).unwrap();
        assert_eq!(c.attributes(2), Err(Errno::STALE));
        write_file(dir, "a/b/second", b"another");
        assert_eq!(c.attributes(2), Err(Errno::STALE));
        assert_eq!(c.contents(2), Err(Errno::STALE));
        c.walk(ROOT, 3, &[b"a", b"b", b"second"]).unwrap();
        assert_eq!(c.contents(3).unwrap(), b"another");
        assert_eq!(c.contents(2), Err(Errno::STALE));
    });
}

#[test]
fn a_file_moved_on_the_host_is_found_by_its_handle() {
    both_ways(Access::ReadOnly, |c, dir, by_handle| {
        let path = |name: &str| dir.path().join(name);
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        c.walk(ROOT, 2, &[b"a", b"b"]).unwrap();
        c.use_others();
        fs::rename(path("a"), path("c")).unwrap();
        fs::create_dir_all(path("a/b")).unwrap();
        write_file(dir, "a/b/file", b"another");
        let expected = if by_handle {
            Ok(b"data".to_vec())
        } else {
            Err(Errno::STALE)
        };
        assert_eq!(c.contents(1), expected);
        c.use_others();
        assert_eq!(c.walk(2, 3, &[b"file"]).is_ok(), by_handle);
        // The old names are those of other files, which a new walk finds.
        c.walk(ROOT, 4, &[b"a", b"b", b"file"]).unwrap();
        assert_eq!(c.contents(4).unwrap(), b"another");
        c.use_others();
        assert_eq!(c.contents(1), expected);
        assert_eq!(c.contents(4).unwrap(), b"another");
    });
}

#[test]
fn a_symbolic_link_never_leads_a_closed_node_elsewhere() {
    both_ways(Access::ReadOnly, |c, dir, by_handle| {
        symlink("target", dir.path().join("link")).unwrap();
        c.walk(ROOT, 1, &[b"link"]).unwrap();
        c.walk(ROOT, 2, &[b"a", b"b", b"file"]).unwrap();
        c.use_others();
        let reply = c.ok(t::READLINK, b().u32(1));
        assert_eq!(&reply[2..], b"target");
        // The directory is moved out of the share, and a link to it takes its place.
        let outside = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        c.use_others();
        fs::rename(dir.path().join("a"), outside.path().join("a")).unwrap();
        symlink(outside.path().join("a"), dir.path().join("a")).unwrap();
        if !by_handle {
            assert_eq!(c.contents(2), Err(Errno::STALE));
        }
        assert_eq!(c.walk(ROOT, 3, &[b"a", b"b"]), Ok(1));
    });
}

#[test]
fn mount_points_are_crossed_again() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    write_file(&dir, "file", b"data");
    let name = dir.path().file_name().unwrap().as_bytes();
    for by_handle in [true, false] {
        let mut server = Server::with_descriptors(Path::new("/"), Access::ReadOnly, FEW).unwrap();
        if !by_handle {
            server.tree.open_by_name_only();
        }
        let mut c = Client::attached(server);
        assert_eq!(c.walk(ROOT, 1, &[b"dev", b"shm", name, b"file"]), Ok(4));
        assert_eq!(c.walk(ROOT, 2, &[b"dev", b"shm"]), Ok(2));
        for fid in 0..20 {
            c.walk(ROOT, 100 + fid, &[b"proc", b"self", b"status"])
                .unwrap();
            c.walk(ROOT, 200 + fid, &[b"usr", b"bin"]).unwrap();
            c.walk(200 + fid, 300 + fid, &[b"env"]).unwrap();
        }
        for fid in 0..30u32 {
            let name = format!("{fid}");
            let _ = c.walk(ROOT, 400 + fid, &[b"dev", name.as_bytes()]);
            let _ = c.walk(ROOT, 500 + fid, &[b"proc", name.as_bytes()]);
        }
        assert_eq!(c.contents(1).unwrap(), b"data");
        assert_eq!(c.walk(2, 3, &[name]), Ok(1));
    }
}

#[test]
fn open_files_keep_their_descriptors() {
    both_ways(Access::ReadOnly, |c, dir, _| {
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        c.walk(1, 2, &[]).unwrap();
        c.open(2, 0).unwrap();
        c.use_others();
        fs::remove_file(dir.path().join("a/b/file")).unwrap();
        assert_eq!(c.read(2, 0, 10).unwrap(), b"data");
        assert_eq!(c.contents(1).unwrap(), b"data");
        c.use_others();
        c.clunk(2);
        c.use_others();
        assert_eq!(c.contents(1).unwrap(), b"data", "the last name is gone");
    });
}

#[test]
fn files_open_for_reading_are_opened_again() {
    both_ways(Access::ReadOnly, |c, dir, _| {
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        c.open(1, 0).unwrap();
        c.walk(ROOT, 2, &[b"a", b"b", b"second"]).unwrap();
        c.open(2, 0).unwrap();
        fs::remove_file(dir.path().join("a/b/second")).unwrap();
        for i in 0..OTHERS {
            let name = format!("other{i}");
            c.walk(ROOT, 10 + i, &[b"others", name.as_bytes()]).unwrap();
            c.open(10 + i, 0).unwrap();
            assert!(c.server.tree.descriptors() <= FEW);
        }
        for fid in (10..10 + OTHERS).rev() {
            assert_eq!(c.read(fid, 1, 10).unwrap(), b"ther");
        }
        assert_eq!(c.read(1, 0, 10).unwrap(), b"data");
        assert_eq!(c.read(2, 0, 10).unwrap(), b"second", "it has no name");
        assert_eq!(c.walk(1, 1, &[]), Err(Errno::BADF), "open");
        c.clunk(1);
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        assert_eq!(c.read(1, 0, 10), Err(Errno::BADF), "not open");
    });
}

#[test]
fn too_many_files_open_for_writing_are_an_error() {
    both_ways(Access::ReadWrite, |c, _, _| {
        let mut opened = 0;
        let errno = loop {
            let name = format!("other{opened}");
            let fid = 1 + opened;
            let walked = c.walk(ROOT, fid, &[b"others", name.as_bytes()]);
            match walked.and_then(|_| c.open(fid, 2)) {
                Ok(()) => opened += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!(errno, Errno::NFILE);
        assert!((3..FEW as u32).contains(&opened), "{opened}");
        for fid in 1..=opened {
            assert_eq!(c.read(fid, 0, 10).unwrap(), b"other");
        }
        c.clunk(1);
        c.walk(ROOT, 1, &[b"a", b"b", b"file"]).unwrap();
        assert_eq!(c.contents(1).unwrap(), b"data");
    });
}

#[test]
fn a_directory_that_the_host_turns_around_makes_no_circle() {
    both_ways(Access::ReadWrite, |c, dir, by_handle| {
        let path = |name: &str| dir.path().join(name);
        c.walk(ROOT, 1, &[b"a"]).unwrap();
        c.walk(ROOT, 2, &[b"a", b"b"]).unwrap();
        // The host takes b out of a; the guest puts a into b.
        fs::rename(path("a/b"), path("b")).unwrap();
        c.rename(ROOT, "a", 2, "a");
        c.use_others();
        assert_eq!(c.walk(1, 3, &[b"x"]), Err(Errno::NOENT));
        let found = c.walk(2, 4, &[b"file"]);
        assert!(found == Ok(1) || (!by_handle && found == Err(Errno::STALE)));
        for fid in [1, 2] {
            c.clunk(fid);
        }
    });
}

#[test]
fn a_created_file_is_opened_again() {
    both_ways(Access::ReadWrite, |c, _, _| {
        c.walk(ROOT, 1, &[]).unwrap();
        c.ok(t::LCREATE, b().u32(1).s("new").u32(2).u32(0o644).u32(0));
        c.ok(t::WRITE, b().u32(1).u64(0).u32(3).u8(1).u8(2).u8(3));
        c.walk(1, 2, &[]).unwrap();
        c.use_others();
        c.clunk(1);
        c.use_others();
        assert_eq!(c.contents(2).unwrap(), [1, 2, 3]);
        c.unlink(ROOT, "new");
        c.use_others();
        assert_eq!(c.contents(2).unwrap(), [1, 2, 3]);
    });
}
