//! Pipes, sockets, extended attributes and times.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::*;

const REPLACE: u32 = 2;

impl Client {
    /// Reads the attribute `name`, or the list of names if it is empty.
    fn xattr(&mut self, fid: u32, name: &str) -> Result<Vec<u8>, Errno> {
        const VALUE: u32 = 30_000;
        let reply = self.call(t::XATTRWALK, b().u32(fid).u32(VALUE).s(name))?;
        let size = u64::from_le_bytes(reply[..8].try_into().unwrap());
        let value = self.read(VALUE, 0, 100_000)?;
        assert_eq!(value.len() as u64, size);
        assert_eq!(
            self.read(VALUE, 1, 1)?,
            value[1.min(value.len())..2.min(value.len())]
        );
        assert_eq!(self.read(VALUE, u64::MAX, 1)?, []);
        self.ok(t::CLUNK, b().u32(VALUE));
        Ok(value)
    }

    fn set_xattr(&mut self, fid: u32, name: &str, value: &[u8], flags: u32) -> Result<(), Errno> {
        const VALUE: u32 = 30_001;
        self.walk(fid, VALUE, &[])?;
        let create = b().u32(VALUE).s(name).u64(value.len() as u64).u32(flags);
        let mut result = self.call(t::XATTRCREATE, create).map(drop);
        if result.is_ok() && !value.is_empty() {
            // In two parts.
            let (first, second) = value.split_at(value.len() / 2);
            for (offset, part) in [(0, first), (first.len(), second)] {
                let body = b().u32(VALUE).u64(offset as u64).u32(part.len() as u32);
                result = self
                    .call(t::WRITE, part.iter().copied().fold(body, Body::u8))
                    .map(drop);
            }
        }
        result.and(self.call(t::CLUNK, b().u32(VALUE)).map(drop))
    }
}

/// A share with a file, if its file system has extended attributes.
fn share_with_xattrs() -> Option<TempDir> {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"data");
    let path = dir.path().join("file");
    let set = setxattr(&path, c"user.first", b"value", XattrFlags::empty());
    if set.is_err() {
        println!("skipped: the temporary directory has no extended attributes");
        return None;
    }
    Some(dir)
}

