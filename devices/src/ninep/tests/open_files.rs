//! Tests of the server for files that this process has open.

use std::collections::BTreeMap;
use std::fs::File;

use super::*;
use crate::disk::tests::broken_file;

fn client(files: Vec<File>) -> Client<OpenFiles> {
    let files: BTreeMap<u32, OwnedFd> = (0..).zip(files.into_iter().map(OwnedFd::from)).collect();
    Client::attached(OpenFiles::new(files))
}

#[test]
fn a_file_gives_what_its_descriptor_permits() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "contents").unwrap();
    let write = File::options().write(true).open(&path).unwrap();
    // The name is gone and no permission is left. The descriptors stay.
    let mut c = client(vec![File::open(&path).unwrap(), write]);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::remove_file(&path).unwrap();

    c.walk(ROOT, 1, &[b"0"]).unwrap();
    for flags in [open::WRITE_ONLY, open::READ_WRITE] {
        assert_eq!(c.open(1, flags).unwrap_err(), Errno::ACCESS);
    }
    c.open(1, 0).unwrap();
    assert_eq!(c.read(1, 3, 100).unwrap(), b"tents");
    let write = |fid: u32| b().u32(fid).u64(2).u32(1).u8(b'X');
    assert_eq!(c.call(t::WRITE, write(1)).unwrap_err(), Errno::BADF);
    c.call(t::SETATTR, set_size(1, 4)).unwrap_err();

    c.walk(ROOT, 2, &[b"1"]).unwrap();
    assert_eq!(c.open(2, 0).unwrap_err(), Errno::ACCESS);
    c.open(2, open::WRITE_ONLY).unwrap();
    c.ok(t::WRITE, write(2));
    assert_eq!(c.read(2, 0, 100).unwrap_err(), Errno::BADF);
    assert_eq!(c.read(1, 0, 100).unwrap(), b"coXtents");
    c.ok(t::SETATTR, set_size(2, 4));
    assert_eq!(c.read(1, 0, 100).unwrap(), b"coXt");
    c.ok(t::CLUNK, b().u32(2));
    c.walk(ROOT, 2, &[b"1"]).unwrap();
    c.open(2, open::WRITE_ONLY | open::TRUNCATE).unwrap();
    assert_eq!(c.read(1, 0, 100).unwrap(), b"");
}

#[test]
fn nothing_else_of_the_host_can_be_reached() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "file", b"contents");
    let mut c = client(vec![File::open(directory.path().join("file")).unwrap()]);
    for name in [
        &b".."[..],
        b".",
        b"/",
        b"etc",
        b"1",
        b"-0",
        b"0x0",
        b"\xff",
        b"",
    ] {
        assert_eq!(c.walk(ROOT, 1, &[name]).unwrap_err(), Errno::NOENT);
    }
    assert_eq!(c.walk(ROOT, 1, &[b"0", b".."]).unwrap_err(), Errno::NOTDIR);
    assert_eq!(c.open(ROOT, 0).unwrap_err(), Errno::ACCESS);
    c.walk(ROOT, 1, &[b"0"]).unwrap();
    assert_eq!(c.walk(1, 2, &[b".."]).unwrap_err(), Errno::NOTDIR);
    // Whatever a request is, only those of the table are served.
    let known = [
        t::VERSION,
        t::ATTACH,
        t::FLUSH,
        t::WALK,
        t::LOPEN,
        t::READ,
        t::WRITE,
        t::GETATTR,
        t::SETATTR,
        t::STATFS,
        t::FSYNC,
        t::LOCK,
        t::GETLOCK,
        t::CLUNK,
        t::REMOVE,
    ];
    for kind in (0..=255).filter(|kind| !known.contains(kind)) {
        let body = (0..10).fold(b().u32(ROOT).s("name"), |body, _| body.u64(0));
        assert_eq!(c.call(kind, body).unwrap_err(), Errno::OPNOTSUPP, "{kind}");
    }
    // Attributes of the root and of the file.
    for (fid, kind) in [(ROOT, libc::S_IFDIR), (1, libc::S_IFREG)] {
        let reply = c.ok(t::GETATTR, b().u32(fid).u64(0x7ff));
        let mode = u32::from_le_bytes(reply[21..25].try_into().unwrap());
        assert_eq!(mode & libc::S_IFMT, kind);
    }
}

#[test]
fn an_error_of_the_host_is_that_of_the_request() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "file", b"contents");
    let intact = File::open(directory.path().join("file"));
    let mut c = client(vec![broken_file(), intact.unwrap()]);
    for (fid, name) in [(1, b"0"), (2, b"1")] {
        c.walk(ROOT, fid, &[name]).unwrap();
        c.open(fid, 0).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(c.read(1, 0, 100), Err(Errno::IO));
        let write = b().u32(1).u64(0).u32(1).u8(b'x');
        assert_eq!(c.call(t::WRITE, write), Err(Errno::IO));
        assert_eq!(c.read(2, 0, 100).unwrap(), b"contents");
    }
    c.ok(t::GETATTR, b().u32(1).u64(u64::MAX));
}
