//! The ways to execute a block of instructions.

pub mod interpreter;
pub mod jit;
