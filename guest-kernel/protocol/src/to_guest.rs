//! The messages of the host.

use serde::{Deserialize, Serialize};

use crate::decoder::{encode, parse};
use crate::{Error, Job, WindowSize};

/// A message from the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest<'a> {
    /// The job. It is sent once, after [`crate::ToHost::Ready`].
    Job(Box<Job>),
    /// Input of a stream: the answer to one [`crate::ToHost::InputWant`].
    Input {
        /// The stream.
        fd: u32,
        /// At most the requested number of bytes.
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The input of a stream has ended: the last answer to a [`crate::ToHost::InputWant`].
    InputEnd {
        /// The stream.
        fd: u32,
    },
    /// The reader of an output has closed it.
    OutputClosed {
        /// The stream.
        fd: u32,
    },
    /// The terminal has another size.
    WindowSize(WindowSize),
    /// The number of a signal to send to the job.
    Signal(u32),
    /// The run is over. The guest sends the records that its buffers have and where each task
    /// stands, then [`crate::ToHost::Ended`], and ends the machine.
    End,
}

impl<'a> ToGuest<'a> {
    /// Appends the message to `out` as a frame.
    ///
    /// # Errors
    /// The message is longer than [`crate::MAX_PAYLOAD`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        encode(self, out)
    }

    /// Reads the payload of a frame that the host sent.
    ///
    /// # Errors
    /// The payload is no such message.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        parse(payload)
    }
}
