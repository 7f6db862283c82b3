//! The queue between the run loop and the thread that writes the trace.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;

use super::merge::{AgentEvent, MergeError};
use crate::branch_pool::BranchPool;
use crate::guest_records::GuestRecords;
use crate::kept::ReplayError;
use crate::program::Restorer;
use crate::summary::{RunEnd, Summary};
use vbts_host::{OutputError, WriteMonitor};

/// Bytes of records for which the thread is woken. Waking it takes longer than formatting one frame
/// of records.
const BATCH: usize = 256 << 10;
/// Interval at which a side that waits checks its other conditions (the alarm), and time after
/// which the thread takes less than a batch.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Why the trace could not be written.
#[derive(Debug, Error)]
pub enum WriterError {
    /// Output could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The agent has reported what cannot be true.
    #[error(transparent)]
    Agent(#[from] MergeError),
    /// The last part of the trace cannot be read again.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The trace cannot be encoded.
    #[error("cannot encode the trace: {0}")]
    Encoding(#[from] vbts_trace::Error),
    /// The agent reported records at an address without memory.
    #[error("the guest's agent has records outside of the guest's memory, at {0:#x}")]
    Records(u64),
    /// A signal arrived, or the time limit was reached, while the reader did not read.
    #[error("interrupted while the trace was written")]
    Interrupted,
    /// The thread cannot be confined.
    #[error("cannot confine the thread that writes the trace: {0}")]
    Sandbox(String),
    /// The thread has panicked. The panic was reported on standard error.
    #[error("the thread that writes the trace has failed")]
    Failed,
}

/// One task of the thread.
#[derive(Debug)]
pub enum Work {
    /// A message of the agent about a task or a process.
    Agent(AgentEvent),
    /// Records of a task that are still in the guest's memory.
    Mapped {
        /// The task.
        task: u32,
        /// The records.
        records: GuestRecords,
        /// The number of the agent's message about them.
        message: u64,
    },
    /// The program has written to a stream.
    Output {
        /// The number of the stream.
        fd: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// An event without a place in the order of time: code that is in no file, or that the guest's
    /// kernel has changed.
    Event(vbts_trace::Event),
    /// The program waits for input, so its unfinished line may be a prompt.
    FlushLine,
    /// The program writes no more to the terminal.
    RestoreTerminal(Restorer),
    /// Tells the run loop that all before it is done.
    Reached(SyncSender<()>),
}

impl Work {
    /// The memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let more = match self {
            Self::Agent(event) => event.bytes(),
            Self::Mapped { records, .. } => records.len(),
            Self::Output { bytes, .. } => bytes.len(),
            Self::Event(event) => event.size(),
            Self::FlushLine | Self::RestoreTerminal(_) | Self::Reached(_) => 0,
        };
        size_of::<Self>() + more
    }

    /// Copies records out of the guest's memory, if they are still there, to memory of `pool`.
    ///
    /// # Errors
    /// See [`GuestRecords::read`].
    pub(crate) fn read_mapped(&mut self, pool: &BranchPool) -> Result<(), WriterError> {
        if let Self::Mapped { task, records, .. } = self {
            let (task, records) = (*task, records.read(pool)?);
            *self = Self::Agent(AgentEvent::Records { task, records });
        }
        Ok(())
    }

    /// Returns whether a user or a program may wait for its output.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(
            self,
            Self::Output { .. } | Self::FlushLine | Self::Reached(_)
        )
    }
}

/// What the run loop and the thread share behind a lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Tasks that the thread has not taken.
    pub work: VecDeque<Work>,
    /// The memory that `work` takes, in bytes.
    pub bytes: usize,
    /// Some of `work` has to be done at once.
    pub(crate) urgent: bool,
    /// The thread copies records out of the guest's memory.
    pub reading: bool,
    /// How the run has ended, and whether the guest's buffers are drained. No work is added later.
    pub end: Option<(RunEnd, bool)>,
    /// Writing has failed. No more is written.
    pub failed: bool,
    /// Why writing has failed, until the run loop takes it.
    pub error: Option<WriterError>,
    /// Streams of the program whose readers have closed them, until the run loop takes them.
    pub closed: Vec<u32>,
    /// The end of the trace, when it is written.
    pub summary: Option<Summary>,
}

impl State {
    /// Returns whether the thread has to run now.
    pub(crate) fn is_due(&self) -> bool {
        self.urgent || self.bytes >= BATCH || self.end.is_some()
    }
}

/// The queue between the run loop and the thread.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Memory for branches that are copied out of the guest's memory.
    pub pool: BranchPool,
    /// Branches so far.
    pub records: AtomicU64,
    /// Bytes of the trace that are written.
    pub bytes: AtomicU64,
    /// Branches that these bytes have at least.
    pub written: AtomicU64,
    /// Host time in ns in which the thread has worked.
    pub busy: AtomicU64,
    /// The writes of the thread. Once it is stopped, the thread has to end with a whole line or
    /// record.
    pub writes: Arc<WriteMonitor>,
}

impl Queue {
    /// Locks the state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the state changes, for at most [`CHECK_INTERVAL`].
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, CHECK_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the other side after a change of the state.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Returns an error if the thread has to end.
    ///
    /// # Errors
    /// [`WriterError::Interrupted`].
    pub(crate) fn check(&self) -> Result<(), WriterError> {
        match self.writes.is_stopped() {
            true => Err(WriterError::Interrupted),
            false => Ok(()),
        }
    }

    /// The thread has ended, with the end of the trace, with an error, or with both. The first
    /// error counts.
    pub(crate) fn end(&self, summary: Option<Summary>, error: Option<WriterError>) {
        let mut state = self.lock();
        state.summary = summary;
        if error.is_some() && !state.failed {
            state.failed = true;
            state.error = error;
        }
        drop(state);
        self.notify();
    }
}
