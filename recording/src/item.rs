//! The parts of a recording.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::REPLAY_VERSION;

/// Length in bytes of the header of a message of 9P: its length, its type and a tag.
pub(crate) const LEN_OF_HEADER: usize = 7;

/// Types of requests of 9P2000.L. That of a reply is the next number.
pub(crate) mod kind {
    pub(crate) const LCREATE: u8 = 14;
    pub(crate) const READLINK: u8 = 22;
    pub(crate) const GETATTR: u8 = 24;
    pub(crate) const XATTRWALK: u8 = 30;
    pub(crate) const READDIR: u8 = 40;
    pub(crate) const ATTACH: u8 = 104;
    pub(crate) const WALK: u8 = 110;
    pub(crate) const READ: u8 = 116;
    pub(crate) const WRITE: u8 = 118;
    pub(crate) const CLUNK: u8 = 120;
    pub(crate) const REMOVE: u8 = 122;
}

/// Leading bytes of a request that a recording has: those of a path, and none of the contents that
/// the guest writes.
const REQUEST_START: usize = 1024;
const WRITE_START: usize = 23;

/// The configuration of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// See [`REPLAY_VERSION`].
    pub replay_version: u32,
    /// The program that has made the file, with its version.
    pub writer: String,
    /// The words of the command line.
    pub command: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// The configuration of the machine.
    pub machine: serde_json::Value,
    /// The facts about the guest that the configuration does not have.
    pub guest: serde_json::Value,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            replay_version: REPLAY_VERSION,
            writer: String::new(),
            command: Vec::new(),
            directory: String::new(),
            machine: serde_json::Value::Null,
            guest: serde_json::Value::Null,
        }
    }
}

/// A request of the guest, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Length in bytes.
    pub len: u32,
    /// CRC-32 (IEEE 802.3) of all bytes.
    pub checksum: u32,
    /// The first bytes.
    #[serde(with = "serde_bytes")]
    pub start: Vec<u8>,
}

impl Request {
    /// Shortens a request.
    pub fn new(request: &[u8]) -> Self {
        let is_write = request.get(LEN_OF_HEADER - 3) == Some(&kind::WRITE);
        let len = if is_write { WRITE_START } else { REQUEST_START };
        Self {
            len: u32::try_from(request.len()).unwrap_or(u32::MAX),
            checksum: crc32fast::hash(request),
            start: request.get(..len).unwrap_or(request).to_vec(),
        }
    }
}

/// An entry of a recording. Times are virtual, in ns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item<'a> {
    /// A part of one of the guest's files, which precede all inputs.
    File {
        /// The number of the file.
        number: u8,
        /// The next bytes of its contents.
        #[serde(borrow, with = "serde_bytes")]
        bytes: Cow<'a, [u8]>,
    },
    /// No more parts of files follow.
    Boot,
    /// The reply to a request for files.
    Reply {
        /// The number of the server.
        server: u8,
        /// When the guest asked.
        time: u64,
        /// The request.
        request: Request,
        /// The reply.
        #[serde(borrow, with = "serde_bytes")]
        reply: Cow<'a, [u8]>,
    },
    /// Random numbers of the host.
    Random {
        /// Number of bytes that were asked for.
        wanted: u32,
        /// The bytes.
        #[serde(borrow, with = "serde_bytes")]
        bytes: Cow<'a, [u8]>,
    },
    /// All processors were halted, and the run loop has waited for the host.
    Wait {
        /// When they were halted.
        time: u64,
        /// When they continued.
        until: u64,
    },
    /// Bytes for a port of the guest.
    Input {
        /// When they came.
        time: u64,
        /// The number of the exit of the run loop at this time, from 0.
        exit: u32,
        /// The run loop has stopped at this time for an event of the host, such as a signal.
        is_event: bool,
        /// The bytes. An event need not have any.
        #[serde(borrow, with = "serde_bytes")]
        bytes: Cow<'a, [u8]>,
    },
    /// The state of the run, to compare with.
    Mark {
        /// When it was.
        time: u64,
        /// Instructions that all processors have retired.
        instructions: u64,
        /// CRC-32 of the registers of all processors.
        registers: u32,
        /// CRC-32 of all bytes that the guest has sent to the host.
        output: u32,
    },
    /// The guest reads contents that were kept out of the recording, which ends here.
    Excluded {
        /// The number of the server.
        server: u8,
        /// When the guest asked.
        time: u64,
        /// The path from the root of the server.
        path: Cow<'a, str>,
    },
    /// The end of the run.
    End {
        /// When it was.
        time: u64,
        /// Instructions that all processors have retired.
        instructions: u64,
        /// CRC-32 of all bytes that the guest has sent to the host.
        output: u32,
        /// The exit status of `vbts`.
        status: u8,
        /// The reason, if the host has ended the run, by a signal for example.
        host: Option<Cow<'a, str>>,
    },
}

impl Item<'_> {
    /// When it happened, if it has a time.
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::File { .. } | Self::Boot | Self::Random { .. } => None,
            Self::Reply { time, .. }
            | Self::Wait { time, .. }
            | Self::Input { time, .. }
            | Self::Mark { time, .. }
            | Self::Excluded { time, .. }
            | Self::End { time, .. } => Some(*time),
        }
    }
}
