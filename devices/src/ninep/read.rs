//! The requests that open and read.

use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom, Stat, StatFs};
use rustix::io::Errno;

use super::host::Host;
use super::wire::{Encode, Qid, Reader};
use super::{Access, Server, set_u32};

/// Bytes of host directory entries read at once.
const DIRECTORY_BUFFER: usize = 16 * 1024;

/// Open flags on the wire, which are those of the generic Linux ABI.
pub(super) mod open {
    pub(crate) const ACCESS_MODE: u32 = 0o3;
    pub(crate) const WRITE_ONLY: u32 = 0o1;
    pub(crate) const READ_WRITE: u32 = 0o2;
    pub(crate) const CREATE: u32 = 0o100;
    pub(crate) const TRUNCATE: u32 = 0o1000;
    pub(crate) const APPEND: u32 = 0o2000;
    pub(crate) const DIRECTORY: u32 = 0o20_0000;
    /// The flags that a read-only share refuses.
    pub(crate) const WRITES: u32 = ACCESS_MODE | CREATE | TRUNCATE;
}

/// Fields up to `blocks` are valid in Rgetattr.
const GETATTR_BASIC: u64 = 0x7FF;
pub(super) const LOCK_SUCCESS: u8 = 0;
const LOCK_TYPE_UNLOCKED: u8 = 2;

impl Server {
    pub(super) fn lopen(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, flags) = (r.u32()?, r.u32()?);
        if self.access == Access::ReadOnly && flags & open::WRITES != 0 {
            return Err(Errno::ROFS);
        }
        let node = self.node(fid)?;
        if flags & open::DIRECTORY != 0 && self.tree.kind(node) != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let file = self.tree.path(node)?;
        let stat = self.tree.host.stat(&file.fd)?;
        self.tree.open(node, fid, host_flags(flags)?)?;
        if flags & open::TRUNCATE != 0 {
            self.changed(&file.fd);
        }
        reply.put_qid(self.tree.host.qid(&stat));
        reply.put_u32(0); // iounit: as much as msize allows
        Ok(())
    }

    pub(super) fn read(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        if let Some(xattr) = self.xattrs.get(&fid) {
            let limit = self.data_limit(count, reply.len() + 4);
            let data = xattr.read(offset, limit)?;
            reply.put_u32(data.len() as u32);
            reply.extend(data);
            return Ok(());
        }
        let (kind, file) = self.opened(fid)?;
        if kind == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        let limit = self.data_limit(count, reply.len() + 4);
        put_data(&file, offset, limit, reply)
    }

    /// How many of `count` bytes of data an answer can contain after a header of `header` bytes.
    fn data_limit(&self, count: u32, header: usize) -> usize {
        (count as usize).min((self.msize as usize).saturating_sub(header))
    }

    pub(super) fn readdir(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        let (kind, directory) = self.opened(fid)?;
        if kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let stat = self.tree.host.stat(&directory)?;
        let count_at = reply.len();
        reply.put_u32(0);
        let limit = self.data_limit(count, reply.len());
        let host = &mut self.tree.host;
        let len = read_entries(host, &directory, &stat, offset, limit, reply)?;
        set_u32(reply, count_at, len);
        Ok(())
    }

    pub(super) fn readlink(
        &mut self,
        r: &mut Reader<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let node = self.node(r.u32()?)?;
        if self.tree.kind(node) != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let link = self.tree.path(node)?;
        reply.put_string(self.tree.host.readlink(&link.fd)?.to_bytes());
        Ok(())
    }

    pub(super) fn getattr(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.node(r.u32()?)?;
        let file = self.tree.path(node)?;
        let mut s = self.tree.host.stat(&file.fd)?;
        let qid = self.tree.host.qid(&s);
        self.times.show(&mut s);
        put_attributes(qid, &s, reply);
        Ok(())
    }

    pub(super) fn statfs(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.node(r.u32()?)?;
        let file = self.tree.path(node)?;
        let s = self.tree.host.statfs(&file.fd)?;
        put_file_system(&s, reply);
        Ok(())
    }

    /// There is one client, which manages its locks itself.
    pub(super) fn lock(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        self.opened(r.u32()?)?;
        reply.put_u8(LOCK_SUCCESS);
        Ok(())
    }

    pub(super) fn getlock(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        self.opened(r.u32()?)?;
        put_unlocked(r, reply)
    }
}

