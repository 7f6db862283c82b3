//! Reads a trace into a profile.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

use indicatif::ProgressBar;
use vbts_trace::profile::{Profile, Watch};
use vbts_trace::{Batch, Branch, Error, Event, Item, Part, Reader};

use super::CodeFiles;
use super::decode::{Decoded, decode};
use vbts_host::Workers;

/// Which branches to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Number of the first one.
    pub from: u64,
    /// Number of the first one that is not taken.
    pub to: u64,
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
    profile.begin_at(range.from);
    if let Some(only) = only {
        profile.only_tasks(only);
    }
    // It is known at the end, and the first branches need it.
    reader.events_before(u64::MAX, |task, event| {
        if is_code(&event) {
            profile.item(Item::Event { task, event });
        }
    })?;
    reader.events_before(range.from, |task, event| {
        if !is_code(&event) {
            profile.item(Item::Event { task, event });
        }
    })?;
    let count = range.to.saturating_sub(range.from);
    let whole = range.to >= reader.records();
    progress.set_length(count);
    let first = reader.block_before(range.from);
    let mut list = Vec::new();
    let mut wanted = Wanted {
        skip: range.from.saturating_sub(reader.first_of_block(first)),
        left: count,
        whole,
    };
    let is_wanted = |event: &Event| !is_code(event);
    decode(&reader, first, workers, is_wanted, |decoded| {
        match decoded {
            Decoded::Begin => list.clear(),
            Decoded::Batch(batch) => {
                let left = wanted.left;
                list.extend_from_slice(&batch.new);
                take(&mut profile, batch, &list, &mut wanted);
                progress.inc(left - wanted.left);
            }
        }
        wanted.goes_on()
    })?;
    profile.finish();
    progress.finish_and_clear();
    Ok(profile)
}

/// What is to be taken of the blocks from the first one on.
struct Wanted {
    /// Branches to pass, with the events between them.
    skip: u64,
    /// Branches to take, with the events between them.
    left: u64,
    /// Also the events at the end.
    whole: bool,
}

impl Wanted {
    fn goes_on(&self) -> bool {
        self.left > 0 || self.whole
    }
}

/// Gives what is wanted of a batch to a profile. `list` has the branches of the block.
fn take<W: Watch>(
    profile: &mut Loaded<W>,
    batch: &mut Batch,
    list: &[Branch],
    wanted: &mut Wanted,
) {
    let mut numbers = batch.numbers.as_slice();
    for part in batch.parts.drain(..) {
        if !wanted.goes_on() {
            return;
        }
        match part {
            Part::Branches(task, count) => {
                let (these, rest) = numbers.split_at(count.min(numbers.len()));
                numbers = rest;
                let skip = wanted.skip.min(these.len() as u64);
                wanted.skip -= skip;
                let these = these.get(skip as usize..).unwrap_or_default();
                let size = usize::try_from(wanted.left).unwrap_or(usize::MAX);
                let these = these.get(..size).unwrap_or(these);
                wanted.left -= these.len() as u64;
                if !these.is_empty() {
                    profile.numbered(task, these, list);
                }
            }
            Part::Event(task, event) if wanted.skip == 0 => {
                profile.item(Item::Event { task, event });
            }
            Part::Event(..) => {}
        }
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
