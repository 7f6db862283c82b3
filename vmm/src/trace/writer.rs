//! Formats and writes the trace in a thread of its own, while the guest runs.
//!
//! The agent's messages are parsed where the guest's processor runs, so that the guest's time does
//! not depend on how fast the host writes. Only work that the guest does not wait for is queued for
//! the thread.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vbts_protocol::{Crash, Scope};

use super::destination::Destination;
use super::format::{Format, PIECE, Record, Records};
use super::merge::{Merge, Sink};
use super::queue::{Queue, Work, WriterError};
use super::report::{self, Standing};
use super::session::Options;
use super::summary::{RunEnd, Summary};
use super::symbols::Symbolizer;
use super::task::{Task, TaskEvent, Untraced};
use crate::host::{Alarm, OutputError};
use crate::sandbox::{ThreadKind, confine_thread};

/// Bytes of work that are queued at most. The guest waits while there are more.
const LIMIT: usize = 8 << 20;
/// Bytes of work that are queued at most when the run ends early, so that the guest can drain its
/// buffers without a wait.
const LIMIT_AT_END: usize = 256 << 20;
/// Time for which a reader that does not read can delay the end of an interrupted run. One that
/// reads slowly gets all of the trace: the merge may hold much of it until the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time that the thread has to end the line or record that it writes, when no more is to follow.
const STOP_TIME: Duration = Duration::from_millis(500);

/// Number of tasks that a report shows at the end of a run.
const SHOWN: usize = 32;
/// Number of branches that it shows of each.
const SHOWN_BRANCHES: usize = 8;

/// The thread that writes the trace, as the run loop sees it.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    alarm: Arc<Alarm>,
    /// Bytes of work that are queued at most.
    limit: usize,
}

