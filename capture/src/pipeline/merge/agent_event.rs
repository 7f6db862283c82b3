//! What the agent reports about tasks and processes.

use vbts_trace::Event;

use crate::records::Records;

/// A message of the agent about a task or a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// A task is traced from here on.
    Start {
        /// Thread ID.
        task: u32,
        /// Thread ID of the task that has started it; 0 for the first one.
        parent: u32,
        /// Its process.
        process: u32,
        /// Number of records that its buffers can have.
        capacity: u32,
        /// `CLOCK_MONOTONIC` of the guest in ns.
        time: u64,
    },
    /// Something else has happened to a task: any event but [`Event::Start`] and those of
    /// processes.
    Event {
        /// Thread ID. For [`Event::Exec`], that before.
        task: u32,
        /// The event.
        event: Event,
    },
    /// A task is not traced, or not any more.
    Untraced {
        /// Thread ID.
        task: u32,
        /// [`Event::Untraced`].
        event: Event,
    },
    /// Records of a task.
    Records {
        /// Thread ID.
        task: u32,
        /// The records.
        records: Records,
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
        /// Thread ID.
        task: u32,
        /// `CLOCK_MONOTONIC` of the guest in ns.
        time: u64,
    },
}

impl AgentEvent {
    /// The time at which the agent has sent it, if it says so.
    pub(crate) fn sent_at(&self) -> Option<u64> {
        match self {
            Self::Event { event, .. } => event.time(),
            _ => None,
        }
    }

    /// The time of the guest at which it happened, if it has one.
    pub(crate) fn time_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::Start { time, .. } | Self::Drained { time, .. } => Some(time),
            Self::Event { event, .. } | Self::Untraced { event, .. } => match event {
                Event::Exec { time, .. }
                | Event::End { time, .. }
                | Event::Untraced { time, .. }
                | Event::Signal { time, .. } => Some(time),
                _ => None,
            },
            Self::Records { .. } | Self::Maps { .. } => None,
        }
    }

    /// The memory of its contents in bytes, without its own size.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Records { records, .. } => records.bytes(),
            Self::Maps { text, .. } => text.len(),
            Self::Event { event, .. } | Self::Untraced { event, .. } => event.size(),
            Self::Start { .. } | Self::Drained { .. } => 0,
        }
    }
}
