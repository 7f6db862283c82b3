//! Requests that try to reach files outside the share.

use super::*;

#[test]
fn nothing_leads_out_of_the_tree() {
    let outside = tempfile::tempdir().unwrap();
    write_file(&outside, "secret", b"secret");
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    symlink(outside.path(), dir.path().join("directory")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
    symlink("..", dir.path().join("sub/up")).unwrap();
    let escape = format!(
        "../{}/secret",
        outside.path().file_name().unwrap().to_str().unwrap()
    );
    let absolute = outside.path().join("secret");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let mut c = Client::new(dir.path(), access);
        for name in [
            &b".."[..],
            b".",
            b"",
            b"/",
            b"/etc/passwd",
            b"../..",
            b"sub/..",
            b"./sub",
            b"sub/",
            b"file\0",
            b"..\0x",
            escape.as_bytes(),
            absolute.as_os_str().as_bytes(),
        ] {
            assert_eq!(c.walk(ROOT, 1, &[name]), Err(Errno::INVAL), "{name:?}");
            assert_eq!(
                c.walk(ROOT, 1, &[b"sub", name]),
                Err(Errno::INVAL),
                "{name:?}"
            );
        }
        // Links are found, but neither Twalk nor Tlopen follows them.
        assert_eq!(c.walk(ROOT, 1, &[b"directory", b"secret"]), Ok(1));
        assert_eq!(c.walk(ROOT, 1, &[b"sub", b"up", b"sub"]), Ok(2));
        assert_eq!(c.walk(ROOT, 1, &[b"directory"]), Ok(1));
        assert_eq!(c.walk(1, 2, &[b"secret"]), Err(Errno::NOTDIR));
        assert_eq!(c.open(1, 0), Err(Errno::LOOP));
        assert_eq!(c.open(1, open::DIRECTORY), Err(Errno::NOTDIR));
        assert_eq!(c.walk(ROOT, 3, &[b"file"]), Ok(1));
        assert_eq!(c.open(3, 0), Err(Errno::LOOP));
        assert_eq!(
            c.call(t::READDIR, b().u32(1).u64(0).u32(100)),
            Err(Errno::BADF)
        );
        let reply = c.ok(t::READLINK, b().u32(3));
        assert_eq!(
            &reply[2..],
            absolute.as_os_str().as_bytes(),
            "the guest follows it itself"
        );
    }
}

#[test]
fn a_name_that_leads_out_is_refused_in_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    c.walk(ROOT, 1, &[]).unwrap();
    let outside = format!(
        "../{}-out",
        dir.path().file_name().unwrap().to_str().unwrap()
    );
    for name in ["..", ".", "", "/tmp/x", outside.as_str()] {
        for (kind, body) in [
            (t::LCREATE, b().u32(1).s(name).u32(2).u32(0o644).u32(0)),
            (t::MKDIR, b().u32(1).s(name).u32(0o755).u32(0)),
            (t::SYMLINK, b().u32(1).s(name).s("target").u32(0)),
            (t::LINK, b().u32(1).u32(1).s(name)),
            (t::UNLINKAT, b().u32(1).s(name).u32(0)),
            (t::UNLINKAT, b().u32(1).s(name).u32(AT_REMOVEDIR)),
            (t::RENAMEAT, b().u32(1).s(name).u32(1).s("x")),
            (t::RENAMEAT, b().u32(1).s("x").u32(1).s(name)),
        ] {
            assert_eq!(c.call(kind, body), Err(Errno::INVAL), "{kind} {name:?}");
        }
    }
    assert!(
        !dir.path()
            .parent()
            .unwrap()
            .join(outside.trim_start_matches("../"))
            .exists()
    );
}

#[test]
fn special_files_are_shown_but_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    for (fid, name) in [(1, &b"fifo"[..]), (2, b"socket")] {
        c.walk(ROOT, fid, &[name]).unwrap();
        c.ok(t::GETATTR, b().u32(fid).u64(u64::MAX));
        assert_eq!(c.open(fid, 0), Err(Errno::ACCESS));
    }
    let mut c = Client::new(Path::new("/"), Access::ReadOnly);
    for (fid, path) in [
        (1, &[&b"dev"[..], b"null"][..]),
        (2, &[b"proc", b"version"]),
        (3, &[b"proc", b"1"]),
    ] {
        assert_eq!(c.walk(ROOT, fid, path), Ok(2));
        assert_eq!(c.open(fid, 0), Err(Errno::ACCESS), "{path:?}");
    }
}
