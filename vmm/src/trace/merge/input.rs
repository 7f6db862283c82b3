//! What the agent reports about tasks and processes.

use vbts_protocol::{Crash, ExitStatus};

use crate::trace::task::Untraced;

/// A message of the agent about a task, or about a process (its mappings).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A task is traced from here on.
    Start {
        /// The task.
        task: u32,
        /// The task that has started it.
        parent: u32,
        /// Its process.
        process: u32,
        /// Number of records that its buffers can have.
        capacity: u32,
        /// When.
        time: u64,
    },
    /// A task executes a program.
    Exec {
        /// The task.
        task: u32,
        /// Its ID before.
        former: u32,
        /// When.
        time: u64,
        /// Path of the program.
        name: Vec<u8>,
    },
    /// A task gets a signal.
    Signal {
        /// The task.
        task: u32,
        /// When.
        time: u64,
        /// The signal.
        signal: u32,
    },
    /// A task has ended.
    End {
        /// The task.
        task: u32,
        /// When.
        time: u64,
        /// How.
        status: ExitStatus,
    },
    /// A task is not traced, or not any more.
    Untraced(Untraced),
    /// Records of a task as the guest's kernel writes them.
    Records {
        /// The task.
        task: u32,
        /// The records.
        records: Vec<u8>,
    },
    /// The mappings of a process, valid for the records of its tasks that follow.
    Maps {
        /// The process.
        process: u32,
        /// The text of `/proc/PID/maps`.
        text: Vec<u8>,
    },
    /// All records of a task before a time have arrived.
    Drained {
        /// The task.
        task: u32,
        /// The time.
        time: u64,
    },
    /// At least this many records of a task are missing.
    Lost {
        /// The task.
        task: u32,
        /// The number of records.
        records: u64,
    },
    /// A signal kills a task for what its instruction did.
    Crash(Box<Crash>),
    /// Where a task stands at the end of the run.
    Standing {
        /// The task.
        task: u32,
        /// The line of `/proc/TID/syscall`.
        syscall: String,
        /// Its name in the guest's kernel.
        name: Vec<u8>,
    },
}

impl Input {
    /// The time at which the agent has sent it, if it says so.
    pub fn sent_at(&self) -> Option<u64> {
        match self {
            Self::Exec { time, .. } | Self::Signal { time, .. } | Self::End { time, .. } => {
                Some(*time)
            }
            _ => None,
        }
    }

    /// The memory that it takes in addition to itself, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Records { records: bytes, .. }
            | Self::Maps { text: bytes, .. }
            | Self::Exec { name: bytes, .. } => bytes.len(),
            Self::Untraced(Untraced { name, reason, .. })
            | Self::Standing {
                name,
                syscall: reason,
                ..
            } => name.len() + reason.len(),
            Self::Crash(crash) => size_of_val(&**crash) + crash.instruction.len(),
            Self::Start { .. }
            | Self::Signal { .. }
            | Self::End { .. }
            | Self::Drained { .. }
            | Self::Lost { .. } => 0,
        }
    }
}
