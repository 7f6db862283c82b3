//! What a task executes between two branches.
//!
//! After a branch to A, the next branch from B says that the task has executed the straight line
//! from A to B. In between, the kernel may have interrupted it: a return from the kernel says where
//! it goes on.

use vbts_trace::Branch;
use vbts_trace::profile::modules::KERNEL_START;

use super::space::Target;

/// Where a task is, in its program and in the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Positions {
    pub user: Position,
    pub kernel: Position,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position {
    /// The address of its next instruction; 0 if it is not known.
    at: u64,
    /// That it has reached this address has been seen.
    seen: bool,
}

impl Position {
    /// A branch has led to `at`.
    fn arrive(&mut self, at: u64) {
        *self = Self { at, seen: true };
    }

    /// Execution goes on at `at`.
    fn go_on(&mut self, at: u64) {
        if self.at != at {
            *self = Self { at, seen: false };
        }
    }

    /// The first of `targets` that is on the line from here to `end`, which is not on it, and was
    /// not seen. The position is there afterwards.
    pub(super) fn reach(&mut self, targets: &[Target], end: u64) -> bool {
        let first = self.at.saturating_add(self.seen.into());
        let on_line = targets.iter().filter(|target| {
            let function = target.start..target.end;
            let is_line = function.contains(&self.at) && end <= target.end;
            self.at != 0 && is_line && (first..end).contains(&target.at)
        });
        let Some(at) = on_line.map(|target| target.at).min() else {
            return false;
        };
        self.arrive(at);
        true
    }
}

/// A part of what a branch and the straight line before it have executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The line in a program, up to this address, which is not on it.
    UserLine(u64),
    /// The line in the kernel.
    KernelLine(u64),
    /// The arrival of the branch at its target.
    Arrival,
}

/// Returns the straight lines that end with `branch`, and its arrival at its target, in order.
pub(super) fn steps(branch: Branch) -> [Option<Step>; 3] {
    let after = branch.from.saturating_add(1);
    match (branch.from >= KERNEL_START, branch.to >= KERNEL_START) {
        (false, false) => [Some(Step::UserLine(after)), None, Some(Step::Arrival)],
        // An interrupted instruction has not been executed, and is repeated.
        (false, true) => [Some(Step::UserLine(branch.from)), None, Some(Step::Arrival)],
        (true, true) => [Some(Step::KernelLine(after)), None, Some(Step::Arrival)],
        // What was executed before the kernel was entered, if that was not seen.
        (true, false) => [
            Some(Step::KernelLine(after)),
            Some(Step::UserLine(branch.to)),
            None,
        ],
    }
}

impl Positions {
    /// Moves the positions to the target of `branch`, after its steps.
    pub(super) fn pass(&mut self, branch: Branch) {
        match (branch.from >= KERNEL_START, branch.to >= KERNEL_START) {
            (false, false) => self.user.arrive(branch.to),
            (false, true) => {
                self.user.go_on(branch.from);
                self.kernel.arrive(branch.to);
            }
            (true, true) => self.kernel.arrive(branch.to),
            (true, false) => self.user.go_on(branch.to),
        }
    }
}
