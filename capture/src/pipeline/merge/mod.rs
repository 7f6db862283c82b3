//! Merges the records and events of all tasks into one sequence, in order of time.
//!
//! The agent drains one task at a time: when its buffer is full, when it ends, or in a sweep over
//! all tasks. Records therefore reach the host late, and those of different tasks out of order.
//! Scheduling records from the guest's kernel divide them into *segments*: the branches of a task
//! between its arrival on a processor and its departure. The merge emits segments and events in the
//! order of their times, where the time of a segment is that of the arrival. On one processor this
//! is the order of execution. On several processors segments overlap, and are ordered by their
//! start.
//!
//! # When a segment is emitted
//!
//! A segment can be emitted once no live task can still send an older one. For each task there is a
//! time up to which it is *complete*: everything older has been received. Three things advance it:
//!
//! * The task's own records and events, which arrive in order.
//! * A batch of records that ends with a departure, since the task records nothing until it arrives
//!   again.
//! * [`AgentEvent::Drained`], which the agent sends after each drain. Without it, a task that
//!   executes few branches would hold back all others.
//!
//! For example, two tasks on one processor:
//!
//! ```text
//!  event from the agent           5 complete to  6 complete to  emitted
//!  start of 5 at 100              100                           start of 5
//!  start of 6 at 110              100            110            (5 may have records before 110)
//!  segment of 6 from 120 to 130   100            130            (5 may have records before 110)
//!  5 drained at 119               119            130            start of 6
//!  5 drained at 140               140            130            segment of 6
//! ```
//!
//! Streams with queued items are in the set `ready`, ordered by the time of their first item. Live
//! streams without items are in `waiting`, ordered by the time up to which they are complete. The
//! first stream in `ready` may emit as long as no stream in `waiting` precedes it.
//!
//! # Memory
//!
//! When the queue exceeds its limit, the merge emits the oldest item even though a live task may
//! still send an older one. [`Merge::is_unordered`] reports whether one did.

mod agent_event;
mod stream;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use thiserror::Error;
use vbts_trace::Event;

use crate::records::{Position, Records};
use crate::sink::Sink;
use crate::task::Task;
pub(crate) use agent_event::AgentEvent;
use stream::{Item, Key, Maps, Process, Queued, Stream};

/// Maximum number of live tasks. Linux's default `pid_max` is 32768.
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
pub(crate) struct Merge {
    /// Streams by number. Unlike a task ID, a number is never reused.
    streams: HashMap<u64, Stream>,
    /// The stream of each live task, by task ID.
    live: BTreeMap<u32, u64>,
    /// Processes that have streams, by process ID.
    processes: HashMap<u32, Process>,
    /// Streams with queued items.
    ready: BTreeSet<Key>,
    /// Live streams without queued items.
    waiting: BTreeSet<Key>,
    /// Memory of the queued items and of mappings to which no records refer yet, in bytes.
    bytes: usize,
    limit: usize,
    started: u64,
    next_stream: u64,
    /// Time of the newest item emitted so far.
    newest_emitted: u64,
    unordered: bool,
}

