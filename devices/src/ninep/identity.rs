//! What tells a file from every other one after its descriptor has been closed.
//!
//! A device and an inode number do not: file systems give the inode number of a removed file to a
//! new one.

use std::ffi::c_int;

use rustix::fd::AsFd;
use rustix::fs::{self, AtFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::handle::Handle;

/// Magic number of FUSE (Linux: include/uapi/linux/magic.h).
const FUSE: u32 = 0x6573_5546;

/// A moment in the life of a file that a later file with the same inode number cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stamp {
    /// Creation, in seconds and nanoseconds.
    Birth(i64, u32),
    /// Last change of the inode, where the file system does not know the creation.
    Change(i64, u32),
}

/// The identity of a file that had at least one name.
#[derive(Debug)]
pub(super) struct Identity {
    pub handle: Option<Handle>,
    /// ID of the file's mount, if it has a handle.
    pub mount: Option<c_int>,
    stamp: Stamp,
}

impl Identity {
    /// Returns the identity of an open file, and how many names it has.
    pub(super) fn of(file: impl AsFd) -> Result<(Self, u64), Errno> {
        let file = file.as_fd();
        let (links, stamp) = links_and_stamp(file)?;
        let (handle, mount) = Handle::of(file).unzip();
        let identity = Self {
            handle,
            mount,
            stamp,
        };
        Ok((identity, links))
    }

    /// Whether `file`, which has the same device and inode number, is the same file.
    pub(super) fn is_of(&self, file: impl AsFd) -> Result<bool, Errno> {
        let file = file.as_fd();
        let (other, _) = Self::of(file)?;
        match (&self.handle, &other.handle) {
            (Some(a), Some(b)) if a == b => return Ok(true),
            // FUSE servers number files anew that the kernel has forgotten.
            (Some(_), Some(_)) if fs::fstatfs(file)?.f_type as u32 != FUSE => return Ok(false),
            _ => {}
        }
        Ok(self.stamp == other.stamp)
    }
}

fn links_and_stamp(file: impl AsFd) -> Result<(u64, Stamp), Errno> {
    let file = file.as_fd();
    let wanted = StatxFlags::NLINK | StatxFlags::CTIME | StatxFlags::BTIME;
    match fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted) {
        Ok(s) if StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::BTIME) => {
            let stamp = Stamp::Birth(s.stx_btime.tv_sec, s.stx_btime.tv_nsec);
            Ok((s.stx_nlink.into(), stamp))
        }
        _ => {
            let s: Stat = fs::fstat(file)?;
            let stamp = Stamp::Change(s.st_ctime, s.st_ctime_nsec as u32);
            Ok((s.st_nlink, stamp))
        }
    }
}
