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
//! | `symbols` | names and source lines of addresses |

mod agent_connection;
pub mod btrace;
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
mod queue;
mod records;
pub mod replay;
mod report;
pub mod session;
pub mod sink;
mod snapshot;
pub mod streams;
pub mod summary;
pub mod symbols;
mod tail;
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
