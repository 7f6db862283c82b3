//! The 9P2000.L wire format: little-endian integers, strings with a 16-bit length, qids.

use rustix::io::Errno;

/// Message types of requests; the answer is one more (Linux: include/net/9p/9p.h).
pub(super) mod t {
    pub(crate) const STATFS: u8 = 8;
    pub(crate) const LOPEN: u8 = 12;
    pub(crate) const LCREATE: u8 = 14;
    pub(crate) const SYMLINK: u8 = 16;
    pub(crate) const MKNOD: u8 = 18;
    pub(crate) const RENAME: u8 = 20;
    pub(crate) const READLINK: u8 = 22;
    pub(crate) const GETATTR: u8 = 24;
    pub(crate) const SETATTR: u8 = 26;
    pub(crate) const XATTRWALK: u8 = 30;
    pub(crate) const XATTRCREATE: u8 = 32;
    pub(crate) const READDIR: u8 = 40;
    pub(crate) const FSYNC: u8 = 50;
    pub(crate) const LOCK: u8 = 52;
    pub(crate) const GETLOCK: u8 = 54;
    pub(crate) const LINK: u8 = 70;
    pub(crate) const MKDIR: u8 = 72;
    pub(crate) const RENAMEAT: u8 = 74;
    pub(crate) const UNLINKAT: u8 = 76;
    pub(crate) const VERSION: u8 = 100;
    pub(crate) const AUTH: u8 = 102;
    pub(crate) const ATTACH: u8 = 104;
    pub(crate) const FLUSH: u8 = 108;
    pub(crate) const WALK: u8 = 110;
    pub(crate) const READ: u8 = 116;
    pub(crate) const WRITE: u8 = 118;
    pub(crate) const CLUNK: u8 = 120;
    pub(crate) const REMOVE: u8 = 122;
}

pub(super) const RLERROR: u8 = 7;
/// size\[4\] type\[1\] tag\[2\]
pub(super) const HEADER_LEN: usize = 7;

/// Reads fields from the front of a message.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Errno> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Errno> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self) -> Result<&'a [u8], Errno> {
        let len = self.u16()?;
        self.bytes(usize::from(len))
    }
}

/// The server's identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Qid {
    pub kind: u8,
    pub version: u32,
    pub path: u64,
}

impl Qid {
    pub(super) const DIRECTORY: u8 = 0x80;
    pub(super) const SYMLINK: u8 = 0x02;
    pub(super) const FILE: u8 = 0x00;
    pub(super) const LEN: usize = 13;
}

/// Appends fields to a message.
pub(super) trait Encode {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_string(&mut self, value: &[u8]);
    fn put_qid(&mut self, qid: Qid);
}

impl Encode for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend(value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend(value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend(value.to_le_bytes());
    }

    fn put_string(&mut self, value: &[u8]) {
        // All strings come from the host's kernel, whose limit is PATH_MAX.
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.put_u16(len);
        self.extend(&value[..usize::from(len)]);
    }

    fn put_qid(&mut self, qid: Qid) {
        self.put_u8(qid.kind);
        self.put_u32(qid.version);
        self.put_u64(qid.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip() {
        let mut m = Vec::new();
        m.put_u8(1);
        m.put_u16(0x0203);
        m.put_u32(0x0405_0607);
        m.put_u64(0x0809_0A0B_0C0D_0E0F);
        m.put_string(b"name");
        let mut r = Reader::new(&m);
        assert_eq!(
            (r.u8(), r.u16(), r.u32()),
            (Ok(1), Ok(0x0203), Ok(0x0405_0607))
        );
        assert_eq!(
            (r.u64(), r.string()),
            (Ok(0x0809_0A0B_0C0D_0E0F), Ok(&b"name"[..]))
        );
        assert_eq!(r.u8(), Err(Errno::INVAL));
    }

    #[test]
    fn short_strings_are_refused() {
        assert_eq!(Reader::new(&[5, 0, b'a']).string(), Err(Errno::INVAL));
        assert_eq!(Reader::new(&[5]).string(), Err(Errno::INVAL));
    }

    #[test]
    fn a_qid_has_its_length() {
        let mut m = Vec::new();
        m.put_qid(Qid {
            kind: Qid::DIRECTORY,
            version: 1,
            path: 2,
        });
        assert_eq!(m.len(), Qid::LEN);
        assert_eq!(m[0], 0x80);
    }
}
