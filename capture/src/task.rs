//! A traced task of the guest.

use vbts_protocol::Scope;
use vbts_trace::Branch;

/// Number of branches that are kept of a task, to say how it came where it is.
pub const RECENT: usize = 1024;

/// A traced process or thread. In the trace of a machine, it stands for a processor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// The name that it has given itself since it executes the program; empty if none.
    pub thread_name: Vec<u8>,
    /// Number of records that its buffers in the guest can have.
    pub capacity: u32,
    /// Its last branches.
    pub recent: Recent,
}

impl Task {
    /// Returns the name that it has given itself, or the last part of its program's path.
    pub fn short_name(&self) -> &[u8] {
        if !self.thread_name.is_empty() {
            return &self.thread_name;
        }
        let after_slash = self.name.rsplit(|byte| *byte == b'/').next();
        after_slash.unwrap_or_default()
    }
}

/// The last [`RECENT`] branches of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recent {
    /// Oldest first.
    branches: Vec<Branch>,
}

impl Recent {
    /// Adds those of `branches` that belong to `scope`.
    pub fn push(&mut self, branches: &[Branch], scope: Scope) {
        let new = branches
            .iter()
            .rev()
            .filter(|branch| belongs(branch, scope));
        let old = self.branches.len();
        self.branches.extend(new.take(RECENT));
        if let Some(new) = self.branches.get_mut(old..) {
            new.reverse();
        }
        let excess = self.branches.len().saturating_sub(RECENT);
        self.branches.drain(..excess);
    }

    /// The branches, oldest first.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }
}

/// Whether a branch belongs to the traces of `scope`.
///
/// The processor filters by the privilege level after the branch, so that it records the returns
/// from the kernel to the program (SDM Vol. 3B 19.4.9.1). They are no branches of the program, and
/// their number depends on interrupts, page faults and the size of the trace buffer.
#[inline]
pub fn belongs(branch: &Branch, scope: Scope) -> bool {
    // The kernel is the upper half of the address space.
    scope != Scope::User || branch.from >> 63 == 0
}

/// Whether each of `branches` [`belongs`].
pub fn all_belong(branches: &[Branch], scope: Scope) -> bool {
    // One test of all sources, because a test of each would be a branch of the host.
    let any_bit = |bits, branch: &Branch| bits | branch.from;
    scope != Scope::User || branches.iter().fold(0, any_bit) >> 63 == 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Task `id` of process 1, which executes /bin/NAME.
    pub(crate) fn task(id: u32, name: &str) -> Task {
        Task {
            id,
            process: 1,
            name: format!("/bin/{name}").into(),
            ..Task::default()
        }
    }

    #[test]
    fn a_name_of_its_own_precedes_that_of_the_program() {
        let mut task = task(2, "sh");
        assert_eq!(task.short_name(), b"sh");
        task.thread_name = b"a/worker".into();
        assert_eq!(task.short_name(), b"a/worker");
    }

    fn branch(n: u64) -> Branch {
        Branch { from: n, to: n + 1 }
    }

    #[test]
    fn the_last_branches_are_kept() {
        let mut recent = Recent::default();
        recent.push(&[branch(1), branch(1 << 63), branch(2)], Scope::User);
        assert_eq!(recent.branches(), [branch(1), branch(2)]);
        recent.push(&[], Scope::User);
        let many: Vec<Branch> = (3..3 + RECENT as u64 - 1).map(branch).collect();
        recent.push(&many, Scope::User);
        let expected: Vec<Branch> = (2..2 + RECENT as u64).map(branch).collect();
        assert_eq!(recent.branches(), expected);
        let many: Vec<Branch> = (100..200 + RECENT as u64).map(branch).collect();
        recent.push(&many, Scope::User);
        assert_eq!(recent.branches().len(), RECENT);
        assert_eq!(recent.branches().last(), Some(&branch(199 + RECENT as u64)));
    }

    #[test]
    fn returns_from_the_kernel_belong_to_all_scopes_except_user() {
        let from_kernel = branch(0xFFFF_FFFF_8100_0000);
        for (scope, expected) in [
            (Scope::User, false),
            (Scope::Kernel, true),
            (Scope::All, true),
        ] {
            assert_eq!(belongs(&from_kernel, scope), expected);
            assert!(belongs(&branch(0x1000), scope));
            assert!(all_belong(&[branch(0x1000); 3], scope));
            let mixed = [branch(0x1000), from_kernel, branch(0x1000)];
            assert_eq!(all_belong(&mixed, scope), expected);
        }
    }
}
