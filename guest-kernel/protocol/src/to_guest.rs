//! The messages of the host.

use crate::decoder::encode;
use crate::payload::{malformed, word, words};
use crate::{Error, Frame, Job, WindowSize};

const JOB: u8 = 0x01;
const INPUT: u8 = 0x02;
const INPUT_END: u8 = 0x03;
const SIGNAL: u8 = 0x04;
const END: u8 = 0x05;
const OUTPUT_CLOSED: u8 = 0x06;
const WINDOW_SIZE: u8 = 0x07;

/// A message from the host to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest<'a> {
    /// The job. It is sent once, after [`crate::ToHost::Ready`].
    Job(Box<Job>),
    /// Input of a stream: the answer to one [`crate::ToHost::InputWant`].
    Input {
        /// The stream.
        fd: u32,
        /// At most the requested number of bytes.
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
        match self {
            Self::Job(job) => {
                let json = serde_json::to_vec(job).map_err(|error| malformed("Job", error))?;
                encode(out, JOB, &[&json])
            }
            Self::Input { fd, bytes } => encode(out, INPUT, &[&fd.to_le_bytes(), bytes]),
            Self::InputEnd { fd } => encode(out, INPUT_END, &[&fd.to_le_bytes()]),
            Self::OutputClosed { fd } => encode(out, OUTPUT_CLOSED, &[&fd.to_le_bytes()]),
            Self::WindowSize(size) => {
                let words = [size.rows, size.columns, size.x_pixels, size.y_pixels];
                let words = words.map(|word| u32::from(word).to_le_bytes());
                encode(out, WINDOW_SIZE, &[words.as_flattened()])
            }
            Self::Signal(signal) => encode(out, SIGNAL, &[&signal.to_le_bytes()]),
            Self::End => encode(out, END, &[]),
        }
    }

    /// Reads a frame that the host sent.
    ///
    /// # Errors
    /// The type is unknown or the payload does not fit it.
    pub fn parse(frame: Frame<'a>) -> Result<Self, Error> {
        let payload = frame.payload;
        Ok(match frame.kind {
            JOB => {
                Self::Job(serde_json::from_slice(payload).map_err(|error| malformed("Job", error))?)
            }
            INPUT => {
                let (fd, bytes) = word("Input", payload)?;
                Self::Input { fd, bytes }
            }
            INPUT_END => {
                let [fd] = words("InputEnd", payload)?;
                Self::InputEnd { fd }
            }
            OUTPUT_CLOSED => {
                let [fd] = words("OutputClosed", payload)?;
                Self::OutputClosed { fd }
            }
            WINDOW_SIZE => {
                let size: [u32; 4] = words("WindowSize", payload)?;
                let [rows, columns, x_pixels, y_pixels] =
                    size.map(|word| u16::try_from(word).unwrap_or(u16::MAX));
                Self::WindowSize(WindowSize {
                    rows,
                    columns,
                    x_pixels,
                    y_pixels,
                })
            }
            SIGNAL => {
                let [signal] = words("Signal", payload)?;
                Self::Signal(signal)
            }
            END => {
                let [] = words("End", payload)?;
                Self::End
            }
            kind => return Err(Error::UnknownType(kind)),
        })
    }
}
