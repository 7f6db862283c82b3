//! What vbts needs of its host: files, terminals, signals and timers, the exit statuses of its
//! programs, and the sandbox around them.
//!
//! Nothing in this crate knows what a guest is or how a trace is written.
//!
//! | module | contents |
//! |---|---|
//! | [`alarm`] | signals and the time limit, and the watchdog of a run |
//! | [`ignored_signals`] | signals that the process ignores |
//! | [`input`], [`output`], [`write_monitor`] | what is read and written, and how a write ends early |
//! | [`terminal`] | the user's terminal in raw mode |
//! | [`event_loop`] | waits for descriptors |
//! | [`child`], [`process_group`], [`workers`] | processes and threads |
//! | [`file_at`], [`whole_file`], [`descriptors`] | files, and how many may be open |
//! | [`root`] | the directory that is a guest's root |
//! | [`sandbox`] | the system calls and files that are left while a guest runs |
//! | [`exit`], [`escape`], [`mod@unit`] | exit statuses; printable text; sizes and times as text |
//!
//! # Example
//!
//! A name that a guest has chosen, on a terminal:
//!
//! ```
//! use vbts_host::escape::printable;
//!
//! assert_eq!(printable(b"a\x1b[2Jb"), "a\\u{1b}[2Jb");
//! ```

#![warn(unreachable_pub)]

pub mod alarm;
pub mod child;
pub mod descriptors;
pub mod escape;
pub mod event_loop;
pub mod exit;
pub mod file_at;
pub mod ignored_signals;
pub mod input;
pub mod output;
pub mod process_group;
pub mod root;
pub mod sandbox;
pub mod terminal;
pub mod unit;
mod watchdog;
pub mod whole_file;
pub mod workers;
pub mod write_monitor;

pub use alarm::{Alarm, Event, HeldSignals};
pub use event_loop::{EventLoop, Waker};
pub use file_at::FileAt;
pub use input::Input;
pub use output::{Output, OutputError};
pub use terminal::RawTerminal;
pub use unit::Unit;
pub use workers::Workers;
pub use write_monitor::{WriteMonitor, WriteTimeout};
