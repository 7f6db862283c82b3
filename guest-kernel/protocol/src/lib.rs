//! The protocol between the `vbts` command and the agent inside its guest.
//!
//! Both directions of one virtio-console port carry a stream of frames: an 8-byte header {four zero
//! bytes, payload length `u32` little-endian} and the payload, one message as postcard encodes it.
//! The host sends [`ToGuest`], the guest sends [`ToHost`]:
//!
//! ```text
//! guest                                host
//!   Ready(VERSION)            ->
//!                             <-       Job
//!   TaskStart, or Started     ->
//!   Maps, Records, Output, …  ->
//!   InputWant(fd, n)          ->       (a later one replaces it)
//!                             <-       Input(fd, at most n bytes) or InputEnd(fd)
//!                             <-       End (only to end the run early)
//!   Exit, Ended or Error      ->       (and the agent ends the machine)
//! ```
//!
//! The records of each traced task are a stream of their own, between its [`ToHost::TaskStart`] and
//! its [`ToHost::TaskEnd`]. Times are `CLOCK_MONOTONIC` of the guest in ns.
//!
//! The host sends input only in answer to [`ToHost::InputWant`]. The guest, and not the host's
//! scheduler, thus determines when input arrives, which keeps runs reproducible. What a user causes
//! is the only exception: [`ToGuest::Signal`], [`ToGuest::WindowSize`], [`ToGuest::OutputClosed`],
//! [`ToGuest::End`].
//!
//! Neither side trusts the other. [`Decoder`] keeps at most one frame of [`MAX_PAYLOAD`] bytes in
//! addition to the bytes of the last [`Decoder::push`]. Malformed bytes are an [`Error`], after
//! which the stream is unusable.

#![forbid(unsafe_code)]

mod code;
mod crash;
mod decoder;
mod extents;
mod job;
mod names;
mod status;
mod stream;
mod to_guest;
mod to_host;

pub use code::CodeSource;
pub use crash::{Crash, MAX_INSTRUCTION, REGISTERS};
pub use decoder::Decoder;
pub use extents::{Extent, Extents, MAX_RECORDS, RECORD_SIZE};
pub use job::{Bytes, Follow, Job, Leads, Limit, Recorder, Resource, Scope, Share, Trace};
pub use names::Names;
pub use status::{ErrorKind, ExitStatus};
pub use stream::{FileAccess, Stream, StreamKind, Terminal, WindowSize};
pub use to_guest::ToGuest;
pub use to_host::ToHost;

/// Name of the virtio-console port (`/sys/class/virtio-ports/*/name` in the guest).
pub const PORT_NAME: &str = "vbts.agent";

/// 9P mount tag of the file system that becomes the guest's root.
pub const ROOT_TAG: &str = "root";

/// 9P mount tag of the regular files among the program's descriptors. Its root has one entry for
/// each, named by the number of the descriptor.
pub const FILES_TAG: &str = "files";

/// I/O port that ends the machine. The low byte of the value written is the exit status.
pub const EXIT_PORT: u16 = 0xf4;

/// Exit status if the agent itself failed.
pub const EXIT_FAILURE: u8 = 125;

/// Text of [`ToHost::Ready`]. It changes with the protocol.
pub const VERSION: &str = "vbts-agent 15";

/// Bytes of a frame header.
pub const HEADER_SIZE: usize = 8;

/// The most files that a process in the guest can open: the kernel's default of
/// `/proc/sys/fs/nr_open`.
pub const MAX_OPEN_FILES: u32 = 1 << 20;

/// Maximum size in bytes of a frame's payload.
pub const MAX_PAYLOAD: usize = 4 << 20;

/// Maximum size in bytes of the one long field of a message, such as [`ToHost::Maps`]: the others
/// have numbers.
pub const MAX_TEXT: usize = MAX_PAYLOAD - 64;

/// Why bytes are not a frame, or a frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The payload is longer than [`MAX_PAYLOAD`].
    #[error("a frame has {0} bytes, more than {MAX_PAYLOAD}")]
    TooLong(usize),
    /// One of the reserved header bytes is not zero.
    #[error("frame header {0:02x?} has a non-zero reserved byte")]
    Reserved([u8; HEADER_SIZE]),
    /// The payload is no message of its direction.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl From<postcard::Error> for Error {
    fn from(error: postcard::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}
