//! The stages of a trace behind the merge: counts, filters, and either writes the trace or keeps
//! its last branches until the end.
//!
//! | module | contents |
//! |---|---|
//! | `queue`, `writer` | the thread that formats and writes the trace |
//! | `merge` | the order of the records of several tasks |
//! | `tail`, `snapshot` | the last branches, and the state of the tasks before them |
//! | `formatting_sink` | the last stage: formats and writes |
//! | `report`, `callers` | reports about single tasks; what has called them |

mod callers;
mod formatting_sink;
pub(crate) mod merge;
pub(crate) mod queue;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod tail;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vbts_protocol::Scope;
use vbts_trace::{Branch, Crash, Event, Item, Streams};

use crate::filter::{Filter, Filters};
use crate::format::Format;
use crate::kept::{Only, Replay};
use crate::output::Destination;
use crate::records::{PIECE, Position};
use crate::sink::Sink;
use crate::summary::{RunEnd, Summary};
use crate::task::{Task, all_belong, belongs};
use formatting_sink::FormattingSink;
use queue::Queue;
use report::Standing;
use tail::TailBuffer;
use vbts_symbols::Symbolizer;

pub use queue::WriterError;
pub use writer::Writer;

/// Number of tasks that a report shows at the end of a run.
const SHOWN: usize = 32;
/// Number of branches that it shows of each.
const SHOWN_BRANCHES: usize = 8;

/// How a trace is written.
pub struct Options {
    /// The branches to write.
    pub scope: Scope,
    /// The guest's kernel is a 32-bit one.
    pub is_32_bit: bool,
    /// Whether notes about the run and reports about single tasks go to standard error.
    pub reports: bool,
    /// The format.
    pub format: Box<dyn Format>,
    /// Names the addresses.
    pub symbols: Symbolizer,
    /// The branches that are wanted.
    pub filters: Filters,
    /// Where the trace and the program's output go.
    pub destination: Destination,
    /// Memory in bytes for records that wait for older ones of other tasks.
    pub merge_limit: usize,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Writes a trace with the options of the user.
pub(crate) struct TracePipeline {
    scope: Scope,
    filter: Option<Filter>,
    output: OutputStage,
    /// Whether the streams of the trace are tasks or processors.
    pub streams: Streams,
    reports: Option<TaskReports>,
    /// A copy of branches without those that do not belong to the scope.
    in_scope: Vec<Branch>,
}

impl TracePipeline {
    /// Creates the stages that `options` ask for.
    ///
    /// # Errors
    /// There is no memory for the last branches.
    pub(crate) fn new(options: Options, queue: Arc<Queue>) -> Result<Self, vbts_trace::Error> {
        let mut destination = options.destination;
        destination.write_in(options.format.unit(), &queue.writes);
        let mut symbols = options.symbols;
        symbols.end_with(queue.writes.clone());
        let filters = options.filters;
        let tail = filters.last.map(TailBuffer::new).transpose()?;
        let filter = filters
            .choose()
            .then(|| Filter::new(filters, options.scope));
        Ok(Self {
            scope: options.scope,
            filter,
            output: OutputStage {
                formatting: FormattingSink::new(
                    queue.clone(),
                    options.format,
                    symbols,
                    destination,
                ),
                tail,
                queue,
                summary: Summary::default(),
            },
            streams: Streams::Tasks,
            reports: options.reports.then(TaskReports::default),
            in_scope: Vec::new(),
        })
    }

    /// Returns the destination of the trace and of the program's output.
    pub(crate) fn destination(&mut self) -> &mut Destination {
        &mut self.output.formatting.destination
    }

    /// Returns the numbers so far.
    pub(crate) fn summary(&mut self) -> &mut Summary {
        &mut self.output.summary
    }

    /// Writes the formatted branches that are not written yet.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(crate) fn settle(&mut self) -> Result<(), WriterError> {
        self.output.formatting.settle()
    }

