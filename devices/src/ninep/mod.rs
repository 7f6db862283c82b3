//! A 9P2000.L server for one host directory (Linux: Documentation/filesystems/9p.rst; the protocol
//! is described by the diod project).
//!
//! A read-only share refuses everything that changes anything before it looks at the rest of the
//! message. Every answer is computed before [`Server::handle`] returns, and depends on the host's
//! files alone.

mod host;
mod wire;
mod write;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

pub use host::check_openable;

use host::{Host, Node};
use wire::{Encode, HEADER_LEN, Qid, RLERROR, Reader, t};

/// Largest message in either direction. Linux's virtio transport cannot send more than 500 KiB.
pub const MAX_MSIZE: u32 = 512 * 1024;
const MIN_MSIZE: u32 = 4096;
/// Most names in one Twalk (MAXWELEM).
const MAX_WALK: u16 = 16;
/// Descriptors that the rest of the process keeps for itself.
const RESERVED_DESCRIPTORS: u64 = 128;
const MAX_FIDS: usize = 1 << 20;
/// Bytes of host directory entries read at once.
const DIRECTORY_BUFFER: usize = 16 * 1024;

/// Requests that change something, refused on a read-only share (Tlopen is looked at more closely).
const WRITES: [u8; 13] = [
    t::LCREATE,
    t::SYMLINK,
    t::MKNOD,
    t::RENAME,
    t::SETATTR,
    t::XATTRCREATE,
    t::LINK,
    t::MKDIR,
    t::RENAMEAT,
    t::UNLINKAT,
    t::WRITE,
    t::REMOVE,
    t::FSYNC,
];

/// Open flags on the wire, which are those of the generic Linux ABI.
mod open {
    pub const ACCESS_MODE: u32 = 0o3;
    pub const WRITE_ONLY: u32 = 0o1;
    pub const READ_WRITE: u32 = 0o2;
    pub const CREATE: u32 = 0o100;
    pub const TRUNCATE: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const DIRECTORY: u32 = 0o20_0000;
    /// What a read-only share refuses.
    pub const WRITES: u32 = ACCESS_MODE | CREATE | TRUNCATE;
}

/// Fields up to `blocks` are valid in Rgetattr.
const GETATTR_BASIC: u64 = 0x7FF;
const LOCK_SUCCESS: u8 = 0;
const LOCK_TYPE_UNLOCKED: u8 = 2;

/// Whether the guest may change the host's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may not.
    ReadOnly,
    /// It may, below the exported directory.
    ReadWrite,
}

struct Fid {
    node: Arc<Node>,
    open: Option<OwnedFd>,
}

/// The server. One client at a time; Tversion starts a session.
pub struct Server {
    host: Host,
    access: Access,
    msize: u32,
    fids: BTreeMap<u32, Fid>,
    max_fids: usize,
}

