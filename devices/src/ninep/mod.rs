//! A 9P2000.L server for one host directory (Linux: Documentation/filesystems/9p.rst; the protocol
//! is described by the diod project).
//!
//! A read-only share refuses requests that change something before it reads the rest of the
//! message. Every answer is computed before [`Server::handle`] returns, and depends on the host's
//! files alone, and on the guest's clock for the times of files that it has changed.
//!
//! A state can be saved while the guest has no fid. A fid is a file of the host, which another
//! process could not open again as the same file.

mod handle;
mod host;
mod identity;
mod limit;
mod message;
mod open_files;
mod read;
mod refused_writes;
mod times;
mod tree;
mod wire;
mod write;
mod xattr;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use host::check_openable;
pub use message::MAX_MSIZE;
pub use open_files::OpenFiles;
pub use refused_writes::{RefusedFiles, RefusedWrites};
pub use times::GuestClock;

use host::Host;
use limit::Limit;
use message::{MIN_MSIZE, negotiate, serve, set_u32};
use times::Times;
use tree::{NodeId, Tree};
use wire::{Encode, Reader, t};
use xattr::Xattr;

/// Most names in one Twalk (MAXWELEM).
const MAX_WALK: u16 = 16;
/// Most fids. Linux keeps one for each file in its cache, of about 2 KB, so that a guest of 4 GB
/// has fewer. A fid takes about 20 bytes, and its node at most 700 ([`tree::MAX_NODES`]): a hostile
/// guest makes vbts use at most about 1.5 GB.
const MAX_FIDS: usize = 1 << 21;
/// Most file systems that the upper bits of a qid can distinguish.
const MAX_FILE_SYSTEMS: usize = 1 << 16;

/// Requests that change something, which a read-only share refuses. Whether Tlopen does depends on
/// its flags.
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

/// Whether the guest may change the host's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may not.
    ReadOnly,
    /// It may, below the exported directory.
    ReadWrite,
}

/// State of the server. It has no fids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// Largest message of the session, in bytes.
    msize: u32,
    /// Device numbers of the host's file systems, in the order in which the guest met them.
    file_systems: Vec<u64>,
}

/// The server. It has one client at a time, and Tversion starts a session.
pub struct Server {
    tree: Tree,
    access: Access,
    /// Largest message of the session, in bytes.
    msize: u32,
    fids: BTreeMap<u32, NodeId>,
    /// What the fids that stand for extended attributes are for.
    xattrs: BTreeMap<u32, Xattr>,
    times: Times,
    refused_writes: RefusedWrites,
    max_fids: usize,
}

impl Server {
    /// Exports the directory `root`.
    ///
    /// The server keeps descriptors of the files that the guest used last. So the process's soft
    /// limit of descriptors is raised to its hard limit, which all servers share.
    ///
    /// # Errors
    /// `root` cannot be opened or is not a directory, or there is no /proc.
    pub fn new(root: &Path, access: Access) -> std::io::Result<Self> {
        Self::with_limit(root, access, Limit::shared())
    }

    /// Exports the directory `root`, with at most `descriptors` open (at least 8).
    ///
    /// # Errors
    /// As [`Server::new`].
    pub fn with_descriptors(
        root: &Path,
        access: Access,
        descriptors: usize,
    ) -> std::io::Result<Self> {
        Self::with_limit(root, access, Limit::Own(descriptors))
    }

    fn with_limit(root: &Path, access: Access, limit: Limit) -> std::io::Result<Self> {
        let host = Host::new(access == Access::ReadOnly)?;
        Ok(Self {
            tree: Tree::new(root, host, limit)?,
            access,
            msize: MAX_MSIZE,
            fids: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            times: Times::new(GuestClock::default()),
            refused_writes: RefusedWrites::default(),
            max_fids: MAX_FIDS,
        })
    }

    /// Shows the guest the times at which it has changed files on its own `clock`.
    #[must_use]
    pub fn with_clock(mut self, clock: GuestClock) -> Self {
        self.times = Times::new(clock);
        self
    }

    /// The writes that the host refuses.
    pub fn refused_writes(&self) -> RefusedWrites {
        self.refused_writes.clone()
    }

    fn server_state(&self) -> Result<ServerState, String> {
        if !self.fids.is_empty() {
            const SHOWN: usize = 5;
            let numbers: Vec<_> = self.fids.keys().take(SHOWN).map(u32::to_string).collect();
            let more = if self.fids.len() > SHOWN { ", …" } else { "" };
            return Err(format!(
                "the guest has {} fids ({}{more}): unmount the share first",
                self.fids.len(),
                numbers.join(", ")
            ));
        }
        Ok(ServerState {
            msize: self.msize,
            file_systems: self.tree.host.file_systems().to_vec(),
        })
    }

    fn restore_state(&mut self, state: &ServerState) -> Result<(), String> {
        let ServerState {
            msize,
            file_systems,
        } = state;
        if !(MIN_MSIZE..=MAX_MSIZE).contains(msize) {
            return Err(format!("the message size cannot be {msize}"));
        }
        if file_systems.len() > MAX_FILE_SYSTEMS {
            return Err(format!("{} file systems are too many", file_systems.len()));
        }
        self.reset();
        self.msize = *msize;
        self.tree.host.set_file_systems(file_systems.clone());
        Ok(())
    }

    /// Ends the session: forgets every fid.
    pub fn reset(&mut self) {
        self.fids.clear();
        self.xattrs.clear();
        self.times.clear();
        self.tree.clear();
        self.msize = MAX_MSIZE;
    }

