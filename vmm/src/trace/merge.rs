//! The merge of the streams of several tasks in the order of time.
//!
//! The agent drains one task at a time, so the records of a task arrive when its buffer is full, at
//! its end, or with a sweep over all tasks. Between two scheduling records (arrives, departs) they
//! are a *segment*, whose time is that of its first record. Segments and events are given out in
//! the order of their times. That is the order in which one processor has executed them. Segments
//! of several processors overlap, and are ordered by their beginnings.
//!
//! A segment is given out when no live task can have an older one: each has either sent one that is
//! not older, or is known to be complete up to a later time.

mod agent_event;
mod stream;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use thiserror::Error;
use vbts_trace::Event;

use super::records::{Position, Records};
use super::sink::Sink;
use super::task::Task;
pub use agent_event::AgentEvent;
use stream::{Item, Key, Maps, Process, Queued, Stream};

/// Maximum number of tasks at once. A guest's kernel has 32768 unless it is told otherwise.
const MAX_TASKS: usize = 1 << 16;

/// Memory of a stream of one item beside that item, in bytes: its entries in the maps, and the
/// smallest allocation of its queue, which has room for four items.
const STREAM_SIZE: usize = size_of::<(u64, Stream)>() + size_of::<Key>() + 3 * size_of::<Queued>();

/// A report of the agent that cannot be true.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum MergeError {
    /// A message is about a task that has not started, or has ended.
    #[error("the guest's agent has reported task {0}, which is not traced")]
    UnknownTask(u32),
    /// A task has started that has not ended.
    #[error("the guest's agent has reported the start of task {0} twice")]
    StartedTwice(u32),
    /// There are more tasks than a guest can have.
    #[error("the guest's agent has reported more than {MAX_TASKS} tasks at once")]
    TooManyTasks,
    /// The mappings take too much memory.
    #[error("the guest's agent has reported too many mappings")]
    TooManyMappings,
}

/// Merges the streams of tasks.
#[derive(Debug)]
pub struct Merge {
    streams: HashMap<u64, Stream>,
    /// Numbers of the streams of live tasks.
    live: BTreeMap<u32, u64>,
    processes: HashMap<u32, Process>,
    /// Streams with items.
    ready: BTreeSet<Key>,
    /// Live streams without items.
    waiting: BTreeSet<Key>,
    /// Memory that the items take, in bytes.
    bytes: usize,
    limit: usize,
    /// Number of tasks that have started.
    started: u64,
    /// Number of streams so far.
    numbers: u64,
    last_time: u64,
    unordered: bool,
}

impl Merge {
    /// A merge that keeps at most about `limit` bytes. Beyond that it gives out what it has, even
    /// if older records can follow.
    pub fn new(limit: usize) -> Self {
        Self {
            streams: HashMap::new(),
            live: BTreeMap::new(),
            processes: HashMap::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            bytes: 0,
            limit,
            started: 0,
            numbers: 0,
            last_time: 0,
            unordered: false,
        }
    }

    /// Number of tasks that have started.
    pub fn tasks(&self) -> u64 {
        self.started
    }

    /// Whether something was given out after something younger.
    pub fn is_unordered(&self) -> bool {
        self.unordered
    }

    /// Number of records that the buffers of the live tasks can have.
    pub fn capacity(&self) -> u64 {
        let streams = self.live.values().filter_map(|n| self.streams.get(n));
        streams.map(|stream| u64::from(stream.task.capacity)).sum()
    }

    /// Takes a message of the agent, and gives `sink` everything that is ordered now.
    ///
    /// # Errors
    /// The message makes no sense, or the sink fails.
    pub fn push<S: Sink>(&mut self, event: AgentEvent, sink: &mut S) -> Result<(), S::Error>
    where
        S::Error: From<MergeError>,
    {
        self.take(event)?;
        self.give(sink, false)?;
        // Only mappings to which no records refer are left.
        if self.bytes > self.limit {
            return Err(MergeError::TooManyMappings.into());
        }
        Ok(())
    }

