//! A traced task of the guest, and what happens to it.

use vbts_protocol::{Crash, ExitStatus, Scope};

use super::format::{Record, Records};

/// Number of branches that a report about a task shows.
pub const RECENT: usize = 32;

/// A traced process or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Thread ID in the guest. It changes if a thread that is not the leader executes a program.
    pub id: u32,
    /// Number of tasks that started before it. IDs can be used again, numbers are not.
    pub number: u64,
    /// The task that has started it; 0 for the first task of the program.
    pub parent: u32,
    /// The process (thread group) that it belongs to.
    pub process: u32,
    /// Path of its program. A new task has that of its parent.
    pub name: Vec<u8>,
    /// Number of records that its buffers in the guest can have.
    pub capacity: u32,
    /// Its last branches.
    pub recent: Recent,
}

impl Task {
    /// The last part of the name.
    pub fn short_name(&self) -> &[u8] {
        let after_slash = self.name.rsplit(|byte| *byte == b'/').next();
        after_slash.unwrap_or_default()
    }
}

/// The last [`RECENT`] branches of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recent {
    /// Source and target of each, oldest first.
    branches: Vec<(u64, u64)>,
}

impl Recent {
    /// Adds the branches in `records` that belong to `scope`.
    pub fn push(&mut self, records: &[u8], scope: Scope) {
        let records = Records::new(records, scope).rev();
        let branches = records.filter_map(|record| match record {
            Record::Branch { from, to } => Some((from, to)),
            _ => None,
        });
        let old = self.branches.len();
        self.branches.extend(branches.take(RECENT));
        if let Some(new) = self.branches.get_mut(old..) {
            new.reverse();
        }
        let excess = self.branches.len().saturating_sub(RECENT);
        self.branches.drain(..excess);
    }

    /// Source and target of each branch, oldest first.
    pub fn branches(&self) -> &[(u64, u64)] {
        &self.branches
    }
}

/// What happens to a task, in the order of its records. Times are `CLOCK_MONOTONIC` of the guest
/// in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// It is traced from here on.
    Start {
        /// When.
        time: u64,
    },
    /// It executes the program that its name is now.
    Exec {
        /// When.
        time: u64,
        /// Its ID before.
        former: u32,
    },
    /// It executes the program that its name is, and has done so before: the trace does not have
    /// the task that it has got the program from.
    Name,
    /// It gets a signal.
    Signal {
        /// When.
        time: u64,
        /// The signal.
        signal: u32,
    },
    /// It has ended.
    End {
        /// When.
        time: u64,
        /// How.
        status: ExitStatus,
    },
    /// At least this many records are missing.
    Lost(u64),
    /// A signal kills it for what its instruction did.
    Crash(Box<Crash>),
    /// The run has ended before it did.
    Standing {
        /// The line of `/proc/TID/syscall`.
        syscall: String,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
}

/// What happens to a processor, in the trace of a machine. Times are those of the machine, in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessorEvent {
    /// Its address space from here on.
    AddressSpace {
        /// CR3.
        cr3: u64,
        /// When.
        time: u64,
    },
    /// It executes this task of the guest's kernel from here on.
    Switch {
        /// Thread ID.
        id: u32,
        /// Process ID.
        process: u32,
        /// Name in the guest's kernel.
        name: Vec<u8>,
        /// When.
        time: u64,
    },
    /// Another accelerator has executed it, and its branches are missing.
    Gap {
        /// For how long, in ns.
        duration: u64,
        /// When that ended.
        time: u64,
    },
}

/// A task that is not traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untraced {
    /// Thread ID in the guest.
    pub task: u32,
    /// The task that has started it.
    pub parent: u32,
    /// When.
    pub time: u64,
    /// Its name in the guest's kernel.
    pub name: Vec<u8>,
    /// The reason for the user.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::format::tests::records;

    #[test]
    fn the_last_branches_are_kept() {
        let mut recent = Recent::default();
        let branch = |n: u64| [1, n, n + 1];
        recent.push(&records(&[branch(1), [3, 9, 0], branch(2)]), Scope::User);
        assert_eq!(recent.branches(), [(1, 2), (2, 3)]);
        recent.push(&[], Scope::User);
        let many: Vec<[u64; 3]> = (3..3 + RECENT as u64 - 1).map(branch).collect();
        recent.push(&records(&many), Scope::User);
        let expected: Vec<(u64, u64)> = (2..2 + RECENT as u64).map(|n| (n, n + 1)).collect();
        assert_eq!(recent.branches(), expected);
        let many: Vec<[u64; 3]> = (100..200).map(branch).collect();
        recent.push(&records(&many), Scope::User);
        assert_eq!(recent.branches().len(), RECENT);
        assert_eq!(recent.branches().last(), Some(&(199, 200)));
    }
}
