//! A server of GDB's remote serial protocol ("Remote Serial Protocol" in GDB's manual), by which
//! GDB, LLDB and IDEs debug a program or a machine, forward and backward.
//!
//! The server knows packets. What is debugged is behind the trait [`Target`].
//!
//! | module | contents |
//! |---|---|
//! | `target` | the trait [`Target`] |
//! | `registers` | registers of x86-64 and of i386 |
//! | `resumption` | what executes until the next stop, and what stops it |
//! | `condition` | conditions of breakpoints, which a target may evaluate |
//! | `stop` | reasons of a stop |
//! | `file` | files that the client reads |
//! | `server` | the session with a client: packets, and which function answers which |

mod condition;
mod file;
mod registers;
mod resumption;
mod server;
mod stop;
mod target;

pub use condition::Condition;
pub use file::{FileStatus, TargetFile};
pub use registers::{Avx, Control, Fxsave, RegisterLayout, Registers};
pub use resumption::{Direction, Resumption, StopPoint, SyscallFilter, ThreadAction, WatchAccess};
pub use server::{Connection, SessionEnd, SessionError, serve};
pub use stop::{Stop, StopReason, SyscallBoundary};
pub use target::{
    Branch, BranchHistory, Capabilities, ProcessInfo, Result, Target, TargetError, ThreadId,
    ThreadInfo,
};
