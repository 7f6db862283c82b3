//! The trace: counts what the merge gives out, and chooses what is written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vbts_protocol::{Crash, ExitStatus, Scope};
use vbts_trace::{Event, Item, Streams};

use super::btrace::{Events, log_failure};
use super::destination::Destination;
use super::filter::Filter;
use super::format::{PIECE, Records};
use super::formatted::Formatted;
use super::kernel_code::CodeChange;
use super::last::Last;
use super::merge::Sink;
use super::queue::{Queue, WriterError};
use super::replay::{Only, Replay};
use super::report::{self, Standing};
use super::session::Options;
use super::summary::{RunEnd, Summary};
use super::task::{ProcessorEvent, Task, TaskEvent, Untraced};

/// Number of tasks that a report shows at the end of a run.
const SHOWN: usize = 32;
/// Number of branches that it shows of each.
const SHOWN_BRANCHES: usize = 8;

/// The trace that is written.
pub struct Trace {
    queue: Arc<Queue>,
    scope: Scope,
    /// Reports about tasks go to standard error.
    reports: bool,
    filter: Option<Filter>,
    /// Keeps what is wanted until the end, if that is only the last part.
    last: Option<Events<Last>>,
    /// What the streams of the trace are.
    pub streams: Streams,
    out: Formatted,
    /// What is wanted so far.
    pub summary: Summary,
    /// How live tasks have crashed, by their numbers. Their last branches follow.
    crashes: HashMap<u64, Crash>,
    /// Tasks that stood at the end of the run.
    standing: Vec<Standing>,
    /// Number of further ones.
    more_standing: u64,
}

impl Trace {
    /// A trace that is written as `options` say.
    ///
    /// # Errors
    /// There is no memory for the last part.
    pub fn new(options: Options, queue: Arc<Queue>) -> Result<Self, vbts_trace::Error> {
        let mut destination = options.destination;
        destination.write_in(options.format.unit(), &queue.writes);
        let mut symbols = options.symbols;
        symbols.end_with(queue.clone());
        let filters = options.filters;
        let last = filters.last.map(Last::new).transpose()?;
        let filter = filters
            .choose()
            .then(|| Filter::new(filters, options.scope));
        Ok(Self {
            out: Formatted::new(queue.clone(), options.format, symbols, destination),
            queue,
            scope: options.scope,
            reports: options.reports,
            filter,
            last: last.map(Events::new),
            streams: Streams::Tasks,
            summary: Summary::default(),
            crashes: HashMap::new(),
            standing: Vec::new(),
            more_standing: 0,
        })
    }

    /// Where the trace and the program's output go.
    pub fn destination(&mut self) -> &mut Destination {
        &mut self.out.destination
    }

    /// Writes the end of the trace. Returns it, and the error of what is written beside the trace.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn end(&mut self) -> Result<(Summary, Option<WriterError>), WriterError> {
        // The trace gets its end even if nothing reads standard output or error any more.
        let reported = self.end_reports();
        if let Some(filter) = &self.filter {
            let before = self.summary.filtered.unwrap_or(0);
            self.summary.filtered = Some(before + filter.filtered());
            self.summary.filter_notes = filter.notes();
        }
        if let Some(last) = self.last.take() {
            self.write_last(last.to)?;
        }
        self.summary.unnamed = self.out.symbols.unnamed();
        self.out.symbols.end_reader();
        self.out.summary(&self.summary)?;
        Ok((self.summary.clone(), reported.err()))
    }

    /// Ends the program's line, and reports where tasks stand if the program has not ended.
    fn end_reports(&mut self) -> Result<(), WriterError> {
        self.out.destination.end_line()?;
        self.out.destination.end_reports()?;
        if self.reports && !matches!(self.summary.end, RunEnd::Program(_)) {
            let report = self.where_tasks_stand();
            self.out.destination.write_stderr(report.as_bytes())?;
        }
        Ok(())
    }

    /// Writes what is kept, of a trace that has no end.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), WriterError> {
        if let Some(last) = self.last.take() {
            self.write_last(last.to)?;
        }
        self.out.flush()
    }

    /// Writes the last part of the trace.
    fn write_last(&mut self, last: Last) -> Result<(), WriterError> {
        self.queue.records.store(0, Ordering::Relaxed);
        let mut replay = Replay::new(self.streams);
        let left_out = last.finish(|item| {
            if let Item::Branches { branches, .. } = &item {
                let count = branches.len() as u64;
                self.queue.records.fetch_add(count, Ordering::Relaxed);
            }
            replay.give(item, Only::default(), &mut self.out)
        })?;
        self.summary.records -= left_out;
        self.summary.filtered = Some(self.summary.filtered.unwrap_or(0) + left_out);
        Ok(())
    }

    fn where_tasks_stand(&mut self) -> String {
        if self.standing.is_empty() {
            return String::new();
        }
        let mut text = String::from("vbts: where each task stands:\n");
        for standing in &self.standing {
            text.push_str(&report::of_standing(
                standing,
                SHOWN_BRANCHES,
                &mut self.out.symbols,
            ));
        }
        if self.more_standing > 0 {
            text.push_str(&format!("  and {} more tasks\n", self.more_standing));
        }
        text
    }

    /// Writes records of `task`, at most [`PIECE`] bytes.
    fn write_piece(&mut self, task: &Task, records: &[u8]) -> Result<(), WriterError> {
        let mut piece = Records::new(records, self.scope);
        let written = match &mut self.last {
            Some(last) => last.records(task, &mut piece).map_err(WriterError::from),
            None => self.out.piece(task, &mut piece),
        };
        let counts = piece.counts();
        self.summary.records += counts.branches;
        self.summary.lost += counts.invalid;
        let so_far = &self.queue.records;
        so_far.store(self.summary.records, Ordering::Relaxed);
        written
    }

    /// Tells the filter what happens to `task`, and writes the gap before it.
    fn filter_event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), WriterError> {
        let Some(filter) = &mut self.filter else {
            return Ok(());
        };
        let gap = filter.gap(task.number);
        match event {
            TaskEvent::Exec { .. } | TaskEvent::Lost(_) => filter.interrupted(task.number),
            TaskEvent::Signal { signal, .. } => filter.signal(*signal),
            TaskEvent::End { status, .. } => {
                if let ExitStatus::Signal(signal) = status {
                    filter.signal((*signal).into());
                }
                filter.task_ended(task.number);
            }
            TaskEvent::Start { .. }
            | TaskEvent::Name
            | TaskEvent::Crash(_)
            | TaskEvent::Standing { .. } => {}
        }
        match gap {
            Some(record) => self.write_piece(task, &record),
            None => Ok(()),
        }
    }
}

