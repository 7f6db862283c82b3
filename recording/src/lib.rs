//! Recordings of runs (`.vbts`). On virtual time a run is a function of its configuration and of
//! what comes in from the host. A recording has both: a [`Header`], the guest's files, and then
//! each [`Item`] in the order in which it came in.
//!
//! A file begins with [`MAGIC`] and the version of the format, and continues with blocks. All
//! blocks together are one stream of zstd, so that a content which recurs is stored once, and each
//! block has a checksum and ends with a flush. A file that was cut off therefore has all items up
//! to its last whole block.
//!
//! Nothing in a file is trusted: each length has a limit, and a block decompresses to
//! [`MAX_BLOCK`] bytes at most.
//!
//! | module | contents |
//! |---|---|
//! | `item` | what a recording consists of |
//! | `paths` | which files requests concern |
//! | `contents` | the programs and libraries that the guest has read |
//! | `block` | blocks: lengths, checksums, compression |
//! | `writer`, `reader` | whole files |
//!
//! ```
//! use vbts_recording::{Header, Item, Reader, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), &Header::default(), u64::MAX)?;
//! writer.item(&Item::Wait { time: 5, until: 9 })?;
//! writer.flush()?;
//! let file = writer.into_inner();
//! let (_, mut reader) = Reader::new(file.as_slice())?;
//! assert_eq!(reader.next()?, Some(Item::Wait { time: 5, until: 9 }));
//! assert_eq!(reader.next()?, None);
//! # Ok::<(), vbts_recording::Error>(())
//! ```

mod block;
mod contents;
mod item;
mod paths;
mod reader;
mod writer;

use thiserror::Error;

pub use contents::{Contents, FileContents};
pub use item::{Header, Item, Request};
pub use paths::{Access, Got, Paths};
pub use reader::{Position, Reader};
pub use writer::Writer;

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"vbts-rec";
/// Version of the format of the file.
pub const FORMAT_VERSION: u32 = 1;
/// Version of the behaviour of the machine. It changes whenever a guest, with the same inputs, does
/// something else or at another time than before: a recording is replayed by programs with the
/// same number. It also changes with the protocol of the agent, which is in the recording.
pub const REPLAY_VERSION: u32 = 5;
/// Maximum size of a block in bytes, before its compression.
pub const MAX_BLOCK: usize = 2 << 20;
/// Maximum size of an item in bytes.
pub const MAX_ITEM: usize = 1 << 20;
/// Maximum size in bytes of the contents of one of the guest's files.
pub const MAX_FILE: usize = 1 << 30;

/// Why a recording cannot be read or written.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refuses it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file does not begin like a recording.
    #[error("the file is no recording of vbts")]
    NotARecording,
    /// The file has a version of the format that this crate does not know.
    #[error(
        "the file has version {0} of the format, and this program reads version {FORMAT_VERSION}"
    )]
    Format(u32),
    /// The machine of this program behaves differently.
    #[error(
        "{writer} has made the recording, whose replay version is {version}; this program replays \
         version {REPLAY_VERSION}: install {writer} to replay it"
    )]
    Replay {
        /// The program that has made the file.
        writer: String,
        /// Its version of the behaviour.
        version: u32,
    },
    /// A checksum or a value is wrong.
    #[error("the file is damaged")]
    Damaged,
    /// An item is too large for the format.
    #[error("an input of {0} bytes is too large for a recording")]
    TooLarge(usize),
    /// The file has reached its maximum size, in bytes.
    #[error("the recording has reached its maximum size of {0} bytes (--max-size)")]
    Full(u64),
}
