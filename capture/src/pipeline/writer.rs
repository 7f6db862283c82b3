//! Formats and writes the trace in a thread of its own, while the guest runs.
//!
//! The agent's messages are parsed where the guest's processor runs, so that the guest's time does
//! not depend on how fast the host writes. Only work that the guest does not wait for is queued for
//! the thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::TracePipeline;
use super::merge::{AgentEvent, Merge};
use super::queue::{Queue, Work, WriterError};
use crate::branch_pool::BranchPool;
use crate::pipeline::Options;
use crate::sink::Sink as _;
use crate::summary::{RunEnd, Summary, Written};
use crate::task::Task;
use vbts_host::sandbox::{ThreadKind, confine_thread};
use vbts_host::{Alarm, OutputError, WriteTimeout};

/// Bytes of work that are queued at most. The guest waits while there are more.
const LIMIT: usize = 8 << 20;
/// Bytes of work that are queued at most when the run ends early, so that the guest can drain its
/// buffers without a wait.
const LIMIT_AT_END: usize = 256 << 20;
/// Time for which a reader that does not read can delay the end of an interrupted run. One that
/// reads slowly gets all of the trace: the merge may hold much of it until the end.
const READER_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of mapped records that are copied at once: less than it takes to wake the thread.
const COPIED: usize = 64 << 10;
/// Time for which `vbts` waits for the program's output before it stops with the program.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// Time that the thread has to end the line or record that it writes, and to write what the format
/// keeps, when no more is to follow.
const STOP_TIME: Duration = Duration::from_millis(500);

/// The thread that writes the trace, as the run loop sees it.
#[derive(Debug, Clone)]
pub struct Writer {
    queue: Arc<Queue>,
    alarm: Arc<Alarm>,
    /// Bytes of work that are queued at most.
    limit: usize,
}

