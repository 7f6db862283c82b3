//! The last stage of a trace: formats it, with names of addresses, and writes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vbts_trace::{Branch, Event};

use super::queue::{Queue, WriterError};
use crate::format::Format;
use crate::output::Destination;
use crate::records::PIECE;
use crate::sink::{Sink, is_record};
use crate::summary::Summary;
use crate::task::Task;
use vbts_symbols::Symbolizer;

/// Bytes of formatted branches for which they are written before the batch ends.
const WRITE_SIZE: usize = 64 << 10;

/// Formats a trace and writes it.
///
/// Branches are written once there are many, and at the end of each batch ([`Self::settle`]).
pub(super) struct FormattingSink {
    queue: Arc<Queue>,
    format: Box<dyn Format>,
    /// Supplies the names of addresses.
    pub symbols: Symbolizer,
    /// Receives the formatted trace, and the program's output.
    pub destination: Destination,
    /// Formatted bytes that are not written.
    buffer: Vec<u8>,
    /// The number of the task whose branches `buffer` has, if it has any.
    task: Option<u64>,
    /// Branches that the format has received.
    branches: u64,
}

impl FormattingSink {
    /// Creates the last stage of a trace.
    pub(super) fn new(
        queue: Arc<Queue>,
        format: Box<dyn Format>,
        symbols: Symbolizer,
        destination: Destination,
    ) -> Self {
        Self {
            queue,
            format,
            symbols,
            destination,
            buffer: Vec::new(),
            task: None,
            branches: 0,
        }
    }

    /// Writes the formatted bytes that are not written yet.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(super) fn settle(&mut self) -> Result<(), WriterError> {
        let task = self.task.take();
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = match task {
            Some(task) => self.destination.write_records(task, &self.buffer),
            None => self.destination.write_trace(&self.buffer),
        };
        // What cannot be written is not written again.
        self.buffer.clear();
        let queue = &self.queue;
        // The other side reads them in the opposite order: the bytes have the branches.
        let bytes = self.destination.trace_bytes();
        queue.bytes.store(bytes, Ordering::Relaxed);
        if written.is_ok() {
            let branches = self.branches.saturating_sub(self.format.kept());
            queue.written.store(branches, Ordering::Release);
        }
        Ok(written?)
    }

    /// Writes the branches that the format still keeps, of a trace that gets no end.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(super) fn flush(&mut self) -> Result<(), WriterError> {
        self.settle()?;
        self.format.flush(&mut self.buffer);
        self.settle()
    }

    /// Writes the end of the trace.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(super) fn summary(&mut self, summary: &Summary) -> Result<(), WriterError> {
        self.settle()?;
        self.format.summary(summary, &mut self.buffer);
        self.settle()
    }

    /// Prepares to format a record of the task with this number.
    fn select(&mut self, task: u64) -> Result<(), WriterError> {
        self.queue.check()?;
        if self.task != Some(task) || self.buffer.len() >= WRITE_SIZE {
            self.settle()?;
            self.task = Some(task);
        }
        Ok(())
    }
}

impl Sink for FormattingSink {
    type Error = WriterError;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> Result<(), WriterError> {
        for piece in branches.chunks(PIECE) {
            let mut rest = piece;
            while !rest.is_empty() {
                self.select(task.number)?;
                let (symbols, out) = (&mut self.symbols, &mut self.buffer);
                let count = self.format.branches(task, rest, symbols, out);
                self.branches += count as u64;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        if self.buffer.len() >= WRITE_SIZE {
            self.settle()?;
        }
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &Event) -> Result<(), WriterError> {
        if is_record(event) {
            self.select(task.number)?;
            self.format.event(task, event, &mut self.buffer);
            return Ok(());
        }
        self.settle()?;
        self.symbols.event(event);
        self.destination.task_event(task, event)?;
        self.format.event(task, event, &mut self.buffer);
        self.settle()
    }
}
