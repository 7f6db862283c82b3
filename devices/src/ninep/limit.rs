//! How many descriptors a server may have open.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit};

/// Descriptors that are left to the rest of the process, or half of them all if there are few.
const RESERVED: usize = 64;
/// Fewest descriptors of a server. A request needs four.
const MIN: usize = 8;
/// Most descriptors of all servers together. More would keep kernel memory of the host for little.
const MAX: usize = 1 << 15;

/// Servers of this process, which share its descriptors.
static SERVERS: AtomicUsize = AtomicUsize::new(0);

/// The number of descriptors that a server may have open.
#[derive(Debug)]
pub(super) enum Limit {
    /// An equal part of the descriptors of all servers.
    Shared { all: usize },
    /// A number of its own.
    Own(usize),
}

impl Limit {
    /// Raises the process's soft limit of descriptors to its hard limit, and adds a server that
    /// shares them.
    pub(super) fn shared() -> Self {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let usable = match rustix::process::setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(_) => limit.current,
        };
        SERVERS.fetch_add(1, Ordering::Relaxed);
        Self::Shared {
            all: usable.map_or(MAX, for_servers),
        }
    }

    /// The number at this time.
    pub(super) fn get(&self) -> usize {
        let number = match self {
            Self::Shared { all } => all / SERVERS.load(Ordering::Relaxed).max(1),
            Self::Own(number) => *number,
        };
        number.max(MIN)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Self::Shared { .. } = self {
            SERVERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The descriptors of all servers in a process that may open `usable`.
fn for_servers(usable: u64) -> usize {
    let usable = usize::try_from(usable).unwrap_or(usize::MAX);
    (usable - RESERVED.min(usable / 2)).min(MAX)
}
