//! Names and source lines of addresses: function and offset, file and line.
//!
//! The guest can write the files that its programs are mapped from, so that they can be anything.
//! Only `reader` parses them, in a process of its own that has a socket and limits. The other
//! modules trust nothing that it answers. The crate runs no guest, and does not know where a trace
//! comes from or goes.
//!
//! | module | contents |
//! |---|---|
//! | `symbolizer` | labels for the addresses of processes and of the kernel |
//! | `by_file` | symbols of files, without processes |
//! | `reader` | the process that reads symbols: what is at an address of a file |
//! | `protocol`, `connection`, `source` | how it is asked |
//! | `files` | which files it has, and what becomes of one at which it dies |
//! | `mapped_files` | the files of the guest, and whether they are still the traced ones |
//! | `debug_files` | separate debug files, by build ID |
//! | `elf` | program headers and build IDs of ELF files |
//! | `kernel_image` | ELF files for kernels whose own file has no symbols |
//! | `labels` | labels that were made |
//! | `system_map` | symbols of a kernel as text |
//! | `unnamed` | files whose names are missing |
//!
//! # Example
//!
//! Without a process that reads symbols, a label is the file and the offset in it:
//!
//! ```
//! use std::path::Path;
//!
//! use vbts_host::root::Root;
//! use vbts_symbols::Symbolizer;
//!
//! let root = Path::new("/");
//! let mut symbols = Symbolizer::new(Root::open(root)?, root);
//! symbols.set_maps(1, b"400000-401000 r-xp 00001000 08:01 42 /bin/ls\n");
//! assert_eq!(symbols.label(1, 0x40_0010, &mut Vec::new), "ls+0x1010");
//! # Ok::<(), std::io::Error>(())
//! ```

#![warn(unreachable_pub)]

mod by_file;
mod connection;
mod debug_files;
pub mod elf;
mod files;
mod kernel_image;
mod labels;
mod mapped_files;
mod protocol;
pub mod reader;
mod source;
mod symbolizer;
pub mod system_map;
mod unnamed;

pub use by_file::FileSymbols;
pub use connection::COMMAND;
pub use debug_files::{DebugFiles, debuginfod_cache};
pub use files::{INLINED, InlinedAt};
pub use kernel_image::{KernelFunction, KernelImage, is_function_type};
pub use mapped_files::{MappedFiles, Problem, Problems};
pub use protocol::{Answer, CodePlace, FunctionKind, FunctionRange, InlinedRow, Wanted};
pub use reader::is_linkage;
pub use symbolizer::Symbolizer;
pub use unnamed::Unnamed;
