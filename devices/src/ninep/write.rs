//! The requests that change something. They are dispatched on writable shares only.

use std::ffi::{CStr, CString};

use rustix::fd::AsFd;
use rustix::fs::{self, FileType, Stat};
use rustix::io::Errno;

use super::Server;
use super::host::{self, Descriptor, Host};
use super::read::host_flags;
use super::times::{NS_PER_SECOND, given, timespec};
use super::tree::NodeId;
use super::wire::{Encode, Reader};

/// Bits of `valid` in Tsetattr.
pub(super) mod setattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_SET: u32 = 1 << 7;
    pub(crate) const MTIME_SET: u32 = 1 << 8;
}

/// The one flag of Tunlinkat.
pub(super) const AT_REMOVEDIR: u32 = 0x200;

impl Server {
    fn directory(&self, fid: u32) -> Result<NodeId, Errno> {
        let node = self.node(fid)?;
        if self.tree.kind(node) == FileType::Directory {
            Ok(node)
        } else {
            Err(Errno::NOTDIR)
        }
    }

    /// Notes that the request has changed a file.
    pub(super) fn changed(&mut self, file: impl AsFd) {
        if self.times.is_known()
            && let Ok(stat) = fs::fstat(file)
        {
            self.times.changed(&stat);
        }
    }

    /// Notes that the request has changed the directory `parent` and its entry `name`.
    fn entry_changed(&mut self, parent: &Descriptor, name: &CStr) {
        self.changed(&parent.fd);
        if let Some(stat) = self.entry(parent, name) {
            self.times.changed(&stat);
        }
    }

    /// The attributes of an entry, if the guest's clock is known.
    fn entry(&self, parent: &Descriptor, name: &CStr) -> Option<Stat> {
        let is_known = self.times.is_known();
        let file = is_known.then(|| Host::find(&parent.fd, name))?.ok()?;
        fs::fstat(file).ok()
    }

    /// Notes that the request has removed the name of a file that had the attributes `stat`.
    fn removed(&mut self, stat: Option<Stat>) {
        if let Some(stat) = stat
            && (stat.st_nlink <= 1 || FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        {
            self.times.forget(&stat);
        }
    }

    pub(super) fn lcreate(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, name, flags, mode) = (r.u32()?, host::name(r.string()?)?, r.u32()?, r.u32()?);
        let parent = self.directory(fid)?;
        if self.tree.is_open(parent, fid) {
            return Err(Errno::BADF);
        }
        let flags = host_flags(flags)?;
        let directory = self.tree.path(parent)?;
        let (node, stat) = self.tree.create(parent, &name, fid, flags, mode)?;
        self.times.changed(&stat);
        self.changed(&directory.fd);
        // The fid is now that of the new file.
        self.fids.insert(fid, node);
        self.tree.release(parent);
        reply.put_qid(self.tree.host.qid(&stat));
        reply.put_u32(0); // iounit
        Ok(())
    }

