//! Splits a byte stream into frames.

use crate::{Error, HEADER_SIZE, MAX_PAYLOAD};

/// One frame, borrowed from the [`Decoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Type byte; its meaning depends on the direction.
    pub kind: u8,
    /// Payload, at most [`MAX_PAYLOAD`] bytes.
    pub payload: &'a [u8],
}

/// Incremental decoder of a stream of frames.
///
/// Push bytes as they arrive, then take frames until there are no more:
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

    /// Takes the next complete frame; `None` means that more bytes are needed.
    ///
    /// # Errors
    /// The header is malformed. The start of the next frame is then unknown, so each later call
    /// returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, Error> {
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
        let &[kind, r0, r1, r2, l0, l1, l2, l3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if [r0, r1, r2] != [0; 3] {
            let error = Error::Reserved(*header);
            return self.fail(error);
        }
        if len > MAX_PAYLOAD {
            return self.fail(Error::TooLong { kind, len });
        }
        let payload = start + HEADER_SIZE..start + HEADER_SIZE + len;
        if self.buffer.len() < payload.end {
            return Ok(None);
        }
        self.consumed = payload.end;
        Ok(self
            .buffer
            .get(payload)
            .map(|payload| Frame { kind, payload }))
    }

    fn fail(&mut self, error: Error) -> Result<Option<Frame<'_>>, Error> {
        self.buffer = Vec::new();
        self.consumed = 0;
        self.failed = Some(error.clone());
        Err(error)
    }

    /// Returns whether the stream may end here: it is not inside a frame.
    pub fn is_at_boundary(&self) -> bool {
        self.failed.is_none() && self.consumed == self.buffer.len()
    }
}

/// Appends a frame of type `kind` whose payload is the concatenation of `parts`.
pub(crate) fn encode(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) -> Result<(), Error> {
    let len = parts.iter().map(|part| part.len()).sum();
    if len > MAX_PAYLOAD {
        return Err(Error::TooLong { kind, len });
    }
    out.reserve(HEADER_SIZE + len);
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&(len as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}
