//! Replays a kept trace into a [`Sink`].

use std::collections::{BTreeSet, HashMap};

use thiserror::Error;
use vbts_protocol::ExitStatus;
use vbts_trace::{Event, Item, Streams};

use crate::sink::{Sink, belongs_to_a_task};
use crate::summary::{RunEnd, Summary};
use crate::task::Task;
use vbts_host::escape::printable;

/// Number of tasks that can live at once.
const MAX_TASKS: usize = 1 << 16;
/// Bytes of the mappings of all processes that live at once.
const MAX_MAPS: usize = 256 << 20;

/// Number of processors that a machine can have.
const MAX_PROCESSORS: u64 = 1 << 16;

/// A property of the file that no trace of a guest has.
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

/// Passes the contents of a file to a [`Sink`], with the tasks that its events describe.
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
    /// The streams are processors.
    processors: Option<HashMap<u64, Executed>>,
}

/// The state of a processor.
#[derive(Debug, Default)]
struct Executed {
    /// Thread ID of the task that it executes.
    task: Option<u32>,
    /// The last [`Event::AddressSpace`] and [`Event::Switch`], if they were not shown.
    unseen: [Option<Event>; 2],
}

/// Selects a part of a trace. The default selects all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Only<'a> {
    /// Only the tasks with these thread IDs. In the trace of a machine, only the branches of
    /// processors while they execute one of them.
    pub tasks: Option<&'a BTreeSet<u32>>,
    /// Only this processor, in the trace of a machine.
    pub processor: Option<u32>,
}

impl Replay {
    /// Creates the state before the first event of a trace with such streams.
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
            ("stopped", ..) => RunEnd::Stopped,
            ("panic", ..) => RunEnd::Panic,
            ("deadlock", ..) => RunEnd::Deadlock,
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

