//! Code that the whole-system tests share: the test programs, the native oracle, and a `vbts` to
//! run.
//!
//! The tests need a `vbts` binary and a guest kernel; without them they report themselves as
//! ignored and say why. In a script that has built these, they fail (see [`skips`]).

pub mod branches;
pub mod control_flow;
pub mod differential;
pub mod guest_program;
pub mod kvm;
pub mod machine;
pub mod oracle;
pub mod program_table;
pub mod programs;
pub mod skips;
pub mod tasks;

pub use branches::{Branch, Symbols};
pub use machine::{Machine, Run, Test};
