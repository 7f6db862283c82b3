//! What is counted, and how the counts of transfers are added up.

use super::code::Files;
use super::modules::{AddressSpace, Place};
use super::space::{Space, Transfer};
use super::stack::NOWHERE;
use super::{Profile, Watch};

/// Maximum number of different lines and branches that are counted. Further ones are not.
const MAX_COUNTED: usize = 1 << 21;

/// What could not be explained, and what was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Branches.
    pub branches: u64,
    /// Instructions.
    pub instructions: u64,
    /// Branches whose line is in code that is not known: its instructions are not counted.
    pub no_code: u64,
    /// Branches that were left out: neither they nor their instructions are counted elsewhere.
    pub left_out: u64,
    /// Places where the code does not lead from one branch to the next.
    pub gaps: u64,
    /// Records that the trace says are missing.
    pub lost: u64,
    /// Signal handlers that were entered.
    pub signals: u64,
    /// Transfers that have left several frames at once: longjmp, exceptions.
    pub unwound: u64,
    /// Transfers to a stack that was left before: coroutines, context switches.
    pub switches: u64,
    /// Transfers into functions that were not called.
    pub unexplained: u64,
    /// Stacks that were too deep, or too many.
    pub too_deep: u64,
    /// Counts of lines that there was no memory for.
    pub uncounted: u64,
}

/// A straight line that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// Its first instruction.
    pub start: Place,
    /// Offset of its last instruction.
    pub last: u64,
    /// The last instruction was executed. Otherwise an interrupt or an exception came before it.
    pub complete: bool,
}

/// How often a line was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCount {
    /// How often.
    pub count: u64,
    /// Number of its instructions that were executed; 0 if the code is not known.
    pub instructions: u32,
}

/// A branch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The instruction.
    pub from: Place,
    /// Its target.
    pub to: Place,
    /// The transfer is an event, which `from` has not caused as a branch.
    pub is_event: bool,
}

/// A task of the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskCount {
    /// Its thread ID.
    pub id: u32,
    /// Its process.
    pub process: u32,
    /// The last program that it has executed, by its number.
    pub program: u32,
    /// The name that it has given itself since then, by its number among the programs.
    pub thread_name: Option<u32>,
    /// Instructions.
    pub instructions: u64,
    /// Branches.
    pub branches: u64,
}

impl TaskCount {
    /// The number of the name that reports show: its own, or that of its program.
    pub fn name(&self) -> u32 {
        self.thread_name.unwrap_or(self.program)
    }
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Adds the counts of the transfers up, and forgets the transfers.
    pub(super) fn add_up(&mut self, space: &mut Space) {
        for transfer in &space.transfers {
            self.add_counts(&space.map, transfer);
        }
        space.clear();
    }

    fn add_counts(&mut self, map: &AddressSpace, transfer: &Transfer) {
        if transfer.count == 0 {
            return;
        }
        if self.lines.len() + self.edges.len() >= MAX_COUNTED {
            self.counts.uncounted = self.counts.uncounted.saturating_add(transfer.count);
            return;
        }
        let from = map.place(transfer.from);
        let line = Line {
            start: map.place(transfer.start),
            last: from.offset,
            complete: transfer.complete,
        };
        if transfer.instructions == 0 && transfer.complete {
            self.counts.no_code += transfer.count;
        }
        let entry = self.lines.entry(line).or_default();
        entry.count += transfer.count;
        entry.instructions = transfer.instructions;
        if transfer.to != NOWHERE {
            let edge = Edge {
                from,
                to: map.place(transfer.to),
                is_event: !transfer.complete,
            };
            *self.edges.entry(edge).or_default() += transfer.count;
        }
    }
}
