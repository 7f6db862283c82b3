//! The open descriptors that the program starts with.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A descriptor of the program. A standard descriptor that no stream names is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Its number.
    pub fd: u32,
    /// What it refers to.
    pub kind: StreamKind,
}

/// What a descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamKind {
    /// A pipe to read. The host sends the bytes for which the guest asks.
    Input,
    /// A pipe to write. The guest sends its bytes to the host.
    Output,
    /// The terminal of [`crate::Job::terminal`]. Its bytes in both directions are those of its
    /// first stream.
    Terminal,
    /// A regular file of the host: the entry named `fd` of the share [`crate::FILES_TAG`].
    File {
        /// How it is open.
        access: FileAccess,
        /// Each write goes to the end of the file (O_APPEND).
        append: bool,
        /// The file offset in bytes.
        offset: u64,
    },
    /// A device that every machine has, such as `/dev/null`.
    Device {
        /// Its path.
        path: Bytes,
        /// How it is open.
        access: FileAccess,
    },
    /// The open file of an earlier stream, with its file offset.
    Same {
        /// The number of that stream.
        fd: u32,
    },
}

/// How a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAccess {
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// For reading and writing.
    Both,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WindowSize {
    /// Height in characters.
    pub rows: u16,
    /// Width in characters.
    pub columns: u16,
    /// Width in pixels, or 0.
    pub x_pixels: u16,
    /// Height in pixels, or 0.
    pub y_pixels: u16,
}

/// The terminal of the program: its size and its modes (`struct termios` of Linux).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub size: WindowSize,
    /// `c_iflag`.
    pub input_modes: u32,
    /// `c_oflag`.
    pub output_modes: u32,
    /// `c_cflag`.
    pub control_modes: u32,
    /// `c_lflag`.
    pub local_modes: u32,
    /// `c_cc`, by index. Missing ones keep the kernel's defaults.
    pub special_codes: Vec<u8>,
}
