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

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use thiserror::Error;
use vbts_protocol::{Crash, ExitStatus, RECORD_SIZE};

use super::format::{ARRIVES, DEPARTS};
use super::task::{Recent, Task, TaskEvent, Untraced};

/// Maximum number of tasks at once. A guest's kernel has 32768 unless it is told otherwise.
const MAX_TASKS: usize = 1 << 16;

/// A message of the agent about a task, or about a process (its mappings).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A task is traced from here on.
    Start {
        /// The task.
        task: u32,
        /// The task that has started it.
        parent: u32,
        /// Its process.
        process: u32,
        /// Number of records that its buffers can have.
        capacity: u32,
        /// When.
        time: u64,
    },
    /// A task executes a program.
    Exec {
        /// The task.
        task: u32,
        /// Its ID before.
        former: u32,
        /// When.
        time: u64,
        /// Path of the program.
        name: Vec<u8>,
    },
    /// A task has ended.
    End {
        /// The task.
        task: u32,
        /// When.
        time: u64,
        /// How.
        status: ExitStatus,
    },
    /// A task is not traced, or not any more.
    Untraced(Untraced),
    /// Records of a task as the guest's kernel writes them.
    Records {
        /// The task.
        task: u32,
        /// The records.
        records: Vec<u8>,
    },
    /// The mappings of a process, valid for the records of its tasks that follow.
    Maps {
        /// The process.
        process: u32,
        /// The text of `/proc/PID/maps`.
        text: Vec<u8>,
    },
    /// All records of a task before a time have arrived.
    Drained {
        /// The task.
        task: u32,
        /// The time.
        time: u64,
    },
    /// At least this many records of a task are missing.
    Lost {
        /// The task.
        task: u32,
        /// The number of records.
        records: u64,
    },
    /// A signal kills a task for what its instruction did.
    Crash(Box<Crash>),
    /// Where a task stands at the end of the run.
    Standing {
        /// The task.
        task: u32,
        /// The line of `/proc/TID/syscall`.
        syscall: String,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
}

impl Input {
    /// The time at which the agent has sent it, if it says so.
    pub fn sent_at(&self) -> Option<u64> {
        match self {
            Self::Exec { time, .. } | Self::End { time, .. } => Some(*time),
            _ => None,
        }
    }

    /// The memory that it takes in addition to itself, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Records { records: bytes, .. }
            | Self::Maps { text: bytes, .. }
            | Self::Exec { name: bytes, .. } => bytes.len(),
            Self::Untraced(Untraced { name, reason, .. })
            | Self::Standing {
                name,
                syscall: reason,
                ..
            } => name.len() + reason.len(),
            Self::Crash(crash) => size_of_val(&**crash) + crash.instruction.len(),
            Self::Start { .. } | Self::End { .. } | Self::Drained { .. } | Self::Lost { .. } => 0,
        }
    }
}

/// What the agent cannot truly have reported.
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

/// Takes what the merge gives out.
pub trait Sink {
    /// Why it cannot take more.
    type Error: From<MergeError>;

    /// Takes records of `task`, oldest first.
    ///
    /// # Errors
    /// No more can be taken.
    fn records(&mut self, task: &mut Task, records: &[u8]) -> Result<(), Self::Error>;

    /// Takes an event of `task`.
    ///
    /// # Errors
    /// No more can be taken.
    fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), Self::Error>;

    /// Takes a task that is not traced.
    ///
    /// # Errors
    /// No more can be taken.
    fn untraced(&mut self, untraced: &Untraced) -> Result<(), Self::Error>;

    /// Takes the mappings of `process`, valid for the records that follow.
    fn maps(&mut self, process: u32, text: &[u8]);

    /// Takes the end of the last task of `process`.
    fn process_ended(&mut self, process: u32);
}

/// The position of a stream in the order: the time of its next segment, its task, and its number.
type Key = (u64, u32, u64);

