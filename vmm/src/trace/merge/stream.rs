//! The streams of tasks, and what their processes share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::Sink;
use super::segments::{arrival, segments_before};
use crate::trace::task::{Task, TaskEvent, Untraced};

/// The position of a stream in the order: the time of its next segment, its task, and its number.
pub(super) type Key = (u64, u32, u64);

/// A part of a stream.
#[derive(Debug)]
pub(super) enum Item {
    Records {
        records: Vec<u8>,
        /// Bytes that were given out.
        at: usize,
        maps: Option<Arc<Maps>>,
    },
    Event(TaskEvent),
    Exec {
        id: u32,
        time: u64,
        name: Vec<u8>,
    },
    Untraced(Untraced),
    /// The stream is complete up to this time.
    Drained(u64),
}

/// The mappings of a process.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) version: u64,
    pub(super) text: Vec<u8>,
}

/// An item and the memory that it takes, in bytes.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) item: Item,
    pub(super) bytes: usize,
}

/// What a task has sent and the merge has not given out.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) task: Task,
    /// The ID with which it started, for the order.
    pub(super) first_id: u32,
    pub(super) items: VecDeque<Queued>,
    /// Its path of the program after all items.
    pub(super) last_name: Vec<u8>,
    /// No item is older.
    pub(super) time: u64,
    pub(super) ended: bool,
}

impl Stream {
    /// The time of the next segment, if a record says so.
    pub(super) fn first_arrival(&self) -> Option<u64> {
        match &self.items.front()?.item {
            Item::Records { records, at, .. } => arrival(records, *at),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> Key {
        let time = match self.items.front().map(|queued| &queued.item) {
            Some(Item::Records { .. }) => self.first_arrival().unwrap_or(0),
            Some(Item::Event(
                TaskEvent::Start { time }
                | TaskEvent::Signal { time, .. }
                | TaskEvent::End { time, .. },
            )) => *time,
            Some(Item::Exec { time, .. } | Item::Drained(time)) => *time,
            Some(Item::Untraced(untraced)) => untraced.time,
            Some(Item::Event(_)) | None => 0,
        };
        (self.time.max(time), self.first_id, self.task.number)
    }

    /// Gives out the first item: of records, those before the stream `until`. Returns the memory in
    /// bytes that is free now.
    pub(super) fn give_first<S: Sink>(
        &mut self,
        processes: &mut HashMap<u32, Process>,
        until: Option<Key>,
        sink: &mut S,
    ) -> Result<usize, S::Error> {
        let task = &mut self.task;
        let Some(Queued { item, bytes }) = self.items.front_mut() else {
            return Ok(0);
        };
        match item {
            Item::Records { records, at, maps } => {
                let process = processes.get_mut(&task.process);
                if let (Some(process), Some(maps)) = (process, maps)
                    && process.shown < maps.version
                {
                    process.shown = maps.version;
                    sink.maps(task.process, &maps.text);
                }
                let rest = records.get(*at..).unwrap_or_default();
                let end = match until {
                    Some((time, ..)) => segments_before(rest, time),
                    None => rest.len(),
                };
                sink.records(task, rest.get(..end).unwrap_or_default())?;
                *at += end;
                if *at < records.len() {
                    return Ok(0);
                }
            }
            Item::Event(event) => sink.event(task, event)?,
            Item::Exec { id, time, name } => {
                let (time, former) = (*time, std::mem::replace(&mut task.id, *id));
                task.name = std::mem::take(name);
                sink.event(task, &TaskEvent::Exec { time, former })?;
            }
            Item::Untraced(untraced) => sink.untraced(untraced)?,
            Item::Drained(_) => {}
        }
        let bytes = *bytes;
        self.items.pop_front();
        Ok(bytes)
    }
}

/// A process with live tasks, or with streams that are not given out.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) streams: usize,
    /// Mappings to which no records refer yet.
    pub(super) pending: Option<Vec<u8>>,
    /// Mappings to which queued records refer.
    pub(super) current: Weak<Maps>,
    /// Version of the last mappings.
    pub(super) version: u64,
    /// Version of the mappings that were given out.
    pub(super) shown: u64,
}
