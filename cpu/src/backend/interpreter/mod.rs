//! Executes a block of decoded instructions by threaded dispatch.

pub mod dispatch;
mod fused;
pub(crate) mod lower;
pub mod op;