impl Server {
    /// Exports the directory `root`.
    ///
    /// A fid is an open descriptor, and a guest with a large cache has many: the process's soft
    /// limit is raised to its hard limit.
    ///
    /// # Errors
    /// `root` cannot be opened or is not a directory, or there is no /proc.
    pub fn new(root: &Path, access: Access) -> std::io::Result<Self> {
        let host = Host::new(root, access == Access::ReadOnly)?;
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let usable = match rustix::process::setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(_) => limit.current,
        };
        // A file that is open takes two.
        let max_fids = usable.map_or(MAX_FIDS, |n| {
            usize::try_from(n.saturating_sub(RESERVED_DESCRIPTORS) / 2).unwrap_or(MAX_FIDS)
        });
        let max_fids = max_fids.min(MAX_FIDS);
        Ok(Self {
            host,
            access,
            msize: MAX_MSIZE,
            fids: BTreeMap::new(),
            max_fids,
        })
    }

    /// Ends the session: forgets every fid.
    pub fn reset(&mut self) {
        self.fids.clear();
        self.msize = MAX_MSIZE;
    }

    /// Serves one request. `reply` is overwritten with the answer, at most [`MAX_MSIZE`] bytes.
    pub fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        let (kind, tag, body) = match split(request) {
            Ok(parts) => parts,
            Err(tag) => return seal_error(reply, tag, Errno::INVAL),
        };
        start(reply, kind.wrapping_add(1), tag);
        match self.dispatch(kind, body, reply) {
            Ok(()) => seal(reply),
            Err(errno) => seal_error(reply, tag, errno),
        }
    }

    fn dispatch(&mut self, kind: u8, body: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
        if self.access == Access::ReadOnly && WRITES.contains(&kind) {
            return self.refuse_write(kind, body);
        }
        let mut r = Reader::new(body);
        match kind {
            t::VERSION => self.version(&mut r, reply),
            t::AUTH => Err(Errno::OPNOTSUPP),
            t::ATTACH => self.attach(&mut r, reply),
            t::FLUSH => Ok(()),
            t::WALK => self.walk(&mut r, reply),
            t::LOPEN => self.lopen(&mut r, reply),
            t::READ => self.read(&mut r, reply),
            t::READDIR => self.readdir(&mut r, reply),
            t::READLINK => self.readlink(&mut r, reply),
            t::GETATTR => self.getattr(&mut r, reply),
            t::STATFS => self.statfs(&mut r, reply),
            t::CLUNK => self.fids.remove(&r.u32()?).map(drop).ok_or(Errno::BADF),
            t::LOCK => self.lock(&mut r, reply),
            t::GETLOCK => self.getlock(&mut r, reply),
            // No extended attributes.
            t::XATTRWALK | t::XATTRCREATE => Err(Errno::OPNOTSUPP),
            t::LCREATE => self.lcreate(&mut r, reply),
            t::WRITE => self.write(&mut r, reply),
            t::SETATTR => self.setattr(&mut r),
            t::MKDIR => self.mkdir(&mut r, reply),
            t::SYMLINK => self.symlink(&mut r, reply),
            t::LINK => self.link(&mut r),
            t::UNLINKAT => self.unlinkat(&mut r),
            t::RENAMEAT => self.renameat(&mut r),
            t::FSYNC => self.fsync(&mut r),
            // Linux falls back to these from Trenameat and Tunlinkat only.
            t::RENAME => Err(Errno::OPNOTSUPP),
            t::REMOVE => self
                .fids
                .remove(&r.u32()?)
                .ok_or(Errno::BADF)
                .and(Err(Errno::OPNOTSUPP)),
            t::MKNOD => Err(Errno::PERM),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn refuse_write(&mut self, kind: u8, body: &[u8]) -> Result<(), Errno> {
        match kind {
            // Nothing can be dirty.
            t::FSYNC => return Ok(()),
            // Tremove gives up its fid even if it fails.
            t::REMOVE => drop(self.fids.remove(&Reader::new(body).u32()?)),
            _ => {}
        }
        Err(Errno::ROFS)
    }

    fn fid(&self, fid: u32) -> Result<&Fid, Errno> {
        self.fids.get(&fid).ok_or(Errno::BADF)
    }

    fn node(&self, fid: u32) -> Result<Arc<Node>, Errno> {
        self.fid(fid).map(|f| f.node.clone())
    }

    fn opened(&self, fid: u32) -> Result<(&Fid, &OwnedFd), Errno> {
        let f = self.fid(fid)?;
        Ok((f, f.open.as_ref().ok_or(Errno::BADF)?))
    }

    fn version(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (msize, version) = (r.u32()?, r.string()?);
        if msize < MIN_MSIZE {
            return Err(Errno::INVAL);
        }
        self.reset();
        self.msize = msize.min(MAX_MSIZE);
        reply.put_u32(self.msize);
        reply.put_string(if version == b"9P2000.L" {
            version
        } else {
            b"unknown"
        });
        Ok(())
    }

    fn insert(&mut self, fid: u32, node: Arc<Node>) -> Result<(), Errno> {
        if self.fids.len() >= self.max_fids {
            return Err(Errno::NFILE);
        }
        match self.fids.entry(fid) {
            Entry::Occupied(_) => Err(Errno::BADF),
            Entry::Vacant(v) => {
                v.insert(Fid { node, open: None });
                Ok(())
            }
        }
    }

    fn attach(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let fid = r.u32()?;
        let root = self.host.root()?;
        let stat = self.host.stat(&root)?;
        self.insert(fid, Arc::new(root))?;
        reply.put_qid(self.host.qid(&stat));
        Ok(())
    }

    fn walk(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, new_fid, count) = (r.u32()?, r.u32()?, r.u16()?);
        if count > MAX_WALK {
            return Err(Errno::INVAL);
        }
        let start = self.fid(fid)?;
        if fid == new_fid && start.open.is_some() {
            return Err(Errno::BADF);
        }
        if fid != new_fid && self.fids.contains_key(&new_fid) {
            return Err(Errno::BADF);
        }
        let mut node = start.node.clone();
        let mut qids = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let name = host::name(r.string()?)?;
            match self.host.lookup(&node, &name) {
                Ok((next, stat)) => {
                    qids.push(self.host.qid(&stat));
                    node = Arc::new(next);
                }
                // Only the first name's failure is an error; later ones end the walk short.
                Err(errno) if qids.is_empty() => return Err(errno),
                Err(_) => break,
            }
        }
        if qids.len() == usize::from(count) {
            if fid == new_fid {
                self.fids.remove(&fid);
            }
            self.insert(new_fid, node)?;
        }
        reply.put_u16(qids.len() as u16);
        qids.into_iter().for_each(|q| reply.put_qid(q));
        Ok(())
    }

    fn lopen(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, flags) = (r.u32()?, r.u32()?);
        if self.access == Access::ReadOnly && flags & open::WRITES != 0 {
            return Err(Errno::ROFS);
        }
        let node = self.node(fid)?;
        if flags & open::DIRECTORY != 0 && node.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let stat = self.host.stat(&node)?;
        let file = self.host.open(&node, host_flags(flags)?)?;
        self.fids.get_mut(&fid).ok_or(Errno::BADF)?.open = Some(file);
        reply.put_qid(self.host.qid(&stat));
        reply.put_u32(0); // iounit: as much as msize allows
        Ok(())
    }

    fn read(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        let (f, file) = self.opened(fid)?;
        if f.node.kind == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        let count_at = reply.len();
        let data_at = count_at + 4;
        let count = self.data_limit(count, data_at);
        reply.resize(data_at + count, 0);
        let mut done = 0;
        while done < count {
            let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
            let read = rustix::io::retry_on_intr(|| {
                rustix::io::pread(file, &mut reply[data_at + done..], at)
            });
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

    /// How many bytes of data an answer can hold after a header of `header` bytes.
    fn data_limit(&self, count: u32, header: usize) -> usize {
        (count as usize).min((self.msize as usize).saturating_sub(header))
    }

    fn readdir(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        let node = self.node(fid)?;
        let stat = self.host.stat(&node)?;
        // The descriptor is taken out meanwhile, since `self.host` is needed too.
        let file = self
            .fids
            .get_mut(&fid)
            .and_then(|f| f.open.take())
            .ok_or(Errno::BADF)?;
        let count_at = reply.len();
        reply.put_u32(0);
        let limit = self.data_limit(count, reply.len());
        let result = if node.kind == FileType::Directory {
            self.read_entries(&file, &stat, offset, limit, reply)
        } else {
            Err(Errno::NOTDIR)
        };
        if let Some(f) = self.fids.get_mut(&fid) {
            f.open = Some(file);
        }
        let len = result?;
        set_u32(reply, count_at, len);
        Ok(())
    }

    /// Appends directory entries from `offset` on, up to `limit` bytes; returns how many bytes.
    fn read_entries(
        &mut self,
        directory: &OwnedFd,
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
                // Nothing at all would look like the end of the directory.
                return if used == 0 {
                    Err(Errno::INVAL)
                } else {
                    Ok(used)
                };
            }
            let kind = entry.file_type();
            reply.put_qid(self.host.entry_qid(stat, kind, entry.ino()));
            reply.put_u64(entry.next_entry_cookie());
            reply.put_u8(directory_entry_type(kind));
            reply.put_string(name);
        }
        Ok(reply.len() - start)
    }

    fn readlink(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.node(r.u32()?)?;
        if node.kind != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        reply.put_string(self.host.readlink(&node)?.to_bytes());
        Ok(())
    }

    fn getattr(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let s = self.host.stat(&*self.node(r.u32()?)?)?;
        reply.put_u64(GETATTR_BASIC);
        reply.put_qid(self.host.qid(&s));
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
        Ok(())
    }

    fn statfs(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let s = self.host.statfs(&*self.node(r.u32()?)?)?;
        reply.put_u32(s.f_type as u32);
        reply.put_u32(s.f_bsize as u32);
        for value in [s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree] {
            reply.put_u64(value);
        }
        reply.put_u64(0); // fsid
        reply.put_u32(s.f_namelen as u32);
        Ok(())
    }

    /// Locks are the client's business: it is the only one.
    fn lock(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        self.opened(r.u32()?)?;
        reply.put_u8(LOCK_SUCCESS);
        Ok(())
    }

    fn getlock(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        self.opened(r.u32()?)?;
        let (_kind, start, length, pid, client) =
            (r.u8()?, r.u64()?, r.u64()?, r.u32()?, r.string()?);
        reply.put_u8(LOCK_TYPE_UNLOCKED);
        reply.put_u64(start);
        reply.put_u64(length);
        reply.put_u32(pid);
        reply.put_string(client);
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("access", &self.access)
            .field("msize", &self.msize)
            .field("fids", &self.fids.len())
            .finish_non_exhaustive()
    }
}

