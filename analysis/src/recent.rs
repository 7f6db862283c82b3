//! The last branches of the tasks of a long trace, from which reports of a moment are made.
//!
//! The events of a trace say how many branches each task has where, so that these are found
//! without decoding: only the blocks with the last ones are decoded.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Seek};

use vbts_trace::profile::Needs;
use vbts_trace::{Error, Event, Passed, Reader};

use super::load::Range;

/// Branches of a trace that is always read as a whole.
const SHORT: u64 = 1 << 24;
/// Branches that are read of a task at least.
const LEAST: u64 = 1 << 14;

/// Tasks that are found. Branches of further ones are not read.
const MAX_TASKS: usize = 1 << 20;

/// The blocks of which branches are taken.
#[derive(Debug)]
pub(crate) enum Blocks {
    All,
    Some(BTreeSet<usize>),
}

impl Blocks {
    /// Returns whether branches of the block with this number are taken.
    pub(crate) fn has(&self, number: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(numbers) => numbers.contains(&number),
        }
    }
}

/// What is taken of a trace.
#[derive(Debug)]
pub(crate) struct Recent {
    /// The blocks of which branches are taken.
    pub blocks: Blocks,
    /// The number of the first branch to take of each task, unless all are taken.
    pub first: Option<HashMap<u64, u64>>,
}

/// A task, and its branches.
#[derive(Debug, Default)]
struct Task {
    /// Its thread ID, or that of the task that a processor executes.
    id: u32,
    branches: u64,
    /// Number of the branch behind the last one.
    end: u64,
}

impl Recent {
    /// Finds what a watch needs of the branches in `range`. `only` has the thread IDs of the tasks
    /// that count, if not all do.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub(crate) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        range: Range,
        needs: Needs,
        only: &Option<BTreeSet<u32>>,
    ) -> Result<Self, Error> {
        let limit = match needs {
            _ if range.whole || range.to.min(reader.records()) <= SHORT => None,
            Needs::All => None,
            Needs::Nothing => {
                return Ok(Self {
                    blocks: Blocks::Some(BTreeSet::new()),
                    first: Some(HashMap::new()),
                });
            }
            Needs::LastOfTasks(limit) | Needs::LastOfLastTask(limit) => Some(limit),
        };
        let Some(limit) = limit else {
            return Ok(Self {
                blocks: Blocks::All,
                first: None,
            });
        };
        let mut tasks = count(reader, range.to, only)?;
        if matches!(needs, Needs::LastOfLastTask(_)) {
            let last = tasks.values().map(|task| task.end).max().unwrap_or(0);
            tasks.retain(|_, task| task.end == last);
        }
        let each = (limit / (tasks.len() as u64).max(1)).max(LEAST);
        let (mut first, mut blocks) = (HashMap::new(), BTreeSet::new());
        for number in 0..reader.blocks() {
            let mut record = reader.first_of_block(number);
            if record >= range.to {
                break;
            }
            reader.pass_blocks(number..number + 1, range.to, |id, passed| {
                let Passed::Branches(branches) = passed else {
                    return;
                };
                record += branches;
                let Some(task) = tasks.get_mut(&id) else {
                    return;
                };
                task.branches = task.branches.saturating_sub(branches);
                if task.branches < each {
                    // The last ones of these.
                    let taken = (each - task.branches).min(branches);
                    first.entry(id).or_insert(record - taken);
                    blocks.insert(number);
                }
            })?;
        }
        Ok(Self {
            blocks: Blocks::Some(blocks),
            first: Some(first),
        })
    }
}

/// The tasks that have branches before number `to`, by their numbers.
fn count<R: Read + Seek>(
    reader: &mut Reader<R>,
    to: u64,
    only: &Option<BTreeSet<u32>>,
) -> Result<HashMap<u64, Task>, Error> {
    let mut tasks: HashMap<u64, Task> = HashMap::new();
    let mut record = 0;
    reader.pass(to, |number, passed| {
        if let Passed::Branches(count) = passed {
            record += count;
        }
        if tasks.len() >= MAX_TASKS && !tasks.contains_key(&number) {
            return;
        }
        match passed {
            Passed::Branches(count) => {
                let task = tasks.entry(number).or_default();
                if only.as_ref().is_none_or(|ids| ids.contains(&task.id)) {
                    task.end = record;
                }
                task.branches += count;
            }
            Passed::Event(
                Event::Start { id, .. } | Event::Exec { id, .. } | Event::Switch { id, .. },
            ) => tasks.entry(number).or_default().id = id,
            Passed::Event(_) => {}
        }
    })?;
    tasks.retain(|_, task| task.end > 0);
    Ok(tasks)
}
