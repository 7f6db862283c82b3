//! Extracts a part of a kept trace into a trace of its own, equal to the one that `vbts trace`
//! would have kept with the same filters.

use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;
use vbts_protocol::Scope;
use vbts_trace::{Event, Item, Passed, Reader};

use super::replay::{Only, Replay};
use crate::filter::{FilterNote, Filters};
use crate::format::Btrace;
use crate::output::Destination;
use crate::pipeline::Options;
use crate::pipeline::TracePipeline;
use crate::pipeline::queue::WriterError;
use crate::pipeline::snapshot::TaskSnapshot;
use crate::sink::Sink as _;
use crate::summary::{RunEnd, Summary};
use crate::task::Task;
use vbts_symbols::Symbolizer;

/// Why there is no part.
#[derive(Debug, Error)]
pub enum ExtractError {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] vbts_trace::Error),
    /// The part cannot be written.
    #[error("cannot keep the part of the trace to show: {0}")]
    Write(#[from] WriterError),
    /// The host is out of file descriptors.
    #[error("cannot write a temporary file: {0}")]
    Destination(#[from] std::io::Error),
}

/// The branches that `text` names as the scope of a run.
pub fn scope(text: &str) -> Scope {
    match text {
        "user" => Scope::User,
        "kernel" => Scope::Kernel,
        _ => Scope::All,
    }
}

/// Writes those of branches `range` of a trace that `filters` select to the file `to`, with the
/// events between them. `symbols` resolves the names in the filters. Returns notes for the user.
///
/// # Errors
/// See [`ExtractError`].
pub fn write<R: Read + Seek>(
    reader: &mut Reader<R>,
    range: Range<u64>,
    mut filters: Filters,
    symbols: Symbolizer,
    to: &File,
) -> Result<Vec<FilterNote>, ExtractError> {
    let records = reader.records();
    let mut start = range.start;
    if !filters.choose()
        && let Some(last) = filters.last.take()
    {
        // Nothing before them needs to be decoded.
        start = start.max(range.end.saturating_sub(last));
    }
    let run = reader.run().clone();
    let options = Options {
        scope: scope(&run.scope),
        // Its addresses are those of a trace.
        is_32_bit: false,
        reports: false,
        format: Box::new(Btrace::new(&run)?),
        symbols,
        filters,
        destination: Destination::file(to)?,
        merge_limit: 0,
    };
    let mut part = TracePipeline::new(options, Arc::default())?;
    part.streams = run.streams;
    let mut replay = Replay::new(run.streams);
    let mut known = (start > 0).then(TaskSnapshot::default);
    // Events with code that is in no file, which are at the end of a process.
    let mut code_read = 0_u64;
    if let Some(known) = &mut known {
        reader.pass(start, |number, passed| match passed {
            Passed::Branches(count) => known.left_out(number, count),
            Passed::Event(event) => {
                code_read += u64::from(is_code(&event));
                known.event(number, event);
            }
        })?;
    }
    reader.seek(start)?;
    let whole = range.end == records;
    let mut left = range.end.saturating_sub(start);
    while left > 0 || whole {
        let item = match reader.next_item()? {
            None => break,
            Some(Item::Branches { task, branches }) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX);
                let branches = branches.get(..count).unwrap_or(branches);
                left -= branches.len() as u64;
                Item::Branches { task, branches }
            }
            Some(Item::Event { task, event }) => {
                code_read += u64::from(is_code(&event));
                match &mut known {
                    Some(known) => {
                        known.event(task, event);
                        continue;
                    }
                    None => Item::Event { task, event },
                }
            }
        };
        give_known(known.take(), &mut replay, &mut part)?;
        replay.give(item, Only::default(), &mut part)?;
    }
    give_known(known, &mut replay, &mut part)?;
    if !whole {
        let mut changes = Vec::new();
        let mut given = Ok(());
        reader.events_before(u64::MAX, |_, event| match event {
            event @ (Event::KernelCode { .. } | Event::KernelFile { .. }) => changes.push(event),
            event if is_code(&event) && code_read > 0 => code_read -= 1,
            event if is_code(&event) && given.is_ok() => {
                given = part.event(&Task::default(), &event);
            }
            _ => {}
        })?;
        given?;
        changes
            .iter()
            .try_for_each(|change| part.event(&Task::default(), change))?;
    }
    let kept = part.summary().records;
    let outside = records - range.end.saturating_sub(start).min(records);
    let summary = match reader.summary() {
        Some(summary) => {
            let read = replay.summary(summary).map_err(WriterError::from)?;
            Summary {
                records: kept,
                filtered: Some(read.filtered.unwrap_or(0) + outside),
                ..read
            }
        }
        None => Summary {
            filtered: Some(outside),
            end: RunEnd::Error,
            ..part.summary().clone()
        },
    };
    *part.summary() = summary;
    let (summary, error) = part.end()?;
    error.map_or(Ok(()), Err)?;
    let Summary {
        mut filter_notes,
        unnamed,
        ..
    } = summary;
    if !unnamed.is_empty() {
        filter_notes.push(FilterNote {
            text: format!("names are missing of {unnamed}"),
            is_error: false,
        });
    }
    Ok(filter_notes)
}

fn is_code(event: &Event) -> bool {
    matches!(event, Event::Code { .. } | Event::BuildId { .. })
}

/// Passes the events that describe the tasks at the first branch to `part`.
fn give_known(
    known: Option<TaskSnapshot>,
    replay: &mut Replay,
    part: &mut TracePipeline,
) -> Result<(), WriterError> {
    let events = known.unwrap_or_default().into_events();
    events.into_iter().try_for_each(|(task, event)| {
        replay.give(Item::Event { task, event }, Only::default(), part)
    })
}
