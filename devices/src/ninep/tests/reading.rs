//! Walks, reads, directories and attributes.

use super::*;

#[test]
fn files_are_found_and_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let data: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    write_file(&dir, "a/b/file", &data);
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    assert_eq!(c.walk(ROOT, 1, &[b"a", b"b", b"file"]), Ok(3));
    assert_eq!(c.read(1, 0, 10), Err(Errno::BADF), "not open");
    c.open(1, 0).unwrap();
    assert_eq!(c.read(1, 0, 100).unwrap(), data[..100]);
    assert_eq!(c.read(1, 19_990, 100).unwrap(), data[19_990..]);
    assert_eq!(c.read(1, 20_000, 100).unwrap(), []);
    assert_eq!(
        c.read(1, 0, u32::MAX).unwrap().len(),
        8192 - HEADER_LEN - 4,
        "clamped by msize"
    );
    assert_eq!(c.read(1, u64::MAX, 100), Err(Errno::INVAL));
    c.ok(t::CLUNK, b().u32(1));
    assert_eq!(c.call(t::CLUNK, b().u32(1)), Err(Errno::BADF));
}

#[test]
fn a_walk_stops_where_the_path_does() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    assert_eq!(c.walk(ROOT, 1, &[b"none"]), Err(Errno::NOENT));
    assert_eq!(c.walk(ROOT, 1, &[b"a", b"none"]), Ok(1));
    assert_eq!(c.open(1, 0), Err(Errno::BADF), "no fid from half a walk");
    assert_eq!(c.walk(ROOT, 1, &[]), Ok(0));
    assert_eq!(c.walk(ROOT, 1, &[]), Err(Errno::BADF), "in use");
    assert_eq!(c.walk(1, 1, &[b"a"]), Ok(1), "a fid can move");
    assert_eq!(c.walk(ROOT, 2, &[&b"a"[..]; 17]), Err(Errno::INVAL));
}

#[test]
fn directories_list_all_names() {
    use std::ffi::OsStr;
    let dir = tempfile::tempdir().unwrap();
    let mut expected = vec![
        b".".to_vec(),
        b"..".to_vec(),
        b"\xFF\xFE not UTF-8".to_vec(),
        vec![b'x'; 255],
    ];
    expected.extend((0..500).map(|i| format!("entry {i}").into_bytes()));
    expected.sort();
    for name in expected.iter().filter(|n| !n.starts_with(b".")) {
        std::fs::write(dir.path().join(OsStr::from_bytes(name)), b"").unwrap();
    }
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    c.walk(ROOT, 1, &[]).unwrap();
    c.open(1, open::DIRECTORY).unwrap();
    assert_eq!(c.names(1, 300), expected);
    assert_eq!(c.names(1, u32::MAX), expected);
    assert_eq!(
        c.call(t::READDIR, b().u32(1).u64(0).u32(10)),
        Err(Errno::INVAL),
        "no room for one entry"
    );
    assert_eq!(
        c.call(t::READDIR, b().u32(1).u64(u64::MAX).u32(300)),
        Err(Errno::INVAL)
    );
    assert_eq!(c.read(1, 0, 10), Err(Errno::ISDIR));
    assert_eq!(c.walk(ROOT, 2, &[b"\xFF\xFE not UTF-8"]), Ok(1));
}

#[test]
fn attributes_are_those_of_the_host_without_volatile_ones() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"12345");
    let path = dir.path().join("file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    for (access, stable) in [(Access::ReadOnly, true), (Access::ReadWrite, false)] {
        let mut c = Client::new(dir.path(), access);
        c.walk(ROOT, 1, &[b"file"]).unwrap();
        let reply = c.ok(t::GETATTR, b().u32(1).u64(u64::MAX));
        assert_eq!(reply.len(), 153);
        let mut r = Reader::new(&reply[8 + Qid::LEN..]);
        assert_eq!(r.u32(), Ok(0o10_0640));
        r.bytes(8).unwrap();
        assert_eq!(
            (r.u64(), r.u64(), r.u64()),
            (Ok(1), Ok(0), Ok(5)),
            "links, device, size"
        );
        r.bytes(16).unwrap();
        let (atime, mtime) = ((r.u64(), r.u64()), (r.u64(), r.u64()));
        assert!(
            !stable || atime == mtime,
            "reading must not change what a second run sees"
        );
        let reply = c.ok(t::STATFS, b().u32(1));
        let mut r = Reader::new(&reply);
        r.bytes(16).unwrap();
        assert_eq!(r.u64() == Ok(0), stable, "free space");
    }
}

#[test]
fn qids_distinguish_file_systems() {
    let mut host = Host::new(true).unwrap();
    let stat = |path: &str| rustix::fs::lstat(path).unwrap();
    let (mut a, root) = (stat("/proc"), stat("/"));
    a.st_ino = root.st_ino;
    assert_ne!(a.st_dev, root.st_dev);
    let (first, second) = (host.qid(&root), host.qid(&a));
    assert_eq!(first.path, root.st_ino);
    assert_ne!(first.path, second.path);
    assert_eq!(host.qid(&root), first);
    assert_eq!(
        (first.kind, host.qid(&stat("/proc/self/exe")).kind),
        (Qid::DIRECTORY, Qid::SYMLINK)
    );
}
