//! Formats and writes the trace in a thread of its own, while the guest runs.
//!
//! The agent's messages are parsed where the guest's processor runs, so that the guest's time does
//! not depend on how fast the host writes. Only work that the guest does not wait for is queued for
//! the thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vbts_protocol::Scope;

use super::destination::Destination;
use super::format::{Format, PIECE, Record, Records, Summary};
use super::queue::{Queue, Work, WriterError};
use crate::host::{Alarm, OutputError};

/// Bytes of work that are queued at most. The guest waits while there are more.
const LIMIT: usize = 8 << 20;
/// Time for which a reader that does not read can delay the end of an interrupted run.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread that writes the trace, as the run loop sees it.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    alarm: Arc<Alarm>,
}

impl Writer {
    /// Starts the thread. The branches that belong to `scope` are written to `destination` in
    /// `format`. `alarm` interrupts waits for a slow reader.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(
        scope: Scope,
        format: Box<dyn Format>,
        destination: Destination,
        alarm: Arc<Alarm>,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut thread = Thread {
            queue: queue.clone(),
            scope,
            format,
            destination,
            buffer: Vec::new(),
            summary: Summary::default(),
        };
        std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || thread.run())?;
        Ok(Self { queue, alarm })
    }

    /// Queues `work`. Blocks while the queue is full.
    ///
    /// # Errors
    /// See [`WriterError`]. After the first one, all work is dropped.
    pub fn put(&self, work: Work) -> Result<(), WriterError> {
        let mut state = self.queue.lock();
        while state.bytes > LIMIT && !state.failed {
            state = self.queue.wait(state);
            if state.bytes > LIMIT && self.alarm.has_pending() {
                return Err(WriterError::Interrupted);
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

    /// Returns why writing has failed. A second call returns `None`.
    pub fn take_error(&self) -> Option<WriterError> {
        self.queue.lock().error.take()
    }

    /// Branches so far.
    pub fn records(&self) -> u64 {
        self.queue.records.load(Ordering::Relaxed)
    }

    /// Host time so far in which the trace was formatted and written.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.queue.busy.load(Ordering::Relaxed))
    }

    /// Blocks until the trace of a program that ended with status `exit` is written, its summary
    /// included. The alarm ends the wait for a reader that does not read. If the run was
    /// `interrupted`, the wait is at most one second.
    ///
    /// # Errors
    /// See [`WriterError`].
    pub fn finish(&self, exit: u8, interrupted: bool) -> Result<Summary, WriterError> {
        let began = Instant::now();
        let mut state = self.queue.lock();
        state.end = Some(exit);
        self.queue.notify();
        loop {
            if state.failed {
                return Err(state.error.take().unwrap_or(WriterError::Interrupted));
            }
            if let Some(summary) = state.summary {
                return Ok(summary);
            }
            let given_up = if interrupted {
                began.elapsed() >= PATIENCE
            } else {
                self.alarm.has_pending()
            };
            if given_up {
                return Err(WriterError::Interrupted);
            }
            state = self.queue.wait(state);
        }
    }
}

/// The state of the thread.
struct Thread {
    queue: Arc<Queue>,
    scope: Scope,
    format: Box<dyn Format>,
    destination: Destination,
    /// Formatted records.
    buffer: Vec<u8>,
    summary: Summary,
}

impl Thread {
    fn run(&mut self) {
        /// Reports a panic of the thread. Without one, the end is reported before it is dropped.
        struct Guard(Arc<Queue>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if self.0.lock().summary.is_none() {
                    self.0.fail(WriterError::Failed);
                }
            }
        }
        let guard = Guard(self.queue.clone());
        match self.write() {
            Ok(()) => self.queue.lock().summary = Some(self.summary),
            Err(error) => self.queue.fail(error.into()),
        }
        self.queue.notify();
        drop(guard);
    }

    /// Does all work until the end of the trace or the first error.
    fn write(&mut self) -> Result<(), OutputError> {
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
            if work.is_empty()
                && let Some(exit) = end
            {
                return self.end(exit);
            }
            let began = Instant::now();
            let done = work.into_iter().try_for_each(|work| self.perform(work));
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.queue.busy.fetch_add(took, Ordering::Relaxed);
            done?;
        }
    }

    fn perform(&mut self, work: Work) -> Result<(), OutputError> {
        match work {
            Work::Records { pid, records } => self.records(pid, &records),
            Work::Maps { pid, text } => {
                self.format.maps(pid, &text);
                Ok(())
            }
            Work::Lost(n) => {
                self.summary.lost = self.summary.lost.saturating_add(n);
                self.summary.lost_more = true;
                Ok(())
            }
            Work::Untraced => {
                self.summary.untraced = self.summary.untraced.saturating_add(1);
                Ok(())
            }
            Work::Stdout(bytes) => self.destination.write_stdout(&bytes),
            Work::Stderr(bytes) => self.destination.write_stderr(&bytes),
            Work::FlushLine => self.destination.flush_line(),
        }
    }

    fn records(&mut self, pid: u32, records: &[u8]) -> Result<(), OutputError> {
        for piece in records.chunks(PIECE) {
            let piece = Records::new(piece, self.scope);
            count(piece, &mut self.summary);
            self.buffer.clear();
            self.format.records(pid, piece, &mut self.buffer);
            self.destination.write_trace(&self.buffer)?;
        }
        let so_far = &self.queue.records;
        so_far.store(self.summary.records, Ordering::Relaxed);
        Ok(())
    }

    fn end(&mut self, exit: u8) -> Result<(), OutputError> {
        self.summary.exit = exit;
        self.destination.end_line()?;
        self.buffer.clear();
        self.format.summary(&self.summary, &mut self.buffer);
        self.destination.write_trace(&self.buffer)
    }
}