    /// Updates the state with an event that is not shown. `sink` receives only mappings.
    ///
    /// # Errors
    /// No guest has so many tasks or mappings.
    pub fn skip<S: Sink>(&mut self, task: u64, event: Event, sink: &mut S) -> Result<(), S::Error>
    where
        S::Error: From<ReplayError>,
    {
        self.apply(task, &event)?;
        match event {
            Event::Maps { .. } | Event::ProcessEnd { .. } => sink.event(&Task::default(), &event),
            Event::End { .. } => {
                self.end(task);
                Ok(())
            }
            event => {
                self.keep(task, event);
                Ok(())
            }
        }
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
            ..Task::default()
        };
        self.tasks.insert(number, task);
        Ok(())
    }

    /// Keeps an event of processor `number`, if it is one that holds on, until the next of its
    /// branches is shown.
    fn keep(&mut self, number: u64, event: Event) {
        let at = match event {
            Event::AddressSpace { .. } => 0,
            Event::Switch { .. } => 1,
            _ => return,
        };
        if let Some(processors) = &mut self.processors {
            processors.entry(number).or_default().unseen[at] = Some(event);
        }
    }

    /// Passes the events of processor `number` that were kept to `sink`.
    fn give_kept<S: Sink>(&mut self, number: u64, sink: &mut S) -> Result<(), S::Error> {
        let processors = self.processors.as_mut();
        let executed = processors.and_then(|all| all.get_mut(&number));
        let (Some(executed), Some(task)) = (executed, self.tasks.get(&number)) else {
            return Ok(());
        };
        let mut kept = executed.unseen.iter_mut().filter_map(Option::take);
        kept.try_for_each(|event| sink.event(task, &event))
    }

    /// Whether `task`, which may stand for a processor, is one of `only`.
    fn has(&self, only: Only<'_>, task: &Task) -> bool {
        let is_wanted = |id: Option<u32>| match (only.tasks, id) {
            (None, _) => true,
            (Some(wanted), Some(id)) => wanted.contains(&id),
            (Some(_), None) => false,
        };
        match &self.processors {
            None => is_wanted(Some(task.id)),
            Some(executed) => {
                only.processor.is_none_or(|processor| processor == task.id)
                    && is_wanted(executed.get(&task.number).and_then(|it| it.task))
            }
        }
    }

    /// Updates the state with an item, and passes the item to `sink` if `only` selects it.
    ///
    /// # Errors
    /// No guest has so many tasks or mappings, or `sink` takes no more.
    pub fn give<S: Sink>(
        &mut self,
        item: Item<'_>,
        only: Only<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error>
    where
        S::Error: From<ReplayError>,
    {
        match item {
            Item::Branches { task, branches } => {
                self.add_processor(task)?;
                if self.shows(only, task) {
                    self.give_kept(task, sink)?;
                    if let Some(task) = self.tasks.get_mut(&task) {
                        sink.branches(task, branches)?;
                    }
                }
                Ok(())
            }
            Item::Event { task, event } => self.give_event(task, event, only, sink),
        }
    }

    /// Returns whether `only` selects the task or processor `number` at this point of the trace.
    fn shows(&self, only: Only<'_>, number: u64) -> bool {
        let task = self.tasks.get(&number);
        task.is_some_and(|task| self.has(only, task))
    }

    fn give_event<S: Sink>(
        &mut self,
        number: u64,
        event: Event,
        only: Only<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error>
    where
        S::Error: From<ReplayError>,
    {
        self.add_processor(number)?;
        self.apply(number, &event)?;
        if !belongs_to_a_task(&event) {
            let is_hidden = matches!(event, Event::Untraced { .. }) && only.tasks.is_some();
            return match is_hidden {
                true => Ok(()),
                false => sink.event(&Task::default(), &event),
            };
        }
        let is_shown = self.shows(only, number);
        match &event {
            Event::AddressSpace { .. } | Event::Switch { .. } => {
                self.keep(number, event);
                if is_shown {
                    self.give_kept(number, sink)?;
                }
                return Ok(());
            }
            Event::Gap { .. } if is_shown => self.give_kept(number, sink)?,
            _ => {}
        }
        if is_shown && let Some(task) = self.tasks.get(&number) {
            sink.event(task, &event)?;
        }
        if matches!(event, Event::End { .. }) {
            self.end(number);
        }
        Ok(())
    }

    /// Updates the state of tasks and mappings.
    fn apply(&mut self, number: u64, event: &Event) -> Result<(), ReplayError> {
        match event {
            Event::Start {
                id,
                parent,
                process,
                ..
            } => {
                if self.tasks.len() >= MAX_TASKS {
                    return Err(ReplayError::TooManyTasks);
                }
                let from = self.live.get(parent).and_then(|from| self.tasks.get(from));
                let task = Task {
                    id: *id,
                    number,
                    parent: *parent,
                    process: *process,
                    name: from.map_or_else(Vec::new, |from| from.name.clone()),
                    ..Task::default()
                };
                self.tasks.insert(number, task);
                self.live.insert(*id, number);
            }
            Event::Exec {
                id, former, name, ..
            } => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    (task.id, task.name) = (*id, name.clone());
                    task.thread_name.clear();
                }
                self.live.remove(former);
                self.live.insert(*id, number);
            }
            Event::Name(name) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.name.clone_from(name);
                }
            }
            Event::ThreadName(name) => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    task.thread_name.clone_from(name);
                }
            }
            Event::Untraced { .. } => self.untraced.count_untraced(event),
            Event::Maps { process, text } => {
                let before = self.maps.insert(*process, text.len()).unwrap_or(0);
                self.maps_bytes = self.maps_bytes + text.len() - before;
                if self.maps_bytes > MAX_MAPS {
                    return Err(ReplayError::TooManyMaps);
                }
            }
            Event::ProcessEnd { process } => {
                self.maps_bytes -= self.maps.remove(process).unwrap_or(0);
            }
            Event::Switch { id, .. } => {
                self.add_processor(number)?;
                if let Some(executed) = &mut self.processors {
                    executed.entry(number).or_default().task = Some(*id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, number: u64) {
        if let Some(task) = self.tasks.remove(&number)
            && self.live.get(&task.id) == Some(&number)
        {
            self.live.remove(&task.id);
        }
    }
}
