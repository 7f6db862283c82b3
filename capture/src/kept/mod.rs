//! Kept traces.
//!
//! | module | contents |
//! |---|---|
//! | `replay` | replays a kept trace into a sink |
//! | `extract` | a part of a kept trace as a trace of its own |

pub mod extract;
mod replay;

pub use replay::{Only, Replay, ReplayError};
