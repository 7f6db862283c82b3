//! Splits a byte stream into frames.

use serde::{Deserialize, Serialize};

use crate::{Error, HEADER_SIZE, MAX_PAYLOAD};

/// Incremental decoder of a stream of frames.
///
/// Push bytes as they arrive, then take the payloads of frames until there are no more:
///
/// ```
/// # use vbts_protocol::{Decoder, ToHost};
/// # let mut chunk = Vec::new();
/// # ToHost::Output { fd: 1, bytes: b"hello" }.encode(&mut chunk).unwrap();
/// let mut decoder = Decoder::new();
/// decoder.push(&chunk);
/// while let Some(frame) = decoder.next_frame()? {
///     assert_eq!(ToHost::parse(frame)?, ToHost::Output { fd: 1, bytes: b"hello" });
/// }
/// # Ok::<(), vbts_protocol::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that belong to frames that were taken.
    consumed: usize,
    failed: Option<Error>,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes of the stream. Bytes after a malformed header are ignored.
    ///
    /// Memory stays below `HEADER_SIZE + MAX_PAYLOAD + bytes.len()` if all complete frames are
    /// taken between calls.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the payload of the next complete frame; `None` means that more bytes are needed.
    ///
    /// # Errors
    /// The header is malformed. The start of the next frame is then unknown, so each later call
    /// returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let start = self.consumed;
        let Some(header) = self
            .buffer
            .get(start..)
            .and_then(<[u8]>::first_chunk::<HEADER_SIZE>)
        else {
            return Ok(None);
        };
        let &[r0, r1, r2, r3, l0, l1, l2, l3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if [r0, r1, r2, r3] != [0; 4] {
            let error = Error::Reserved(*header);
            return self.fail(error);
        }
        if len > MAX_PAYLOAD {
            return self.fail(Error::TooLong(len));
        }
        let payload = start + HEADER_SIZE..start + HEADER_SIZE + len;
        if self.buffer.len() < payload.end {
            return Ok(None);
        }
        self.consumed = payload.end;
        Ok(self.buffer.get(payload))
    }

    fn fail(&mut self, error: Error) -> Result<Option<&[u8]>, Error> {
        self.buffer = Vec::new();
        self.consumed = 0;
        self.failed = Some(error.clone());
        Err(error)
    }

    /// The bytes that were pushed and belong to no frame that was taken.
    pub fn rest(&self) -> &[u8] {
        self.buffer.get(self.consumed..).unwrap_or_default()
    }

    /// Returns whether the stream may end here: it is not inside a frame.
    pub fn is_at_boundary(&self) -> bool {
        self.failed.is_none() && self.consumed == self.buffer.len()
    }
}

/// Appends `message` to `out` as a frame.
pub(crate) fn encode(message: &impl Serialize, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_SIZE]);
    *out = postcard::to_extend(message, std::mem::take(out))?;
    let len = out.len() - start - HEADER_SIZE;
    if len > MAX_PAYLOAD {
        out.truncate(start);
        return Err(Error::TooLong(len));
    }
    if let Some(header) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *header = ((len as u64) << 32).to_le_bytes();
    }
    Ok(())
}

/// Reads a payload, all of which is one message.
pub(crate) fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Error> {
    let (message, rest) = postcard::take_from_bytes(payload)?;
    match rest.len() {
        0 => Ok(message),
        more => Err(Error::Malformed(format!("{more} bytes follow the message"))),
    }
}
