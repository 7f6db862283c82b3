//! Reads a trace into a profile.

use std::fs::File;
use std::io::{self, BufReader};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use indicatif::ProgressBar;
use vbts_trace::profile::{Profile, Watch};
use vbts_trace::{Branch, Error, Event, Item, Reader};

use super::CodeFiles;
use crate::host::Workers;

/// Number of items that are decoded ahead.
const AHEAD: usize = 256;
/// Size in bytes of an event that is not small. The decoder waits until it is taken.
const LARGE: usize = 64 << 10;

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

/// An item with what it refers to.
enum Owned {
    Branches(u64, Vec<Branch>),
    Event(u64, Event),
}

/// Reads the branches in `range`, only those of the task with the thread ID `only` if that is
/// given. One of `workers` decodes them.
///
/// # Errors
/// The trace cannot be read, or is damaged.
pub fn load<W: Watch>(
    mut reader: Reader<BufReader<File>>,
    range: Range,
    only: Option<u32>,
    files: CodeFiles,
    watch: W,
    workers: &Workers,
    progress: &ProgressBar,
) -> Result<Loaded<W>, Error> {
    let program = reader.run().command.first().cloned().unwrap_or_default();
    let mut profile = Profile::new(files, program.as_bytes(), watch);
    if let Some(only) = only {
        profile.only_task(only);
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
    reader.seek(range.from)?;
    let count = range.to.saturating_sub(range.from);
    let whole = range.to >= reader.records();
    progress.set_length(count);
    let (items, taken) = sync_channel(AHEAD);
    let (empty, reusable) = sync_channel(AHEAD);
    let (done, taken_large) = sync_channel(1);
    let (ended, end) = sync_channel(1);
    workers.run(move || {
        let done = decode(reader, count, whole, &items, &reusable, &taken_large);
        let _ = ended.send(done);
    });
    for item in taken {
        match item {
            Owned::Branches(task, mut branches) => {
                profile.branches(task, &branches);
                progress.inc(branches.len() as u64);
                branches.clear();
                // The decoder makes a new one if none is left.
                let _ = empty.try_send(branches);
            }
            Owned::Event(task, event) => {
                let is_large = event.size() > LARGE;
                profile.item(Item::Event { task, event });
                if is_large {
                    // The decoder may have ended.
                    let _ = done.try_send(());
                }
            }
        }
    }
    end.recv()
        .unwrap_or_else(|_| Err(io::Error::other("a thread has ended").into()))?;
    profile.finish();
    progress.finish_and_clear();
    Ok(profile)
}

fn is_code(event: &Event) -> bool {
    matches!(
        event,
        Event::KernelCode { .. } | Event::Code { .. } | Event::BuildId { .. }
    )
}

/// Sends `count` branches and the events between them, and those at the end if this is the `whole`
/// trace. After a large event it waits for `taken_large`.
fn decode(
    mut reader: Reader<BufReader<File>>,
    count: u64,
    whole: bool,
    items: &SyncSender<Owned>,
    reusable: &Receiver<Vec<Branch>>,
    taken_large: &Receiver<()>,
) -> Result<(), Error> {
    let mut left = count;
    while left > 0 || whole {
        let owned = match reader.next_item()? {
            None => break,
            Some(Item::Branches { task, branches }) => {
                let size = usize::try_from(left).unwrap_or(usize::MAX);
                let branches = branches.get(..size).unwrap_or(branches);
                left -= branches.len() as u64;
                let mut taken = reusable.try_recv().unwrap_or_default();
                taken.extend_from_slice(branches);
                Owned::Branches(task, taken)
            }
            Some(Item::Event { event, .. }) if is_code(&event) => continue,
            Some(Item::Event { task, event }) => Owned::Event(task, event),
        };
        let is_large = matches!(&owned, Owned::Event(_, event) if event.size() > LARGE);
        if items.send(owned).is_err() || is_large && taken_large.recv().is_err() {
            break;
        }
    }
    Ok(())
}
