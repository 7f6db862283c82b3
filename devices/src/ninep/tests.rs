use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::read::open;
use super::wire::Qid;
use super::write::{AT_REMOVEDIR, setattr};
use super::*;

/// Writes a file into a temporary directory.
fn write_file(directory: &TempDir, name: &str, data: &[u8]) {
    std::fs::write(directory.path().join(name), data).unwrap();
}

/// Builds the body of a message.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u8(mut self, v: u8) -> Self {
        self.0.put_u8(v);
        self
    }
    fn u16(mut self, v: u16) -> Self {
        self.0.put_u16(v);
        self
    }
    fn u32(mut self, v: u32) -> Self {
        self.0.put_u32(v);
        self
    }
    fn u64(mut self, v: u64) -> Self {
        self.0.put_u64(v);
        self
    }
    fn s(mut self, v: impl AsRef<[u8]>) -> Self {
        self.0.put_string(v.as_ref());
        self
    }
}

fn b() -> Body {
    Body::default()
}

struct Client {
    server: Server,
    reply: Vec<u8>,
}

const ROOT: u32 = 0;

impl Client {
    /// A client with the root attached as fid 0.
    fn new(root: &Path, access: Access) -> Self {
        let mut c = Self {
            server: Server::new(root, access).unwrap(),
            reply: Vec::new(),
        };
        c.ok(t::VERSION, b().u32(8192).s("9P2000.L"));
        c.ok(
            t::ATTACH,
            b().u32(ROOT).u32(u32::MAX).s("root").s("").u32(0),
        );
        c
    }

    fn call(&mut self, kind: u8, body: Body) -> Result<Vec<u8>, Errno> {
        let mut m = Vec::new();
        m.put_u32((HEADER_LEN + body.0.len()) as u32);
        m.put_u8(kind);
        m.put_u16(0x1234);
        m.extend(body.0);
        self.server.handle(&m, &mut self.reply);
        let mut r = Reader::new(&self.reply);
        assert_eq!(r.u32().unwrap() as usize, self.reply.len());
        let answer = r.u8().unwrap();
        assert_eq!(r.u16().unwrap(), 0x1234);
        if answer == RLERROR {
            return Err(Errno::from_raw_os_error(r.u32().unwrap() as i32));
        }
        assert_eq!(answer, kind + 1);
        Ok(self.reply[HEADER_LEN..].to_vec())
    }

    fn ok(&mut self, kind: u8, body: Body) -> Vec<u8> {
        self.call(kind, body).unwrap()
    }

    fn walk(&mut self, from: u32, to: u32, names: &[&[u8]]) -> Result<usize, Errno> {
        let body = b().u32(from).u32(to).u16(names.len() as u16);
        let body = names.iter().fold(body, |body, name| body.s(name));
        let reply = self.call(t::WALK, body)?;
        Ok(usize::from(u16::from_le_bytes([reply[0], reply[1]])))
    }

    fn open(&mut self, fid: u32, flags: u32) -> Result<(), Errno> {
        self.call(t::LOPEN, b().u32(fid).u32(flags)).map(drop)
    }

    fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let reply = self.call(t::READ, b().u32(fid).u64(offset).u32(count))?;
        assert_eq!(
            u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize,
            reply.len() - 4
        );
        Ok(reply[4..].to_vec())
    }

    /// All names of an open directory, `count` bytes at a time.
    fn names(&mut self, fid: u32, count: u32) -> Vec<Vec<u8>> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let reply = self.ok(t::READDIR, b().u32(fid).u64(offset).u32(count));
            let mut r = Reader::new(&reply);
            let mut left = r.u32().unwrap() as usize;
            assert!(left <= count as usize);
            if left == 0 {
                names.sort();
                return names;
            }
            while left > 0 {
                r.bytes(Qid::LEN).unwrap();
                offset = r.u64().unwrap();
                r.u8().unwrap();
                let name = r.string().unwrap();
                left -= Qid::LEN + 11 + name.len();
                names.push(name.to_vec());
            }
        }
    }
}

