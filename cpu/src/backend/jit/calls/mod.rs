//! Calls from native code to Rust's code, and the ways in and out.

pub(crate) mod execute;
pub(crate) mod exit;
pub(crate) mod jump_table;
pub(crate) mod part;
pub(crate) mod routines;