impl Sink for Trace {
    type Error = WriterError;

    fn records(&mut self, task: &mut Task, records: &[u8]) -> Result<(), WriterError> {
        match self.filter.take() {
            Some(mut filter) => {
                let written = records.chunks(Filter::PIECE).try_for_each(|piece| {
                    let (number, process) = (task.number, task.process);
                    let wanted = filter.records(number, process, piece, &mut self.out.symbols);
                    self.write_piece(task, wanted)
                });
                // The summary has what it knows, also if the trace cannot be written.
                self.filter = Some(filter);
                written?;
            }
            None => {
                for piece in records.chunks(PIECE) {
                    self.write_piece(task, piece)?;
                }
            }
        }
        task.recent.push(records, self.scope);
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), WriterError> {
        self.filter_event(task, event)?;
        match event {
            TaskEvent::Lost(n) => {
                self.summary.lost = self.summary.lost.saturating_add(*n);
                self.summary.lost_more = true;
            }
            TaskEvent::Crash(crash) => {
                self.crashes.insert(task.number, (**crash).clone());
            }
            TaskEvent::End { .. } => {
                if let Some(crash) = self.crashes.remove(&task.number)
                    && self.reports
                {
                    let report = report::of_crash(task, &crash, &mut self.out.symbols);
                    self.out.destination.report(&report)?;
                }
            }
            TaskEvent::Standing { syscall, name } => {
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
            TaskEvent::Start { .. }
            | TaskEvent::Exec { .. }
            | TaskEvent::Name
            | TaskEvent::Signal { .. } => {}
        }
        match &mut self.last {
            Some(last) => Ok(last.event(task, event)?),
            None => self.out.event(task, event),
        }
    }

    fn untraced(&mut self, untraced: &Untraced) -> Result<(), WriterError> {
        self.summary.count_untraced(untraced);
        match &mut self.last {
            Some(last) => Ok(last.untraced(untraced)?),
            None => self.out.untraced(untraced),
        }
    }

    fn maps(&mut self, process: u32, text: &[u8]) {
        match &mut self.last {
            Some(last) => {
                // Reports need them at once.
                self.out.symbols.set_maps(process, text);
                log_failure(last.maps(process, text));
            }
            None => self.out.maps(process, text),
        }
        if let Some(filter) = &mut self.filter {
            filter.maps(process, text, &mut self.out.symbols);
        }
    }

    fn process_ended(&mut self, process: u32) {
        match &mut self.last {
            Some(last) => {
                self.out.symbols.remove(process);
                log_failure(last.process_ended(process));
            }
            None => self.out.process_ended(process),
        }
        if let Some(filter) = &mut self.filter {
            filter.process_ended(process);
        }
    }

    fn processor(&mut self, task: &Task, event: &ProcessorEvent) -> Result<(), WriterError> {
        if let Some(filter) = &mut self.filter {
            match event {
                ProcessorEvent::AddressSpace { .. } | ProcessorEvent::Switch { .. } => {
                    filter.leave_program(task.number);
                }
                ProcessorEvent::Gap { .. } => filter.interrupted(task.number),
            }
            if let Some(gap) = filter.gap(task.number) {
                self.write_piece(task, &gap)?;
            }
        }
        match &mut self.last {
            Some(last) => Ok(last.processor(task.id, event)?),
            None => self.out.processor(task, event),
        }
    }

    fn code(&mut self, event: &Event) -> Result<(), WriterError> {
        match &mut self.last {
            Some(last) => Ok(last.to.event(0, event)?),
            None => self.out.code(event),
        }
    }

    fn kernel_code(&mut self, changes: Vec<CodeChange>) -> Result<(), WriterError> {
        match &mut self.last {
            Some(last) => Ok(last.kernel_code(changes)?),
            None => self.out.kernel_code(changes),
        }
    }
}
