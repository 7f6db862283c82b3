use std::ops::Range;

use crate::target::ThreadId;

/// Direction of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// As the program was executed.
    Forward,
    /// Back in time. A thread stops at an instruction with the state before its execution.
    Backward,
}

/// Execution that the client requests up to the next stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// Direction of execution.
    pub direction: Direction,
    /// The threads to resume, each once, in the order of
    /// [`Target::threads`](crate::Target::threads). Threads that are not in the list should stay
    /// where they are: the user has chosen `set scheduler-locking`, or GDB steps one thread over a
    /// breakpoint. A replay, whose schedule is fixed, may let them run; they do not stop the target
    /// then.
    pub threads: Vec<(ThreadId, ThreadAction)>,
}

/// Action of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadAction {
    /// Executes until something stops it, with this signal of Linux delivered first if the number
    /// is not 0. GDB gives back the signal that has stopped the thread, unless the user has chosen
    /// otherwise (`handle`, `signal`).
    Continue {
        /// Number of the signal, or 0.
        signal: u8,
    },
    /// Executes one instruction ([`StopReason::Step`](crate::StopReason::Step)), with this signal
    /// delivered first.
    Step {
        /// Number of the signal, or 0.
        signal: u8,
    },
    /// Executes instructions as long as the program counter is in the range, at least one. Forward
    /// only.
    StepRange(Range<u64>),
}

/// A place or an access that stops execution. Nothing in the memory of the program changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopPoint {
    /// Before the instruction at `address`, as GDB's software breakpoint.
    Breakpoint {
        /// Linear address.
        address: u64,
    },
    /// A breakpoint by the hardware: the client expects it to exist although no code is
    /// mapped there yet.
    HardwareBreakpoint {
        /// Linear address.
        address: u64,
    },
    /// After an access to one of the bytes. In reverse, before the access.
    Watchpoint {
        /// Linear address of the first byte.
        address: u64,
        /// Number of bytes, 1 or more.
        length: u64,
        /// Accesses that stop.
        access: WatchAccess,
    },
}

/// Accesses that a watchpoint is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchAccess {
    /// Writes. GDB compares the values, and continues if the write has not changed the value.
    Write,
    /// Reads.
    Read,
    /// Both.
    ReadWrite,
}

/// Selection of system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyscallFilter {
    /// No system call.
    None,
    /// Each system call.
    All,
    /// System calls with these numbers, ascending.
    Numbers(Vec<u32>),
}