    /// Gives `sink` everything that is left.
    ///
    /// # Errors
    /// The sink fails.
    pub fn finish<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        self.give(sink, true)
    }

    fn take(&mut self, event: AgentEvent) -> Result<(), MergeError> {
        let bytes = event.bytes();
        match event {
            AgentEvent::Start {
                task,
                parent,
                process,
                capacity,
                time,
            } => {
                let task = Task {
                    id: task,
                    number: self.numbers,
                    parent,
                    process,
                    name: self.name_of(parent),
                    capacity,
                    ..Task::default()
                };
                self.start(task, time)?;
            }
            AgentEvent::Event { task, event } => {
                let number = self.number(task)?;
                match &event {
                    Event::Exec { id, name, .. } => {
                        if *id != task {
                            if self.live.contains_key(id) {
                                return Err(MergeError::StartedTwice(*id));
                            }
                            self.live.remove(&task);
                            self.live.insert(*id, number);
                        }
                        if let Some(stream) = self.streams.get_mut(&number) {
                            stream.last_name.clone_from(name);
                        }
                    }
                    Event::End { .. } => {
                        self.end(task, number, Item::Event(event), bytes);
                        return Ok(());
                    }
                    _ => {}
                }
                self.queue(number, Item::Event(event), bytes);
            }
            AgentEvent::Untraced { task, event } => match self.live.get(&task).copied() {
                Some(number) => self.end(task, number, Item::Event(event), bytes),
                None => self.queue_untraced(task, event, bytes),
            },
            AgentEvent::Records { task, records } => self.queue_records(task, records)?,
            AgentEvent::Maps { process, text } => {
                let process = self
                    .processes
                    .get_mut(&process)
                    .ok_or(MergeError::UnknownTask(process))?;
                let replaced = process.pending.replace(text);
                process.version += 1;
                self.bytes += bytes;
                self.bytes -= replaced.map_or(0, |text| text.len());
            }
            AgentEvent::Drained { task, time } => self.drained(self.number(task)?, time),
        }
        Ok(())
    }

    fn number(&self, task: u32) -> Result<u64, MergeError> {
        let number = self.live.get(&task).copied();
        number.ok_or(MergeError::UnknownTask(task))
    }

    fn name_of(&self, task: u32) -> Vec<u8> {
        let number = self.live.get(&task);
        let stream = number.and_then(|number| self.streams.get(number));
        stream.map_or_else(Vec::new, |stream| stream.last_name.clone())
    }

    fn start(&mut self, task: Task, time: u64) -> Result<(), MergeError> {
        if self.live.contains_key(&task.id) {
            return Err(MergeError::StartedTwice(task.id));
        }
        if self.live.len() >= MAX_TASKS {
            return Err(MergeError::TooManyTasks);
        }
        let number = task.number;
        let start = Event::Start {
            id: task.id,
            parent: task.parent,
            process: task.process,
            time,
        };
        self.started += 1;
        self.numbers += 1;
        self.live.insert(task.id, number);
        self.processes.entry(task.process).or_default().streams += 1;
        let stream = Stream {
            first_id: task.id,
            items: VecDeque::new(),
            last_name: task.name.clone(),
            time,
            ended: false,
            task,
        };
        self.waiting.insert(stream.key());
        self.streams.insert(number, stream);
        self.queue(number, Item::Event(start), 0);
        Ok(())
    }

    /// Queues the last item of a task.
    fn end(&mut self, task: u32, number: u64, last: Item, bytes: usize) {
        self.live.remove(&task);
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.ended = true;
        }
        self.queue(number, last, bytes);
    }

    /// Queues the report of a task that was never traced, in a stream of its own: records of its
    /// parent that are older may follow.
    fn queue_untraced(&mut self, task: u32, event: Event, bytes: usize) {
        let number = self.numbers;
        self.numbers += 1;
        let task = Task {
            id: task,
            number,
            // It has no mappings, and no process has the ID 0.
            ..Task::default()
        };
        let stream = Stream {
            first_id: task.id,
            items: VecDeque::new(),
            last_name: Vec::new(),
            time: event.time().unwrap_or(0),
            ended: true,
            task,
        };
        self.streams.insert(number, stream);
        // Nothing else bounds their number.
        self.queue(number, Item::Event(event), bytes + STREAM_SIZE);
    }

    fn queue_records(&mut self, task: u32, records: Records) -> Result<(), MergeError> {
        let number = self.number(task)?;
        if records.is_empty() {
            return Ok(());
        }
        let (mut bytes, departure) = (records.bytes(), records.departure());
        let id = self.streams.get(&number).map(|stream| stream.task.process);
        let process = id.and_then(|id| Some((id, self.processes.get_mut(&id)?)));
        let maps = process.and_then(|(id, process)| {
            let Some(text) = process.pending.take() else {
                return process.current.upgrade();
            };
            bytes += text.len();
            self.bytes -= text.len();
            let maps = Arc::new(Maps {
                version: process.version,
                event: Event::Maps { process: id, text },
            });
            process.current = Arc::downgrade(&maps);
            Some(maps)
        });
        let at = Position::default();
        self.queue(number, Item::Records { records, at, maps }, bytes);
        if let Some(time) = departure {
            self.drained(number, time);
        }
        Ok(())
    }

    fn drained(&mut self, number: u64, time: u64) {
        if let Some(stream) = self.streams.get_mut(&number)
            // The key in `ready` has the time of the first item, which must not change.
            && stream.items.len() > 1
            && let Some(Queued {
                item: Item::Drained(last),
                ..
            }) = stream.items.back_mut()
        {
            *last = time.max(*last);
        } else {
            self.queue(number, Item::Drained(time), 0);
        }
    }

    fn queue(&mut self, number: u64, item: Item, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let bytes = bytes + size_of::<Queued>();
        self.bytes += bytes;
        let was_empty = stream.items.is_empty();
        let before = stream.key();
        stream.items.push_back(Queued { item, bytes });
        if was_empty {
            self.waiting.remove(&before);
            self.ready.insert(stream.key());
        }
    }

    /// Gives out the items at the front of the order; `all` of them, or those that no older ones
    /// can precede.
    fn give<S: Sink>(&mut self, sink: &mut S, all: bool) -> Result<(), S::Error> {
        while let Some(&key) = self.ready.first() {
            let waiting = self.waiting.first().copied();
            if waiting.is_some_and(|other| other < key) && !all && self.bytes <= self.limit {
                break;
            }
            self.ready.remove(&key);
            self.unordered |= key.0 < self.last_time;
            self.last_time = self.last_time.max(key.0);
            let next = self.ready.first().copied();
            // Up to here the stream can go on without a look at the others.
            let until = next.into_iter().chain(waiting.filter(|_| !all)).min();
            let Some(stream) = self.streams.get_mut(&key.2) else {
                continue;
            };
            self.unordered |= stream.first_arrival().is_some_and(|time| time < key.0);
            stream.time = key.0;
            self.bytes -= stream.give_first(&mut self.processes, until, sink)?;
            if !stream.items.is_empty() {
                self.ready.insert(stream.key());
            } else if !stream.ended {
                self.waiting.insert(stream.key());
            } else if let Some(stream) = self.streams.remove(&key.2) {
                self.leave(stream.task.process, sink)?;
            }
        }
        Ok(())
    }

    /// Removes a stream of `process`.
    fn leave<S: Sink>(&mut self, process: u32, sink: &mut S) -> Result<(), S::Error> {
        let Some(entry) = self.processes.get_mut(&process) else {
            return Ok(());
        };
        entry.streams -= 1;
        if entry.streams == 0 {
            self.bytes -= entry.pending.take().map_or(0, |text| text.len());
            self.processes.remove(&process);
            sink.event(&Task::default(), &Event::ProcessEnd { process })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