impl Merge {
    /// Creates a merge that holds back at most about `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            streams: HashMap::new(),
            live: BTreeMap::new(),
            processes: HashMap::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            bytes: 0,
            limit,
            started: 0,
            next_stream: 0,
            newest_emitted: 0,
            unordered: false,
        }
    }

    /// Returns the number of tasks that have started, live or not.
    pub(crate) fn tasks(&self) -> u64 {
        self.started
    }

    /// Returns whether an item was emitted after a newer one, or a task sent records from before
    /// the time up to which it was complete.
    pub(crate) fn is_unordered(&self) -> bool {
        self.unordered
    }

    /// Returns how many records the buffers of all live tasks can hold: an upper bound on the loss
    /// if the run ends before they are drained.
    pub(crate) fn capacity(&self) -> u64 {
        let streams = self.live.values().filter_map(|n| self.streams.get(n));
        streams.map(|stream| u64::from(stream.task.capacity)).sum()
    }

    /// Queues an event, then emits every item that no older one can precede any more.
    ///
    /// # Errors
    /// [`MergeError`] if the event contradicts earlier ones or mappings exceed the limit, or the
    /// error of `sink`.
    pub(crate) fn push<S: Sink>(&mut self, event: AgentEvent, sink: &mut S) -> Result<(), S::Error>
    where
        S::Error: From<MergeError>,
    {
        self.enqueue(event)?;
        self.emit(sink, false)?;
        // Over the limit, `emit` leaves nothing in the queue, so the excess is mappings to which no
        // records refer yet.
        if self.bytes > self.limit {
            return Err(MergeError::TooManyMappings.into());
        }
        Ok(())
    }

    /// Emits all queued items.
    ///
    /// # Errors
    /// The error of `sink`.
    pub(crate) fn finish<S: Sink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        self.emit(sink, true)
    }

    fn enqueue(&mut self, event: AgentEvent) -> Result<(), MergeError> {
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
                    number: self.next_stream,
                    parent,
                    process,
                    name: self.name_of(parent),
                    capacity,
                    ..Task::default()
                };
                self.start(task, time)?;
            }
            AgentEvent::Event { task, event } => {
                let number = self.stream_of(task)?;
                match &event {
                    // A thread that executes a program takes over the ID of the thread group
                    // leader, which has ended by then.
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
            AgentEvent::Drained { task, time } => self.queue_drained(self.stream_of(task)?, time),
        }
        Ok(())
    }

    /// Returns the number of the stream of a live task.
    fn stream_of(&self, task: u32) -> Result<u64, MergeError> {
        let number = self.live.get(&task).copied();
        number.ok_or(MergeError::UnknownTask(task))
    }

    /// Returns the program that `task` executes after its queued items, which a new child inherits.
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
        self.next_stream += 1;
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

    /// Queues the last item of a task, which is then no longer live. Its stream remains until that
    /// item is emitted.
    fn end(&mut self, task: u32, number: u64, last: Item, bytes: usize) {
        self.live.remove(&task);
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.ended = true;
        }
        self.queue(number, last, bytes);
    }

    /// Queues the report of a task that was never traced. The report has a stream of its own: in
    /// that of the parent, it would imply that the parent has no older records left to send.
    fn queue_untraced(&mut self, task: u32, event: Event, bytes: usize) {
        let number = self.next_stream;
        self.next_stream += 1;
        let task = Task {
            id: task,
            number,
            // No process has ID 0, so the stream has no mappings.
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
        // The memory limit alone bounds the number of these streams.
        self.queue(number, Item::Event(event), bytes + STREAM_SIZE);
    }

    /// Queues records, together with the mappings of their process that apply to them.
    fn queue_records(&mut self, task: u32, records: Records) -> Result<(), MergeError> {
        let number = self.stream_of(task)?;
        if records.is_empty() {
            return Ok(());
        }
        let (mut bytes, departure) = (records.bytes(), records.departure());
        let id = self.streams.get(&number).map(|stream| stream.task.process);
        let process = id.and_then(|id| Some((id, self.processes.get_mut(&id)?)));
        let maps = process.and_then(|(id, process)| {
            // Without new mappings, these records share those of earlier ones. If no earlier
            // records are queued any more, the sink has already received the mappings.
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
            self.queue_drained(number, time);
        }
        Ok(())
    }

    /// Queues a mark that the stream is complete up to `time`. A mark at the end of the queue is
    /// advanced instead, so that sweeps do not fill the queue of a task that records nothing.
    fn queue_drained(&mut self, number: u64, time: u64) {
        if let Some(stream) = self.streams.get_mut(&number)
            // The key in `ready` contains the time of the first item, which must not change.
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

    /// Emits queued items, oldest first. Stops before an item that a waiting stream may still
    /// precede, unless `flush` is set or the queue exceeds its limit.
    fn emit<S: Sink>(&mut self, sink: &mut S, flush: bool) -> Result<(), S::Error> {
        while let Some(&key) = self.ready.first() {
            let waiting = self.waiting.first().copied();
            if waiting.is_some_and(|other| other < key) && !flush && self.bytes <= self.limit {
                break;
            }
            self.ready.remove(&key);
            self.unordered |= key.0 < self.newest_emitted;
            self.newest_emitted = self.newest_emitted.max(key.0);
            let next = self.ready.first().copied();
            // Further segments of the stream may follow at once, as long as they begin before those
            // of all other streams.
            let until = next.into_iter().chain(waiting.filter(|_| !flush)).min();
            let Some(stream) = self.streams.get_mut(&key.2) else {
                continue;
            };
            self.unordered |= stream.first_arrival().is_some_and(|time| time < key.0);
            stream.time = key.0;
            self.bytes -= stream.emit_first(&mut self.processes, until, sink)?;
            if !stream.items.is_empty() {
                self.ready.insert(stream.key());
            } else if !stream.ended {
                self.waiting.insert(stream.key());
            } else if let Some(stream) = self.streams.remove(&key.2) {
                self.release_process(stream.task.process, sink)?;
            }
        }
        Ok(())
    }

    /// Removes one stream from `process`, and with its last stream the process.
    fn release_process<S: Sink>(&mut self, process: u32, sink: &mut S) -> Result<(), S::Error> {
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
