//! Gives a trace that was kept to what takes one.

use std::collections::HashMap;

use thiserror::Error;
use vbts_protocol::{Crash, ExitStatus};
use vbts_trace::{Event, Item, Status, Streams};

use super::format::{ARRIVES, DEPARTS, FILTERED, record};
use super::kernel_code::CodeChange;
use super::merge::Sink;
use super::summary::{RunEnd, Summary};
use super::task::{ProcessorEvent, Recent, Task, TaskEvent, Untraced};
use crate::escape::printable;

/// Number of tasks that can live at once.
const MAX_TASKS: usize = 1 << 16;
/// Bytes of the mappings of all processes that live at once.
const MAX_MAPS: usize = 256 << 20;

/// Number of processors that a machine can have.
const MAX_PROCESSORS: u64 = 1 << 16;

/// What no trace of a guest has.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The end of a run that this program does not know.
    #[error("the trace ends with \"{}\", which this vbts does not know", printable(.0.as_bytes()))]
    UnknownEnd(String),
    /// There are more tasks than a guest can have.
    #[error("the trace has more than {MAX_TASKS} tasks at once")]
    TooManyTasks,
    /// There are more processors than a machine can have.
    #[error("the trace has a processor {0}, and no machine has so many")]
    TooManyProcessors(u64),
    /// The mappings take too much memory.
    #[error("the trace has more than {} MiB of mappings at once", MAX_MAPS >> 20)]
    TooManyMaps,
}

/// Gives what a file has to a [`Sink`].
#[derive(Debug, Default)]
pub struct Replay {
    tasks: HashMap<u64, Task>,
    /// Numbers of the live tasks, by thread ID.
    live: HashMap<u32, u64>,
    /// The tasks that were not traced.
    untraced: Summary,
    /// Bytes of the mappings of each process, and of all.
    maps: HashMap<u32, usize>,
    maps_bytes: usize,
    /// Records in the format of the guest's kernel.
    records: Vec<u8>,
    /// The streams are processors.
    processors: Option<HashMap<u64, Executed>>,
}

/// What is known about a processor.
#[derive(Debug, Default)]
struct Executed {
    /// Thread ID of the task that it executes.
    task: Option<u32>,
    /// The last [`ProcessorEvent::AddressSpace`] and [`ProcessorEvent::Switch`], if they were not
    /// shown.
    unseen: [Option<ProcessorEvent>; 2],
}

/// What is shown of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Only {
    /// What is about the task with this thread ID. In the trace of a machine, what its processors
    /// do while they execute that task.
    pub task: Option<u32>,
    /// What is about this processor, in the trace of a machine.
    pub processor: Option<u32>,
}

impl Replay {
    /// What replays a trace with such streams.
    pub fn new(streams: Streams) -> Self {
        Self {
            processors: (streams == Streams::Processors).then(HashMap::new),
            ..Self::default()
        }
    }

    /// The summary, from that of the file.
    ///
    /// # Errors
    /// The file names an end that this program does not know.
    pub fn summary(&self, read: &vbts_trace::Summary) -> Result<Summary, ReplayError> {
        let end = match (read.end.as_str(), read.exit, read.signal) {
            ("exited", Some(code), _) => RunEnd::Program(ExitStatus::Code(code)),
            ("signal", _, Some(signal)) => RunEnd::Program(ExitStatus::Signal(signal)),
            ("timeout", ..) => RunEnd::Timeout,
            ("interrupted", ..) => RunEnd::Interrupted,
            ("panic", ..) => RunEnd::Panic,
            ("error", ..) => RunEnd::Error,
            _ => return Err(ReplayError::UnknownEnd(read.end.clone())),
        };
        Ok(Summary {
            records: read.records,
            lost: read.lost,
            lost_more: read.lost_more,
            filtered: read.filtered,
            undrained: read.undrained,
            tasks: read.tasks,
            unordered: read.unordered,
            end,
            ..self.untraced.clone()
        })
    }

    /// Takes an event. `sink` gets nothing of it but the mappings.
    ///
    /// # Errors
    /// No guest has so many tasks or mappings.
    pub fn skip<S: Sink>(&mut self, task: u64, event: Event, sink: &mut S) -> Result<(), S::Error>
    where
        S::Error: From<ReplayError>,
    {
        let is_end = matches!(event, Event::End { .. });
        if let Shown::Processor(event) = self.apply(task, event, sink)? {
            self.keep(task, event);
        }
        if is_end {
            self.end(task);
        }
        Ok(())
    }

