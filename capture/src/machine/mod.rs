//! The trace of a whole machine: the software CPU logs its branches, whatever the guest does.
//!
//! | module | contents |
//! |---|---|
//! | `recording` | a recording, as the run loop sees it |
//! | `queue` | buffers of the processors on their way to the thread |
//! | `encoder` | the thread that encodes and writes |
//! | `first_task` | the branches of a program's first task, as records |
//! | `kernel` | what the guest's kernel tells about its tasks |

mod encoder;
mod first_task;
pub mod kernel;
mod queue;
mod recording;

pub use first_task::{FirstTask, Written};
pub use recording::{Finisher, Options, Recording, Statistics};
