//! Extended attributes of the namespace `user`. Those of the others decide what the host's kernel
//! does with a file (capabilities of programs, access lists, labels), so a guest has none of them.

use std::ffi::{CStr, CString};

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use super::Server;
use super::host::{Host, MAX_XATTR};
use super::tree::NodeId;
use super::wire::{Encode, Reader};

const NAMESPACE: &[u8] = b"user.";
/// Most fids that stand for attributes, each of which holds a value. Linux has one for each system
/// call that is not finished.
const MAX_FIDS: usize = 256;

/// What a fid that stands for attributes is for.
#[derive(Debug)]
pub(super) enum Xattr {
    /// Reading a value, or the list of names.
    Read(Vec<u8>),
    /// Setting an attribute when the fid is clunked.
    Write {
        name: CString,
        value: Vec<u8>,
        flags: XattrFlags,
    },
}

impl Xattr {
    /// The part of the value from `offset` on, at most `count` bytes.
    pub(super) fn read(&self, offset: u64, count: usize) -> Result<&[u8], Errno> {
        let Self::Read(value) = self else {
            return Err(Errno::BADF);
        };
        let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let rest = value.get(start..).unwrap_or_default();
        Ok(&rest[..count.min(rest.len())])
    }

    /// Writes a part of the value.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Self::Write { value, .. } = self else {
            return Err(Errno::BADF);
        };
        let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let end = start.checked_add(data.len()).ok_or(Errno::INVAL)?;
        let part = value.get_mut(start..end).ok_or(Errno::NOSPC)?;
        part.copy_from_slice(data);
        Ok(())
    }
}

impl Server {
    pub(super) fn xattrwalk(
        &mut self,
        r: &mut Reader<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let (fid, new_fid, name) = (r.u32()?, r.u32()?, r.string()?);
        let node = self.node(fid)?;
        if !name.is_empty() && !name.starts_with(NAMESPACE) {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_xattrs(node)?;
        let file = self.tree.path(node)?;
        let value = if name.is_empty() {
            names_of_users(&Host::list_xattrs(&file.fd)?)
        } else {
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            Host::xattr(&file.fd, &name)?
        };
        self.tree.retain(node);
        self.insert(new_fid, node)?;
        reply.put_u64(value.len() as u64);
        self.xattrs.insert(new_fid, Xattr::Read(value));
        Ok(())
    }

    pub(super) fn xattrcreate(&mut self, r: &mut Reader<'_>) -> Result<(), Errno> {
        let (fid, name, size, flags) = (r.u32()?, r.string()?, r.u64()?, r.u32()?);
        let node = self.node(fid)?;
        if !name.starts_with(NAMESPACE) {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_xattrs(node)?;
        if self.tree.is_open(node, fid) {
            return Err(Errno::BADF);
        }
        if size > MAX_XATTR as u64 {
            return Err(Errno::TOOBIG);
        }
        let xattr = Xattr::Write {
            name: CString::new(name).map_err(|_| Errno::INVAL)?,
            value: vec![0; size as usize],
            flags: XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?,
        };
        self.xattrs.insert(fid, xattr);
        Ok(())
    }

    /// Refuses files that have no attributes of the namespace `user`, and too many fids.
    fn check_xattrs(&self, node: NodeId) -> Result<(), Errno> {
        match self.tree.kind(node) {
            FileType::RegularFile | FileType::Directory if self.xattrs.len() < MAX_FIDS => Ok(()),
            FileType::RegularFile | FileType::Directory => Err(Errno::NFILE),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Sets or removes the attribute of a fid that is clunked.
    pub(super) fn finish_xattr(&mut self, node: NodeId, xattr: Xattr) -> Result<(), Errno> {
        let Xattr::Write { name, value, flags } = xattr else {
            return Ok(());
        };
        let file = self.tree.path(node)?;
        // Linux's removexattr is a Txattrcreate of size 0 that replaces.
        if value.is_empty() && flags == XattrFlags::REPLACE {
            Host::remove_xattr(&file.fd, &name)?;
        } else {
            Host::set_xattr(&file.fd, &name, &value, flags)?;
        }
        self.changed(&file.fd);
        Ok(())
    }
}

/// The names of the namespace `user` in a list of names that each end with a zero.
fn names_of_users(list: &[u8]) -> Vec<u8> {
    let names = list.split_inclusive(|byte| *byte == 0);
    let names = names.filter(|name| CStr::from_bytes_with_nul(name).is_ok());
    names
        .filter(|name| name.starts_with(NAMESPACE))
        .flatten()
        .copied()
        .collect()
}
