//! The ways to execute a block of instructions.

pub(crate) mod block;
pub(crate) mod blocks;
pub mod interpreter;
pub mod jit;
