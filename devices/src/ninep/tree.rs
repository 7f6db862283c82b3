//! The files that a guest's fids name, and the descriptors of the host that reach them.
//!
//! A file is a node: a name in the node of its directory, with an `O_PATH` descriptor. The node
//! closes its descriptor when others need the room, and opens it again when a request needs it. It
//! is then the same file or an error (ESTALE), never another file:
//!
//! - The node keeps the file's [`Identity`] while it has no descriptor.
//! - If the process has CAP_DAC_READ_SEARCH, and the file system has file handles, the handle opens
//!   the file again, wherever it was moved.
//! - Otherwise its name in the directory's node opens it, if the identity is still the same.
//!   Requests of the guest that rename or remove a name update the nodes first.
//! - A file without a name, and one that the guest has open, keeps its descriptor. If there is no
//!   room otherwise, a regular file that is open for reading alone is closed as well.
//!
//! Descriptors are closed in the order of their last use. What the guest sees does not depend on
//! it.

mod descriptors;
mod files;
mod names;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, c_int};
use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::host::Host;
use super::identity::Identity;
use super::limit::Limit;

/// Most nodes. A node takes 200 to 700 bytes with its name, its handle and its entry among the
/// names.
pub(super) const MAX_NODES: usize = 1 << 21;
/// Most directories above a node: those of the longest path (PATH_MAX). A request goes through them
/// one by one, and the last user of a file can release all of them.
const MAX_DEPTH: u32 = 2048;

/// Number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

const ROOT: NodeId = NodeId(0);

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    directory: NodeId,
    name: Arc<CStr>,
}

#[derive(Debug)]
struct Node {
    kind: FileType,
    device: u64,
    inode: u64,
    /// Fids of the node and nodes of its entries. The node is free if there are none.
    users: u32,
    /// The name under which the guest found the file. `None` for the root, and once the guest or
    /// the host has removed the name.
    place: Option<Place>,
    /// Levels of nodes that have been below this one. Fewer may be left.
    height: u32,
    path: Option<Arc<OwnedFd>>,
    /// Key in [`Tree::closable`]; 0 if the node is not there.
    last_use: u64,
    /// The identity of the file, if the node has neither `path` nor an open file.
    identity: Option<Box<Identity>>,
}

/// A file that a fid has open.
#[derive(Debug)]
struct OpenFile {
    fd: Arc<OwnedFd>,
    /// Whether it can be closed and opened again without a difference to the guest.
    reopens: bool,
    last_use: u64,
}

/// The nodes and their descriptors.
#[derive(Debug)]
pub(super) struct Tree {
    pub host: Host,
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    names: HashMap<Place, NodeId>,
    /// Files that are open for reading or writing, by node and fid.
    files: BTreeMap<(NodeId, u32), OpenFile>,
    /// Files that fids have open for reading, whose descriptors are closed.
    closed_files: BTreeSet<(NodeId, u32)>,
    /// Nodes whose `path` can be closed, by the time of their last use.
    closable: BTreeMap<u64, NodeId>,
    clock: u64,
    /// Nodes that have a `path`.
    paths: usize,
    /// An open directory on each mount, by the mount's ID.
    mounts: BTreeMap<c_int, OwnedFd>,
    /// Whether this process can open files by their handle.
    opens_handles: bool,
    pub limit: Limit,
    /// Most directories above a node.
    max_depth: u32,
}

impl Tree {
    /// The tree below the directory `root`.
    pub(super) fn new(root: &Path, host: Host, limit: Limit) -> Result<Self, Errno> {
        let root = Host::open_root(root)?;
        let stat = host.stat(&root)?;
        let mut tree = Self {
            host,
            nodes: Vec::new(),
            free: Vec::new(),
            names: HashMap::new(),
            files: BTreeMap::new(),
            closed_files: BTreeSet::new(),
            closable: BTreeMap::new(),
            clock: 0,
            paths: 1,
            mounts: BTreeMap::new(),
            opens_handles: true,
            limit,
            max_depth: MAX_DEPTH,
        };
        tree.opens_handles = tree.can_open_handles(&root);
        let mut node = Node::new(&stat, None);
        node.path = Some(Arc::new(root));
        tree.nodes.push(node);
        Ok(tree)
    }

    /// Opens files by their names alone, as a process without CAP_DAC_READ_SEARCH does.
    #[cfg(test)]
    pub(super) fn open_by_name_only(&mut self) {
        self.opens_handles = false;
        self.mounts.clear();
    }

    /// Allows `depth` directories above a file.
    #[cfg(test)]
    pub(super) fn limit_depth(&mut self, depth: u32) {
        self.max_depth = depth;
    }

    /// Puts `file` in the place of the one that a fid has open.
    #[cfg(test)]
    pub(super) fn replace_file(&mut self, id: NodeId, fid: u32, file: OwnedFd) {
        self.add_file(id, fid, file, false);
    }

    /// Files that are open for reading or writing.
    #[cfg(test)]
    pub(super) fn open_files(&self) -> usize {
        self.files.len() + self.closed_files.len()
    }

