//! The formatted trace: names addresses, formats what it gets and writes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vbts_protocol::Scope;

use super::destination::Destination;
use super::format::{Format, PIECE, Records};
use super::kernel_code::CodeChange;
use super::merge::Sink;
use super::queue::{Queue, WriterError};
use super::summary::Summary;
use super::symbols::Symbolizer;
use super::task::{ProcessorEvent, Task, TaskEvent, Untraced};
use crate::host::OutputError;

/// The trace as it is written.
pub struct Formatted {
    queue: Arc<Queue>,
    format: Box<dyn Format>,
    /// Names the addresses.
    pub symbols: Symbolizer,
    /// Where the trace and the program's output go.
    pub destination: Destination,
    /// What is formatted and not written.
    buffer: Vec<u8>,
    /// Branches that the format has got.
    branches: u64,
}

impl Formatted {
    /// A trace in a format.
    pub fn new(
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
            branches: 0,
        }
    }

    /// Writes records of `task`, at most [`PIECE`] bytes.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn piece(&mut self, task: &Task, piece: &mut Records<'_>) -> Result<(), WriterError> {
        let before = self.branches;
        while !piece.is_empty() {
            self.queue.check()?;
            let mut formatted = self.format.as_they_are(piece);
            if formatted.is_empty() {
                self.buffer.clear();
                self.format
                    .records(task, piece, &mut self.symbols, &mut self.buffer);
                formatted = &self.buffer;
            }
            self.branches = before + piece.counts().branches;
            let written = self.destination.write_records(task, formatted);
            self.count(written)?;
        }
        Ok(())
    }

    /// Publishes how much of the trace is in the destination, after a write to it.
    fn count(&self, written: Result<(), OutputError>) -> Result<(), WriterError> {
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

    /// Writes what the format keeps, of a trace that has no end.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn flush(&mut self) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.flush(&mut self.buffer);
        self.write_buffer()
    }

    /// Writes the end of the trace.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn summary(&mut self, summary: &Summary) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.summary(summary, &mut self.buffer);
        self.write_buffer()
    }

    fn write_buffer(&mut self) -> Result<(), WriterError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = self.destination.write_trace(&self.buffer);
        self.count(written)
    }
}

impl Sink for Formatted {
    type Error = WriterError;

    fn records(&mut self, task: &mut Task, records: &[u8]) -> Result<(), WriterError> {
        let mut pieces = records.chunks(PIECE);
        pieces.try_for_each(|piece| self.piece(task, &mut Records::new(piece, Scope::All)))
    }

    fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), WriterError> {
        self.destination.task_event(task, event)?;
        self.buffer.clear();
        self.format.event(task, event, &mut self.buffer);
        self.write_buffer()
    }

    fn untraced(&mut self, untraced: &Untraced) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.untraced(untraced, &mut self.buffer);
        self.write_buffer()
    }

    fn maps(&mut self, process: u32, text: &[u8]) {
        self.format.maps(process, text);
        self.symbols.set_maps(process, text);
    }

    fn process_ended(&mut self, process: u32) {
        self.format.process_ended(process);
        self.symbols.remove(process);
    }

    fn processor(&mut self, task: &Task, event: &ProcessorEvent) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.processor(task.id, event, &mut self.buffer);
        self.write_buffer()
    }

    fn code(&mut self, event: &vbts_trace::Event) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.code(event, &mut self.buffer);
        self.write_buffer()
    }

    fn kernel_code(&mut self, changes: Vec<CodeChange>) -> Result<(), WriterError> {
        self.buffer.clear();
        self.format.kernel_code(changes, &mut self.buffer);
        self.write_buffer()
    }
}
