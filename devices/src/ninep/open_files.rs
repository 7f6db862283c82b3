//! A 9P2000.L server for regular files that this process has open.
//!
//! The guest gets what the descriptors permit and nothing else: the server opens no file, neither
//! by a name nor again. A file that is open for reading alone cannot be written, whatever its
//! permissions on the host are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rustix::fd::OwnedFd;
use rustix::fs::{self, OFlags, Stat};
use rustix::io::Errno;

use super::host::write_all;
use super::read::{
    LOCK_SUCCESS, host_flags, put_attributes, put_data, put_file_system, put_unlocked,
};
use super::wire::{Encode, Qid, Reader, t};
use super::{MAX_MSIZE, MAX_WALK, ServerState, Service, negotiate, serve};

/// Most fids. Each open file of the guest takes one or two.
const MAX_FIDS: usize = 1 << 16;
/// Tsetattr changes the size.
const SETATTR_SIZE: u32 = 1 << 3;
/// Attributes of the root: a directory that everyone may search.
const ROOT_MODE: u32 = libc::S_IFDIR | 0o111;

/// A file of the server. `None` is the root.
type File = Option<u32>;

/// The server. Its root has one entry for each file, whose name is a number.
#[derive(Debug)]
pub struct OpenFiles {
    files: BTreeMap<u32, OwnedFd>,
    fids: BTreeMap<u32, File>,
    /// Largest message of the session, in bytes.
    msize: u32,
}

impl OpenFiles {
    /// Exports `files`, by their numbers.
    pub fn new(files: BTreeMap<u32, OwnedFd>) -> Self {
        Self {
            files,
            fids: BTreeMap::new(),
            msize: MAX_MSIZE,
        }
    }

