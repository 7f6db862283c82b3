//! The trace as it is written: counts, formats and writes what the merge gives out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vbts_protocol::{Crash, ExitStatus, Scope};

use super::destination::Destination;
use super::filter::Filter;
use super::format::{Format, PIECE, Record, Records};
use super::kernel_code::CodeChange;
use super::merge::Sink;
use super::queue::{Queue, WriterError};
use super::report::{self, Standing};
use super::session::Options;
use super::summary::{RunEnd, Summary};
use super::symbols::Symbolizer;
use super::task::{Task, TaskEvent, Untraced};

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
    format: Box<dyn Format>,
    symbols: Symbolizer,
    /// Where the trace and the program's output go.
    pub destination: Destination,
    /// Formatted records.
    buffer: Vec<u8>,
    /// What is written so far.
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
    pub fn new(options: Options, queue: Arc<Queue>) -> Self {
        let mut destination = options.destination;
        destination.write_in(options.format.unit(), &queue.stop);
        let mut symbols = options.symbols;
        symbols.end_with(queue.clone());
        let filters = options.filters;
        let filter = filters
            .choose()
            .then(|| Filter::new(filters, options.scope));
        Self {
            queue,
            scope: options.scope,
            reports: options.reports,
            filter,
            format: options.format,
            symbols,
            destination,
            buffer: Vec::new(),
            summary: Summary::default(),
            crashes: HashMap::new(),
            standing: Vec::new(),
            more_standing: 0,
        }
    }

    /// Writes the end of the trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&mut self) -> Result<Summary, WriterError> {
        self.destination.end_line()?;
        self.destination.end_reports()?;
        if self.reports && !matches!(self.summary.end, RunEnd::Program(_)) {
            let report = self.where_tasks_stand();
            self.destination.write_stderr(report.as_bytes())?;
        }
        if let Some(filter) = &self.filter {
            self.summary.filtered = Some(filter.filtered());
            self.summary.filter_notes = filter.notes();
        }
        self.summary.unnamed = self.symbols.unnamed().clone();
        self.symbols.end_reader();
        self.buffer.clear();
        self.format.summary(&self.summary, &mut self.buffer);
        self.destination.write_trace(&self.buffer)?;
        Ok(self.summary.clone())
    }

    /// Takes code of the guest's kernel that differs from that in its file.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn kernel_code(&mut self, changes: Vec<CodeChange>) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.kernel_code(changes, &mut self.buffer);
        self.write_buffer()
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
                &mut self.symbols,
            ));
            // Finding names can take long, and is no wait for a reader.
            self.queue.progress.fetch_add(1, Ordering::Relaxed);
        }
        if self.more_standing > 0 {
            text.push_str(&format!("  and {} more tasks\n", self.more_standing));
        }
        text
    }

    /// Writes records of `task`, at most [`PIECE`] bytes.
    fn write_piece(&mut self, task: &Task, records: &[u8]) -> Result<(), WriterError> {
        let mut piece = Records::new(records, self.scope);
        count(piece, &mut self.summary);
        while !piece.is_empty() {
            self.queue.check()?;
            self.buffer.clear();
            self.format
                .records(task, &mut piece, &mut self.symbols, &mut self.buffer);
            self.destination.write_records(task, &self.buffer)?;
            self.queue.progress.fetch_add(1, Ordering::Relaxed);
        }
        let so_far = &self.queue.records;
        so_far.store(self.summary.records, Ordering::Relaxed);
        Ok(())
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
            TaskEvent::Start { .. } | TaskEvent::Crash(_) | TaskEvent::Standing { .. } => {}
        }
        match gap {
            Some(record) => self.write_piece(task, &record),
            None => Ok(()),
        }
    }

    fn write_buffer(&mut self) -> Result<(), WriterError> {
        if !self.buffer.is_empty() {
            self.destination.write_trace(&self.buffer)?;
        }
        Ok(())
    }
}

impl Sink for Trace {
    type Error = WriterError;

    fn records(&mut self, task: &mut Task, records: &[u8]) -> Result<(), WriterError> {
        match self.filter.take() {
            Some(mut filter) => {
                let written = records.chunks(Filter::PIECE).try_for_each(|piece| {
                    let (number, process) = (task.number, task.process);
                    let wanted = filter.records(number, process, piece, &mut self.symbols);
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
        self.destination.task_event(task, event)?;
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
                    let report = report::of_crash(task, &crash, &mut self.symbols);
                    self.destination.report(&report)?;
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
            TaskEvent::Start { .. } | TaskEvent::Exec { .. } | TaskEvent::Signal { .. } => {}
        }
        self.buffer.clear();
        self.format.event(task, event, &mut self.buffer);
        self.write_buffer()
    }

    fn untraced(&mut self, untraced: &Untraced) -> Result<(), WriterError> {
        self.summary.count_untraced(untraced);
        self.buffer.clear();
        self.format.untraced(untraced, &mut self.buffer);
        self.write_buffer()
    }

    fn maps(&mut self, process: u32, text: &[u8]) {
        self.format.maps(process, text);
        self.symbols.set_maps(process, text);
        if let Some(filter) = &mut self.filter {
            filter.maps(process, text, &mut self.symbols);
        }
    }

    fn process_ended(&mut self, process: u32) {
        self.format.process_ended(process);
        self.symbols.remove(process);
        if let Some(filter) = &mut self.filter {
            filter.process_ended(process);
        }
    }
}

/// Counts `records` in `summary`. A record that the kernel has marked invalid is a lost one.
fn count(records: Records<'_>, summary: &mut Summary) {
    for record in records {
        match record {
            Record::Branch { .. } => summary.records += 1,
            Record::Invalid => summary.lost += 1,
            Record::Arrive { .. } | Record::Depart { .. } | Record::Filtered { .. } => {}
        }
    }
}
