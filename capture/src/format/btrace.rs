//! Writes the compressed format of a trace ([`vbts_trace`], docs/trace-format.md).

use std::io;

use vbts_protocol::ExitStatus;
use vbts_trace::{BlockEncoder, Branch, Error, Event, Run};

use super::Format;
use crate::parallel_encoder::{self, BtraceWriter};
use crate::summary::{RunEnd, Summary};
use crate::task::Task;
use vbts_host::Unit;
use vbts_symbols::Symbolizer;

/// Writes the format.
#[derive(Debug)]
pub struct Btrace(BtraceWriter);

impl Btrace {
    /// An empty trace.
    ///
    /// # Errors
    /// There is no memory for the compression.
    pub fn new(run: &Run) -> Result<Self, Error> {
        let encoder = Box::new(BlockEncoder::new()?);
        Ok(Self(BtraceWriter::with_encoder(Vec::new(), run, encoder)?))
    }

    /// Moves what is encoded to `out`. An encoder to memory fails only if there is no more memory:
    /// a failure is logged.
    fn take(&mut self, result: Result<(), Error>, out: &mut Vec<u8>) {
        if let Err(error) = result {
            tracing::error!("a part of the trace is lost: {error}");
        }
        out.append(self.0.output());
    }
}

impl Format for Btrace {
    fn unit(&self) -> Unit {
        Unit::BYTE
    }

    fn start_threads(&mut self) -> io::Result<()> {
        *self.0.encoder() = parallel_encoder::start()?;
        Ok(())
    }

    fn branches(
        &mut self,
        task: &Task,
        branches: &[Branch],
        _symbols: &mut Symbolizer,
        out: &mut Vec<u8>,
    ) -> usize {
        let result = self.0.branches(task.number, branches);
        self.take(result, out);
        branches.len()
    }

    fn event(&mut self, task: &Task, event: &Event, out: &mut Vec<u8>) {
        let result = self.0.event(task.number, event);
        self.take(result, out);
    }

    fn kept(&self) -> u64 {
        self.0.kept()
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        let result = self.0.flush();
        self.take(result, out);
    }

    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>) {
        let signal = match summary.end {
            RunEnd::Program(ExitStatus::Signal(signal)) => Some(signal),
            _ => None,
        };
        let exit = summary.end.exit().filter(|_| signal.is_none());
        let mut end = vbts_trace::Summary {
            records: summary.records,
            lost: summary.lost,
            lost_more: summary.lost_more,
            filtered: summary.filtered,
            undrained: summary.undrained,
            tasks: summary.tasks,
            unordered: summary.unordered,
            end: summary.end.name().into(),
            exit,
            signal,
            ..vbts_trace::Summary::default()
        };
        end.other.insert("untraced".into(), summary.untraced.into());
        let result = self.0.finish(&end);
        self.take(result, out);
    }
}