    fn dispatch(&mut self, kind: u8, body: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
        let r = &mut Reader::new(body);
        match kind {
            t::VERSION => {
                let msize = negotiate(r, reply)?;
                self.fids.clear();
                self.msize = msize;
                Ok(())
            }
            t::ATTACH => {
                self.insert(r.u32()?, None)?;
                reply.put_qid(self.qid(None));
                Ok(())
            }
            t::FLUSH => Ok(()),
            t::WALK => self.walk(r, reply),
            t::LOPEN => {
                let (file, flags) = (self.file(r.u32()?)?, r.u32()?);
                self.open(file, host_flags(flags)?)?;
                reply.put_qid(self.qid(file));
                reply.put_u32(0); // iounit: as much as msize allows
                Ok(())
            }
            t::READ => {
                let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
                let room = (self.msize as usize).saturating_sub(reply.len() + 4);
                let fd = self.descriptor(self.file(fid)?)?;
                put_data(fd, offset, room.min(count as usize), reply)
            }
            t::WRITE => {
                let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
                let data = r.bytes(count as usize)?;
                let fd = self.descriptor(self.file(fid)?)?;
                write_all(fd, data, offset)?;
                reply.put_u32(count);
                Ok(())
            }
            t::GETATTR => {
                let file = self.file(r.u32()?)?;
                put_attributes(self.qid(file), &self.attributes(file)?, reply);
                Ok(())
            }
            t::SETATTR => self.setattr(r),
            t::STATFS => {
                let file = self.file(r.u32()?)?;
                let any = file.or_else(|| self.files.keys().next().copied());
                put_file_system(&fs::fstatfs(self.descriptor(any)?)?, reply);
                Ok(())
            }
            t::FSYNC => fs::fsync(self.descriptor(self.file(r.u32()?)?)?),
            t::LOCK => {
                self.file(r.u32()?)?;
                reply.put_u8(LOCK_SUCCESS);
                Ok(())
            }
            t::GETLOCK => {
                self.file(r.u32()?)?;
                put_unlocked(r, reply)
            }
            // Tremove clunks its fid even if it fails.
            t::REMOVE => self.clunk(r.u32()?).and(Err(Errno::OPNOTSUPP)),
            t::CLUNK => self.clunk(r.u32()?),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn insert(&mut self, fid: u32, file: File) -> Result<(), Errno> {
        let full = self.fids.len() >= MAX_FIDS;
        match self.fids.entry(fid) {
            _ if full => Err(Errno::NFILE),
            Entry::Occupied(_) => Err(Errno::BADF),
            Entry::Vacant(entry) => {
                entry.insert(file);
                Ok(())
            }
        }
    }

    fn clunk(&mut self, fid: u32) -> Result<(), Errno> {
        self.fids.remove(&fid).map(drop).ok_or(Errno::BADF)
    }

    fn file(&self, fid: u32) -> Result<File, Errno> {
        self.fids.get(&fid).copied().ok_or(Errno::BADF)
    }

    fn descriptor(&self, file: File) -> Result<&OwnedFd, Errno> {
        let number = file.ok_or(Errno::ACCESS)?;
        self.files.get(&number).ok_or(Errno::BADF)
    }

    /// Checks that a file can be opened with `flags`, and truncates it if they say so. The root
    /// cannot be opened: its entries are known to the agent.
    fn open(&self, file: File, flags: OFlags) -> Result<(), Errno> {
        let fd = self.descriptor(file)?;
        let access = |flags: OFlags| flags & OFlags::RWMODE;
        let permitted = access(fs::fcntl_getfl(fd)?);
        if permitted != OFlags::RDWR && permitted != access(flags) {
            return Err(Errno::ACCESS);
        }
        if flags.contains(OFlags::TRUNC) {
            fs::ftruncate(fd, 0)?;
        }
        Ok(())
    }

    fn qid(&self, file: File) -> Qid {
        match file {
            None => Qid {
                kind: Qid::DIRECTORY,
                version: 0,
                path: 0,
            },
            // Two descriptors of one file differ in what they permit, so they are two files.
            Some(number) => Qid {
                kind: Qid::FILE,
                version: 0,
                path: u64::from(number) + 1,
            },
        }
    }

    fn attributes(&self, file: File) -> Result<Stat, Errno> {
        let any = file.or_else(|| self.files.keys().next().copied());
        let mut stat = fs::fstat(self.descriptor(any)?)?;
        if file.is_none() {
            stat.st_mode = ROOT_MODE;
            stat.st_nlink = 2;
            stat.st_size = 0;
        }
        Ok(stat)
    }

    fn walk(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, new_fid, count) = (r.u32()?, r.u32()?, r.u16()?);
        if count > MAX_WALK {
            return Err(Errno::INVAL);
        }
        let mut file = self.file(fid)?;
        let mut qids = Vec::new();
        for _ in 0..count {
            let name = std::str::from_utf8(r.string()?).unwrap_or_default();
            if file.is_some() {
                return Err(Errno::NOTDIR);
            }
            let number = name.parse().map_err(|_| Errno::NOENT)?;
            if !self.files.contains_key(&number) {
                return Err(Errno::NOENT);
            }
            file = Some(number);
            qids.push(self.qid(file));
        }
        if fid == new_fid {
            self.clunk(fid)?;
        }
        self.insert(new_fid, file)?;
        reply.put_u16(qids.len() as u16);
        qids.into_iter().for_each(|qid| reply.put_qid(qid));
        Ok(())
    }

    /// Changes the size of a file that is open for writing. Its other attributes stay as they are:
    /// Linux's client sets the times of a file that the program writes.
    fn setattr(&self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (fid, valid) = (r.u32()?, r.u32()?);
        let (_mode, _uid, _gid, size) = (r.u32()?, r.u32()?, r.u32()?, r.u64()?);
        let fd = self.descriptor(self.file(fid)?)?;
        if valid & SETATTR_SIZE != 0 {
            fs::ftruncate(fd, size)?;
        }
        Ok(())
    }
}

impl Service for OpenFiles {
    fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        serve(request, reply, |kind, body, reply| {
            self.dispatch(kind, body, reply)
        });
    }

    fn reset(&mut self) {
        self.fids.clear();
        self.msize = MAX_MSIZE;
    }

    fn state(&self) -> Result<ServerState, String> {
        Err("the program's open files belong to this process".into())
    }

    fn restore(&mut self, _state: &ServerState) -> Result<(), String> {
        Err("the program's open files belong to another process".into())
    }
}
