//! The trace of a whole machine: the software CPU logs its branches, whatever the guest does.
//!
//! | module | contents |
//! |---|---|
//! | `recording` | a recording, as the run loop sees it |
//! | `queue` | buffers of the processors on their way to the thread |
//! | `encoder` | the thread that encodes and writes |
//! | `kernel` | what the guest's kernel tells about its tasks |

mod encoder;
pub mod kernel;
mod queue;
mod recording;

pub use recording::{Finisher, Options, Recording, Statistics};
