//! Properties of guest instructions that decide how they become native code.

pub(crate) mod direct;
pub(crate) mod operand;
pub(crate) mod vector;
