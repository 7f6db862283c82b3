//! The streams of tasks, and what their processes share.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use vbts_trace::Event;

use crate::records::{Position, Records};
use crate::sink::Sink;
use crate::task::Task;

/// The position of a stream in the order: the time of its next segment, its task, and its number.
pub(super) type Key = (u64, u32, u64);

/// A part of a stream.
#[derive(Debug)]
pub(super) enum Item {
    Records {
        records: Records,
        /// The first record that was not emitted.
        at: Position,
        maps: Option<Arc<Maps>>,
    },
    Event(Event),
    /// The stream is complete up to this time.
    Drained(u64),
}

/// The mappings of a process.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) version: u64,
    /// [`Event::Maps`].
    pub(super) event: Event,
}

/// An item and the memory that it takes, in bytes.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) item: Item,
    pub(super) bytes: usize,
}

/// The items that a task has sent and the merge has not emitted.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) task: Task,
    /// The ID with which it started, for the order.
    pub(super) first_id: u32,
    pub(super) items: VecDeque<Queued>,
    /// Path of the task's program after all items.
    pub(super) last_name: Vec<u8>,
    /// No later item is older than this.
    pub(super) time: u64,
    pub(super) ended: bool,
}

impl Stream {
    /// Returns the time of the next segment, if its first record is an arrival.
    pub(super) fn first_arrival(&self) -> Option<u64> {
        match &self.items.front()?.item {
            Item::Records { records, at, .. } => records.arrival(*at),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> Key {
        let time = match self.items.front().map(|queued| &queued.item) {
            Some(Item::Records { .. }) => self.first_arrival(),
            Some(Item::Event(event)) => event.time(),
            Some(Item::Drained(time)) => Some(*time),
            None => None,
        };
        let time = time.unwrap_or(0);
        (self.time.max(time), self.first_id, self.task.number)
    }

    /// Emits the first item. Of records, emits only the segments that begin before the stream
    /// `until`. Returns the memory in bytes that is released.
    pub(super) fn emit_first<S: Sink>(
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
                    sink.event(&Task::default(), &maps.event)?;
                }
                let end = match until {
                    Some((time, ..)) => records.segments_before(*at, time),
                    None => records.end(),
                };
                records.give(*at, end, task, sink)?;
                *at = end;
                if end != records.end() {
                    return Ok(0);
                }
            }
            Item::Event(event @ Event::Untraced { .. }) => sink.event(&Task::default(), event)?,
            Item::Event(event) => {
                match event {
                    Event::Exec { id, name, .. } => {
                        (task.id, task.name) = (*id, name.clone());
                        task.thread_name.clear();
                    }
                    Event::ThreadName(name) => task.thread_name.clone_from(name),
                    _ => {}
                }
                sink.event(task, event)?;
            }
            Item::Drained(_) => {}
        }
        let bytes = *bytes;
        self.items.pop_front();
        Ok(bytes)
    }
}

/// A process with live tasks, or with streams whose items were not all emitted.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) streams: usize,
    /// Mappings to which no records refer yet.
    pub(super) pending: Option<Vec<u8>>,
    /// Mappings to which queued records refer.
    pub(super) current: Weak<Maps>,
    /// Version of the last mappings.
    pub(super) version: u64,
    /// Version of the mappings that the sink has received.
    pub(super) shown: u64,
}