/// Type, tag and body of a request; only the tag (or NOTAG) if it is too short or its size is
/// wrong.
fn split(request: &[u8]) -> Result<(u8, u16, &[u8]), u16> {
    let mut r = Reader::new(request);
    let (Ok(size), Ok(kind), Ok(tag)) = (r.u32(), r.u8(), r.u16()) else {
        return Err(u16::MAX);
    };
    let body = request.get(HEADER_LEN..size as usize).ok_or(tag)?;
    Ok((kind, tag, body))
}

fn start(reply: &mut Vec<u8>, kind: u8, tag: u16) {
    reply.clear();
    reply.put_u32(0);
    reply.put_u8(kind);
    reply.put_u16(tag);
}

fn seal(reply: &mut [u8]) {
    let len = reply.len();
    set_u32(reply, 0, len);
}

fn seal_error(reply: &mut Vec<u8>, tag: u16, errno: Errno) {
    start(reply, RLERROR, tag);
    reply.put_u32(errno.raw_os_error() as u32);
    seal(reply);
}

fn set_u32(message: &mut [u8], at: usize, value: usize) {
    message[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

/// The flags that mean something to the host. The others (O_NOATIME, O_DIRECT, …) are the client's
/// business.
fn host_flags(flags: u32) -> Result<OFlags, Errno> {
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

#[cfg(test)]
mod tests;