    /// Serves one request. `reply` is overwritten with the answer, at most [`MAX_MSIZE`] bytes.
    pub fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        serve(request, reply, |kind, body, reply| {
            self.dispatch(kind, body, reply)
        });
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
            t::CLUNK => self.clunk(r.u32()?),
            t::LOCK => self.lock(&mut r, reply),
            t::GETLOCK => self.getlock(&mut r, reply),
            t::XATTRWALK => self.xattrwalk(&mut r, reply),
            t::XATTRCREATE => self.xattrcreate(&mut r),
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
            t::REMOVE => self.clunk(r.u32()?).and(Err(Errno::OPNOTSUPP)),
            t::MKNOD => self.mknod(&mut r, reply),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn refuse_write(&mut self, kind: u8, body: &[u8]) -> Result<(), Errno> {
        match kind {
            // There is no data to write.
            t::FSYNC => return Ok(()),
            // Tremove clunks its fid even if it fails.
            t::REMOVE => drop(self.clunk(Reader::new(body).u32()?)),
            _ => {}
        }
        Err(Errno::ROFS)
    }

    fn node(&self, fid: u32) -> Result<NodeId, Errno> {
        self.fids.get(&fid).copied().ok_or(Errno::BADF)
    }

    /// The file that a fid has open, and its kind.
    fn opened(&mut self, fid: u32) -> Result<(FileType, Arc<OwnedFd>), Errno> {
        let node = self.node(fid)?;
        let file = self.tree.file(node, fid)?;
        Ok((self.tree.kind(node), file))
    }

    fn clunk(&mut self, fid: u32) -> Result<(), Errno> {
        let node = self.fids.remove(&fid).ok_or(Errno::BADF)?;
        let finished = match self.xattrs.remove(&fid) {
            Some(xattr) => self.finish_xattr(node, xattr),
            None => Ok(()),
        };
        self.tree.close(node, fid);
        self.tree.release(node);
        finished
    }

    fn version(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let msize = negotiate(r, reply)?;
        self.reset();
        self.msize = msize;
        Ok(())
    }

    /// Adds a fid for a node, and hands it a user of the node.
    fn insert(&mut self, fid: u32, node: NodeId) -> Result<(), Errno> {
        let full = self.fids.len() >= self.max_fids;
        let errno = match self.fids.entry(fid) {
            _ if full => Errno::NFILE,
            Entry::Occupied(_) => Errno::BADF,
            Entry::Vacant(v) => {
                v.insert(node);
                return Ok(());
            }
        };
        self.tree.release(node);
        Err(errno)
    }

    fn attach(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let fid = r.u32()?;
        let root = self.tree.root();
        self.insert(fid, root)?;
        let directory = self.tree.path(root)?;
        let stat = self.tree.host.stat(&directory.fd)?;
        reply.put_qid(self.tree.host.qid(&stat));
        Ok(())
    }

    fn walk(&mut self, r: &mut Reader<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (fid, new_fid, count) = (r.u32()?, r.u32()?, r.u16()?);
        if count > MAX_WALK {
            return Err(Errno::INVAL);
        }
        let mut node = self.node(fid)?;
        if fid == new_fid && self.tree.is_open(node, fid) {
            return Err(Errno::BADF);
        }
        if fid != new_fid && self.fids.contains_key(&new_fid) {
            return Err(Errno::BADF);
        }
        let names = (0..count).map(|_| host::name(r.string()?));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let mut qids = Vec::with_capacity(names.len());
        let mut failure = None;
        self.tree.retain(node);
        for name in &names {
            match self.tree.lookup(node, name) {
                Ok((next, stat)) => {
                    qids.push(self.tree.host.qid(&stat));
                    self.tree.release(node);
                    node = next;
                }
                Err(errno) => {
                    failure = Some(errno);
                    break;
                }
            }
        }
        match failure {
            None => {
                if fid == new_fid {
                    self.clunk(fid)?;
                }
                self.insert(new_fid, node)?;
            }
            Some(errno) => {
                self.tree.release(node);
                // Only a failure at the first name is an error. A later one shortens the walk.
                if qids.is_empty() {
                    return Err(errno);
                }
            }
        }
        reply.put_u16(qids.len() as u16);
        qids.into_iter().for_each(|q| reply.put_qid(q));
        Ok(())
    }
}

/// What answers the requests that the guest sends to a 9P device.
pub trait Service: fmt::Debug + Send {
    /// Serves one request. `reply` is overwritten with the answer, at most [`MAX_MSIZE`] bytes.
    fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>);

    /// The next requests are of the virtual time `now`, in ns.
    fn advance_to(&mut self, _now: u64) {}

    /// Ends the session: forgets every fid.
    fn reset(&mut self);

    /// The state. The error says why it cannot be saved.
    ///
    /// # Errors
    /// The guest has fids, or the service is bound to this process.
    fn state(&self) -> Result<ServerState, String>;

    /// Puts the service into `state`.
    ///
    /// # Errors
    /// The service never has that state.
    fn restore(&mut self, state: &ServerState) -> Result<(), String>;
}

impl Service for Server {
    fn handle(&mut self, request: &[u8], reply: &mut Vec<u8>) {
        Self::handle(self, request, reply);
    }

    fn advance_to(&mut self, now: u64) {
        self.times.advance_to(now);
    }

    fn reset(&mut self) {
        Self::reset(self);
    }

    fn state(&self) -> Result<ServerState, String> {
        self.server_state()
    }

    fn restore(&mut self, state: &ServerState) -> Result<(), String> {
        self.restore_state(state)
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

#[cfg(test)]
mod tests;
