//! Small guests on the software CPU. They are assembled here; each test checks the final state,
//! most also the exact branch records. `VBTS_ACCEL` runs the guests on KVM: see
//! `vbts_testkit::processor`.
//!
//! All tests are one program, because linking one program for each file takes much longer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod alignment;
mod avx;
mod branch_log;
mod branch_records;
mod code_changes;
mod common;
mod cross_modifying_code;
mod data_flow;
mod debug_stores;
mod debugging;
mod event_records;
mod exceptions;
mod floating_point;
mod handover;
mod host;
mod last_branches;
mod legacy_modes;
mod locks;
mod memory_order;
mod native_code;
mod native_flags;
mod native_moves;
mod native_overlaps;
mod native_read_modify_write;
mod native_replaced;
mod native_stack;
mod native_system;
mod paging;
mod pmu;
mod registers;
mod regressions;
mod segments;
mod stop_points;
mod stops;
mod system_calls;
mod system_features;
mod transfers;
mod watched_writes;
mod x86_64_v3;
mod xsave;
