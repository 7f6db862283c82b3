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
//! | `agent_connection` | sends the job, standard input and signals to the agent |
//! | `session` | receives the agent's messages |
//! | `guest_records` | records in the guest's memory |
//! | `kernel_code` | what the guest's kernel has changed in its code |
//! | `queue`, `writer` | the thread that formats and writes the trace |
//! | `records` | branches and marks of one drain |
//! | `task`, `merge` | tasks, and the order of their records |
//! | `sink` | the interface between the stages |
//! | `pipeline` | the stages behind the merge, and reports about tasks |
//! | `filter` | the branches that the user wants |
//! | `tail`, `snapshot` | the last branches, and the state of the tasks before them |
//! | `formatting_sink` | the last stage: formats and writes |
//! | `format`, `text`, `json`, `btrace` | the formats |
//! | `machine` | the trace of a whole machine, which the software CPU logs |
//! | `replay` | replays a kept trace into a sink |
//! | `extract` | a part of a kept trace as a trace of its own |
//! | `summary`, `report` | the end of a trace; reports about single tasks |
//! | `notes` | processes that outlive the program, and files whose changes are lost |
//! | `destination`, `task_files` | where the trace and the program's output go |
//! | `program` | the program to trace, and what the host knows about it |
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

mod agent_connection;
pub mod btrace;
pub mod config;
pub mod destination;
pub mod extract;
mod filter;
pub mod format;
mod formatting_sink;
mod guest_records;
pub mod json;
pub mod kernel_code;
pub mod machine;
pub mod merge;
mod notes;
mod pipeline;
pub mod program;
mod queue;
mod records;
pub mod replay;
mod report;
pub mod session;
pub mod sink;
mod snapshot;
pub mod streams;
pub mod summary;
mod tail;
pub mod task;
mod task_files;
pub mod terminal;
pub mod text;
mod writer;

pub use agent_connection::AgentConnection;
pub use config::{TraceConfig, TraceFormat};
pub use destination::Destination;
pub use filter::{FilterError, Filters, Object, Point, PointPlace};
pub use format::Format;
pub use notes::Notes;
pub use queue::WriterError;
pub use session::{Options, Session, SessionError};
pub use streams::Streams;
pub use summary::{RunEnd, Summary, Written};
pub use task_files::INDEX;
pub use writer::Writer;
