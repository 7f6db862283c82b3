//! The capture of a traced program, or of a whole machine: the connection to the agent inside the
//! guest, and what becomes of the branches that it reports.
//!
//! A branch is a [`vbts_trace::Branch`] and anything else an [`vbts_trace::Event`] from the session
//! to the last formatter. Each stage is a [`sink::Sink`] that passes on what it receives to the
//! next one. The crate does not parse files with symbols, which `vbts-symbols` does, and does not
//! know the command line.
//!
//! | module | contents |
//! |---|---|
//! | `config` | what to trace, and how: plain data |
//! | `program` | the program to trace, and what the host knows about it |
//! | `session` | the connection to the agent |
//! | `guest_records`, `records` | records in the guest's memory; branches and marks of one drain |
//! | `branch_pool` | memory for branches that is used again |
//! | `task` | tasks |
//! | `sink` | the interface between the stages |
//! | `pipeline` | the thread and the stages of a trace |
//! | `filter` | the branches that the user wants |
//! | `format` | text, json, raw, btrace |
//! | `parallel_encoder` | the threads that encode a btrace file |
//! | `output` | where the trace and the program's output go |
//! | `summary` | the end of a trace |
//! | `machine` | the trace of a whole machine, which the software CPU logs |
//! | `kernel_code` | what the file of the guest's kernel lacks: changes of its code, or all of it |
//! | `kernel_memory` | symbols and code of a kernel, out of the guest's memory |
//! | `kept` | kept traces: replay, and parts of them |
//!
//! # Example
//!
//! A sink that counts the branches backwards, as loops have them:
//!
//! ```
//! use std::convert::Infallible;
//!
//! use vbts_capture::sink::Sink;
//! use vbts_capture::task::Task;
//! use vbts_trace::{Branch, Event};
//!
//! #[derive(Default)]
//! struct Backwards(usize);
//!
//! impl Sink for Backwards {
//!     type Error = Infallible;
//!
//!     fn branches(&mut self, _: &mut Task, branches: &[Branch]) -> Result<(), Infallible> {
//!         self.0 += branches.iter().filter(|branch| branch.to <= branch.from).count();
//!         Ok(())
//!     }
//!
//!     fn event(&mut self, _: &Task, _: &Event) -> Result<(), Infallible> {
//!         Ok(())
//!     }
//! }
//!
//! let mut sink = Backwards::default();
//! let branches = [(0x1010, 0x1000), (0x1010, 0x1000), (0x1012, 0x2000)];
//! let branches = branches.map(|(from, to)| Branch { from, to });
//! sink.branches(&mut Task::default(), &branches)?;
//! assert_eq!(sink.0, 2);
//! # Ok::<(), Infallible>(())
//! ```

#![warn(unreachable_pub)]

mod branch_pool;
pub mod config;
mod filter;
pub mod format;
mod guest_records;
pub mod kept;
pub mod kernel_code;
mod kernel_memory;
pub mod machine;
pub mod output;
mod parallel_encoder;
mod pipeline;
pub mod program;
mod records;
mod session;
pub mod sink;
pub mod summary;
pub mod task;

pub use config::{TraceConfig, TraceFormat};
pub use filter::{FilterError, FilterNote, Filters, Object, Point, PointPlace};
pub use format::Format;
pub use output::{Destination, INDEX};
pub use pipeline::{Options, Writer, WriterError};
pub use program::Streams;
pub use session::{
    AgentConnection, EndedBy, HostRecording, Notes, RecordedInput, ReplayConnection, Session,
    SessionError,
};
pub use summary::{RunEnd, Summary, Written};
