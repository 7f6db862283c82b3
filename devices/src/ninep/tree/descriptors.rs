//! The descriptors of nodes: opening them again, and closing those that were used longest ago.

use std::ffi::c_int;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::super::handle::Handle;
use super::super::host::{Descriptor, Host};
use super::super::identity::Identity;
use super::{NodeId, Place, Tree};

/// Most mounts of the host on which files are opened by their handle.
const MAX_MOUNTS: usize = 16;

impl Tree {
    /// Gives a node its descriptor.
    pub(super) fn adopt(&mut self, id: NodeId, fd: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        let node = self.node_mut(id);
        node.identity = None;
        node.path = Some(fd.clone());
        self.paths += 1;
        self.touch(id);
        fd
    }

    /// Makes a node the one that was used last.
    pub(super) fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let now = self.clock;
        let last_use = std::mem::replace(&mut self.node_mut(id).last_use, now);
        self.closable.remove(&last_use);
        self.closable.insert(now, id);
    }

    /// A descriptor of the file of a node, if there is one.
    pub(super) fn held(&self, id: NodeId) -> Option<&Arc<OwnedFd>> {
        let path = self.node(id).path.as_ref();
        path.or_else(|| {
            let mut files = self.files.range((id, 0)..=(id, u32::MAX));
            files.next().map(|(_, file)| &file.fd)
        })
    }

    /// Returns a descriptor of the file of a node, and opens it if necessary.
    ///
    /// # Errors
    /// ESTALE if the file cannot be found again, ENFILE if there is no room for a descriptor.
    pub(in crate::ninep) fn path(&mut self, id: NodeId) -> Result<Descriptor, Errno> {
        let kind = self.kind(id);
        if let Some(fd) = self.held(id).cloned() {
            if self.node(id).last_use != 0 {
                self.touch(id);
            }
            return Ok(Descriptor { fd, kind });
        }
        // The nodes from this one up to the first that has a descriptor or a handle.
        let mut closed = Vec::new();
        let mut at = id;
        let mut fd = loop {
            // The kernel may have no path for another file that is opened by its handle, and
            // Landlock refuses such a file.
            if self.kind(at) == FileType::Directory
                && let Some(fd) = self.open_by_handle(at)?
            {
                break fd;
            }
            closed.push(at);
            at = self.place(at)?.directory;
            if let Some(fd) = self.held(at) {
                break fd.clone();
            }
        };
        while let Some(id) = closed.pop() {
            let name = self.place(id)?.name.clone();
            let found = self.open_with_room(|_| Host::find(&fd, &name));
            let found = found.map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR => Errno::STALE,
                errno => errno,
            })?;
            let stat = self.host.stat(&found)?;
            if !self.is_same(id, &found, &stat)? {
                return Err(Errno::STALE);
            }
            fd = self.adopt(id, found);
        }
        Ok(Descriptor { fd, kind })
    }

    fn place(&self, id: NodeId) -> Result<&Place, Errno> {
        self.node(id).place.as_ref().ok_or(Errno::STALE)
    }

    /// Opens a node that has no descriptor by its handle, if that is possible.
    fn open_by_handle(&mut self, id: NodeId) -> Result<Option<Arc<OwnedFd>>, Errno> {
        // Taken out meanwhile, because `open_with_room` borrows all of `self`.
        let Some(identity) = self.node_mut(id).identity.take() else {
            return Ok(None);
        };
        let opened = match (&identity.handle, identity.mount) {
            (Some(handle), Some(mount)) => self
                .open_with_room(|tree| handle.open(tree.mounts.get(&mount).ok_or(Errno::STALE)?)),
            _ => Err(Errno::STALE),
        };
        self.node_mut(id).identity = Some(identity);
        let fd = match opened {
            Ok(fd) => fd,
            Err(errno @ (Errno::NFILE | Errno::MFILE)) => return Err(errno),
            Err(_) => return Ok(None),
        };
        let stat = self.host.stat(&fd)?;
        let node = self.node(id);
        let same = (node.device, node.inode) == (stat.st_dev, stat.st_ino);
        Ok(same.then(|| self.adopt(id, fd)))
    }

    /// Whether this process can open the directory `root` by its handle.
    pub(super) fn can_open_handles(&mut self, root: &OwnedFd) -> bool {
        let Some((handle, mount)) = Handle::of(root) else {
            return false;
        };
        self.open_mount(mount, root, FileType::Directory);
        let opened = self.mounts.get(&mount).map(|fd| handle.open(fd));
        let can_open = matches!(opened, Some(Ok(_)));
        if !can_open {
            self.mounts.clear();
        }
        can_open
    }

    /// Opens a directory, so that files on its mount can be opened by their handle.
    fn open_mount(&mut self, mount: c_int, fd: &OwnedFd, kind: FileType) {
        if self.opens_handles
            && kind == FileType::Directory
            && !self.mounts.contains_key(&mount)
            && self.mounts.len() < MAX_MOUNTS.min(self.limit.get() / 4)
            && let Ok(directory) = self.host.reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY)
        {
            self.mounts.insert(mount, directory);
        }
    }

    /// The identity by which a node can be opened again, or `None` if it cannot.
    pub(super) fn identify(&mut self, id: NodeId, fd: &OwnedFd) -> Option<Box<Identity>> {
        // A handle alone would not do: the guest can remove the file's last name elsewhere.
        self.node(id).place.as_ref()?;
        let (mut identity, links) = Identity::of(fd).ok()?;
        if links == 0 {
            return None;
        }
        if let Some(mount) = identity.mount {
            self.open_mount(mount, fd, self.kind(id));
            // The ID of a mount that is not kept open here can become that of another mount.
            identity.mount = self.mounts.contains_key(&mount).then_some(mount);
        }
        Some(Box::new(identity))
    }

    /// Opens a descriptor, and closes others before if there are too many.
    pub(super) fn open_with_room(
        &mut self,
        open: impl Fn(&Self) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        while self.descriptors() >= self.limit.get() {
            if !self.close_oldest() && !self.close_oldest_file() {
                return Err(Errno::NFILE);
            }
        }
        loop {
            match open(self) {
                // The rest of the process or of the host has more open than usual.
                Err(Errno::MFILE | Errno::NFILE) if self.close_oldest() => {}
                result => return result,
            }
        }
    }

    /// Descriptors that the guest's fids hold.
    pub(in crate::ninep) fn descriptors(&self) -> usize {
        self.paths + self.files.len() + self.mounts.len()
    }

    /// Closes the path that was not used for the longest time. Returns `false` if no path can be
    /// closed.
    fn close_oldest(&mut self) -> bool {
        while let Some((_, id)) = self.closable.pop_first() {
            let node = self.node_mut(id);
            node.last_use = 0;
            let Some(fd) = node.path.take() else { continue };
            // An open file serves instead of the path.
            let identity = match self.held(id) {
                Some(_) => None,
                None => match self.identify(id, &fd) {
                    Some(identity) => Some(identity),
                    None => {
                        // It stays open, and is not tried again.
                        self.node_mut(id).path = Some(fd);
                        continue;
                    }
                },
            };
            self.node_mut(id).identity = identity;
            self.paths -= 1;
            return true;
        }
        false
    }
}