#[test]
fn the_version_decides_the_message_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    for (asked, answer) in [(4096, 4096), (u32::MAX, MAX_MSIZE)] {
        let reply = c.ok(t::VERSION, b().u32(asked).s("9P2000.L"));
        assert_eq!(reply[..4], u32::to_le_bytes(answer));
    }
    assert_eq!(
        c.call(t::VERSION, b().u32(100).s("9P2000.L")),
        Err(Errno::INVAL)
    );
    let reply = c.ok(t::VERSION, b().u32(8192).s("9P2000.u"));
    assert_eq!(&reply[6..], b"unknown");
    assert_eq!(
        c.walk(ROOT, 1, &[]),
        Err(Errno::BADF),
        "a new session has no fids"
    );
}

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
    let setattr = b()
        .u32(1)
        .u32(setattr::SIZE)
        .u32(0)
        .u32(0)
        .u32(0)
        .u64(0)
        .u64(0)
        .u64(0)
        .u64(0)
        .u64(0);
    for (kind, body) in [
        (t::WRITE, b().u32(1).u64(0).u32(1).u8(b'X')),
        (t::SETATTR, setattr),
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
    let mut host = Host::new(Path::new("/"), true).unwrap();
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

#[test]
fn fids_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    c.server.max_fids = 10;
    for fid in 1..10 {
        assert_eq!(c.walk(ROOT, fid, &[]), Ok(0));
    }
    assert_eq!(c.walk(ROOT, 10, &[]), Err(Errno::NFILE));
    assert_eq!(
        c.call(t::ATTACH, b().u32(11).u32(0).s("").s("").u32(0)),
        Err(Errno::NFILE)
    );
    c.ok(t::CLUNK, b().u32(9));
    assert_eq!(c.walk(ROOT, 10, &[]), Ok(0));
}

#[test]
fn locks_always_succeed() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"");
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    c.walk(ROOT, 1, &[b"file"]).unwrap();
    c.open(1, 0).unwrap();
    let lock = || b().u32(1).u8(1).u32(0).u64(0).u64(0).u32(9).s("me");
    assert_eq!(c.ok(t::LOCK, lock()), [0]);
    let reply = c.ok(t::GETLOCK, b().u32(1).u8(1).u64(3).u64(4).u32(9).s("me"));
    assert_eq!((reply[0], reply.len()), (2, 25));
    assert_eq!(
        c.call(t::XATTRWALK, b().u32(1).u32(2).s("")),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(
        c.call(t::AUTH, b().u32(9).s("").s("").u32(0)),
        Err(Errno::OPNOTSUPP)
    );
    c.ok(t::FLUSH, b().u16(7));
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
    let set = |valid, mode, size, time| {
        b().u32(1)
            .u32(valid)
            .u32(mode)
            .u32(0)
            .u32(0)
            .u64(size)
            .u64(0)
            .u64(0)
            .u64(time)
            .u64(5)
    };
    c.ok(t::SETATTR, set(setattr::MODE | setattr::SIZE, 0o4600, 4, 0));
    c.ok(
        t::SETATTR,
        set(setattr::MTIME | setattr::MTIME_SET, 0, 0, 1_000_000),
    );
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
    let truncate = b()
        .u32(2)
        .u32(setattr::SIZE)
        .u32(0)
        .u32(0)
        .u32(0)
        .u64(0)
        .u64(0)
        .u64(0)
        .u64(0)
        .u64(0);
    assert_eq!(c.call(t::SETATTR, truncate), Err(Errno::LOOP));
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
fn malformed_messages_are_answered_with_errors() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "f", b"x");
    let mut server = Server::new(dir.path(), Access::ReadWrite).unwrap();
    let mut reply = Vec::new();
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    for kind in 0..=255u8 {
        for len in 0..60usize {
            let mut m = Vec::new();
            m.put_u32(len as u32);
            m.put_u8(kind);
            m.put_u16(1);
            // Small numbers are often valid fids, counts and lengths.
            m.extend((0..64).map(|_| random() & 3));
            m.truncate(len);
            server.handle(&m, &mut reply);
            assert!(reply.len() >= HEADER_LEN && reply.len() <= MAX_MSIZE as usize);
            assert_eq!(
                u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize,
                reply.len()
            );
        }
    }
    for size in [0, 3, 6, 100, u32::MAX] {
        let mut m = Vec::new();
        m.put_u32(size);
        m.put_u8(t::CLUNK);
        m.put_u16(9);
        m.put_u32(0);
        server.handle(&m, &mut reply);
        assert_eq!(reply[4], RLERROR, "size {size}");
    }
}

#[test]
fn the_root_has_to_be_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"");
    assert!(Server::new(&dir.path().join("file"), Access::ReadOnly).is_err());
    assert!(Server::new(&dir.path().join("none"), Access::ReadOnly).is_err());
}