/// Puts up to `count` bytes of a file from `offset`.
pub(super) fn put_data(
    file: &OwnedFd,
    offset: u64,
    count: usize,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    let count_at = reply.len();
    let data_at = count_at + 4;
    reply.resize(data_at + count, 0);
    let mut done = 0;
    while done < count {
        let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
        let read =
            rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut reply[data_at + done..], at));
        match read {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    reply.truncate(data_at + done);
    set_u32(reply, count_at, done);
    Ok(())
}

/// Puts the answer to Tgetattr.
pub(super) fn put_attributes(qid: Qid, s: &Stat, reply: &mut Vec<u8>) {
    reply.put_u64(GETATTR_BASIC);
    reply.put_qid(qid);
    [s.st_mode, s.st_uid, s.st_gid]
        .into_iter()
        .for_each(|v| reply.put_u32(v));
    let wide = [
        s.st_nlink,
        s.st_rdev,
        s.st_size as u64,
        s.st_blksize as u64,
        s.st_blocks as u64,
    ];
    wide.into_iter().for_each(|v| reply.put_u64(v));
    for (seconds, nanoseconds) in [
        (s.st_atime, s.st_atime_nsec),
        (s.st_mtime, s.st_mtime_nsec),
        (s.st_ctime, s.st_ctime_nsec),
    ] {
        reply.put_u64(seconds as u64);
        reply.put_u64(nanoseconds);
    }
    // btime (two fields), gen, data_version: not valid.
    [0; 4].into_iter().for_each(|v| reply.put_u64(v));
}

/// Puts the answer to Tstatfs.
pub(super) fn put_file_system(s: &StatFs, reply: &mut Vec<u8>) {
    reply.put_u32(s.f_type as u32);
    reply.put_u32(s.f_bsize as u32);
    for value in [s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree] {
        reply.put_u64(value);
    }
    reply.put_u64(0); // fsid
    reply.put_u32(s.f_namelen as u32);
}

/// Answers the rest of Tgetlock: no other client has a lock.
pub(super) fn put_unlocked(r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    let (_kind, start, length, pid, client) = (r.u8()?, r.u64()?, r.u64()?, r.u32()?, r.string()?);
    reply.put_u8(LOCK_TYPE_UNLOCKED);
    reply.put_u64(start);
    reply.put_u64(length);
    reply.put_u32(pid);
    reply.put_string(client);
    Ok(())
}

/// Appends directory entries from `offset` on, up to `limit` bytes. Returns the number of bytes.
fn read_entries(
    host: &mut Host,
    directory: impl AsFd + Copy,
    stat: &Stat,
    offset: u64,
    limit: usize,
    reply: &mut Vec<u8>,
) -> Result<usize, Errno> {
    let start = reply.len();
    i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    rustix::fs::seek(directory, SeekFrom::Start(offset))?;
    let mut buffer = [MaybeUninit::uninit(); DIRECTORY_BUFFER];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let used = reply.len() - start;
        if used + Qid::LEN + 8 + 1 + 2 + name.len() > limit {
            // An empty answer would mean the end of the directory.
            return if used == 0 {
                Err(Errno::INVAL)
            } else {
                Ok(used)
            };
        }
        let kind = entry.file_type();
        reply.put_qid(host.entry_qid(stat, kind, entry.ino()));
        reply.put_u64(entry.next_entry_cookie());
        reply.put_u8(directory_entry_type(kind));
        reply.put_string(name);
    }
    Ok(reply.len() - start)
}

/// The flags that have an effect on the host. The client implements the others (O_NOATIME,
/// O_DIRECT, …).
pub(super) fn host_flags(flags: u32) -> Result<OFlags, Errno> {
    let mut host = match flags & open::ACCESS_MODE {
        0 => OFlags::RDONLY,
        open::WRITE_ONLY => OFlags::WRONLY,
        open::READ_WRITE => OFlags::RDWR,
        _ => return Err(Errno::INVAL),
    };
    host.set(OFlags::TRUNC, flags & open::TRUNCATE != 0);
    host.set(OFlags::APPEND, flags & open::APPEND != 0);
    host.set(OFlags::DIRECTORY, flags & open::DIRECTORY != 0);
    Ok(host)
}

/// DT_* of readdir(3).
fn directory_entry_type(kind: FileType) -> u8 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::RegularFile => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
        FileType::Unknown => 0,
    }
}
