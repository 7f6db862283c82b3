//! What sees each record of a trace.

use super::counts::TaskCount;
use super::functions::Functions;
use super::modules::{AddressSpace, Modules};
use super::space::{Effect, Transfer};
use super::stack::Stack;
use super::tree::NodeId;

/// The records that a watch sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// None.
    Nothing,
    /// Those that change the stack.
    Calls,
    /// None, but [`Watch::run`] gets the records that come one after the other in the same node
    /// together.
    Runs,
    /// All.
    All,
}

/// The records that a watch needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// All.
    All,
    /// The last ones of each task, so many in all.
    LastOfTasks(u64),
    /// The last ones of the task of the last record.
    LastOfLastTask(u64),
    /// None: tasks and the numbers of their branches are known from the events.
    Nothing,
}

/// Sees records, with the stack before and after them.
pub trait Watch {
    /// Which. Fewer are faster.
    const SEES: Sees;
    /// Which it has to see if the trace is long. Without the others, stacks lack their outer frames
    /// ([`Ended::read_from`]).
    const NEEDS: Needs = Needs::All;

    /// A transfer is executed for the first time. What this returns is [`Seen::mark`] of its
    /// records, so that what depends on the transfer alone is found out once.
    fn mark(&mut self, _new: &New<'_>) -> u32 {
        0
    }

    /// A record was taken into account.
    fn record(&mut self, _seen: &Seen<'_>) {}

    /// Records of a task were taken into account ([`Sees::Runs`]).
    fn run(&mut self, _run: &Run<'_>) {}

    /// The frames of a task's stack have other nodes, because the thread has another name.
    fn renamed(&mut self, _task: u64, _stack: &Stack) {}

    /// A task has ended, or the trace has.
    fn end(&mut self, _ended: &Ended<'_>) {}
}

impl Watch for () {
    const SEES: Sees = Sees::Nothing;
}

/// The last branch that a task has executed.
#[derive(Debug, Clone, Copy)]
pub struct LastBranch {
    /// Its number in the trace.
    pub record: u64,
    /// Where it comes from.
    pub from: u64,
    /// Where it goes to.
    pub to: u64,
    /// What it does to the stack.
    pub effect: Effect,
}

/// The end of a task, or what it has executed when the trace ends.
#[derive(Debug)]
pub struct Ended<'a> {
    /// Number of the task.
    pub task: u64,
    /// The task.
    pub count: &'a TaskCount,
    /// Its last branch; `None` if it has none.
    pub last: Option<LastBranch>,
    /// The stack after it.
    pub stack: &'a Stack,
    /// The process's mappings.
    pub map: &'a AddressSpace,
    /// The number of the record from which on the task's records were read, if some before were
    /// left out: the stack has only the frames that are known from there.
    pub read_from: Option<u64>,
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

/// Records that a task has executed in one node, one after the other.
#[derive(Debug)]
pub struct Run<'a> {
    /// Number of the task.
    pub task: u64,
    /// The task after them.
    pub count: &'a TaskCount,
    /// The node of the last instruction of each record.
    pub node: NodeId,
    /// Number of instructions since the branch before the first one.
    pub instructions: u64,
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
