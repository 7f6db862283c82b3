//! Requests that write, to a read-only and to a writable share.

use super::*;
use crate::disk::tests::broken_file;

#[test]
fn a_read_only_share_refuses_every_write() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"data");
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    c.walk(ROOT, 1, &[b"file"]).unwrap();
    for flags in [
        1,
        2,
        3,
        open::TRUNCATE,
        open::CREATE,
        open::CREATE | 1,
        open::APPEND | 1,
    ] {
        assert_eq!(c.open(1, flags), Err(Errno::ROFS), "flags {flags:#o}");
    }
    c.open(1, 0).unwrap();
    for (kind, body) in [
        (t::WRITE, b().u32(1).u64(0).u32(1).u8(b'X')),
        (t::SETATTR, set_size(1, 0)),
        (t::LCREATE, b().u32(ROOT).s("new").u32(2).u32(0o644).u32(0)),
        (t::MKDIR, b().u32(ROOT).s("new").u32(0o755).u32(0)),
        (t::SYMLINK, b().u32(ROOT).s("new").s("target").u32(0)),
        (
            t::MKNOD,
            b().u32(ROOT).s("new").u32(0o10_0644).u32(0).u32(0).u32(0),
        ),
        (t::LINK, b().u32(ROOT).u32(1).s("new")),
        (t::RENAME, b().u32(1).u32(ROOT).s("new")),
        (t::RENAMEAT, b().u32(ROOT).s("file").u32(ROOT).s("new")),
        (t::UNLINKAT, b().u32(ROOT).s("file").u32(0)),
        (t::UNLINKAT, b().u32(ROOT).s("d").u32(AT_REMOVEDIR)),
        (t::XATTRCREATE, b().u32(1).s("user.x").u64(1).u32(0)),
        (t::REMOVE, b().u32(1)),
    ] {
        assert_eq!(c.call(kind, body), Err(Errno::ROFS), "type {kind}");
    }
    assert_eq!(
        c.read(1, 0, 1),
        Err(Errno::BADF),
        "Tremove gives up its fid all the same"
    );
    c.ok(t::FSYNC, b().u32(1).u32(0));
    c.walk(ROOT, 2, &[]).unwrap();
    c.open(2, 0).unwrap();
    assert_eq!(c.names(2, 1000), [&b"."[..], b"..", b"d", b"file"]);
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"data");
}

#[test]
fn message_types_that_write_are_all_in_the_list() {
    // A read-only share refuses every type that the server implements, except these.
    let reads = [
        t::STATFS,
        t::LOPEN,
        t::READLINK,
        t::GETATTR,
        t::XATTRWALK,
        t::READDIR,
        t::LOCK,
        t::GETLOCK,
        t::VERSION,
        t::AUTH,
        t::ATTACH,
        t::FLUSH,
        t::WALK,
        t::READ,
        t::CLUNK,
    ];
    let dir = tempfile::tempdir().unwrap();
    for kind in 0..=255 {
        let mut c = Client::new(dir.path(), Access::ReadOnly);
        let refused = matches!(kind, t::REMOVE | t::FSYNC) || c.call(kind, b()) == Err(Errno::ROFS);
        assert_eq!(refused, WRITES.contains(&kind), "type {kind}");
        let mut c = Client::new(dir.path(), Access::ReadOnly);
        let known = c.call(kind, b().u32(77)) != Err(Errno::OPNOTSUPP);
        let expected = reads.contains(&kind) || WRITES.contains(&kind);
        assert!(!known || expected, "type {kind} is in neither list");
    }
}

