//! Buffers of the processors' logs on their way to the thread that encodes them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vbts_cpu::{LogBuffer, LogSink};

use crate::pipeline::queue::WriterError;
use vbts_host::{Alarm, WriteMonitor, WriteTimeout};

/// Buffers that wait at most: 12 MiB. The processors wait while there are more.
const LIMIT: usize = 16;
/// Interval at which a side that waits checks its other conditions.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which output that cannot be written delays a run that is to end.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// The end of a run.
#[derive(Debug)]
pub(super) struct End {
    /// How it ended.
    pub summary: vbts_trace::Summary,
    /// Events with the part of the kernel that its file lacks.
    pub kernel: Vec<vbts_trace::Event>,
}

/// What both sides share behind a lock.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Buffers that the thread has not taken, oldest first.
    pub full: VecDeque<LogBuffer>,
    /// Empty buffers.
    pub free: Vec<LogBuffer>,
    /// No buffer follows: the end of the run.
    pub end: Option<End>,
    /// The thread has ended.
    pub done: bool,
    /// Why it has ended early, until the run loop takes it.
    pub error: Option<WriterError>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    alarm: Arc<Alarm>,
    /// The thread has ended, or has to end, with an error.
    pub failed: AtomicBool,
    /// The writes of the thread. They are stopped when one takes too long.
    pub writes: Arc<WriteMonitor>,
    /// Branches so far.
    pub records: AtomicU64,
    /// Bytes of the file so far.
    pub bytes: AtomicU64,
}

impl Queue {
    /// An empty queue. Events of `alarm` end the wait for output that cannot be written.
    pub(super) fn new(alarm: Arc<Alarm>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            alarm,
            failed: AtomicBool::new(false),
            writes: Arc::default(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Locks the state.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the other side.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Blocks until the state changes, for at most [`CHECK_INTERVAL`].
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, CHECK_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Blocks while `waits`, unless the thread has ended. If an event of the alarm is pending, or
    /// the run was `interrupted`, a write that takes longer than [`WRITE_TIMEOUT`] ends the thread.
    pub(crate) fn wait_while(
        &self,
        interrupted: bool,
        waits: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let mut timeout = WriteTimeout::new(&self.writes, WRITE_TIMEOUT);
        while waits(&state) && !state.done {
            state = self.wait(state);
            if !timeout.is_over() {
                self.alarm.note_progress();
            } else if interrupted || self.alarm.has_pending() {
                self.writes.stop();
            }
        }
        state
    }

    /// Ends the thread, with `error` if it has failed.
    pub(super) fn end(&self, error: Option<WriterError>) {
        let mut state = self.lock();
        state.done = true;
        if error.is_some() {
            self.failed.store(true, Ordering::Relaxed);
            state.error = error;
        }
        drop(state);
        self.notify();
    }
}

/// The end of the queue at a processor.
#[derive(Debug)]
pub(super) struct Sink(pub Arc<Queue>);

impl LogSink for Sink {
    fn exchange(&mut self, full: LogBuffer) -> LogBuffer {
        let mut state = self.0.wait_while(false, |state| state.full.len() >= LIMIT);
        if state.done {
            // What follows a failed write has no place in the file.
            return full;
        }
        let free = state.free.pop().unwrap_or_else(|| full.another());
        state.full.push_back(full);
        drop(state);
        self.0.notify();
        free
    }
}
