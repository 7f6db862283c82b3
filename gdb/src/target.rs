//! The interface between the server and the program or machine under debug.

use std::fmt;

use thiserror::Error;

use crate::condition::Condition;
use crate::file::TargetFile;
use crate::registers::{RegisterLayout, Registers};
use crate::resumption::{Resumption, StopPoint, SyscallFilter};
use crate::stop::Stop;

/// The program or machine under debug, as the server drives it.
///
/// Numbers of signals, system calls and errors are those of Linux on x86-64; the server translates
/// them into GDB's. A function with a default implementation is optional: by default the server
/// answers that the packet is unknown, and GDB does without it.
///
/// No function is called while the target is resumed, apart from [`run`](Self::run) and
/// [`interrupt`](Self::interrupt): between [`resume`](Self::resume) and the stop that one of the
/// two returns.
///
/// The client is not trusted: a thread, process, address or length may be any number.
/// An implementation answers [`TargetError::Refused`] or [`TargetError::Errno`], and returns
/// [`TargetError::Fatal`] only if the session cannot continue.
pub trait Target {
    /// Returns the optional parts of the protocol that this target implements. The set must not
    /// change during a session.
    fn capabilities(&self) -> Capabilities;

    /// Returns the layout of the registers of `process`. It may change at an exec.
    fn register_layout(&mut self, process: u32) -> Result<RegisterLayout>;

    /// Returns all threads that exist now, in an order that stays the same between two stops.
    /// Empty after the last process has exited.
    fn threads(&mut self) -> Result<Vec<ThreadInfo>>;

    /// Returns why the target is stopped now: after connecting, and when GDB asks again.
    fn current_stop(&mut self) -> Result<Stop>;

    /// Reads the registers of `thread`. Parts that are not known are `None`.
    fn read_registers(&mut self, thread: ThreadId) -> Result<Registers>;

    /// Replaces the registers of `thread`. Parts that are `None` keep their values.
    fn write_registers(&mut self, thread: ThreadId, registers: &Registers) -> Result<()>;