    /// Nodes that are in use.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Forgets every node except the root.
    pub(super) fn clear(&mut self) {
        self.nodes.truncate(1);
        if let Some(root) = self.nodes.first_mut() {
            root.users = 1;
            root.height = 0;
        }
        self.free.clear();
        self.names.clear();
        self.files.clear();
        self.closed_files.clear();
        self.closable.clear();
        self.paths = 1;
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// The root, with one user more.
    pub(super) fn root(&mut self) -> NodeId {
        self.retain(ROOT);
        ROOT
    }

    pub(super) fn kind(&self, id: NodeId) -> FileType {
        self.node(id).kind
    }

    /// Adds a user to a node.
    pub(super) fn retain(&mut self, id: NodeId) {
        self.node_mut(id).users += 1;
    }

    /// Removes a user from a node, and the node if it was the last.
    pub(super) fn release(&mut self, mut id: NodeId) {
        loop {
            let node = self.node_mut(id);
            node.users -= 1;
            if node.users > 0 {
                return;
            }
            let last_use = std::mem::take(&mut node.last_use);
            let place = node.place.take();
            node.identity = None;
            if node.path.take().is_some() {
                self.paths -= 1;
            }
            self.closable.remove(&last_use);
            self.free.push(id);
            let Some(place) = place else { return };
            self.names.remove(&place);
            id = place.directory;
        }
    }

    /// Finds `name` in `directory`. The node has one user more.
    pub(super) fn lookup(
        &mut self,
        directory: NodeId,
        name: &Arc<CStr>,
    ) -> Result<(NodeId, Stat), Errno> {
        let parent = self.path(directory)?;
        let fd = self.open_with_room(|_| Host::find(&parent.fd, name))?;
        let stat = self.host.stat(&fd)?;
        let place = Place {
            directory,
            name: name.clone(),
        };
        if let Some(id) = self.names.get(&place).copied() {
            if self.is_same(id, &fd, &stat)? {
                if self.node(id).path.is_none() {
                    self.adopt(id, fd);
                }
                self.retain(id);
                return Ok((id, stat));
            }
            self.forget_name(id);
        }
        let id = self.insert(place, &stat)?;
        self.adopt(id, fd);
        Ok((id, stat))
    }

    /// Adds a node with one user, for a file that has no node yet.
    fn insert(&mut self, place: Place, stat: &Stat) -> Result<NodeId, Errno> {
        self.check_room_for_node(place.directory)?;
        self.retain(place.directory);
        self.raise(place.directory, 1);
        let node = Node::new(stat, Some(place.clone()));
        let id = match self.free.pop() {
            Some(id) => {
                *self.node_mut(id) = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId((self.nodes.len() - 1) as u32)
            }
        };
        self.names.insert(place, id);
        Ok(id)
    }

    /// Checks that there can be one more node, in `directory`.
    fn check_room_for_node(&self, directory: NodeId) -> Result<(), Errno> {
        if self.nodes.len() - self.free.len() >= MAX_NODES {
            return Err(Errno::NFILE);
        }
        self.check_depth(directory, 0)
    }

    /// Checks that a node with `height` levels below it can be in `directory`.
    ///
    /// # Errors
    /// ENAMETOOLONG if a node would be too deep.
    fn check_depth(&self, directory: NodeId, height: u32) -> Result<(), Errno> {
        let depth = self.ancestors(directory).count() as u32;
        match depth.saturating_add(height) <= self.max_depth {
            true => Ok(()),
            false => Err(Errno::NAMETOOLONG),
        }
    }

    /// A node and the directories above it.
    fn ancestors(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |id| {
            let place = self.node(*id).place.as_ref()?;
            Some(place.directory)
        })
    }

    /// The path of a node from the root, as far as the guest has left it.
    pub(super) fn path_in_share(&self, id: NodeId) -> Vec<u8> {
        let places = self.ancestors(id).map(|id| self.node(id).place.as_ref());
        let mut names: Vec<&[u8]> = places
            .flatten()
            .map(|place| place.name.to_bytes())
            .collect();
        names.reverse();
        names.join(&b"/"[..])
    }

    /// Notes that there are `height` levels of nodes below a directory.
    fn raise(&mut self, mut directory: NodeId, mut height: u32) {
        while self.node(directory).height < height {
            let node = self.node_mut(directory);
            node.height = height;
            let Some(place) = &node.place else { return };
            (directory, height) = (place.directory, height + 1);
        }
    }

    /// Whether `fd`, whose attributes are `stat`, is the file of a node.
    fn is_same(&self, id: NodeId, fd: &OwnedFd, stat: &Stat) -> Result<bool, Errno> {
        let node = self.node(id);
        if (node.device, node.inode) != (stat.st_dev, stat.st_ino) {
            return Ok(false);
        }
        match &node.identity {
            // An inode number is not reused while a descriptor holds the inode.
            None => Ok(self.held(id).is_some()),
            Some(identity) => identity.is_of(fd),
        }
    }
}

impl Node {
    fn new(stat: &Stat, place: Option<Place>) -> Self {
        Self {
            kind: FileType::from_raw_mode(stat.st_mode),
            device: stat.st_dev,
            inode: stat.st_ino,
            users: 1,
            place,
            height: 0,
            path: None,
            last_use: 0,
            identity: None,
        }
    }
}
