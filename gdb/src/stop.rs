use crate::resumption::WatchAccess;
use crate::target::ThreadId;

/// A stop of the whole target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The thread that has stopped the target. Of a process that has ended
    /// ([`StopReason::Exited`], [`StopReason::Killed`]), any of its former threads.
    pub thread: ThreadId,
    /// Reason of the stop.
    pub reason: StopReason,
}

/// Reason of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The thread has executed the step or left the range that it was resumed for.
    Step,
    /// The thread receives this signal of Linux. 0 is none: a stop without a cause in the program,
    /// such as the first one.
    Signal(u8),
    /// The thread is at a breakpoint.
    Breakpoint,
    /// The thread is at a hardware breakpoint.
    HardwareBreakpoint,
    /// A watchpoint of this kind was hit.
    Watchpoint {
        /// Kind of the watchpoint.
        access: WatchAccess,
        /// An address that the access and the watchpoint have in common.
        address: u64,
    },
    /// The recording has no earlier instruction. Backward only.
    HistoryBegin,
    /// The recording has no later instruction.
    HistoryEnd,
    /// The thread is in a system call that is caught.
    Syscall {
        /// Number of the call.
        number: u32,
        /// Place in the call.
        boundary: SyscallBoundary,
    },
    /// The process has executed this file.
    Exec {
        /// Absolute path of the file.
        path: Vec<u8>,
    },
    /// The process has forked. `child` exists, is stopped, and has inherited the stop points.
    Fork {
        /// The child's thread.
        child: ThreadId,
    },
    /// The process has called vfork.
    Vfork {
        /// The child's thread.
        child: ThreadId,
    },
    /// The child of vfork has executed a file or exited, so that the parent can go on.
    VforkDone,
    /// The thread is new ([`Target::report_threads`](crate::Target::report_threads)).
    ThreadCreated,
    /// The thread is about to exit with this status.
    ThreadExited {
        /// Status of the thread.
        status: u8,
    },
    /// The process has exited with this status.
    Exited {
        /// Status of the process.
        status: u8,
    },
    /// The process was killed by this signal of Linux.
    Killed {
        /// Number of the signal.
        signal: u8,
    },
    /// No thread is left that the client has resumed, but others are.
    NoResumedThreads,
}

/// Place in a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallBoundary {
    /// Before its execution.
    Entry,
    /// After its execution.
    Return,
}