/// A part of a stream.
#[derive(Debug)]
enum Item {
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
struct Maps {
    version: u64,
    text: Vec<u8>,
}

/// An item and the memory that it takes, in bytes.
#[derive(Debug)]
struct Queued {
    item: Item,
    bytes: usize,
}

/// What a task has sent and the merge has not given out.
#[derive(Debug)]
struct Stream {
    task: Task,
    /// The ID with which it started, for the order.
    first_id: u32,
    items: VecDeque<Queued>,
    /// Its path of the program after all items.
    last_name: Vec<u8>,
    /// No item is older.
    time: u64,
    ended: bool,
}

impl Stream {
    /// The time of the next segment, if a record says so.
    fn first_arrival(&self) -> Option<u64> {
        match &self.items.front()?.item {
            Item::Records { records, at, .. } => arrival(records, *at),
            _ => None,
        }
    }

    fn key(&self) -> Key {
        let time = match self.items.front().map(|queued| &queued.item) {
            Some(Item::Records { .. }) => self.first_arrival().unwrap_or(0),
            Some(Item::Event(TaskEvent::Start { time } | TaskEvent::End { time, .. })) => *time,
            Some(Item::Exec { time, .. } | Item::Drained(time)) => *time,
            Some(Item::Untraced(untraced)) => untraced.time,
            Some(Item::Event(_)) | None => 0,
        };
        (self.time.max(time), self.first_id, self.task.number)
    }
}

/// A process with live tasks, or with streams that are not given out.
#[derive(Debug, Default)]
struct Process {
    streams: usize,
    /// Mappings to which no records refer yet.
    pending: Option<Vec<u8>>,
    /// Mappings to which queued records refer.
    current: Weak<Maps>,
    /// Version of the last mappings.
    version: u64,
    /// Version of the mappings that were given out.
    shown: u64,
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
    pub fn push<S: Sink>(&mut self, input: Input, sink: &mut S) -> Result<(), S::Error> {
        self.take(input)?;
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

    fn take(&mut self, input: Input) -> Result<(), MergeError> {
        let bytes = input.bytes();
        match input {
            Input::Start {
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
                    recent: Recent::default(),
                };
                self.start(task, time)?;
            }
            Input::Exec {
                task,
                former,
                time,
                name,
            } => {
                let number = self.number(former)?;
                if task != former {
                    if self.live.contains_key(&task) {
                        return Err(MergeError::StartedTwice(task));
                    }
                    self.live.remove(&former);
                    self.live.insert(task, number);
                }
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.last_name.clone_from(&name);
                }
                let id = task;
                self.queue(number, Item::Exec { id, time, name }, bytes);
            }
            Input::End { task, time, status } => {
                let number = self.number(task)?;
                let event = TaskEvent::End { time, status };
                self.end(task, number, Item::Event(event), bytes);
            }
            Input::Untraced(untraced) => {
                let task = untraced.task;
                match self.live.get(&task).copied() {
                    Some(number) => self.end(task, number, Item::Untraced(untraced), bytes),
                    None => self.queue_untraced(untraced, bytes),
                }
            }
            Input::Records { task, records } => self.queue_records(task, records)?,
            Input::Maps { process, text } => {
                let process = self
                    .processes
                    .get_mut(&process)
                    .ok_or(MergeError::UnknownTask(process))?;
                let replaced = process.pending.replace(text);
                process.version += 1;
                self.bytes += bytes;
                self.bytes -= replaced.map_or(0, |text| text.len());
            }
            Input::Drained { task, time } => self.drained(self.number(task)?, time),
            Input::Lost { task, records } => {
                let number = self.number(task)?;
                self.queue(number, Item::Event(TaskEvent::Lost(records)), bytes);
            }
            Input::Crash(crash) => {
                let number = self.number(crash.task)?;
                self.queue(number, Item::Event(TaskEvent::Crash(crash)), bytes);
            }
            Input::Standing {
                task,
                syscall,
                name,
            } => {
                let number = self.number(task)?;
                let event = TaskEvent::Standing { syscall, name };
                self.queue(number, Item::Event(event), bytes);
            }
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
        self.queue(number, Item::Event(TaskEvent::Start { time }), 0);
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
    fn queue_untraced(&mut self, untraced: Untraced, bytes: usize) {
        let number = self.numbers;
        self.numbers += 1;
        let task = Task {
            id: untraced.task,
            number,
            parent: untraced.parent,
            // It has no mappings, and no process has this ID.
            process: 0,
            name: Vec::new(),
            capacity: 0,
            recent: Recent::default(),
        };
        let stream = Stream {
            first_id: task.id,
            items: VecDeque::new(),
            last_name: Vec::new(),
            time: untraced.time,
            ended: true,
            task,
        };
        self.streams.insert(number, stream);
        self.queue(number, Item::Untraced(untraced), bytes);
    }

    fn queue_records(&mut self, task: u32, records: Vec<u8>) -> Result<(), MergeError> {
        let number = self.number(task)?;
        if records.is_empty() {
            return Ok(());
        }
        let (mut bytes, departure) = (records.len(), departure(&records));
        let process = self.streams.get(&number).map(|stream| stream.task.process);
        let process = process.and_then(|process| self.processes.get_mut(&process));
        let maps = process.and_then(|process| {
            let Some(text) = process.pending.take() else {
                return process.current.upgrade();
            };
            bytes += text.len();
            self.bytes -= text.len();
            let version = process.version;
            let maps = Arc::new(Maps { version, text });
            process.current = Arc::downgrade(&maps);
            Some(maps)
        });
        let at = 0;
        self.queue(number, Item::Records { records, at, maps }, bytes);
        if let Some(time) = departure {
            self.drained(number, time);
        }
        Ok(())
    }

    fn drained(&mut self, number: u64, time: u64) {
        let last = self
            .streams
            .get_mut(&number)
            .map(|stream| &mut stream.items);
        match last.and_then(VecDeque::back_mut) {
            Some(Queued {
                item: Item::Drained(last),
                ..
            }) => *last = time.max(*last),
            _ => self.queue(number, Item::Drained(time), 0),
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
            self.bytes -= give_first(stream, &mut self.processes, until, sink)?;
            if !stream.items.is_empty() {
                self.ready.insert(stream.key());
            } else if !stream.ended {
                self.waiting.insert(stream.key());
            } else if let Some(stream) = self.streams.remove(&key.2) {
                self.leave(stream.task.process, sink);
            }
        }
        Ok(())
    }

    /// Removes a stream of `process`.
    fn leave<S: Sink>(&mut self, process: u32, sink: &mut S) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        entry.streams -= 1;
        if entry.streams == 0 {
            self.bytes -= entry.pending.take().map_or(0, |text| text.len());
            self.processes.remove(&process);
            sink.process_ended(process);
        }
    }
}

/// Gives out the first item of a stream: of records, those before the stream `until`. Returns the
/// memory in bytes that is free now.
fn give_first<S: Sink>(
    stream: &mut Stream,
    processes: &mut HashMap<u32, Process>,
    until: Option<Key>,
    sink: &mut S,
) -> Result<usize, S::Error> {
    let task = &mut stream.task;
    let Some(Queued { item, bytes }) = stream.items.front_mut() else {
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
    stream.items.pop_front();
    Ok(bytes)
}

fn words(records: &[u8]) -> &[[u8; RECORD_SIZE]] {
    records.as_chunks().0
}

/// The time of a scheduling record of kind `qualifier`.
fn time_of(record: &[u8; RECORD_SIZE], qualifier: u64) -> Option<u64> {
    let [kind, time, _] = record.as_chunks::<8>().0 else {
        return None;
    };
    (*kind == qualifier.to_le_bytes()).then(|| u64::from_le_bytes(*time))
}

/// The time of the segment that begins at byte `at`, if a record says so.
fn arrival(records: &[u8], at: usize) -> Option<u64> {
    let first = words(records.get(at..)?).first()?;
    time_of(first, ARRIVES)
}

/// The time up to which a stream is complete after `records`, if the last one says so.
fn departure(records: &[u8]) -> Option<u64> {
    time_of(words(records).last()?, DEPARTS)
}

/// Length in bytes of the first segment, and of the segments after it that begin before `time`.
fn segments_before(records: &[u8], time: u64) -> usize {
    let later = words(records)
        .iter()
        .skip(1)
        .position(|record| time_of(record, ARRIVES).is_some_and(|arrival| arrival >= time));
    later.map_or(records.len(), |at| (at + 1) * RECORD_SIZE)
}

#[cfg(test)]
mod tests;
