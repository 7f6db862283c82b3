//! The server with real clients: GDB and LLDB debug a recorded execution of a small program, GDB
//! backward, too. What they print is not ours.
//!
//! A core file of GDB's is a second target: a process with threads and a C library, which does not
//! execute.
//!
//! A test is left out, visibly, if there is no `gdb`, `lldb` or `gcc`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic fails the test"
)]

mod client;
mod core_target;
mod execution;
mod gdb;
mod lldb;
mod protocol;
mod recorded_target;
