//! A recording of a machine, as the run loop sees it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use indicatif::ProgressBar;
use vbts_cpu::{BranchLog, LogScope, Probe};
use vbts_trace::Run;

use super::encoder::Encoder;
use super::queue::{End, Queue, Sink};
use crate::pipeline::queue::WriterError;
use vbts_host::Alarm;
use vbts_host::exit::Failure;
use vbts_host::output::{Output, OutputError};

/// What to record, and where to.
#[derive(Debug)]
pub struct Options {
    /// The file.
    pub output: Output,
    /// The facts about the run.
    pub run: Run,
    /// The branches.
    pub scope: LogScope,
    /// The kernel is a 32-bit one, whose addresses are extended.
    pub is_32_bit: bool,
    /// Where recording begins, and where tasks are noted.
    pub probes: Vec<Probe>,
    /// Keep only so many branches, the last ones.
    pub last: Option<u64>,
    /// Shows what is written so far.
    pub progress: ProgressBar,
}

/// The numbers at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Branches in the file.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Ends a recording, from any thread.
#[derive(Debug, Clone)]
pub struct Finisher(Arc<Queue>);

/// A recording. The thread `record` encodes what the processors log.
#[derive(Debug)]
pub struct Recording {
    queue: Arc<Queue>,
    scope: LogScope,
    probes: Vec<Probe>,
    thread: JoinHandle<()>,
}

impl Recording {
    /// Opens the file at `path`, which keeps its contents until [`Self::start`].
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(path: &Path) -> Result<Output, Failure> {
        Output::open(path).map_err(OutputError::into_failure)
    }

    /// Starts the thread. `alarm` ends waits for output that cannot be written.
    ///
    /// # Errors
    /// The file cannot be written, or the host cannot start a thread.
    pub fn start(mut options: Options, alarm: Arc<Alarm>) -> Result<Self, Failure> {
        options
            .output
            .truncate()
            .map_err(OutputError::into_failure)?;
        let queue = Arc::new(Queue::new(alarm));
        options.output.observe(queue.writes.clone());
        let (scope, probes) = (options.scope, std::mem::take(&mut options.probes));
        let mut encoder = Encoder::new(queue.clone(), options).map_err(anyhow::Error::from)?;
        let thread: io::Result<_> = std::thread::Builder::new()
            .name("record".into())
            .spawn(move || encoder.run());
        Ok(Self {
            queue,
            scope,
            probes,
            thread: thread?,
        })
    }

    /// A log for a processor.
    pub fn log(&self) -> Box<BranchLog> {
        let sink = Box::new(Sink(self.queue.clone()));
        Box::new(BranchLog::new(self.scope, self.probes.clone(), sink))
    }

    /// Checks that the recording goes on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn check(&self) -> Result<(), Failure> {
        match self.queue.failed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(failure(self.queue.lock().error.take())),
        }
    }

    /// Returns a handle that ends the recording.
    pub fn finisher(&self) -> Finisher {
        Finisher(self.queue.clone())
    }

    /// Waits for the thread, which has been told the end.
    pub fn join(self) {
        // The thread reports how it ends in the queue, also if it panics.
        let _ = self.thread.join();
    }
}

impl Finisher {
    /// Writes the rest of the file, all that the logs have handed over. The run has ended as
    /// `summary` says, and `kernel` has what the kernel's file lacks. If the run was `interrupted`,
    /// a reader that does not read is not waited for.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(
        &self,
        summary: vbts_trace::Summary,
        kernel: Vec<vbts_trace::Event>,
        interrupted: bool,
    ) -> Result<Statistics, Failure> {
        let Self(queue) = self;
        queue.lock().end = Some(End { summary, kernel });
        queue.notify();
        let error = queue.wait_while(interrupted, |_| true).error.take();
        if queue.failed.load(Ordering::Relaxed) {
            return Err(failure(error));
        }
        Ok(Statistics {
            records: queue.records.load(Ordering::Relaxed),
            bytes: queue.bytes.load(Ordering::Relaxed),
        })
    }
}

fn failure(error: Option<WriterError>) -> Failure {
    match error {
        Some(WriterError::Output(error)) => error.into_failure(),
        Some(error) => Failure::Error(error.into()),
        // The error was taken before.
        None => Failure::Interrupted,
    }
}
