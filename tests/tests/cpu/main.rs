//! The software CPU under small guests that are assembled here, each checked for its final state,
//! most for their exact branch records. `VBTS_ACCEL` runs them on other processors:
//! `common/accel.rs`.
//!
//! One program for all of them: building a program for each took longer than anything else of the
//! tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod branch_records;
mod code_changes;
mod common;
mod data_flow;
mod debugging;
mod event_records;
mod exceptions;
mod floating_point;
mod handover;
mod host;
mod legacy_modes;
mod paging;
mod pmu;
mod registers;
mod regressions;
mod transfers;