    /// Writes the end of the trace. Returns the summary, and the error of the reports on standard
    /// error, if there was one.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(crate) fn end(&mut self) -> Result<(Summary, Option<WriterError>), WriterError> {
        self.settle()?;
        // The trace gets its end even if nothing reads standard output or error any more.
        let reported = self.end_reports();
        let output = &mut self.output;
        if let Some(filter) = &self.filter {
            let before = output.summary.filtered.unwrap_or(0);
            output.summary.filtered = Some(before + filter.filtered());
            output.summary.filter_notes = filter.notes();
        }
        output.write_tail(self.streams)?;
        let formatting = &mut output.formatting;
        output.summary.unnamed = formatting.symbols.unnamed();
        formatting.symbols.end_reader();
        formatting.summary(&output.summary)?;
        Ok((output.summary.clone(), reported.err()))
    }

    /// Ends the program's line, and reports where tasks stand if the program has not ended.
    fn end_reports(&mut self) -> Result<(), WriterError> {
        let FormattingSink {
            destination,
            symbols,
            ..
        } = &mut self.output.formatting;
        destination.end_line()?;
        destination.end_reports()?;
        if let Some(reports) = &self.reports
            && !matches!(self.output.summary.end, RunEnd::Program(_))
        {
            let report = reports.where_tasks_stand(symbols);
            destination.write_stderr(report.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the branches that the tail buffer and the format still keep, of a trace that gets no
    /// end.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(crate) fn flush(&mut self) -> Result<(), WriterError> {
        self.output.write_tail(self.streams)?;
        self.output.formatting.flush()
    }
}

impl Sink for TracePipeline {
    type Error = WriterError;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), WriterError> {
        let output = &mut self.output;
        match &mut self.filter {
            Some(filter) => {
                for piece in branches.chunks(PIECE) {
                    let wanted = filter.branches(task, piece, &mut output.formatting.symbols);
                    wanted.give(Position::default(), wanted.end(), task, output)?;
                }
            }
            None if all_belong(branches, self.scope) => {
                output.branches(task, branches)?;
            }
            None => {
                self.in_scope.clear();
                let in_scope = branches.iter().filter(|branch| belongs(branch, self.scope));
                self.in_scope.extend(in_scope);
                output.branches(task, &self.in_scope)?;
            }
        }
        task.recent.push(branches, self.scope);
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &Event) -> Result<(), WriterError> {
        let output = &mut self.output;
        if let Some(filter) = &mut self.filter
            && let Some(gap) = filter.event(task, event, &mut output.formatting.symbols)
        {
            output.event(task, &Event::Filtered(gap))?;
        }
        if let Some(reports) = &mut self.reports
            && let Some(report) = reports.event(task, event, &mut output.formatting.symbols)
        {
            output.formatting.settle()?;
            output.formatting.destination.report(&report)?;
        }
        output.event(task, event)
    }
}

/// Counts the branches that are wanted, and writes them, at once or at the end.
struct OutputStage {
    queue: Arc<Queue>,
    summary: Summary,
    /// Keeps the last branches until the end, if only these are wanted.
    tail: Option<TailBuffer>,
    formatting: FormattingSink,
}

impl OutputStage {
    /// Writes the last branches, if they were kept.
    fn write_tail(&mut self, streams: Streams) -> Result<(), WriterError> {
        let Some(tail) = self.tail.take() else {
            return Ok(());
        };
        self.queue.records.store(0, Ordering::Relaxed);
        let mut replay = Replay::new(streams);
        let left_out = tail.finish(|item| {
            if let Item::Branches { branches, .. } = &item {
                let count = branches.len() as u64;
                self.queue.records.fetch_add(count, Ordering::Relaxed);
            }
            replay.give(item, Only::default(), &mut self.formatting)
        })?;
        self.summary.records -= left_out;
        self.summary.filtered = Some(self.summary.filtered.unwrap_or(0) + left_out);
        Ok(())
    }
}

impl Sink for OutputStage {
    type Error = WriterError;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), WriterError> {
        if branches.is_empty() {
            return Ok(());
        }
        let written = match &mut self.tail {
            Some(tail) => Sink::branches(tail, task, branches),
            None => self.formatting.branches(task, branches),
        };
        self.summary.records += branches.len() as u64;
        let so_far = &self.queue.records;
        so_far.store(self.summary.records, Ordering::Relaxed);
        written
    }

    fn event(&mut self, task: &Task, event: &Event) -> Result<(), WriterError> {
        match event {
            Event::Invalid => self.summary.lost += 1,
            Event::Lost(records) => {
                self.summary.lost = self.summary.lost.saturating_add(*records);
                self.summary.lost_more = true;
            }
            Event::Untraced { .. } => self.summary.count_untraced(event),
            _ => {}
        }
        let Some(tail) = &mut self.tail else {
            return self.formatting.event(task, event);
        };
        // Reports name addresses before the end.
        self.formatting.symbols.event(event);
        Sink::event(tail, task, event)
    }
}

/// Reports about single tasks.
#[derive(Default)]
struct TaskReports {
    /// How live tasks have crashed, by their numbers. Their last branches follow.
    crashes: HashMap<u64, Box<Crash>>,
    /// Tasks that stood at the end of the run.
    standing: Vec<Standing>,
    /// Number of further ones.
    more_standing: u64,
}

impl TaskReports {
    /// Receives an event. Returns the report about a task that has crashed, at its end.
    fn event(&mut self, task: &Task, event: &Event, symbols: &mut Symbolizer) -> Option<String> {
        match event {
            Event::Crash(crash) => {
                self.crashes.insert(task.number, crash.clone());
            }
            Event::End { .. } => {
                let crash = self.crashes.remove(&task.number)?;
                return Some(report::of_crash(task, &crash, symbols));
            }
            Event::Standing { syscall, name } => {
                if self.standing.len() < SHOWN {
                    self.standing.push(Standing {
                        task: task.clone(),
                        name: name.clone(),
                        syscall: syscall.clone(),
                    });
                } else {
                    self.more_standing += 1;
                }
            }
            _ => {}
        }
        None
    }

    fn where_tasks_stand(&self, symbols: &mut Symbolizer) -> String {
        if self.standing.is_empty() {
            return String::new();
        }
        let mut text = String::from("vbts: where each task stands:\n");
        for standing in &self.standing {
            text.push_str(&report::of_standing(standing, SHOWN_BRANCHES, symbols));
        }
        if self.more_standing > 0 {
            text.push_str(&format!("  and {} more tasks\n", self.more_standing));
        }
        text
    }
}
