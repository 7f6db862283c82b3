//! How processes and the agent end.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It called `exit` with this status.
    Code(u8),
    /// This signal killed it.
    Signal(#[serde(deserialize_with = "signal")] u8),
}

/// Reads the number of a signal.
fn signal<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    match u8::deserialize(from)? {
        signal @ 1..=127 => Ok(signal),
        other => Err(D::Error::custom(format_args!("signal {other}"))),
    }
}

/// The kind of an error inside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The program, its interpreter or a directory of the job does not exist.
    NotFound,
    /// The program may not be executed.
    PermissionDenied,
    /// The file is not a program that this kernel can run.
    NotExecutable,
    /// Another error while the program was started.
    Start,
    /// The working directory cannot be entered.
    WorkingDirectory,
    /// The root or a share cannot be mounted.
    Mount,
    /// The kernel or the processor cannot record branches as the job requires.
    Trace,
    /// The host sent something that is not a message of this protocol.
    Protocol,
    /// Any other error.
    Internal,
}
