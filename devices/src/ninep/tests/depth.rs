//! Directories that are deep below the share.

use super::*;

/// A client of a writable share, and the deepest directory that the guest can reach.
const DEPTH: u32 = 8;

fn client(directory: &TempDir) -> Client {
    let mut c = Client::new(directory.path(), Access::ReadWrite);
    c.server.tree.limit_depth(DEPTH);
    c
}

/// Makes directories `names`, one in the other, and walks from the root to the last, as `fid`.
fn chain(c: &mut Client, fid: u32, names: &[&str]) {
    c.walk(ROOT, fid, &[]).unwrap();
    for name in names {
        c.ok(t::MKDIR, b().u32(fid).s(name).u32(0o755).u32(0));
        c.walk(fid, fid, &[name.as_bytes()]).unwrap();
    }
}

fn rename(c: &mut Client, (from, name): (u32, &str), to: u32) -> Result<(), Errno> {
    let body = b().u32(from).s(name).u32(to).s(name);
    c.call(t::RENAMEAT, body).map(drop)
}

#[test]
fn a_file_has_a_limited_number_of_directories_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = client(&dir);
    chain(&mut c, 1, &["d"; DEPTH as usize]);
    c.ok(t::MKDIR, b().u32(1).s("d").u32(0o755).u32(0));
    assert_eq!(c.walk(1, 2, &[b"d"]), Err(Errno::NAMETOOLONG));
    let create = b().u32(1).s("f").u32(2).u32(0o644).u32(0);
    assert_eq!(c.call(t::LCREATE, create), Err(Errno::NAMETOOLONG));
    assert!(
        !dir.path()
            .join(["d/"; DEPTH as usize].concat())
            .join("f")
            .exists()
    );
    // One level higher there is room.
    c.walk(ROOT, 3, &[&b"d"[..]; DEPTH as usize - 1]).unwrap();
    c.ok(t::LCREATE, b().u32(3).s("f").u32(2).u32(0o644).u32(0));
}

#[test]
fn directories_cannot_be_moved_below_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = client(&dir);
    chain(&mut c, 1, &["a", "b", "c", "d", "e"]);
    chain(&mut c, 2, &["x", "y", "z"]);
    // With a, the directory e would have eight above it, and nine below one more.
    chain(&mut c, 3, &["v", "w", "x", "y"]);
    assert_eq!(rename(&mut c, (ROOT, "a"), 3), Err(Errno::NAMETOOLONG));
    assert!(dir.path().join("a/b/c/d/e").exists());
    assert_eq!(rename(&mut c, (ROOT, "a"), 2), Ok(()));
    assert!(dir.path().join("x/y/z/a/b/c/d/e").exists());
    // The levels of the moved one count in its new place.
    c.walk(ROOT, 4, &[b"v"]).unwrap();
    assert_eq!(rename(&mut c, (ROOT, "x"), 4), Err(Errno::NAMETOOLONG));
    c.ok(t::CLUNK, b().u32(1));
    c.ok(t::CLUNK, b().u32(2));
    assert_eq!(rename(&mut c, (ROOT, "x"), 4), Ok(()));
}
