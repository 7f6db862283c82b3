//! Why there is no trace.

use std::io;

use thiserror::Error;

/// Why a program could not be traced, or a trace not be read.
#[derive(Debug, Error)]
pub enum Error {
    /// The program `vbts` cannot be started.
    #[error("cannot start vbts, which VBTS or PATH has to name: {0}")]
    Start(#[source] io::Error),
    /// The trace cannot be kept in a file.
    #[error("cannot make a directory for the trace: {0}")]
    Keep(#[source] io::Error),
    /// `vbts` has failed. It has said why on standard error.
    #[error("vbts has failed with status {0}")]
    Failed(i32),
    /// A signal has killed `vbts`.
    #[error("vbts was killed by signal {0}")]
    Killed(i32),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] vbts_trace::Error),
    /// `vbts` has answered what it does not answer: it is of another version.
    #[error("vbts is of another version: {0}")]
    Version(#[from] serde_json::Error),
}