#[test]
fn a_writable_share_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    c.ok(t::MKDIR, b().u32(ROOT).s("d").u32(0o7755).u32(0));
    c.walk(ROOT, 1, &[b"d"]).unwrap();
    c.ok(t::LCREATE, b().u32(1).s("f").u32(2).u32(0o6755).u32(0));
    assert_eq!(
        c.ok(t::WRITE, b().u32(1).u64(2).u32(3).u8(1).u8(2).u8(3)),
        3u32.to_le_bytes()
    );
    assert_eq!(c.read(1, 0, 10).unwrap(), [0, 0, 1, 2, 3]);
    let path = dir.path().join("d/f");
    let mode = || path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode() & 0o6000, 0, "no set-user-ID programs from a guest");
    c.ok(t::FSYNC, b().u32(1).u32(0));
    let set = SetAttr {
        valid: setattr::MODE | setattr::SIZE,
        mode: 0o4600,
        size: 4,
        ..SetAttr::default()
    };
    c.ok(t::SETATTR, set.body(1));
    let set = SetAttr {
        valid: setattr::MTIME | setattr::MTIME_SET,
        mtime: (1_000_000, 5),
        ..SetAttr::default()
    };
    c.ok(t::SETATTR, set.body(1));
    assert_eq!(
        (mode(), std::fs::read(&path).unwrap()),
        (0o600, vec![0, 0, 1, 2])
    );
    let modified = path.metadata().unwrap().modified().unwrap();
    assert_eq!(
        modified
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs(),
        1_000_000
    );
    c.ok(t::SYMLINK, b().u32(ROOT).s("link").s("/etc/passwd").u32(0));
    c.walk(ROOT, 2, &[b"link"]).unwrap();
    assert_eq!(
        c.open(2, 1),
        Err(Errno::LOOP),
        "what the guest links to is not followed here"
    );
    assert_eq!(c.call(t::SETATTR, set_size(2, 0)), Err(Errno::LOOP));
    c.ok(t::LINK, b().u32(ROOT).u32(1).s("hard"));
    c.ok(t::RENAMEAT, b().u32(ROOT).s("hard").u32(ROOT).s("moved"));
    assert!(dir.path().join("moved").exists() && !dir.path().join("hard").exists());
    c.ok(t::UNLINKAT, b().u32(ROOT).s("moved").u32(0));
    assert_eq!(
        c.call(t::UNLINKAT, b().u32(ROOT).s("d").u32(0)),
        Err(Errno::ISDIR)
    );
    assert_eq!(
        c.call(
            t::MKNOD,
            b().u32(ROOT).s("n").u32(0o2_0644).u32(1).u32(3).u32(0)
        ),
        Err(Errno::PERM)
    );
    assert_eq!(
        c.call(t::RENAME, b().u32(1).u32(ROOT).s("n")),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(c.call(t::REMOVE, b().u32(2)), Err(Errno::OPNOTSUPP));
    assert!(dir.path().join("link").symlink_metadata().is_ok());
}

#[test]
fn errors_of_the_host_are_answered_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    let refused = c.server.refused_writes();
    let write = |fid| b().u32(fid).u64(0).u32(1).u8(b'x');
    // More files than are named, each with two errors.
    for fid in 1..12 {
        write_file(&dir, &format!("d/{fid}"), b"");
        let name = fid.to_string();
        c.walk(ROOT, fid, &[b"d", name.as_bytes()]).unwrap();
        c.open(fid, 2).unwrap();
        assert_eq!(c.ok(t::WRITE, write(fid)), 1u32.to_le_bytes());
        let node = c.server.node(fid).unwrap();
        c.server.tree.replace_file(node, fid, broken_file().into());
        for _ in 0..2 {
            assert_eq!(c.call(t::WRITE, write(fid)), Err(Errno::IO));
        }
        assert_eq!(c.read(fid, 0, 1), Err(Errno::IO));
    }
    let noted = refused.take();
    let files: Vec<_> = noted
        .files
        .iter()
        .map(|(path, error)| {
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            path.to_str().unwrap()
        })
        .collect();
    assert_eq!(
        files,
        ["d/1", "d/2", "d/3", "d/4", "d/5", "d/6", "d/7", "d/8"]
    );
    assert!(noted.more);
    // A request that no program makes is not noted.
    c.walk(ROOT, 20, &[b"d", b"1"]).unwrap();
    c.open(20, 0).unwrap();
    assert_eq!(c.call(t::WRITE, write(20)), Err(Errno::BADF));
    assert!(refused.take().files.is_empty());
}
