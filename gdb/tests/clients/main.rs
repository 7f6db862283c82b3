//! The server with real clients: GDB debugs a recorded execution of a small program, forward and
//! backward. What it prints is not ours.
//!
//! A test is left out, visibly, if there is no `gdb` or no `gcc`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic fails the test"
)]

mod client;
mod execution;
mod gdb;
mod protocol;
mod recorded_target;
