//! The way of a trace to its destination: formatted and written by a thread of its own, while the
//! guest goes on.
//!
//! What the agent says is looked at where the guest's processor runs, so that the guest's time line
//! does not depend on how fast the host writes. Only what nobody in the guest waits for comes here.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use vbts_protocol::Scope;

use super::destination::Destination;
use super::format::{Format, PIECE, Record, Records, Summary};
use crate::host::{Alarm, OutputError};

/// Bytes that wait at most: then the guest waits, too.
const LIMIT: usize = 8 << 20;
/// The thread is woken for so many bytes of records, or when something else is to be written: to
/// wake it takes longer than to format a frame.
const BATCH: usize = 256 << 10;
/// While a slow reader is waited for, the alarm is looked at this often; and records do not wait
/// longer.
const LOOK: Duration = Duration::from_millis(50);
/// How long a reader that does not read can hold up the end of a run that was interrupted.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the trace could not be written.
#[derive(Debug, Error)]
pub enum WriterError {
    /// Output could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A signal or the time limit came while the reader did not read.
    #[error("interrupted while the trace was written")]
    Interrupted,
    /// The thread has ended by a mistake of ours, which has been reported.
    #[error("the thread that writes the trace has failed")]
    Failed,
}

/// One thing to do.
#[derive(Debug)]
pub enum Work {
    /// Records of a process as the guest's kernel writes them.
    Records {
        /// The process.
        pid: u32,
        /// The records.
        records: Vec<u8>,
    },
    /// The mappings of a process, valid for the records that follow.
    Maps {
        /// The process.
        pid: u32,
        /// As in `/proc/PID/maps`.
        text: Vec<u8>,
    },
    /// So many records are missing, or more.
    Lost(u64),
    /// A process or thread was started that is not traced.
    Untraced,
    /// The program has written to its standard output.
    Stdout(Vec<u8>),
    /// The program has written to its standard error.
    Stderr(Vec<u8>),
    /// The program waits for input: its unfinished line may be a prompt.
    FlushLine,
}

impl Work {
    /// Memory that it takes.
    fn bytes(&self) -> usize {
        let more = match self {
            Self::Records { records: bytes, .. }
            | Self::Maps { text: bytes, .. }
            | Self::Stdout(bytes)
            | Self::Stderr(bytes) => bytes.len(),
            Self::Lost(_) | Self::Untraced | Self::FlushLine => 0,
        };
        size_of::<Self>() + more
    }

    /// Somebody may wait for it.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Stdout(_) | Self::Stderr(_) | Self::FlushLine)
    }
}

#[derive(Debug, Default)]
struct State {
    work: VecDeque<Work>,
    /// Bytes of `work`.
    bytes: usize,
    /// Some of it is to be done at once.
    urgent: bool,
    /// There will be no more work; the program's exit status.
    end: Option<u8>,
    /// Nothing is written any more.
    failed: bool,
    /// Why, until somebody has asked.
    error: Option<WriterError>,
    /// All is written.
    summary: Option<Summary>,
}

impl State {
    /// The thread has to do something.
    fn is_due(&self) -> bool {
        self.urgent || self.bytes >= BATCH || self.end.is_some()
    }
}

#[derive(Debug, Default)]
struct Common {
    state: Mutex<State>,
    changed: Condvar,
    /// Branches so far.
    records: AtomicU64,
    /// How long the thread has worked, in ns.
    busy: AtomicU64,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something changes, or for a while.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn fail(&self, error: WriterError) {
        let mut state = self.lock();
        if !state.failed {
            state.failed = true;
            state.error = Some(error);
        }
        self.changed.notify_all();
    }
}

/// The thread's other end.
#[derive(Debug)]
pub struct Writer {
    common: Arc<Common>,
    alarm: Arc<Alarm>,
}

