//! Messages between vbts and the process that reads symbols. Each is one packet of their socket.

use serde::{Deserialize, Serialize};

/// Maximum size in bytes of a packet.
pub(crate) const MAX_PACKET: usize = 64 << 10;
/// Maximum number of addresses in a request: they fit in a packet.
pub(crate) const MAX_ADDRESSES: usize = 4096;
/// Maximum length in bytes of a path of a source file.
pub(crate) const MAX_PATH: usize = 4096;

/// A packet to the process that reads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Number of the process that it is for. A later one ignores it.
    pub generation: u32,
    /// What to do.
    pub action: Action,
}

/// What the process that reads has to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Action {
    /// Read the functions of the file that comes with the packet. The reply is [`Reply::Opened`].
    Open {
        /// The number of the file from now on.
        file: u32,
    },
    /// Read its separate debug file, if one comes with the packet. The reply is
    /// [`Reply::Finished`].
    Finish {
        /// As in [`Self::Open`].
        file: u32,
        /// Read source lines, too.
        lines: bool,
    },
    /// Find what is at `addresses`. The replies are [`Reply::Found`].
    Find {
        /// As in [`Self::Open`].
        file: u32,
        /// They are the addresses in the file, not offsets.
        absolute: bool,
        /// At most [`MAX_ADDRESSES`].
        addresses: Vec<u64>,
    },
    /// List the functions. The reply is [`Reply::Functions`].
    Functions {
        /// As in [`Self::Open`].
        file: u32,
        /// As in [`Self::Find`].
        absolute: bool,
        /// Number of functions that were listed before.
        first: u64,
    },
    /// Find what has a name. The reply is [`Reply::Places`].
    Resolve {
        /// As in [`Self::Open`].
        file: u32,
        /// As in [`Self::Find`].
        absolute: bool,
        /// The name.
        wanted: Wanted,
    },
    /// List the source lines. The reply is [`Reply::Lines`].
    Lines {
        /// As in [`Self::Open`].
        file: u32,
        /// As in [`Self::Find`].
        absolute: bool,
        /// The first address.
        start: u64,
        /// The address after the last one.
        end: u64,
    },
    /// List the inlined calls. The replies are [`Reply::Inlined`].
    Inlined {
        /// As in [`Self::Open`].
        file: u32,
        /// As in [`Self::Find`].
        absolute: bool,
        /// The first address of a function, or of a part of it.
        start: u64,
        /// The address after the last one.
        end: u64,
    },
    /// Forget all files. There is no reply.
    Forget,
}

/// A packet from the process that reads, or from the one that starts it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The file is read.
    Opened {
        /// What is wrong with it.
        refused: Option<Refusal>,
        /// Its build ID, at most [`crate::elf::MAX_BUILD_ID`] bytes, or nothing.
        build_id: &'a [u8],
    },
    /// The file can be asked about.
    Finished {
        /// Why names or lines are missing.
        refused: Option<Refusal>,
        /// Number of its functions.
        functions: u64,
        /// What is known of its inlined calls.
        inlined: Inlined,
    },
    /// Answers about the next addresses.
    Found {
        /// Number of answers.
        count: u32,
        /// That many [`Answer`]s.
        answers: &'a [u8],
    },
    /// The next functions.
    Functions {
        /// Number of functions; 0 at the end.
        count: u32,
        /// That many [`FunctionRange`]s.
        functions: &'a [u8],
    },
    /// What has the name.
    Places {
        /// Number of places.
        count: u32,
        /// That many [`CodePlace`]s.
        places: &'a [u8],
    },
    /// The next source lines.
    Lines {
        /// Number of rows.
        count: u32,
        /// That many [`LineRow`]s.
        rows: &'a [u8],
        /// The address at which the next request begins; `None` at the end.
        next: Option<u64>,
    },
    /// The next inlined calls.
    Inlined {
        /// Number of rows.
        count: u32,
        /// That many [`InlinedRow`]s.
        rows: &'a [u8],
        /// There are no more.
        is_last: bool,
    },
    /// The process that reads has ended. Another takes its place.
    Ended {
        /// The signal that has ended it, or 0.
        signal: i32,
    },
}

/// What is at an address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answer<'a> {
    /// The function as in the source, and the distance from its start.
    #[serde(borrow)]
    pub function: Option<(&'a str, u64)>,
    /// Path and number of the line.
    #[serde(borrow)]
    pub line: Option<(&'a str, u32)>,
}

/// Where a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRange {
    /// Offset in the file, or address.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// What it is.
    pub kind: FunctionKind,
}

/// Kinds of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FunctionKind {
    /// A function with a name.
    Named,
    /// A part of a function that the compiler has moved away.
    Part,
    /// A stub of the procedure linkage table, or the dynamic linker's resolver.
    Linkage,
    /// The beginning of the procedure linkage table, which jumps to the resolver.
    LinkageHeader,
    /// A function that continues on another stack.
    Switch,
    /// A function that has an entry in the unwind table, and no name.
    Unnamed,
}

/// A name of code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// The beginning of a function, as it is called in the source or in the file. If it is only
    /// inlined there, the beginning of each inlined call.
    Function(String),
    /// The code of a function. If it is only inlined, that of its inlined calls.
    Code(String),
    /// A source line.
    Line {
        /// The path, or its last components.
        path: String,
        /// The number of the line.
        line: u32,
    },
    /// What is at an offset in the file, or at an address.
    At(u64),
}

/// Where code with a name is: offsets in the file, or addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodePlace {
    /// The first instruction with the name.
    pub at: u64,
    /// Where the function that has it begins.
    pub start: u64,
    /// The first address after the function.
    pub end: u64,
}

/// The source line of some code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineRow<'a> {
    /// Offset in the file, or address.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number of the line.
    pub line: u32,
    /// Path of the source file; nothing if it is that of the row before in the packet.
    #[serde(borrow)]
    pub path: Option<&'a str>,
}

/// A call that was inlined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlinedRow<'a> {
    /// Number of the row of the inlined call in which it is, from 0 on.
    pub outer: Option<u32>,
    /// Its code: offsets in the file, or addresses, of the first byte and of the first one after.
    pub code: Vec<(u64, u64)>,
    /// The name of the function as in the source.
    pub name: &'a str,
    /// Path and number of the line of the call.
    #[serde(borrow)]
    pub call: Option<(&'a str, u32)>,
}

/// What is known of the inlined calls of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Inlined {
    /// The file has no debugging information about them.
    #[default]
    None,
    /// The file can be asked about them.
    Known,
    /// They are in debugging information that is compressed, and too large.
    Compressed,
    /// They are in files of their own: split DWARF (DWARF 5, section 7.3.2).
    Split,
}

/// Why a file is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It is not an ELF file for x86.
    NotElf,
    /// It has more than the process reads.
    TooLarge,
    /// The host cannot read it.
    Unreadable,
}
