//! Reads a trace into a profile.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::BufReader;

use indicatif::ProgressBar;
use vbts_trace::profile::{Profile, Watch};
use vbts_trace::{Batch, Branch, Error, Event, Item, Part, Passed, Reader};

use super::CodeFiles;
use super::decode::{Decoded, decode};
use super::recent::Recent;
use vbts_host::Workers;

/// Which branches to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Number of the first one.
    pub from: u64,
    /// Number of the first one that is not taken.
    pub to: u64,
    /// All of them, also if the report needs the last ones alone.
    pub whole: bool,
}

/// A trace that was read.
pub type Loaded<W = ()> = Profile<CodeFiles, W>;

/// Reads the branches in `range`, only those of tasks with the thread IDs `only` if these are
/// given. `workers` decode them.
///
/// # Errors
/// The trace cannot be read, or is damaged.
pub fn load<W: Watch>(
    mut reader: Reader<BufReader<File>>,
    range: Range,
    only: Option<BTreeSet<u32>>,
    files: CodeFiles,
    watch: W,
    workers: &Workers,
    progress: &ProgressBar,
) -> Result<Loaded<W>, Error> {
    let program = reader.run().command.first().cloned().unwrap_or_default();
    let mut profile = Profile::new(files, program.as_bytes(), watch);
    if let Some(only) = &only {
        profile.only_tasks(only.clone());
    }
    // It is known at the end, and the first branches need it.
    reader.events_before(u64::MAX, |task, event| {
        if is_code(&event) {
            profile.item(Item::Event { task, event });
        }
    })?;
    reader.pass(range.from, |task, passed| match passed {
        Passed::Branches(count) => profile.pass(task, count),
        Passed::Event(event) if !is_code(&event) => profile.item(Item::Event { task, event }),
        Passed::Event(_) => {}
    })?;
    let count = range.to.saturating_sub(range.from);
    progress.set_length(count);
    let first = reader.block_before(range.from);
    let mut list = Vec::new();
    let recent = Recent::of(&mut reader, range, W::NEEDS, &only)?;
    let mut wanted = Wanted {
        number: reader.first_of_block(first),
        range,
        whole: range.to >= reader.records(),
        recent: recent.first,
    };
    let mut events = reader.with_input(reader.input().get_ref().try_clone().map(BufReader::new)?);
    let blocks = (first..reader.blocks()).filter(|block| recent.blocks.has(*block));
    let mut next = first;
    let mut failed = None;
    decode(
        &reader,
        blocks,
        workers,
        |event| !is_code(event),
        |decoded| {
            match decoded {
                Decoded::Begin(number) => {
                    list.clear();
                    failed = wanted
                        .leave_out(&mut events, next..number, &mut profile)
                        .err();
                    next = number + 1;
                }
                Decoded::Batch(batch) => {
                    list.extend_from_slice(&batch.new);
                    wanted.take(&mut profile, batch, &list);
                }
            }
            progress.set_position(wanted.number.saturating_sub(range.from));
            failed.is_none() && wanted.goes_on()
        },
    )?;
    failed.map_or(Ok(()), Err)?;
    if wanted.goes_on() {
        wanted.leave_out(&mut events, next..reader.blocks(), &mut profile)?;
    }
    profile.finish();
    progress.finish_and_clear();
    Ok(profile)
}

/// What is to be taken of the blocks from the first one on.
struct Wanted {
    /// Number of the next branch.
    number: u64,
    /// The branches to take, with the events between them.
    range: Range,
    /// Also the events at the end.
    whole: bool,
    /// The number of the first branch to take of each task, if not all are taken.
    recent: Option<HashMap<u64, u64>>,
}

impl Wanted {
    fn goes_on(&self) -> bool {
        self.number < self.range.to || self.whole
    }

    /// Gives what is wanted of a batch to a profile. `list` has the branches of the block.
    fn take<W: Watch>(&mut self, profile: &mut Loaded<W>, batch: &mut Batch, list: &[Branch]) {
        let mut numbers = batch.numbers.as_slice();
        for part in batch.parts.drain(..) {
            if !self.goes_on() {
                return;
            }
            match part {
                Part::Branches(task, count) => {
                    let (these, rest) = numbers.split_at(count.min(numbers.len()));
                    numbers = rest;
                    let (left_out, taken) = self.branches(task, these.len() as u64);
                    if !left_out.is_empty() {
                        profile.leave_out(task, left_out.end - left_out.start);
                    }
                    let taken = taken.start as usize..taken.end as usize;
                    if let Some(these) = these.get(taken).filter(|these| !these.is_empty()) {
                        profile.numbered(task, these, list);
                    }
                }
                Part::Event(task, event) => self.event(profile, task, event),
            }
        }
    }

    /// Of the next branches, of one task: those that are wanted by the range and left out, and
    /// those that are taken.
    fn branches(&mut self, task: u64, count: u64) -> (std::ops::Range<u64>, std::ops::Range<u64>) {
        let first = self.number;
        self.number = first.saturating_add(count);
        let at = |number: u64| number.clamp(first, first + count) - first;
        let (from, to) = (at(self.range.from), at(self.range.to));
        let taken = match &self.recent {
            // A task that is not there has no branch that is taken.
            Some(recent) => at(recent.get(&task).copied().unwrap_or(u64::MAX)).clamp(from, to),
            None => from,
        };
        (from..taken, taken..to)
    }

    fn event<W: Watch>(&self, profile: &mut Loaded<W>, task: u64, event: Event) {
        if self.number >= self.range.from && !is_code(&event) {
            profile.item(Item::Event { task, event });
        }
    }

    /// Gives the events of blocks from which no branch is taken to a profile.
    ///
    /// # Errors
    /// The trace cannot be read.
    fn leave_out<W: Watch>(
        &mut self,
        reader: &mut Reader<BufReader<File>>,
        blocks: std::ops::Range<usize>,
        profile: &mut Loaded<W>,
    ) -> Result<(), Error> {
        reader.pass_blocks(blocks, self.range.to, |task, passed| match passed {
            Passed::Branches(count) => {
                let (left_out, _) = self.branches(task, count);
                if !left_out.is_empty() {
                    profile.leave_out(task, left_out.end - left_out.start);
                }
            }
            Passed::Event(event) => self.event(profile, task, event),
        })
    }
}

fn is_code(event: &Event) -> bool {
    matches!(
        event,
        Event::KernelCode { .. }
            | Event::KernelFile { .. }
            | Event::Code { .. }
            | Event::BuildId { .. }
    )
}