    pub(super) fn write(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, offset, count) = (r.u32()?, r.u64()?, r.u32()?);
        let data = r.bytes(count as usize)?;
        if let Some(xattr) = self.xattrs.get_mut(&fid) {
            xattr.write(offset, data)?;
            reply.put_u32(count);
            return Ok(());
        }
        let node = self.node(fid)?;
        let file = self.tree.file(node, fid)?;
        let written = host::write_all(&file, data, offset);
        written.inspect_err(|errno| match *errno {
            // A request that Linux does not make.
            Errno::BADF | Errno::INVAL => {}
            errno => self
                .refused_writes
                .note(self.tree.path_in_share(node), errno),
        })?;
        self.changed(&file);
        reply.put_u32(count);
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
                        .filter(|n| *n < NS_PER_SECOND)
                        .ok_or(Errno::INVAL)?
                },
            })
        };
        let last_access = time(setattr::ATIME, setattr::ATIME_SET)?;
        let last_modification = time(setattr::MTIME, setattr::MTIME_SET)?;
        let node = self.node(fid)?;
        let file = self.tree.path(node)?;
        let host = &self.tree.host;
        if valid & setattr::MODE != 0 {
            host.chmod(&file, mode)?;
        }
        if valid & (setattr::UID | setattr::GID) != 0 {
            let given = |bit, id| {
                (valid & bit != 0)
                    .then_some(id)
                    .filter(|id| *id != u32::MAX)
            };
            let (uid, gid) = (given(setattr::UID, uid), given(setattr::GID, gid));
            Host::chown(&file.fd, uid, gid)?;
        }
        if valid & setattr::SIZE != 0 {
            host.truncate(&file, size)?;
        }
        if valid & (setattr::ATIME | setattr::MTIME) != 0 {
            let mut host_time =
                |time| given(time).map_or(time, |t| timespec(self.times.host_time(t)));
            let times = fs::Timestamps {
                last_access: host_time(last_access),
                last_modification: host_time(last_modification),
            };
            host.set_times(&file, &times)?;
        }
        if self.times.is_known() {
            let stat = fs::fstat(&file.fd)?;
            self.times.changed(&stat);
            let set = [last_access, last_modification].map(given);
            self.times.has_set(&stat, set);
        }
        Ok(())
    }

    /// Answers a request that created `name` in `parent` with the new entry's qid.
    fn put_new_qid(
        &mut self,
        parent: &Descriptor,
        name: &CStr,
        reply: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let stat = self.tree.host.stat(Host::find(&parent.fd, name)?)?;
        self.times.changed(&stat);
        self.changed(&parent.fd);
        reply.put_qid(self.tree.host.qid(&stat));
        Ok(())
    }

    pub(super) fn mkdir(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (parent, name, mode) = (
            self.directory(r.u32()?)?,
            host::name(r.string()?)?,
            r.u32()?,
        );
        let parent = self.tree.path(parent)?;
        Host::mkdir(&parent.fd, &name, mode)?;
        self.put_new_qid(&parent, &name, reply)
    }

    /// Creates a pipe, a socket or an empty regular file. A guest must not create devices.
    pub(super) fn mknod(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (parent, name, mode) = (
            self.directory(r.u32()?)?,
            host::name(r.string()?)?,
            r.u32()?,
        );
        let kind = match FileType::from_raw_mode(mode) {
            kind @ (FileType::Fifo | FileType::Socket | FileType::RegularFile) => kind,
            _ => return Err(Errno::PERM),
        };
        let parent = self.tree.path(parent)?;
        Host::mknod(&parent.fd, &name, kind, mode)?;
        self.put_new_qid(&parent, &name, reply)
    }

    pub(super) fn symlink(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (parent, name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        let target = CString::new(r.string()?).map_err(|_| Errno::INVAL)?;
        let parent = self.tree.path(parent)?;
        Host::symlink(&parent.fd, &name, &target)?;
        self.put_new_qid(&parent, &name, reply)
    }

    pub(super) fn link(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (parent, node) = (self.directory(r.u32()?)?, self.node(r.u32()?)?);
        let name = host::name(r.string()?)?;
        let (parent, file) = (self.tree.path(parent)?, self.tree.path(node)?);
        self.tree.host.link(&file, &parent.fd, &name)?;
        self.entry_changed(&parent, &name);
        Ok(())
    }

    pub(super) fn unlinkat(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (parent, name, flags) = (
            self.directory(r.u32()?)?,
            host::name(r.string()?)?,
            r.u32()?,
        );
        let directory = self.tree.path(parent)?;
        let file = self.entry(&directory, &name);
        self.tree.unlink(parent, &name, flags & AT_REMOVEDIR != 0)?;
        self.removed(file);
        self.changed(&directory.fd);
        Ok(())
    }

    pub(super) fn renameat(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (from, name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        let (to, new_name) = (self.directory(r.u32()?)?, host::name(r.string()?)?);
        let (former, directory) = (self.tree.path(from)?, self.tree.path(to)?);
        let replaced = self.entry(&directory, &new_name);
        self.tree.rename((from, &name), (to, &new_name))?;
        self.removed(replaced);
        self.changed(&former.fd);
        self.entry_changed(&directory, &new_name);
        Ok(())
    }

    pub(super) fn fsync(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        fs::fsync(self.opened(r.u32()?)?.1)
    }
}