    /// Reads memory at `address` as `thread` sees it, and returns the number of bytes that were
    /// read: fewer than the buffer's if a later byte is unmapped, and an error if the first is.
    fn read_memory(&mut self, thread: ThreadId, address: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Writes memory at `address` as `thread` sees it, all bytes or none. The server writes no
    /// breakpoints by this function, only what the user or GDB wants changed.
    fn write_memory(&mut self, thread: ThreadId, address: u64, bytes: &[u8]) -> Result<()>;

    /// Adds a stop point in the address space of `process`. GDB removes its stop points at a stop
    /// and adds them again before it resumes; adding one that exists has no effect.
    fn add_stop_point(&mut self, process: u32, point: StopPoint) -> Result<()>;

    /// Removes a stop point that [`add_stop_point`](Self::add_stop_point) has added with equal
    /// arguments. Removing one that does not exist has no effect.
    fn remove_stop_point(&mut self, process: u32, point: StopPoint) -> Result<()>;

    /// Replaces the conditions of the breakpoints at `address`. With conditions, a breakpoint stops
    /// only if one of them [holds](Condition::holds). Removing the breakpoint removes them.
    fn set_conditions(
        &mut self,
        process: u32,
        address: u64,
        conditions: Vec<Condition>,
    ) -> Result<()> {
        let _ = (process, address, conditions);
        Err(TargetError::Unsupported)
    }

    /// Selects the system calls of `process` that stop it, at entry and at return. It replaces the
    /// previous selection.
    fn catch_syscalls(&mut self, process: u32, filter: SyscallFilter) -> Result<()> {
        let _ = (process, filter);
        Err(TargetError::Unsupported)
    }

    /// Replaces the set of signals whose arrival does not stop the program. Bit `n` stands for
    /// signal `n` of Linux, 1 to 64, in bit `n - 1`.
    fn pass_signals(&mut self, signals: u64) -> Result<()> {
        let _ = signals;
        Err(TargetError::Unsupported)
    }

    /// Selects whether [`ThreadCreated`](crate::StopReason::ThreadCreated) and
    /// [`ThreadExited`](crate::StopReason::ThreadExited) stop the program.
    fn report_threads(&mut self, report: bool) -> Result<()> {
        let _ = report;
        Err(TargetError::Unsupported)
    }

    /// Resumes the target. Execution happens in [`run`](Self::run).
    ///
    /// A thread whose program counter is at a breakpoint executes the instruction there before it
    /// can stop at it: GDB steps over breakpoints with them removed, but not in reverse.
    fn resume(&mut self, resumption: &Resumption) -> Result<()>;

    /// Executes for a slice of the host's time, some 10 ms, and returns the stop that it ran into,
    /// if any. Between two slices the server looks whether the user interrupts.
    ///
    /// Text that is appended to `console` appears on GDB's terminal, at once: the program's output
    /// or messages.
    fn run(&mut self, console: &mut Vec<u8>) -> Result<Option<Stop>>;

    /// Stops the resumed target where it is, or at the nearest place at which it can stop. Its
    /// reason usually is [`Signal`](crate::StopReason::Signal) with SIGINT.
    fn interrupt(&mut self) -> Result<Stop>;

    /// Stops debugging `process`, which continues undebugged, or all processes. GDB detaches the
    /// child of a fork so, unless the user wants to follow it.
    fn detach(&mut self, process: Option<u32>) -> Result<()>;

    /// Ends `process`, or all processes.
    fn kill(&mut self, process: Option<u32>) -> Result<()>;

    /// Begins to debug a further process that exists.
    fn attach(&mut self, process: u32) -> Result<Stop> {
        let _ = process;
        Err(TargetError::Unsupported)
    }

    /// Starts again, for GDB's `run` over an extended connection. `arguments` are those of the
    /// `run` command, without the program. GDB drops all that it knows of threads, registers and
    /// memory, and reads it again, so a jump to another time can be done so.
    fn restart(&mut self, arguments: &[Vec<u8>]) -> Result<Stop> {
        let _ = arguments;
        Err(TargetError::Unsupported)
    }

    /// Executes a command that the user has given with `monitor`. Text that is appended to `output`
    /// appears on GDB's terminal. `thread` is the one that the user has selected.
    ///
    /// The error [`TargetError::Unsupported`] reports an unknown command.
    fn monitor(&mut self, thread: ThreadId, command: &str, output: &mut Vec<u8>) -> Result<()> {
        let _ = (thread, command, output);
        Err(TargetError::Unsupported)
    }

    /// Returns the auxiliary vector of `process` in the format of /proc/PID/auxv.
    fn auxiliary_vector(&mut self, process: u32) -> Result<Vec<u8>> {
        let _ = process;
        Err(TargetError::Unsupported)
    }

    /// Returns the absolute path of the file that `process` executes, which GDB then opens with
    /// [`open_file`](Self::open_file).
    fn executable(&mut self, process: u32) -> Result<Vec<u8>> {
        let _ = process;
        Err(TargetError::Unsupported)
    }

    /// Returns Linux's `siginfo_t` of the signal for which `thread` has stopped.
    fn signal_information(&mut self, thread: ThreadId) -> Result<Vec<u8>> {
        let _ = thread;
        Err(TargetError::Unsupported)
    }

    /// Returns the processes of the system, for `info os processes`.
    fn processes(&mut self) -> Result<Vec<ProcessInfo>> {
        Err(TargetError::Unsupported)
    }

    /// Returns the difference between the addresses of a kernel that relocates itself and those in
    /// its file. GDB asks once, when it connects.
    fn relocation(&mut self) -> Result<u64> {
        Err(TargetError::Unsupported)
    }

    /// Opens a file for reading, as `process` sees it, or the first process if `None`. GDB reads
    /// the program and its libraries so, and `/proc/PID/maps` for `info proc mappings`.
    ///
    /// The server limits how many files are open, and refuses to write.
    fn open_file(&mut self, process: Option<u32>, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        let _ = (process, path);
        Err(TargetError::Unsupported)
    }

    /// Returns the contents of a symbolic link.
    fn read_link(&mut self, process: Option<u32>, path: &[u8]) -> Result<Vec<u8>> {
        let _ = (process, path);
        Err(TargetError::Unsupported)
    }

    /// Begins or ends the recording of branches of `thread`.
    fn trace_branches(&mut self, thread: ThreadId, enable: bool) -> Result<()> {
        let _ = (thread, enable);
        Err(TargetError::Unsupported)
    }

    /// Returns the branches that `thread` has executed before its current instruction, the last
    /// `limit` of them.
    ///
    /// With `since`, the position of an earlier answer, only those after that position: the answer
    /// is [`TargetError::Refused`] if they are more than `limit`, or if the thread is now before
    /// that position. Without, also those before the recording began, if a replay can make them.
    fn branches(
        &mut self,
        thread: ThreadId,
        since: Option<u64>,
        limit: usize,
    ) -> Result<BranchHistory> {
        let _ = (thread, since, limit);
        Err(TargetError::Unsupported)
    }
}

/// The result of a function of a [`Target`].
pub type Result<T> = std::result::Result<T, TargetError>;

/// Why a target does not do what the client has asked for.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The target does not implement the operation. GDB falls back to another one, or says so.
    #[error("the target does not support this")]
    Unsupported,
    /// The operation fails with this number of an error of Linux, such as 14 (EFAULT).
    #[error("error {0} of Linux")]
    Errno(u8),
    /// The operation fails for a reason that GDB shows to the user. One line.
    #[error("{0}")]
    Refused(String),
    /// The session cannot continue: for instance, a replay has diverged. The server closes the
    /// connection and returns this reason to its caller.
    #[error("{0}")]
    Fatal(String),
}

