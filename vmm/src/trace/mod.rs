//! A trace: the conversation with the agent inside the guest, and what becomes of the branches that
//! it reports.

pub mod destination;
pub mod format;
pub mod lines;
pub mod maps;
pub mod object_file;
pub mod session;
pub mod symbols;
pub mod text;
pub mod writer;

pub use destination::Destination;
pub use format::{Format, Summary};
pub use session::{Ending, Session};
