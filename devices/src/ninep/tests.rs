//! A client of the server, and tests of sessions and messages.

mod changing;
mod confinement;
mod depth;
mod open_files;
mod random;
mod reading;
mod reopening;
mod special;
mod times;
mod writing;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::read::open;
use super::wire::{HEADER_LEN, Qid, RLERROR};
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

/// A Tsetattr.
#[derive(Default)]
struct SetAttr {
    /// Bits of [`setattr`].
    valid: u32,
    mode: u32,
    size: u64,
    /// Seconds and nanoseconds.
    atime: (u64, u64),
    mtime: (u64, u64),
}

impl SetAttr {
    fn body(&self, fid: u32) -> Body {
        let (atime, mtime) = (self.atime, self.mtime);
        let body = b().u32(fid).u32(self.valid).u32(self.mode).u32(0).u32(0);
        let body = body.u64(self.size).u64(atime.0).u64(atime.1);
        body.u64(mtime.0).u64(mtime.1)
    }
}

/// The body of a Tsetattr of a file's size.
fn set_size(fid: u32, size: u64) -> Body {
    let valid = setattr::SIZE;
    let set = SetAttr {
        valid,
        size,
        ..SetAttr::default()
    };
    set.body(fid)
}

struct Client<S = Server> {
    server: S,
    reply: Vec<u8>,
}

const ROOT: u32 = 0;

impl Client {
    /// A client with the root attached as fid 0.
    fn new(root: &Path, access: Access) -> Self {
        Self::attached(Server::new(root, access).unwrap())
    }
}

impl<S: Service> Client<S> {
    /// A client of `server` with the root attached as fid 0.
    fn attached(server: S) -> Self {
        let mut c = Self {
            server,
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
        c.call(t::AUTH, b().u32(9).s("").s("").u32(0)),
        Err(Errno::OPNOTSUPP)
    );
    c.ok(t::FLUSH, b().u16(7));
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
