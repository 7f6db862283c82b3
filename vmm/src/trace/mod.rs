//! A trace: the connection to the agent inside the guest, and the formats of the branches that it
//! reports.
//!
//! | module | contents |
//! |---|---|
//! | `agent_connection` | sends the job, standard input and signals to the agent |
//! | `session` | receives the agent's messages |
//! | `queue`, `writer` | the thread that formats and writes the trace |
//! | `format`, `text` | the formats |
//! | `destination` | where the trace and the program's output go |
//! | `symbols`, `object_file`, `maps`, `lines` | names and source lines of addresses |

mod agent_connection;
pub mod destination;
pub mod format;
mod lines;
mod maps;
pub mod object_file;
mod queue;
pub mod session;
pub mod symbols;
pub mod text;
mod writer;

pub use agent_connection::AgentConnection;
pub use destination::Destination;
pub use format::{Format, Summary};
pub use queue::WriterError;
pub use session::{Ending, Session};
