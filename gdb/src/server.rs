//! The server: packets of one client, answered by a [`Target`](crate::Target).

mod branch_trace;
mod description;
mod files;
mod memory;
mod objects;
mod packet;
mod process;
mod query;
pub(crate) mod register_file;
mod registers;
mod resume;
mod session;
mod signals;
mod stop_points;
mod stop_reply;
mod text;
mod thread_local;
mod threads;

pub use packet::Connection;
pub use session::{SessionEnd, SessionError, serve};
