//! Names that the guest creates, removes and changes, on writable shares only.

use std::ffi::CStr;
use std::sync::Arc;

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use super::super::host::Host;
use super::{NodeId, Place, Tree};

impl Tree {
    /// Creates a regular file and opens it for a fid. The node has one user.
    pub(in crate::ninep) fn create(
        &mut self,
        directory: NodeId,
        name: &Arc<CStr>,
        fid: u32,
        flags: OFlags,
        mode: u32,
    ) -> Result<(NodeId, Stat), Errno> {
        self.check_room_for_node(directory)?;
        let parent = self.path(directory)?;
        let file = self.open_with_room(|_| Host::create(&parent.fd, name, flags, mode))?;
        let stat = self.host.stat(&file)?;
        let place = Place {
            directory,
            name: name.clone(),
        };
        if let Some(id) = self.names.get(&place).copied() {
            self.forget_name(id);
        }
        let id = self.insert(place, &stat)?;
        self.add_file(id, fid, file, false);
        Ok((id, stat))
    }

    /// Removes a name.
    pub(in crate::ninep) fn unlink(
        &mut self,
        directory: NodeId,
        name: &Arc<CStr>,
        is_directory: bool,
    ) -> Result<(), Errno> {
        let place = Place {
            directory,
            name: name.clone(),
        };
        let parent = self.path(directory)?;
        let removed = self.hold(&place)?;
        Host::unlink(&parent.fd, name, is_directory)?;
        removed.into_iter().for_each(|id| self.forget_name(id));
        Ok(())
    }

    /// Renames a file or a directory. The nodes below it keep their names in it.
    pub(in crate::ninep) fn rename(
        &mut self,
        (from, name): (NodeId, &Arc<CStr>),
        (to, new_name): (NodeId, &Arc<CStr>),
    ) -> Result<(), Errno> {
        let old = Place {
            directory: from,
            name: name.clone(),
        };
        let new = Place {
            directory: to,
            name: new_name.clone(),
        };
        if let Some(id) = self.names.get(&old) {
            self.check_depth(to, self.node(*id).height)?;
        }
        let (a, b) = (self.path(from)?, self.path(to)?);
        let replaced = self.hold(&new)?;
        Host::rename(&a.fd, name, &b.fd, new_name)?;
        if old == new {
            return Ok(());
        }
        replaced.into_iter().for_each(|id| self.forget_name(id));
        let Some(id) = self.names.get(&old).copied() else {
            return Ok(());
        };
        // The host can move a directory below what was its entry. Its node cannot follow.
        if self.is_below(to, id) {
            self.forget_name(id);
            return Ok(());
        }
        self.retain(to);
        self.raise(to, self.node(id).height + 1);
        self.names.remove(&old);
        self.names.insert(new.clone(), id);
        self.node_mut(id).place = Some(new);
        self.release(from);
        Ok(())
    }

    /// The node of a name that is about to be removed. It has a descriptor, because no name may
    /// be left to open it by.
    fn hold(&mut self, place: &Place) -> Result<Option<NodeId>, Errno> {
        let Some(id) = self.names.get(place).copied() else {
            return Ok(None);
        };
        match self.path(id) {
            Ok(_) | Err(Errno::STALE) => Ok(Some(id)),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the name of a node: it is no longer, or it is that of another file.
    pub(super) fn forget_name(&mut self, id: NodeId) {
        if let Some(place) = self.node_mut(id).place.take() {
            self.names.remove(&place);
            self.release(place.directory);
        }
    }

    /// Whether a node is `ancestor` or below it.
    fn is_below(&self, id: NodeId, ancestor: NodeId) -> bool {
        self.ancestors(id).any(|id| id == ancestor)
    }
}
