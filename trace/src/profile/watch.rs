//! What sees each record of a trace.

use super::counts::TaskCount;
use super::functions::Functions;
use super::modules::{AddressSpace, Modules};
use super::space::{Effect, Transfer};
use super::stack::Stack;
use super::tree::NodeId;

/// Sees each record, with the stack before and after it.
pub trait Watch {
    /// It does something with records.
    const SEES_RECORDS: bool = true;

    /// A transfer is executed for the first time. What this returns is [`Seen::mark`] of its
    /// records, so that what depends on the transfer alone is found out once.
    fn mark(&mut self, _new: &New<'_>) -> u32 {
        0
    }

    /// A record was taken into account.
    fn record(&mut self, seen: &Seen<'_>);

    /// A task has ended, or the trace has. Its stack is that after its last record.
    fn end(&mut self, _task: u64, _count: &TaskCount, _stack: &Stack, _map: &AddressSpace) {}
}

impl Watch for () {
    const SEES_RECORDS: bool = false;

    #[inline]
    fn record(&mut self, _: &Seen<'_>) {}
}

/// A transfer, and the state when it is executed for the first time.
#[derive(Debug)]
pub struct New<'a> {
    /// The transfer.
    pub transfer: &'a Transfer,
    /// Number of the task.
    pub task: u64,
    /// The task.
    pub count: &'a TaskCount,
    /// The process's mappings.
    pub map: &'a AddressSpace,
    /// The functions so far.
    pub functions: &'a Functions,
    /// The modules so far.
    pub modules: &'a Modules,
    /// Paths of the programs so far.
    pub programs: &'a [Vec<u8>],
}

/// A record, and the state after it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Its number in the trace. Branches of all tasks count.
    pub record: u64,
    /// Number of the task.
    pub task: u64,
    /// The task.
    pub count: &'a TaskCount,
    /// Where the branch comes from.
    pub from: u64,
    /// Where it goes to.
    pub to: u64,
    /// What it does.
    pub effect: Effect,
    /// It is an interrupt or exception, which the instruction at `from` has not caused as a branch.
    pub is_event: bool,
    /// What [`Watch::mark`] has returned for its transfer.
    pub mark: u32,
    /// Number of instructions since the branch before it, with it.
    pub instructions: u32,
    /// Where these were executed: the innermost node of the stack before the branch.
    pub node: NodeId,
    /// The stack after it.
    pub stack: &'a Stack,
    /// The functions so far.
    pub functions: &'a Functions,
    /// The process's mappings.
    pub map: &'a AddressSpace,
}