impl Writer {
    /// Starts the thread, which writes a trace as `options` say. `alarm` ends waits for a reader
    /// that does not read.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(options: Options, alarm: Arc<Alarm>) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut destination = options.destination;
        destination.write_in(options.format.unit(), &queue.stop);
        let mut symbols = options.symbols;
        symbols.end_with(queue.clone());
        let mut thread = Thread {
            queue: queue.clone(),
            merge: Merge::new(options.merge_limit),
            trace: Trace {
                queue: queue.clone(),
                scope: options.scope,
                reports: options.reports,
                format: options.format,
                symbols,
                destination,
                buffer: Vec::new(),
                summary: Summary::default(),
                crashes: HashMap::new(),
                standing: Vec::new(),
                more_standing: 0,
            },
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
    pub fn expect_end(&mut self) {
        self.limit = LIMIT_AT_END;
        self.queue.hurry.store(true, Ordering::Relaxed);
    }

    /// Queues `work`. Blocks while the queue is full. An event of the alarm ends the wait for a
    /// reader that does not read.
    ///
    /// # Errors
    /// See [`WriterError`]. After the first one, all work is dropped.
    pub fn put(&self, work: Work) -> Result<(), WriterError> {
        let mut state = self.queue.lock();
        let mut patience = Patience::new(&self.queue);
        while state.bytes > self.limit && !state.failed {
            state = self.queue.wait(state);
            if state.bytes > self.limit && self.alarm.has_pending() {
                self.queue.hurry.store(true, Ordering::Relaxed);
                if patience.is_over() {
                    return Err(WriterError::Interrupted);
                }
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

    /// Returns the streams of the program whose readers have closed them since the last call.
    ///
    /// # Errors
    /// Writing has failed. A second call does not return the error.
    pub fn take_closed(&self) -> Result<Vec<u32>, WriterError> {
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

    /// Host time so far in which the trace was formatted and written.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.queue.busy.load(Ordering::Relaxed))
    }

    /// Blocks until the trace of a run that ended so is written, its summary included. The guest's
    /// buffers are `drained`, or the summary says how much they can have. An event of the alarm
    /// ends the trace at once. If the run was `interrupted`, a wait in which nothing can be written
    /// for one second ends it too. It then ends with a whole line or record, unless a reader that
    /// does not read has got only a part of one.
    ///
    /// # Errors
    /// See [`WriterError`].
    pub fn finish(
        &self,
        end: RunEnd,
        drained: bool,
        interrupted: bool,
    ) -> Result<Summary, WriterError> {
        let mut patience = Patience::new(&self.queue);
        if interrupted {
            self.queue.hurry.store(true, Ordering::Relaxed);
            // What ended the run must not end this wait. A later signal does.
            self.alarm.set_timer(None);
            while self.alarm.take().is_some() {}
        }
        let mut state = self.queue.lock();
        state.end = Some((end, drained));
        self.queue.notify();
        let mut stopped: Option<Instant> = None;
        loop {
            if state.failed {
                return Err(state.error.take().unwrap_or(WriterError::Interrupted));
            }
            if let Some(summary) = state.summary.take() {
                return Ok(summary);
            }
            match stopped {
                Some(since) if since.elapsed() >= STOP_TIME => {
                    return Err(WriterError::Interrupted);
                }
                None if self.alarm.has_pending() || interrupted && patience.is_over() => {
                    self.queue.stop.store(true, Ordering::Relaxed);
                    stopped = Some(Instant::now());
                }
                _ => {}
            }
            state = self.queue.wait(state);
        }
    }
}

/// Distinguishes a thread that is slow from one whose reader does not read.
struct Patience<'a> {
    queue: &'a Queue,
    progress: u64,
    since: Instant,
}

impl<'a> Patience<'a> {
    fn new(queue: &'a Queue) -> Self {
        Self {
            queue,
            progress: queue.progress.load(Ordering::Relaxed),
            since: Instant::now(),
        }
    }

    /// Returns whether the thread has written nothing for [`PATIENCE`].
    fn is_over(&mut self) -> bool {
        let progress = self.queue.progress.load(Ordering::Relaxed);
        if progress != self.progress {
            (self.progress, self.since) = (progress, Instant::now());
        }
        self.since.elapsed() >= PATIENCE
    }
}

/// The state of the thread.
struct Thread {
    queue: Arc<Queue>,
    merge: Merge,
    trace: Trace,
}

impl Thread {
    fn run(&mut self) {
        /// Reports a panic of the thread.
        struct Guard(Arc<Queue>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(WriterError::Failed);
                }
            }
        }
        let guard = Guard(self.queue.clone());
        match self.write() {
            Ok(summary) => self.queue.lock().summary = Some(summary),
            Err(error) => self.queue.fail(error),
        }
        self.queue.notify();
        drop(guard);
    }

    /// Does all work until the end of the trace or the first error.
    fn write(&mut self) -> Result<Summary, WriterError> {
        let mut confined = false;
        loop {
            let mut state = self.queue.lock();
            while !state.is_due() {
                let before = state.bytes;
                state = self.queue.wait(state);
                if before > 0 && state.bytes == before {
                    break;
                }
            }
            let (work, end) = (std::mem::take(&mut state.work), state.end);
            let was_full = state.bytes > LIMIT;
            (state.bytes, state.urgent) = (0, false);
            drop(state);
            if was_full {
                self.queue.notify();
            }
            // The process enters its sandbox before the guest starts, and so before any work.
            if !confined {
                confined = confine_thread(ThreadKind::Trace)
                    .map_err(|failure| WriterError::Sandbox(failure.to_string()))?;
            }
            if work.is_empty()
                && let Some((end, drained)) = end
            {
                return self.end(end, drained);
            }
            let began = Instant::now();
            let done = work.into_iter().try_for_each(|work| self.perform(work));
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.queue.busy.fetch_add(took, Ordering::Relaxed);
            done?;
        }
    }

    fn perform(&mut self, work: Work) -> Result<(), WriterError> {
        self.queue.check()?;
        let destination = &mut self.trace.destination;
        match work {
            Work::Task(input) => return self.merge.push(input, &mut self.trace),
            Work::Output { fd, bytes } => match destination.write_stream(fd, &bytes) {
                // The program gets to know, and the trace goes on.
                Err(OutputError::Closed(_)) if !destination.shares_trace(fd) => {
                    self.queue.lock().closed.push(fd);
                    Ok(())
                }
                written => written,
            },
            Work::FlushLine => destination.flush_line(),
            Work::RestoreTerminal(restorer) => {
                restorer.restore();
                Ok(())
            }
        }?;
        self.queue.progress.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn end(&mut self, end: RunEnd, drained: bool) -> Result<Summary, WriterError> {
        self.merge.finish(&mut self.trace)?;
        let summary = &mut self.trace.summary;
        summary.end = end;
        summary.tasks = self.merge.tasks();
        summary.undrained = if drained { 0 } else { self.merge.capacity() };
        summary.unordered = self.merge.is_unordered();
        self.trace.end()
    }
}

/// The trace that is written.
struct Trace {
    queue: Arc<Queue>,
    scope: Scope,
    /// Reports about tasks go to standard error.
    reports: bool,
    format: Box<dyn Format>,
    symbols: Symbolizer,
    destination: Destination,
    /// Formatted records.
    buffer: Vec<u8>,
    summary: Summary,
    /// How live tasks have crashed, by their numbers. Their last branches follow.
    crashes: HashMap<u64, Crash>,
    /// Tasks that stood at the end of the run.
    standing: Vec<Standing>,
    /// Number of further ones.
    more_standing: u64,
}

impl Trace {
    fn end(&mut self) -> Result<Summary, WriterError> {
        self.destination.end_line()?;
        self.destination.end_reports()?;
        if self.reports && !matches!(self.summary.end, RunEnd::Program(_)) {
            let report = self.where_tasks_stand();
            self.destination.write_stderr(report.as_bytes())?;
        }
        self.summary.unnamed = self.symbols.unnamed().clone();
        self.symbols.end_reader();
        self.buffer.clear();
        self.format.summary(&self.summary, &mut self.buffer);
        self.destination.write_trace(&self.buffer)?;
        Ok(self.summary.clone())
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
        for piece in records.chunks(PIECE) {
            let mut piece = Records::new(piece, self.scope);
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
        }
        task.recent.push(records, self.scope);
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), WriterError> {
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
            TaskEvent::Start { .. } | TaskEvent::Exec { .. } => {}
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
    }

    fn process_ended(&mut self, process: u32) {
        self.format.process_ended(process);
        self.symbols.remove(process);
    }
}

/// Counts `records` in `summary`. A record that the kernel has marked invalid is a lost one.
fn count(records: Records<'_>, summary: &mut Summary) {
    for record in records {
        match record {
            Record::Branch { .. } => summary.records += 1,
            Record::Invalid => summary.lost += 1,
            Record::Arrive { .. } | Record::Depart { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use vbts_protocol::ExitStatus;

    use super::*;
    use crate::trace::destination::{StdoutUse, TraceTo};
    use crate::trace::format::Raw;
    use crate::trace::format::tests::{records, symbols};
    use crate::trace::merge::Input;

    fn writer(trace: &impl AsRawFd, limit: Option<Duration>) -> Writer {
        let path = format!("/proc/self/fd/{}", trace.as_raw_fd());
        let trace = TraceTo::File(path.as_ref());
        let alarm = Arc::new(Alarm::new(Arc::default(), limit).unwrap());
        alarm.start_timer().unwrap();
        let options = Options {
            scope: Scope::User,
            reports: true,
            format: Box::new(Raw),
            symbols: symbols(),
            destination: Destination::new(trace, StdoutUse::Program).unwrap(),
            merge_limit: 1 << 20,
        };
        let writer = Writer::start(options, alarm).unwrap();
        let start = Input::Start {
            task: 1,
            parent: 0,
            process: 1,
            capacity: 0,
            time: 0,
        };
        writer.put(Work::Task(start)).unwrap();
        writer
    }

    const EXITED: RunEnd = RunEnd::Program(ExitStatus::Code(7));

    fn branches(n: usize) -> Work {
        let records = records(&vec![[1, 2, 3]; n]);
        Work::Task(Input::Records { task: 1, records })
    }

    /// A pipe that is not read, and the end for reading.
    fn stuck(limit: Option<Duration>) -> (std::io::PipeReader, Writer) {
        let (reader, pipe) = io::pipe().unwrap();
        (reader, writer(&pipe, limit))
    }

    #[test]
    fn a_reader_that_does_not_read_blocks_the_guest_until_the_time_limit() {
        let (_reader, writer) = stuck(Some(Duration::from_millis(200)));
        let error = (0..)
            .find_map(|_| writer.put(branches(1 << 16)).err())
            .unwrap();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
        let error = writer.finish(EXITED, true, false).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_block_an_interrupted_run() {
        let (_reader, writer) = stuck(None);
        writer.put(branches(1 << 16)).unwrap();
        let error = writer.finish(EXITED, true, true).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn a_trace_that_the_time_limit_ends_has_whole_records() {
        let (reader, writer) = stuck(Some(Duration::from_millis(200)));
        let slow = slow(reader, Duration::from_millis(70));
        writer.put(branches(1 << 16)).unwrap();
        let error = writer.finish(EXITED, true, false).unwrap_err();
        let interrupted = matches!(error, WriterError::Output(OutputError::Interrupted(_)));
        assert!(interrupted, "{error}");
        let written = slow.join().unwrap();
        assert!(written > 0 && written < 24 << 16, "{written}");
        assert_eq!(written % 24, 0, "{written}");
    }

    #[test]
    fn the_queue_is_bounded_for_work_without_data() {
        let (_reader, writer) = stuck(Some(Duration::from_millis(500)));
        writer.put(branches(1 << 16)).unwrap();
        let most = 2 * LIMIT / size_of::<Work>();
        let refused = (0..=most).find(|_| writer.put(Work::FlushLine).is_err());
        assert!(refused.is_some());
    }

    /// A reader that takes 64 KiB after each `delay`. Returns the number of bytes in the end.
    fn slow(mut reader: std::io::PipeReader, delay: Duration) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            let (mut all, mut bytes) = (0, vec![0; 1 << 16]);
            loop {
                std::thread::sleep(delay);
                match io::Read::read(&mut reader, &mut bytes).unwrap() {
                    0 => return all,
                    n => all += n,
                }
            }
        })
    }

    #[test]
    fn a_slow_reader_gets_everything() {
        // The interrupted run takes longer than a reader that does not read may delay it.
        for (interrupted, delay) in [(false, 1), (true, 16)] {
            let (reader, writer) = stuck(None);
            let slow = slow(reader, Duration::from_millis(delay));
            for _ in 0..10 {
                writer.put(branches(1 << 16)).unwrap();
            }
            let summary = writer.finish(EXITED, true, interrupted).unwrap();
            assert_eq!((summary.records, summary.end), (10 << 16, EXITED));
            drop(writer);
            assert_eq!(slow.join().unwrap(), 24 * (10 << 16));
        }
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let writer = writer(&full, None);
        let error = (0..).find_map(|_| writer.put(branches(1)).err()).unwrap();
        assert!(
            matches!(error, WriterError::Output(OutputError::Write { .. })),
            "{error}"
        );
        assert!(writer.take_closed().is_ok());
        writer.put(branches(1)).unwrap();
    }
}
