//! Branch traces as files: small, seekable, and readable without the machine that made them.
//!
//! The format is specified in docs/trace-format.md. A [`Writer`] compresses branches and events to
//! anything that can be written to. A [`Reader`] gives them back in the same order, from any branch
//! on.
//!
//! | module | contents |
//! |---|---|
//! | `writer`, `reader` | files |
//! | `block` | their blocks, which several threads can encode |
//! | `run` | what the file says about the run, as JSON |
//! | `event` | what happens between branches |
//! | `branches` | the codec of branches |
//! | `chunk` | the parts of a file: lengths, checksums, compression |
//! | `varint` | numbers of variable length |
//! | `maps` | the mappings of a process |
//! | `profile` | what a trace says about the code that was executed |
//!
//! ```
//! use vbts_trace::{Branch, Event, Item, Reader, Run, Summary, Writer};
//!
//! let mut file = Vec::new();
//! let mut writer = Writer::new(&mut file, &Run::default())?;
//! writer.event(0, &Event::Start { id: 1, parent: 0, process: 1, time: 0 })?;
//! writer.branches(0, &[Branch { from: 0x40_1000, to: 0x40_2000 }; 100])?;
//! writer.finish(&Summary::default())?;
//!
//! let mut reader = Reader::new(std::io::Cursor::new(&file))?;
//! let mut count = 0;
//! while let Some(item) = reader.next_item()? {
//!     if let Item::Branches { task: 0, branches } = item {
//!         count += branches.len();
//!     }
//! }
//! assert_eq!(count, 100);
//! # Ok::<(), vbts_trace::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod block;
mod branches;
mod chunk;
mod event;
pub mod maps;
pub mod profile;
mod reader;
mod run;
pub mod varint;
mod writer;

pub use block::{BlockEncoder, EncodeBlocks, EncodedBlock};
pub use event::{CodeSource, Crash, Event, Status};
pub use reader::{Batch, Item, Part, Passed, Reader};
pub use run::{Run, Streams, Summary};
pub use writer::Writer;

use thiserror::Error;

/// A taken branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Branch {
    /// Linear address of the branch instruction.
    pub from: u64,
    /// Linear address of its target.
    pub to: u64,
}

/// Why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refuses it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file does not begin like a trace.
    #[error("the file is no btrace file")]
    NotATrace,
    /// The file has a version of the format that this crate does not know.
    #[error("the file has version {0} of the btrace format, and this program reads version {1}")]
    Version(u32, u32),
    /// A checksum or a value is wrong.
    #[error("the file is damaged")]
    Damaged,
    /// An event is too large for the format.
    #[error("an event of {0} bytes is too large for a trace")]
    TooLarge(usize),
}