impl Writer {
    /// Starts the thread, which writes a trace as `options` say, and those of the format. `alarm`
    /// ends waits for a reader that does not read.
    ///
    /// # Errors
    /// The host cannot start a thread, or has no memory for the trace.
    pub fn start(mut options: Options, alarm: Arc<Alarm>) -> io::Result<Self> {
        options.format.start_threads()?;
        let queue = Arc::new(Queue::default());
        let mut thread = Thread {
            queue: queue.clone(),
            merge: Merge::new(options.merge_limit),
            trace: TracePipeline::new(options, queue.clone()).map_err(io::Error::other)?,
        };
        std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || thread.run())?;
        Ok(Self {
            queue,
            alarm,
            limit: LIMIT,
        })
    }

    /// Lets the queue grow, because the run ends early.
    pub(crate) fn expect_end(&mut self) {
        self.limit = LIMIT_AT_END;
        self.queue.writes.hurry();
    }

    /// Queues `work`. Blocks while the queue is full. An event of the alarm ends the wait for a
    /// reader that does not read.
    ///
    /// # Errors
    /// See [`WriterError`]. After the first one, all work is dropped.
    pub fn put(&self, mut work: Work) -> Result<(), WriterError> {
        if let Work::Mapped { records, .. } = &work
            && records.len() <= COPIED
        {
            work.read_mapped(&self.queue.pool)?;
        }
        let mut state = self.queue.lock();
        let mut timeout = self.reader_timeout();
        while state.bytes > self.limit && !state.failed {
            state = self.queue.wait(state);
            if state.bytes > self.limit && self.alarm.has_pending() {
                self.queue.writes.hurry();
                if timeout.is_over() {
                    return Err(WriterError::Interrupted);
                }
                self.alarm.note_progress();
            }
        }
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if !state.failed {
            state.bytes += work.bytes();
            state.urgent |= work.is_urgent();
            state.work.push_back(work);
            if state.is_due() {
                self.queue.notify();
            }
        }
        Ok(())
    }

    /// Copies the records of the first `messages` messages out of the guest's memory, unless the
    /// thread has done so. The thread may be busy with older records for long, so it is not
    /// waited for, except while it copies some.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn read_mapped(&self, messages: u64) -> Result<(), WriterError> {
        let mut state = self.queue.lock();
        for work in &mut state.work {
            if matches!(work, Work::Mapped { message, .. } if *message <= messages) {
                work.read_mapped(&self.queue.pool)?;
            }
        }
        while state.reading && !state.failed {
            state = self.queue.wait(state);
        }
        Ok(())
    }

    /// Blocks until what the program has written so far is written, for at most a second: its
    /// reader may not read. A writer that has failed writes nothing.
    pub(crate) fn wait_for_output(&self) {
        let (reached, waiting) = sync_channel(1);
        if self.put(Work::Reached(reached)).is_ok() {
            let _ = waiting.recv_timeout(OUTPUT_WAIT);
        }
    }

    /// Returns the streams of the program whose readers have closed them since the last call.
    ///
    /// # Errors
    /// Writing has failed. A second call does not return the error.
    pub(crate) fn take_closed(&self) -> Result<Vec<u32>, WriterError> {
        let mut state = self.queue.lock();
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.closed)),
        }
    }

    /// Branches so far.
    pub fn records(&self) -> u64 {
        self.queue.records.load(Ordering::Relaxed)
    }

    /// What is written of a trace that has no end.
    pub fn written(&self) -> Written {
        let all = self.queue.lock().failed;
        // The thread may still write. It publishes the branches after the bytes that have them.
        let records = self.queue.written.load(Ordering::Acquire);
        Written {
            records,
            bytes: self.queue.bytes.load(Ordering::Relaxed),
            all,
        }
    }

    fn reader_timeout(&self) -> WriteTimeout<'_> {
        WriteTimeout::new(&self.queue.writes, READER_TIMEOUT)
    }

    /// Memory for the branches of a drain.
    pub(crate) fn pool(&self) -> &BranchPool {
        &self.queue.pool
    }

    /// Host time so far in which the trace was formatted and written.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.queue.busy.load(Ordering::Relaxed))
    }

    /// Blocks until the trace of a run that ended so is written, its summary included. The guest's
    /// buffers are `drained`, or the summary says how much they can have. An event of the alarm
    /// ends the trace at once. If the run was `interrupted`, a write that waits for its reader for
    /// one second ends it too. It then ends with a whole line or record, unless a reader that does
    /// not read has got only a part of one.
    ///
    /// Returns the summary, if the trace has its end, and the error, if there is one that the run
    /// loop has not taken.
    pub fn finish(
        &self,
        end: RunEnd,
        drained: bool,
        interrupted: bool,
    ) -> (Option<Summary>, Option<WriterError>) {
        if interrupted {
            self.queue.writes.hurry();
            // What ended the run must not end this wait. A later signal does.
            self.alarm.set_timer(None);
            while self.alarm.take().is_some() {}
        }
        let mut timeout = self.reader_timeout();
        let mut state = self.queue.lock();
        state.end = Some((end, drained));
        self.queue.notify();
        let mut stopped: Option<Instant> = None;
        loop {
            if state.failed || state.summary.is_some() {
                return (state.summary.take(), state.error.take());
            }
            match stopped {
                Some(since) if since.elapsed() >= STOP_TIME => {
                    return (None, Some(WriterError::Interrupted));
                }
                None if self.alarm.has_pending() || interrupted && timeout.is_over() => {
                    self.queue.writes.stop();
                    stopped = Some(Instant::now());
                }
                _ => {}
            }
            state = self.queue.wait(state);
        }
    }
}

/// The state of the thread.
struct Thread {
    queue: Arc<Queue>,
    merge: Merge,
    trace: TracePipeline,
}

