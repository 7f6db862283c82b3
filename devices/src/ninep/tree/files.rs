//! The files that fids have open for reading or writing.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::{NodeId, OpenFile, Tree};

impl Tree {
    /// Whether a fid of a node has a file open.
    pub(in crate::ninep) fn is_open(&self, id: NodeId, fid: u32) -> bool {
        self.files.contains_key(&(id, fid)) || self.closed_files.contains(&(id, fid))
    }

    /// Returns the file that a fid of a node has open.
    ///
    /// # Errors
    /// EBADF if it has none, and those of [`Tree::path`].
    pub(in crate::ninep) fn file(&mut self, id: NodeId, fid: u32) -> Result<Arc<OwnedFd>, Errno> {
        self.clock += 1;
        if let Some(file) = self.files.get_mut(&(id, fid)) {
            file.last_use = self.clock;
            return Ok(file.fd.clone());
        }
        if !self.closed_files.contains(&(id, fid)) {
            return Err(Errno::BADF);
        }
        self.open(id, fid, OFlags::RDONLY)?;
        let file = self.files.get(&(id, fid)).ok_or(Errno::BADF)?;
        Ok(file.fd.clone())
    }

    /// Opens the file of a node for a fid.
    pub(in crate::ninep) fn open(
        &mut self,
        id: NodeId,
        fid: u32,
        flags: OFlags,
    ) -> Result<(), Errno> {
        let path = self.path(id)?;
        let file = self.open_with_room(|tree| tree.host.open(&path, flags))?;
        let reads = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        // The offsets in a directory can depend on the descriptor.
        let reopens = reads && path.kind == FileType::RegularFile;
        self.add_file(id, fid, file, reopens);
        Ok(())
    }

    /// Adds a file that a fid has open.
    pub(super) fn add_file(&mut self, id: NodeId, fid: u32, file: OwnedFd, reopens: bool) {
        self.clock += 1;
        let file = OpenFile {
            fd: Arc::new(file),
            reopens,
            last_use: self.clock,
        };
        self.closed_files.remove(&(id, fid));
        self.files.insert((id, fid), file);
    }

    /// Closes the file that a fid has open, if it has one.
    pub(in crate::ninep) fn close(&mut self, id: NodeId, fid: u32) {
        self.closed_files.remove(&(id, fid));
        let Some(file) = self.files.remove(&(id, fid)) else {
            return;
        };
        // Another fid needs the node, which would be left without a descriptor.
        if self.node(id).users > 1
            && !self.keep_identity(id, &file.fd)
            && let Ok(path) = self.host.reopen(&file.fd, OFlags::PATH)
        {
            self.node_mut(id).path = Some(Arc::new(path));
            self.paths += 1;
        }
    }

    /// Closes the file that was not read for the longest time, of those that can be opened again.
    /// Returns `false` if there is none.
    pub(super) fn close_oldest_file(&mut self) -> bool {
        let mut files: Vec<_> = self.files.iter().filter(|(_, file)| file.reopens).collect();
        files.sort_by_key(|(_, file)| file.last_use);
        let keys: Vec<_> = files.into_iter().map(|(key, _)| *key).collect();
        for key in keys {
            let Some(file) = self.files.remove(&key) else {
                continue;
            };
            if self.keep_identity(key.0, &file.fd) {
                self.closed_files.insert(key);
                return true;
            }
            self.files.insert(key, file);
        }
        false
    }

    /// Makes sure that a node of which `fd` is closed has another descriptor or its identity.
    /// Returns `false` if that is not possible.
    fn keep_identity(&mut self, id: NodeId, fd: &OwnedFd) -> bool {
        if self.held(id).is_some() {
            return true;
        }
        let identity = self.identify(id, fd);
        let kept = identity.is_some();
        self.node_mut(id).identity = identity;
        kept
    }
}