    /// Why not all branches can be shown as those of one task.
    pub fn several(&self) -> &'static str {
        match self.processors {
            None => {
                "the trace has several tasks, and raw records are those of one: --task selects it"
            }
            Some(_) => {
                "the trace has several processors, and raw records are those of one: --processor \
                 selects it"
            }
        }
    }

    /// Makes a task that stands for processor `number`, if the streams are processors.
    fn add_processor(&mut self, number: u64) -> Result<(), ReplayError> {
        if self.processors.is_none() || self.tasks.contains_key(&number) {
            return Ok(());
        }
        if number >= MAX_PROCESSORS {
            return Err(ReplayError::TooManyProcessors(number));
        }
        let task = Task {
            id: number as u32,
            number,
            parent: 0,
            process: 0,
            name: Vec::new(),
            capacity: 0,
            recent: Recent::default(),
        };
        self.tasks.insert(number, task);
        Ok(())
    }

    /// Keeps an event of processor `number` until the next of its branches is shown.
    fn keep(&mut self, number: u64, event: ProcessorEvent) {
        let at = match event {
            ProcessorEvent::AddressSpace { .. } => 0,
            ProcessorEvent::Switch { .. } => 1,
            ProcessorEvent::Gap { .. } => return,
        };
        if let Some(processors) = &mut self.processors {
            processors.entry(number).or_default().unseen[at] = Some(event);
        }
    }

    /// Gives `sink` the events of processor `number` that were kept.
    fn give_kept<S: Sink>(&mut self, number: u64, sink: &mut S) -> Result<(), S::Error> {
        let processors = self.processors.as_mut();
        let executed = processors.and_then(|all| all.get_mut(&number));
        let (Some(executed), Some(task)) = (executed, self.tasks.get(&number)) else {
            return Ok(());
        };
        let mut kept = executed.unseen.iter_mut().filter_map(Option::take);
        kept.try_for_each(|event| sink.processor(task, &event))
    }

    /// Whether `task`, which may stand for a processor, is one of `only`.
    fn has(&self, only: Only, task: &Task) -> bool {
        let is = |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
        match &self.processors {
            None => is(only.task, Some(task.id)),
            Some(executed) => {
                is(only.processor, Some(task.id))
                    && is(only.task, executed.get(&task.number).and_then(|it| it.task))
            }
        }
    }

    /// Gives `sink` an item, if it is one of `only`.
    ///
    /// # Errors
    /// No guest has so many tasks or mappings, or `sink` takes no more.
    pub fn give<S: Sink>(
        &mut self,
        item: Item<'_>,
        only: Only,
        sink: &mut S,
    ) -> Result<(), S::Error>
    where
        S::Error: From<ReplayError>,
    {
        self.records.clear();
        let (Item::Branches { task: number, .. } | Item::Event { task: number, .. }) = item;
        self.add_processor(number)?;
        match item {
            Item::Branches { branches, .. } => {
                for branch in branches {
                    self.push_record([branch.from, branch.to, 0]);
                }
            }
            Item::Event { event, .. } => match self.apply(number, event, sink)? {
                Shown::Record(words) => self.push_record(words),
                Shown::Event(event) => {
                    let shown = self.tasks.get(&number);
                    if let Some(task) = shown.filter(|task| self.has(only, task)) {
                        sink.event(task, &event)?;
                    }
                    if matches!(event, TaskEvent::End { .. }) {
                        self.end(number);
                    }
                    return Ok(());
                }
                Shown::Processor(event) => {
                    let task = self.tasks.get(&number);
                    let is_shown = task.is_some_and(|task| self.has(only, task));
                    self.keep(number, event.clone());
                    if is_shown {
                        self.give_kept(number, sink)?;
                        if let (ProcessorEvent::Gap { .. }, Some(task)) =
                            (&event, self.tasks.get(&number))
                        {
                            sink.processor(task, &event)?;
                        }
                    }
                    return Ok(());
                }
                Shown::Untraced(untraced) if only.task.is_none() => {
                    return sink.untraced(&untraced);
                }
                Shown::Code(event) => return sink.code(&event),
                Shown::KernelCode(change) => return sink.kernel_code(vec![change]),
                Shown::Untraced(_) | Shown::Nothing => return Ok(()),
            },
        }
        let task = self.tasks.get(&number);
        if task.is_some_and(|task| self.has(only, task)) {
            self.give_kept(number, sink)?;
            if let Some(task) = self.tasks.get_mut(&number) {
                sink.records(task, &self.records)?;
            }
        }
        Ok(())
    }

    fn push_record(&mut self, words: [u64; 3]) {
        self.records.extend_from_slice(&record(words));
    }

    /// Changes what is known about tasks and mappings. Returns what there is to show.
    fn apply<S: Sink>(&mut self, number: u64, event: Event, sink: &mut S) -> Result<Shown, S::Error>
    where
        S::Error: From<ReplayError>,
    {
        Ok(match event {
            Event::Start {
                id,
                parent,
                process,
                time,
            } => {
                if self.tasks.len() >= MAX_TASKS {
                    return Err(ReplayError::TooManyTasks.into());
                }
                let from = self.live.get(&parent).and_then(|from| self.tasks.get(from));
                let task = Task {
                    id,
                    number,
                    parent,
                    process,
                    name: from.map_or_else(Vec::new, |from| from.name.clone()),
                    capacity: 0,
                    recent: Recent::default(),
                };
                self.tasks.insert(number, task);
                self.live.insert(id, number);
                Shown::Event(TaskEvent::Start { time })
            }
            Event::Exec {
                id,
                former,
                time,
                name,
            } => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    (task.id, task.name) = (id, name);
                }
                self.live.remove(&former);
                self.live.insert(id, number);
                Shown::Event(TaskEvent::Exec { time, former })
            }
            Event::Name(name) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.name = name;
                }
                Shown::Event(TaskEvent::Name)
            }
            Event::End { time, status } => {
                let status = match status {
                    Status::Exited(code) => ExitStatus::Code(code),
                    Status::Killed(signal) => ExitStatus::Signal(signal),
                };
                Shown::Event(TaskEvent::End { time, status })
            }
            Event::Lost(records) => Shown::Event(TaskEvent::Lost(records)),
            Event::Invalid => Shown::Record([0; 3]),
            Event::Filtered(branches) => Shown::Record([branches, 0, FILTERED]),
            Event::Signal { time, signal } => Shown::Event(TaskEvent::Signal { time, signal }),
            Event::Arrive { time } => Shown::Record([time, 0, ARRIVES]),
            Event::Depart { time } => Shown::Record([time, 0, DEPARTS]),
            Event::Crash {
                signal,
                code,
                address,
                registers,
                instruction,
            } => {
                let mut crash = Crash {
                    task: self.tasks.get(&number).map_or(0, |task| task.id),
                    signal,
                    code,
                    address,
                    registers: Default::default(),
                    instruction,
                };
                for (register, value) in crash.registers.iter_mut().zip(registers) {
                    *register = value;
                }
                Shown::Event(TaskEvent::Crash(Box::new(crash)))
            }
            Event::Standing { syscall, name } => Shown::Event(TaskEvent::Standing {
                syscall: String::from_utf8_lossy(&syscall).into_owned(),
                name,
            }),
            Event::Untraced {
                id,
                parent,
                time,
                name,
                reason,
            } => {
                let untraced = Untraced {
                    task: id,
                    parent,
                    time,
                    name,
                    reason: String::from_utf8_lossy(&reason).into_owned(),
                };
                self.untraced.count_untraced(&untraced);
                Shown::Untraced(untraced)
            }
            Event::Maps { process, text } => {
                let before = self.maps.insert(process, text.len()).unwrap_or(0);
                self.maps_bytes = self.maps_bytes + text.len() - before;
                if self.maps_bytes > MAX_MAPS {
                    return Err(ReplayError::TooManyMaps.into());
                }
                sink.maps(process, &text);
                Shown::Nothing
            }
            Event::AddressSpace { cr3, time } => {
                Shown::Processor(ProcessorEvent::AddressSpace { cr3, time })
            }
            Event::Switch {
                id,
                process,
                time,
                name,
            } => {
                self.add_processor(number)?;
                if let Some(executed) = &mut self.processors {
                    executed.entry(number).or_default().task = Some(id);
                }
                Shown::Processor(ProcessorEvent::Switch {
                    id,
                    process,
                    name,
                    time,
                })
            }
            Event::Gap { duration, time } => {
                Shown::Processor(ProcessorEvent::Gap { duration, time })
            }
            Event::KernelCode { address, bytes } => {
                Shown::KernelCode(CodeChange { address, bytes })
            }
            Event::Code { .. } | Event::BuildId { .. } => Shown::Code(event),
            Event::ProcessEnd { process } => {
                self.maps_bytes -= self.maps.remove(&process).unwrap_or(0);
                sink.process_ended(process);
                Shown::Nothing
            }
        })
    }

    fn end(&mut self, number: u64) {
        if let Some(task) = self.tasks.remove(&number)
            && self.live.get(&task.id) == Some(&number)
        {
            self.live.remove(&task.id);
        }
    }
}

/// What there is to show of an event.
enum Shown {
    Record([u64; 3]),
    Event(TaskEvent),
    Untraced(Untraced),
    Processor(ProcessorEvent),
    KernelCode(CodeChange),
    Code(Event),
    Nothing,
}
