//! The requests that change something. They are dispatched on writable shares only.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use rustix::fs::{self, FileType};
use rustix::io::Errno;

use super::host::{self, Node};
use super::read::host_flags;
use super::wire::{Encode, Reader};
use super::{Fid, Server};

/// Bits of `valid` in Tsetattr.
pub(super) mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_SET: u32 = 1 << 7;
    pub const MTIME_SET: u32 = 1 << 8;
}

/// The one flag of Tunlinkat.
pub(super) const AT_REMOVEDIR: u32 = 0x200;

impl Server {
    fn directory(&self, fid: u32) -> Result<Arc<Node>, Errno> {
        let node = self.node(fid)?;
        if node.kind == FileType::Directory {
            Ok(node)
        } else {
            Err(Errno::NOTDIR)
        }
    }

    pub(super) fn lcreate(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, name, flags, mode) = (r.u32()?, host::name(r.string()?)?, r.u32()?, r.u32()?);
        let parent = self.directory(fid)?;
        if self.fid(fid)?.open.is_some() {
            return Err(Errno::BADF);
        }
        let (node, stat, file) = self.host.create(&parent, &name, host_flags(flags)?, mode)?;
        // The fid is now that of the new file.
        self.fids.insert(
            fid,
            Fid {
                node: Arc::new(node),
                open: Some(file),
            },
        );
        reply.put_qid(self.host.qid(&stat));
        reply.put_u32(0); // iounit
        Ok(())
    }

    pub(super) fn write(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        let data = r.bytes(count as usize)?;
        let (_, file) = self.opened(fid)?;
        let n = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, data, offset))?;
        reply.put_u32(n as u32);
        Ok(())
    }

    pub(super) fn setattr(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (fid, valid, mode, uid, gid) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let size = r.u64()?;
        let mut time = |change: u32, given: u32| -> Result<_, Errno> {
            let (seconds, nanoseconds) = (r.u64()?, r.u64()?);
            Ok(fs::Timespec {
                tv_sec: seconds as i64,
                tv_nsec: if valid & change == 0 {
                    fs::UTIME_OMIT
                } else if valid & given == 0 {
                    fs::UTIME_NOW
                } else {
                    i64::try_from(nanoseconds)
                        .ok()
                        .filter(|n| *n < 1_000_000_000)
                        .ok_or(Errno::INVAL)?
                },
            })
        };
        let last_access = time(setattr::ATIME, setattr::ATIME_SET)?;
        let last_modification = time(setattr::MTIME, setattr::MTIME_SET)?;
        let node = self.node(fid)?;
        if valid & setattr::MODE != 0 {
            self.host.chmod(&node, mode)?;
        }
        if valid & (setattr::UID | setattr::GID) != 0 {
            let given = |bit, id| {
                (valid & bit != 0)
                    .then_some(id)
                    .filter(|id| *id != u32::MAX)
            };
            self.host
                .chown(&node, given(setattr::UID, uid), given(setattr::GID, gid))?;
        }
        if valid & setattr::SIZE != 0 {
            self.host.truncate(&node, size)?;
        }
        if valid & (setattr::ATIME | setattr::MTIME) != 0 {
            self.host.set_times(
                &node,
                &fs::Timestamps {
                    last_access,
                    last_modification,
                },
            )?;
        }
        Ok(())
    }

    /// Answers a request that created `name` in `parent` with the new entry's qid.
    fn put_new_qid(
        &mut self,
        parent: &Node,
        name: &CStr,
        reply: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let (_, stat) = self.host.lookup(parent, name)?;
        reply.put_qid(self.host.qid(&stat));
        Ok(())
    }

    pub(super) fn mkdir(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (parent, name, mode) = (
            self.directory(r.u32()?)?,
            host::name(r.string()?)?,
            r.u32()?,
        );
        self.host.mkdir(&parent, &name, mode)?;
        self.put_new_qid(&parent, &name, reply)
    }

    pub(super) fn symlink(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (parent, name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        let target = CString::new(r.string()?).map_err(|_| Errno::INVAL)?;
        self.host.symlink(&parent, &name, &target)?;
        self.put_new_qid(&parent, &name, reply)
    }

    pub(super) fn link(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (parent, node) = (self.directory(r.u32()?)?, self.node(r.u32()?)?);
        self.host.link(&node, &parent, &host::name(r.string()?)?)
    }

    pub(super) fn unlinkat(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (parent, name, flags) = (
            self.directory(r.u32()?)?,
            host::name(r.string()?)?,
            r.u32()?,
        );
        self.host.unlink(&parent, &name, flags & AT_REMOVEDIR != 0)
    }

    pub(super) fn renameat(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (from, name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        let (to, new_name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        self.host.rename(&from, &name, &to, &new_name)
    }

    pub(super) fn fsync(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        fs::fsync(self.opened(r.u32()?)?.1)
    }
}