impl Writer {
    /// Starts the thread: what of a trace belongs to `scope` becomes `format` and goes to
    /// `destination`. `alarm` interrupts waits for a slow reader.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(
        scope: Scope,
        format: Box<dyn Format>,
        destination: Destination,
        alarm: Arc<Alarm>,
    ) -> io::Result<Self> {
        let common = Arc::new(Common::default());
        let mut thread = Thread {
            common: common.clone(),
            scope,
            format,
            destination,
            buffer: Vec::new(),
            summary: Summary::default(),
        };
        std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || thread.run())?;
        Ok(Self { common, alarm })
    }

    /// Has `work` done. Waits while there is too much to do.
    ///
    /// # Errors
    /// See [`WriterError`]. After the first one, all work is dropped.
    pub fn put(&self, work: Work) -> Result<(), WriterError> {
        let mut state = self.common.lock();
        while state.bytes > LIMIT && !state.failed {
            state = self.common.wait(state);
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
                self.common.changed.notify_all();
            }
        }
        Ok(())
    }

    /// What has gone wrong, once.
    pub fn take_error(&self) -> Option<WriterError> {
        self.common.lock().error.take()
    }

    /// Branches so far.
    pub fn records(&self) -> u64 {
        self.common.records.load(Ordering::Relaxed)
    }

    /// How long it has taken so far to format and write.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.common.busy.load(Ordering::Relaxed))
    }

    /// Waits until all is written, with the end of the trace: the program has ended with status
    /// `exit`. A run that was `interrupted` does not wait long for a reader that does not read;
    /// else the alarm ends the wait.
    ///
    /// # Errors
    /// See [`WriterError`].
    pub fn finish(&self, exit: u8, interrupted: bool) -> Result<Summary, WriterError> {
        let began = Instant::now();
        let mut state = self.common.lock();
        state.end = Some(exit);
        self.common.changed.notify_all();
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
            state = self.common.wait(state);
        }
    }
}

struct Thread {
    common: Arc<Common>,
    scope: Scope,
    format: Box<dyn Format>,
    destination: Destination,
    /// Formatted records on their way to the destination.
    buffer: Vec<u8>,
    summary: Summary,
}

impl Thread {
    fn run(&mut self) {
        /// Tells of a panic. What is done without one is told before.
        struct Guard(Arc<Common>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if self.0.lock().summary.is_none() {
                    self.0.fail(WriterError::Failed);
                }
            }
        }
        let guard = Guard(self.common.clone());
        match self.write() {
            Ok(()) => self.common.lock().summary = Some(self.summary),
            Err(error) => self.common.fail(error.into()),
        }
        self.common.changed.notify_all();
        drop(guard);
    }

    /// Does all work until the end, or until something goes wrong.
    fn write(&mut self) -> Result<(), OutputError> {
        loop {
            let mut state = self.common.lock();
            while !state.is_due() {
                let before = state.bytes;
                state = self.common.wait(state);
                if before > 0 && state.bytes == before {
                    break;
                }
            }
            let (work, end) = (std::mem::take(&mut state.work), state.end);
            let held_up = state.bytes > LIMIT;
            (state.bytes, state.urgent) = (0, false);
            drop(state);
            if held_up {
                self.common.changed.notify_all();
            }
            if work.is_empty()
                && let Some(exit) = end
            {
                return self.end(exit);
            }
            let began = Instant::now();
            let done = work.into_iter().try_for_each(|work| self.one(work));
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.common.busy.fetch_add(took, Ordering::Relaxed);
            done?;
        }
    }

    fn one(&mut self, work: Work) -> Result<(), OutputError> {
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
        let so_far = &self.common.records;
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

/// Adds the branches in `records` to `summary`; a record that the kernel marks invalid is a lost
/// one.
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

    /// A pipe that nobody reads, and its other end.
    fn stuck(limit: Option<Duration>) -> (std::io::PipeReader, Writer) {
        let (reader, pipe) = io::pipe().unwrap();
        (reader, writer(File::from(OwnedFd::from(pipe)), limit))
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_the_guest_until_the_time_limit() {
        let (_reader, writer) = stuck(Some(Duration::from_millis(200)));
        let error = (0..)
            .find_map(|_| writer.put(branches(1 << 16)).err())
            .unwrap();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
        let error = writer.finish(0, false).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn a_reader_that_does_not_read_cannot_hold_up_an_interrupted_run() {
        let (_reader, writer) = stuck(None);
        writer.put(branches(1 << 16)).unwrap();
        let error = writer.finish(0, true).unwrap_err();
        assert!(matches!(error, WriterError::Interrupted), "{error}");
    }

    #[test]
    fn nothing_can_be_said_without_end() {
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
    fn a_full_disk_is_told_once() {
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