impl Thread {
    fn run(&mut self) {
        /// Reports a panic of the thread.
        struct Guard(Arc<Queue>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.end(None, Some(WriterError::Failed));
                }
            }
        }
        let guard = Guard(self.queue.clone());
        let (summary, error) = match self.write() {
            Ok((summary, error)) => (Some(summary), error),
            Err(error) => (self.give_up(&error), Some(error)),
        };
        self.queue.end(summary, error);
        drop(guard);
    }

    /// Writes what can be written of a trace that `error` ends: its end, if everything before the
    /// error is written.
    fn give_up(&mut self, error: &WriterError) -> Option<Summary> {
        if matches!(error, WriterError::Agent(_) | WriterError::Records(_))
            && let Ok((summary, _)) = self.end(RunEnd::Error, false)
        {
            return Some(summary);
        }
        // `error` says why. An output that has failed takes no more.
        let _ = self.trace.flush();
        None
    }

    /// Does all work until the end of the trace or the first error. Returns the end, and the error
    /// of what is written beside the trace.
    fn write(&mut self) -> Result<(Summary, Option<WriterError>), WriterError> {
        loop {
            let mut state = self.queue.lock();
            while !state.is_due() {
                let before = state.bytes;
                state = self.queue.wait(state);
                if before > 0 && state.bytes == before {
                    break;
                }
            }
            let (mut work, end) = (std::mem::take(&mut state.work), state.end);
            let was_full = state.bytes > LIMIT;
            (state.bytes, state.urgent) = (0, false);
            let mapped = work.iter().any(|work| matches!(work, Work::Mapped { .. }));
            state.reading = mapped;
            drop(state);
            if was_full {
                self.queue.notify();
            }
            // The process enters its sandbox before the guest starts, and so before any work.
            confine_thread(ThreadKind::Trace)
                .map_err(|failure| WriterError::Sandbox(failure.to_string()))?;
            if work.is_empty()
                && let Some((end, drained)) = end
            {
                return self.end(end, drained);
            }
            let began = Instant::now();
            if mapped {
                for work in &mut work {
                    work.read_mapped(&self.queue.pool)?;
                }
                self.queue.lock().reading = false;
                self.queue.notify();
            }
            let done = work.into_iter().try_for_each(|work| self.perform(work));
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.queue.busy.fetch_add(took, Ordering::Relaxed);
            done?;
        }
    }

    fn perform(&mut self, work: Work) -> Result<(), WriterError> {
        self.queue.check()?;
        let destination = self.trace.destination();
        match work {
            Work::Agent(event) => self.merge(event)?,
            Work::Mapped { task, records, .. } => {
                let records = records.read(&self.queue.pool)?;
                self.merge(AgentEvent::Records { task, records })?;
            }
            Work::Output { fd, bytes } => match destination.write_stream(fd, &bytes) {
                // The program gets to know, and the trace goes on.
                Err(OutputError::Closed(_)) if !destination.shares_trace(fd) => {
                    self.queue.lock().closed.push(fd);
                }
                written => written?,
            },
            Work::Event(event) => self.trace.event(&Task::default(), &event)?,
            Work::FlushLine => destination.flush_line()?,
            Work::RestoreTerminal(restorer) => restorer.restore(),
            Work::Reached(waiting) => {
                // The run loop may wait no longer.
                let _ = waiting.try_send(());
            }
        }
        Ok(())
    }

    /// Adds what the agent has reported, and writes all that is ordered now.
    fn merge(&mut self, event: AgentEvent) -> Result<(), WriterError> {
        self.merge.push(event, &mut self.trace)?;
        self.trace.settle()
    }

    fn end(
        &mut self,
        end: RunEnd,
        drained: bool,
    ) -> Result<(Summary, Option<WriterError>), WriterError> {
        self.merge.finish(&mut self.trace)?;
        let summary = self.trace.summary();
        summary.end = end;
        summary.tasks = self.merge.tasks();
        summary.undrained = if drained { 0 } else { self.merge.capacity() };
        summary.unordered = self.merge.is_unordered();
        self.trace.end()
    }
}

#[cfg(test)]
mod tests;