bitflags::bitflags! {
    /// Optional parts of the protocol.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// The target can execute backward.
        const REVERSE = 1;
        /// [`Target::trace_branches`] and [`Target::branches`].
        const BRANCH_TRACE = 1 << 1;
        /// [`Target::catch_syscalls`].
        const CATCH_SYSCALLS = 1 << 2;
        /// [`Target::pass_signals`].
        const PASS_SIGNALS = 1 << 3;
        /// [`Target::report_threads`].
        const THREAD_EVENTS = 1 << 4;
        /// The target stops at forks, vforks and execs.
        const PROCESS_EVENTS = 1 << 5;
        /// [`Target::auxiliary_vector`].
        const AUXILIARY_VECTOR = 1 << 6;
        /// [`Target::executable`].
        const EXECUTABLE = 1 << 7;
        /// [`Target::signal_information`].
        const SIGNAL_INFORMATION = 1 << 8;
        /// [`Target::processes`].
        const PROCESSES = 1 << 9;
        /// [`Target::set_conditions`].
        const CONDITIONS = 1 << 10;
    }
}

/// A thread. Both numbers are those that the program itself sees, or for a processor of a machine,
/// process 1 and the processor's number plus 1. Both are 1 to 2³¹ − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId {
    /// Number of the process.
    pub process: u32,
    /// Number of the thread, unique in the system.
    pub thread: u32,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of process {}", self.thread, self.process)
    }
}

/// A thread, as `info threads` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The thread.
    pub id: ThreadId,
    /// Name, such as Linux's `comm`. May be empty.
    pub name: String,
    /// Number of the processor on which the thread runs or ran last.
    pub processor: Option<u32>,
    /// State of the thread, such as "sleeping in futex". May be empty.
    pub state: String,
}

/// A process of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Number of the process.
    pub process: u32,
    /// Name of the user, or the user's number.
    pub user: String,
    /// The command with its arguments.
    pub command: String,
    /// Numbers of the processors on which its threads run or ran last.
    pub processors: Vec<u32>,
}

/// Branches of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BranchHistory {
    /// The branches, oldest first.
    pub branches: Vec<Branch>,
    /// Address of the first instruction of the trace, if that is known and the trace has no branch
    /// before these.
    pub first: Option<u64>,
    /// Position of the thread in its execution, such as the virtual time or a count of branches: it
    /// grows with execution, and is the same whenever the thread is at the same place again.
    pub position: u64,
}

/// A branch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Address of the branch instruction.
    pub from: u64,
    /// Address of the instruction that was executed next.
    pub to: u64,
}
