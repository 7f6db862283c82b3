//! How processes and the agent end.

use crate::Error;
use crate::payload::{malformed, words};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called `exit` with this status.
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

impl ExitStatus {
    /// Bytes of a status in a frame: {0 for a code and 1 for a signal, the value}, `u32` each.
    const SIZE: usize = 8;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        match self {
            Self::Code(code) => [0, 0, 0, 0, code, 0, 0, 0],
            Self::Signal(signal) => [1, 0, 0, 0, signal, 0, 0, 0],
        }
    }

    /// Reads the status at the end of the payload of the message `name`.
    pub(crate) fn parse(name: &'static str, payload: &[u8]) -> Result<Self, Error> {
        match words(name, payload)? {
            [0, code @ 0..=255] => Ok(Self::Code(code as u8)),
            [1, signal @ 1..=127] => Ok(Self::Signal(signal as u8)),
            status => Err(malformed(name, format_args!("status {status:?}"))),
        }
    }
}

/// The kind of an error inside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorKind {
    /// The program, its interpreter or a directory of the job does not exist.
    NotFound = 1,
    /// The program may not be executed.
    PermissionDenied = 2,
    /// The file is not a program that this kernel can run.
    NotExecutable = 3,
    /// Another error while the program was started.
    Start = 4,
    /// The working directory cannot be entered.
    WorkingDirectory = 5,
    /// The root or a share cannot be mounted.
    Mount = 6,
    /// The kernel or the processor cannot record branches as the job requires.
    Trace = 7,
    /// The host sent something that is not a message of this protocol.
    Protocol = 8,
    /// Any other error.
    Internal = 9,
}

impl ErrorKind {
    const ALL: [Self; 9] = [
        Self::NotFound,
        Self::PermissionDenied,
        Self::NotExecutable,
        Self::Start,
        Self::WorkingDirectory,
        Self::Mount,
        Self::Trace,
        Self::Protocol,
        Self::Internal,
    ];

    /// The kind with the number `kind`.
    pub(crate) fn new(kind: u32) -> Result<Self, Error> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| *known as u32 == kind)
            .ok_or_else(|| malformed("Error", format_args!("kind {kind}")))
    }
}
