//! What sees each record of a trace.

use super::counts::TaskCount;
use super::functions::Functions;
use super::modules::AddressSpace;
use super::space::Effect;
use super::stack::Stack;
use super::tree::NodeId;

/// Sees each record, with the stack before and after it.
pub trait Watch {
    /// It does something with records.
    const SEES_RECORDS: bool = true;

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

/// A record, and the state after it.
#[derive(Debug)]
pub struct Seen<'a> {
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
