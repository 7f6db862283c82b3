//! Executes a block of decoded instructions by threaded dispatch.

pub mod dispatch;
pub(crate) mod fused;