#[test]
fn extended_attributes_are_read() {
    let Some(dir) = share_with_xattrs() else {
        return;
    };
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    c.walk(ROOT, 1, &[b"file"]).unwrap();
    assert_eq!(c.xattr(1, "").unwrap(), b"user.first\0");
    assert_eq!(c.xattr(1, "user.first").unwrap(), b"value");
    assert_eq!(c.xattr(1, "user.second"), Err(Errno::NODATA));
    for name in [
        "security.capability",
        "trusted.overlay.opaque",
        "system.posix_acl_access",
        "x",
    ] {
        assert_eq!(c.xattr(1, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(c.xattr(9, ""), Err(Errno::BADF));
    c.ok(t::XATTRWALK, b().u32(1).u32(2).s(""));
    assert_eq!(
        c.call(t::XATTRWALK, b().u32(1).u32(2).s("")),
        Err(Errno::BADF),
        "in use"
    );
    assert_eq!(
        c.call(t::WRITE, b().u32(2).u64(0).u32(1).u8(1)),
        Err(Errno::ROFS)
    );
}

#[test]
fn extended_attributes_are_set_and_removed() {
    let Some(dir) = share_with_xattrs() else {
        return;
    };
    let path = dir.path().join("file");
    let value = |name: &str| {
        let mut value = [0; 100];
        getxattr(&path, name, &mut value).map(|len| value[..len].to_vec())
    };
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    c.walk(ROOT, 1, &[b"file"]).unwrap();
    c.set_xattr(1, "user.second", b"another", 0).unwrap();
    assert_eq!(value("user.second").unwrap(), b"another");
    assert_eq!(c.xattr(1, "user.second").unwrap(), b"another");
    c.set_xattr(1, "user.empty", b"", 0).unwrap();
    assert_eq!(value("user.empty").unwrap(), b"");
    c.set_xattr(1, "user.second", b"", REPLACE).unwrap();
    assert_eq!(value("user.second"), Err(Errno::NODATA), "removed");
    assert_eq!(
        c.set_xattr(1, "user.none", b"x", REPLACE),
        Err(Errno::NODATA)
    );
    assert_eq!(c.set_xattr(1, "user.first", b"x", 1), Err(Errno::EXIST));
    assert_eq!(c.set_xattr(1, "user.first", b"x", 8), Err(Errno::INVAL));
    assert_eq!(
        c.set_xattr(1, "user.big", &[1; 70_000], 0),
        Err(Errno::TOOBIG)
    );
    for name in [
        "security.capability",
        "trusted.x",
        "system.posix_acl_access",
    ] {
        assert_eq!(
            c.set_xattr(1, name, b"x", 0),
            Err(Errno::OPNOTSUPP),
            "{name}"
        );
    }
    // A value that is longer than Txattrcreate said.
    c.walk(1, 2, &[]).unwrap();
    c.ok(t::XATTRCREATE, b().u32(2).s("user.x").u64(1).u32(0));
    assert_eq!(
        c.call(t::WRITE, b().u32(2).u64(1).u32(1).u8(1)),
        Err(Errno::NOSPC)
    );
    assert_eq!(
        c.call(t::WRITE, b().u32(2).u64(u64::MAX).u32(1).u8(1)),
        Err(Errno::INVAL)
    );
    assert_eq!(c.read(2, 0, 1), Err(Errno::BADF));
}

#[test]
fn fids_of_attributes_are_bounded() {
    let Some(dir) = share_with_xattrs() else {
        return;
    };
    let mut c = Client::new(dir.path(), Access::ReadOnly);
    let mut walk = |fid| c.call(t::XATTRWALK, b().u32(ROOT).u32(fid).s("")).map(drop);
    assert_eq!((1..).find_map(|fid| walk(fid).err()), Some(Errno::NFILE));
    c.ok(t::CLUNK, b().u32(1));
    assert!(c.xattr(ROOT, "").is_ok());
}

#[test]
fn pipes_and_sockets_are_created_but_no_devices() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    let mknod = |name: &str, mode: u32| b().u32(ROOT).s(name).u32(mode).u32(1).u32(3).u32(0);
    for (name, mode) in [
        ("fifo", 0o01_0640),
        ("socket", 0o14_0755),
        ("file", 0o10_6644),
    ] {
        c.ok(t::MKNOD, mknod(name, mode));
        assert_eq!(c.call(t::MKNOD, mknod(name, mode)), Err(Errno::EXIST));
    }
    let metadata = |name: &str| dir.path().join(name).symlink_metadata().unwrap();
    assert!(metadata("fifo").file_type().is_fifo());
    assert!(metadata("socket").file_type().is_socket());
    assert_eq!(metadata("file").mode() & 0o170_6000, 0o10_0000);
    for (name, mode) in [
        ("chr", 0o02_0644),
        ("blk", 0o06_0644),
        ("none", 0o644),
        ("d", 0o04_0755),
    ] {
        assert_eq!(
            c.call(t::MKNOD, mknod(name, mode)),
            Err(Errno::PERM),
            "{name}"
        );
        assert!(!dir.path().join(name).exists());
    }
    // The guest's kernel connects the programs that open them. The host's is not asked.
    c.walk(ROOT, 1, &[b"fifo"]).unwrap();
    assert_eq!(c.open(1, 0), Err(Errno::ACCESS));
}

#[test]
fn times_have_nanoseconds_also_those_of_links() {
    let dir = tempfile::tempdir().unwrap();
    write_file(&dir, "file", b"");
    symlink("file", dir.path().join("link")).unwrap();
    let mut c = Client::new(dir.path(), Access::ReadWrite);
    let valid = setattr::ATIME | setattr::ATIME_SET | setattr::MTIME | setattr::MTIME_SET;
    for (fid, name) in [(1, "file"), (2, "link")] {
        c.walk(ROOT, fid, &[name.as_bytes()]).unwrap();
        let time = u64::from(fid);
        let set = SetAttr {
            valid,
            atime: (1000 + time, 123_456_789),
            mtime: (2000 + time, 999_999_999),
            ..SetAttr::default()
        };
        c.ok(t::SETATTR, set.body(fid));
        let m = dir.path().join(name).symlink_metadata().unwrap();
        assert_eq!(
            (m.atime(), m.atime_nsec()),
            (1000 + time as i64, 123_456_789)
        );
        assert_eq!(
            (m.mtime(), m.mtime_nsec()),
            (2000 + time as i64, 999_999_999)
        );
        let reply = c.ok(t::GETATTR, b().u32(fid).u64(u64::MAX));
        let mut r = Reader::new(&reply[8 + Qid::LEN + 12 + 40..]);
        assert_eq!((r.u64(), r.u64()), (Ok(1000 + time), Ok(123_456_789)));
        assert_eq!((r.u64(), r.u64()), (Ok(2000 + time), Ok(999_999_999)));
    }
}
