//! Takes the branches of a trace.

use super::code::Files;
use super::inlined::{ChainId, Chains, Piece};
use super::limits::MAX_TASKS;
use super::space::{Effect, PIECES, Space};
use super::stack::{Context, NOWHERE};
use super::tree::NodeId;
use super::{LastBranch, Profile, Run, Seen, Sees, Task, Watch, classify};
use crate::Branch;

/// What a task has executed since it was added to its counts, in the innermost frame.
#[derive(Debug, Clone, Copy, Default)]
struct Executed {
    instructions: u64,
    branches: u64,
    /// Instructions of the first branch's line that were counted for other nodes.
    elsewhere: u64,
}

impl<F: Files, W: Watch> Profile<F, W> {
    /// Takes branches of a task, oldest first.
    pub fn branches(&mut self, number: u64, branches: &[Branch]) {
        self.take(number, branches.iter().copied());
    }

    /// Takes branches of a task, oldest first, by their numbers in a list.
    pub fn numbered(&mut self, number: u64, numbers: &[u32], list: &[Branch]) {
        // Each number is in the list.
        let branch = |number: &u32| list.get(*number as usize).copied().unwrap_or_default();
        self.take(number, numbers.iter().map(branch));
    }

    fn take(&mut self, number: u64, branches: impl ExactSizeIterator<Item = Branch>) {
        let first = self.records;
        self.records = first.saturating_add(branches.len() as u64);
        let task = self.tasks.remove(&number);
        if task.is_none() && self.tasks.len() >= MAX_TASKS {
            return self.do_not_count(branches.len());
        }
        let mut task = task.unwrap_or_default();
        if self.is_wanted(task.count.id) {
            let process = task.count.process;
            let space = self.spaces.remove(&process);
            if self.is_full(space.as_ref()) {
                self.do_not_count(branches.len());
            } else {
                let mut space = space.unwrap_or_default();
                let (frames, transfers) = (task.stack.held(), space.transfers.len());
                self.execute(number, &mut task, &mut space, branches.zip(first..));
                self.added.frames += task.stack.held().saturating_sub(frames);
                self.added.transfers += space.transfers.len() - transfers;
                self.spaces.insert(process, space);
            }
        }
        self.tasks.insert(number, task);
        self.make_room();
    }

    fn do_not_count(&mut self, branches: usize) {
        let counts = &mut self.counts;
        counts.uncounted = counts.uncounted.saturating_add(branches as u64);
    }

    fn execute(
        &mut self,
        number: u64,
        task: &mut Task,
        space: &mut Space,
        branches: impl Iterator<Item = (Branch, u64)>,
    ) {
        let mut executed = Executed::default();
        // The chain of inlined functions that `executed` belongs to.
        let mut chain = Chains::EMPTY;
        let (mut at, mut last) = (task.at, task.last);
        let mut number_of_last = None;
        if at != NOWHERE {
            self.begin_if_empty(task, space, at);
        }
        for (branch, record) in branches {
            let this = match space.expected(last, at, branch.from, branch.to) {
                Some(this) => this,
                None => {
                    let this = match space.find(at, branch.from, branch.to) {
                        Some(this) if at != NOWHERE => this,
                        _ => {
                            // It can change the stack.
                            self.add_executed(number, task, chain, &mut executed);
                            task.at = at;
                            self.new_transfer(number, task, space, branch)
                        }
                    };
                    space.expect(last, this);
                    this
                }
            };
            let Some(transfer) = space.transfers.get_mut(this as usize) else {
                break;
            };
            transfer.count += 1;
            if transfer.inlined == chain {
                executed.instructions += u64::from(transfer.instructions);
            } else {
                self.add_executed(number, task, chain, &mut executed);
                (chain, executed.instructions) = match transfer.inlined {
                    PIECES.. => {
                        let pieces = (transfer.inlined & !PIECES) as usize;
                        let pieces = space.pieces.get(pieces).map_or(&[][..], |all| all);
                        self.add_pieces(number, task, pieces)
                    }
                    whole => (whole, transfer.instructions.into()),
                };
                executed.elsewhere =
                    u64::from(transfer.instructions).saturating_sub(executed.instructions);
            }
            executed.branches += 1;
            (at, last, number_of_last) = (transfer.to, this, Some(record));
            if transfer.effect == Effect::Jump && W::SEES != Sees::All {
                continue;
            }
            let node = self.add_executed(number, task, chain, &mut executed);
            if transfer.effect != Effect::Jump {
                let context = &mut Context {
                    tree: &mut self.tree,
                    functions: &self.functions,
                    counts: &mut self.counts,
                    inlined: (&self.inlining.chains, chain),
                };
                classify::apply(transfer, &mut task.stack, context);
            }
            if matches!(W::SEES, Sees::Calls | Sees::All) {
                self.watch.record(&Seen {
                    record,
                    task: number,
                    count: &task.count,
                    from: branch.from,
                    to: branch.to,
                    effect: transfer.effect,
                    is_event: !transfer.complete,
                    mark: space.marks.get(this as usize).copied().unwrap_or(0),
                    instructions: transfer.instructions,
                    node,
                    stack: &task.stack,
                    functions: &self.functions,
                    map: &space.map,
                });
            }
        }
        self.add_executed(number, task, chain, &mut executed);
        (task.at, task.last) = (at, last);
        if let (Some(record), Some(transfer)) = (number_of_last, space.transfers.get(last as usize))
        {
            task.branch = Some(LastBranch {
                record,
                from: transfer.from,
                to: transfer.to,
                effect: transfer.effect,
            });
        }
    }

    /// Adds what was executed in a chain of inlined functions of the innermost frame to the counts
    /// of the task, and of the chain's node. Returns the node.
    // In memory, a number that is stored alone and loaded with its neighbour stalls the processor.
    #[inline(always)]
    fn add_executed(
        &mut self,
        number: u64,
        task: &mut Task,
        chain: ChainId,
        executed: &mut Executed,
    ) -> NodeId {
        let Executed {
            instructions,
            branches,
            elsewhere,
        } = std::mem::take(executed);
        task.count.instructions += instructions;
        task.count.branches += branches;
        let chains = &self.inlining.chains;
        let id = self.tree.inlined(task.stack.node(), chain, chains);
        if let Some(node) = self.tree.get_mut(id) {
            node.instructions += instructions;
            node.branches += branches;
        }
        if W::SEES == Sees::Runs && branches > 0 {
            self.watch.run(&Run {
                task: number,
                count: &task.count,
                node: id,
                instructions: instructions + elsewhere,
            });
        }
        id
    }

    /// Adds the pieces of a straight line to the counts, without the instructions of the last one.
    /// Returns the chain of that, and its instructions.
    fn add_pieces(&mut self, number: u64, task: &mut Task, pieces: &[Piece]) -> (ChainId, u64) {
        let Some((last, others)) = pieces.split_last() else {
            return (Chains::EMPTY, 0);
        };
        for piece in others {
            let instructions = piece.instructions.into();
            let executed = &mut Executed {
                instructions,
                ..Executed::default()
            };
            self.add_executed(number, task, piece.chain, executed);
        }
        (last.chain, last.instructions.into())
    }

    /// The node of the task's program.
    pub(super) fn program_node(&mut self, program: u32) -> NodeId {
        self.tree.program(program)
    }
}
