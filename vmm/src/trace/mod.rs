//! A trace: the connection to the agent inside the guest, and the formats of the branches that it
//! reports.
//!
//! | module | contents |
//! |---|---|
//! | `agent_connection` | sends the job, standard input and signals to the agent |
//! | `session` | receives the agent's messages |
//! | `guest_records` | records in the guest's memory |
//! | `kernel_code` | what the guest's kernel has changed in its code |
//! | `queue`, `writer` | the thread that formats and writes the trace |
//! | `sink` | what is wanted of the trace, and reports |
//! | `filter` | the branches that the user wants |
//! | `last`, `known` | the last branches, and what a reader must know before them |
//! | `task`, `merge` | tasks, and the order of their records |
//! | `format`, `text`, `json`, `btrace` | the formats |
//! | `formatted` | what formats and writes |
//! | `machine` | the trace of a whole machine, which the software CPU logs |
//! | `part` | a part of a kept trace as a trace of its own |
//! | `replay` | gives a kept trace to what takes one |
//! | `summary`, `report` | the end of a trace; reports about single tasks |
//! | `notes` | processes that outlive the program, and files whose changes are lost |
//! | `destination`, `task_files` | where the trace and the program's output go |
//! | `symbols` | names and source lines of addresses |

mod agent_connection;
pub mod btrace;
pub mod destination;
mod filter;
pub mod format;
mod formatted;
mod guest_records;
pub mod json;
pub mod kernel_code;
mod known;
mod last;
pub mod machine;
pub mod merge;
mod notes;
pub mod part;
mod queue;
pub mod replay;
mod report;
pub mod session;
mod sink;
pub mod streams;
pub mod summary;
pub mod symbols;
pub mod task;
mod task_files;
pub mod terminal;
pub mod text;
mod writer;

pub use agent_connection::AgentConnection;
pub use destination::Destination;
pub use filter::{Filters, Object, Point, PointPlace};
pub use format::Format;
pub use notes::Notes;
pub use queue::WriterError;
pub use session::{Options, Session, SessionError};
pub use streams::Streams;
pub use summary::{RunEnd, Summary, Written};
pub use task_files::INDEX;
pub use writer::Writer;