/// Counts `records` in `summary`. A record that the kernel has marked invalid is a lost one.
fn count(records: Records<'_>, summary: &mut Summary) {
    for record in records.iter() {
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
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::trace::format::Raw;
    use crate::trace::format::tests::records;

    fn writer(trace: File, limit: Option<Duration>) -> Writer {
        let alarm = Arc::new(Alarm::new(Arc::default(), limit).unwrap());
        alarm.start_timer().unwrap();
        let destination = Destination::to(trace);
        Writer::start(Scope::User, Box::new(Raw), destination, alarm).unwrap()
    }

    fn branches(n: usize) -> Work {
        let records = records(&vec![[1, 2, 3]; n]);
        Work::Records { pid: 1, records }
    }

    /// A pipe that is not read, and the end for reading.
    fn stuck(limit: Option<Duration>) -> (std::io::PipeReader, Writer) {
        let (reader, pipe) = io::pipe().unwrap();
        (reader, writer(File::from(OwnedFd::from(pipe)), limit))
    }

    #[test]
    fn a_reader_that_does_not_read_blocks_the_guest_until_the_time_limit() {
        let (_reader, writer) = stuck(Some(Duration::from_millis(200)));
        let error = (0..)
            .find_map(|_| writer.put(branches(1 << 16)).err())
            .unwrap();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
        let error = writer.finish(0, false).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_block_an_interrupted_run() {
        let (_reader, writer) = stuck(None);
        writer.put(branches(1 << 16)).unwrap();
        let error = writer.finish(0, true).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn the_queue_is_bounded_for_work_without_data() {
        let (_reader, writer) = stuck(Some(Duration::from_millis(500)));
        writer.put(branches(1 << 16)).unwrap();
        let most = 2 * LIMIT / size_of::<Work>();
        let refused = (0..=most).find(|_| writer.put(Work::Untraced).is_err());
        assert!(refused.is_some());
    }

    #[test]
    fn a_slow_reader_gets_everything() {
        let (mut reader, writer) = stuck(None);
        let slow = std::thread::spawn(move || {
            let (mut all, mut bytes) = (0, [0; 1 << 16]);
            loop {
                std::thread::sleep(Duration::from_millis(1));
                match io::Read::read(&mut reader, &mut bytes).unwrap() {
                    0 => return all,
                    n => all += n,
                }
            }
        });
        for _ in 0..10 {
            writer.put(branches(1 << 16)).unwrap();
        }
        let summary = writer.finish(7, false).unwrap();
        assert_eq!((summary.records, summary.exit), (10 << 16, 7));
        drop(writer);
        assert_eq!(slow.join().unwrap(), 24 * (10 << 16));
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let writer = writer(full, None);
        let error = (0..).find_map(|_| writer.put(branches(1)).err()).unwrap();
        assert!(
            matches!(error, WriterError::Output(OutputError::Write { .. })),
            "{error}"
        );
        assert!(writer.take_error().is_none());
        writer.put(branches(1)).unwrap();
    }
}
