//! The parts of a file. Each has a header, a checksum, and is compressed if that makes it smaller.

use std::io::{Read, Write};

use serde::de::DeserializeOwned;

use crate::Error;
use crate::branches::MAX_RUN;

/// What a file begins with, before the version (32 bits, little-endian). As in PNG, the first byte
/// shows that the file is no text, and the last two show a change of line ends.
pub(crate) const MAGIC: [u8; 8] = *b"\x93BTRC\r\n\0";
/// Version of the format.
pub(crate) const VERSION: u32 = 4;
/// What a complete file ends with, after the offset of its index (64 bits, little-endian).
pub(crate) const END_MAGIC: [u8; 8] = *b"BTRCend\n";
/// Size of the end of a complete file in bytes.
pub(crate) const TRAILER: usize = 16;

/// Maximum size of a part in bytes, before its compression.
pub(crate) const MAX_PLAIN: usize = 64 << 20;

/// Maximum size in bytes of a part that is JSON: what it becomes in memory is 20 times as large.
pub(crate) const MAX_JSON: usize = 8 << 20;
/// Bytes that an event can have.
pub(crate) const MAX_EVENT: usize = 32 << 20;
/// Branches that a block can have: one run of right predictions has to say all of them.
pub(crate) const MAX_BRANCHES: u64 = MAX_RUN;
/// Blocks that a file can have.
pub(crate) const MAX_BLOCKS: usize = 1 << 22;

/// Size of a header in bytes.
pub(crate) const HEADER: usize = 16;

/// Level of zstd: the codec leaves little for a higher one, which takes twice the time and more.
const LEVEL: i32 = 1;

/// Kinds of parts. A reader ignores others.
pub(crate) mod kind {
    /// [`crate::Run`] as JSON; the first part.
    pub(crate) const RUN: u8 = 1;
    /// The events of a block, and the number of its branches.
    pub(crate) const EVENTS: u8 = 2;
    /// The branches of the block whose events precede it.
    pub(crate) const BRANCHES: u8 = 3;
    /// [`crate::Summary`] as JSON.
    pub(crate) const SUMMARY: u8 = 4;
    /// Where the blocks are; the last part.
    pub(crate) const INDEX: u8 = 5;
}

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// A part's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The kind.
    pub kind: u8,
    compression: u8,
    /// Size in the file in bytes, without the header.
    pub stored: u32,
    /// Size before the compression in bytes.
    pub plain: u32,
    checksum: u32,
}

impl Header {
    /// The header in the file: kind, compression, two zero bytes, sizes, and the checksum.
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        (bytes[0], bytes[1]) = (self.kind, self.compression);
        bytes[4..8].copy_from_slice(&self.stored.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.plain.to_le_bytes());
        bytes[12..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// CRC-32 (IEEE 802.3) of the header before the checksum and of the stored bytes.
    fn checksum(self, stored: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.to_bytes()[..12]);
        hasher.update(stored);
        hasher.finalize()
    }

    /// Reads a header.
    ///
    /// # Errors
    /// There are no 16 bytes, or they are no header.
    pub(crate) fn read<R: Read>(input: &mut R) -> Result<Self, Error> {
        let mut bytes = [0; HEADER];
        input.read_exact(&mut bytes)?;
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let header = Self {
            kind: bytes[0],
            compression: bytes[1],
            stored: word(4),
            plain: word(8),
            checksum: word(12),
        };
        let is_valid = header.stored <= header.plain && header.plain as usize <= MAX_PLAIN;
        is_valid.then_some(header).ok_or(Error::Damaged)
    }

    /// Reads the part after this header.
    ///
    /// # Errors
    /// It is damaged, or the file ends.
    pub(crate) fn read_part<R: Read>(self, input: &mut R) -> Result<Vec<u8>, Error> {
        let mut stored = Vec::new();
        input.take(self.stored.into()).read_to_end(&mut stored)?;
        if stored.len() != self.stored as usize || self.checksum(&stored) != self.checksum {
            return Err(Error::Damaged);
        }
        let plain = match self.compression {
            PLAIN => stored,
            ZSTD => decompress(&stored, self.plain as usize)?,
            _ => return Err(Error::Damaged),
        };
        (plain.len() == self.plain as usize)
            .then_some(plain)
            .ok_or(Error::Damaged)
    }
}

/// Reads a part, which must be of this kind.
///
/// # Errors
/// It is of another kind, it is damaged, or the file ends.
pub(crate) fn read_kind<R: Read>(input: &mut R, kind: u8) -> Result<Vec<u8>, Error> {
    let header = Header::read(input)?;
    if header.kind != kind {
        return Err(Error::Damaged);
    }
    header.read_part(input)
}

/// Reads a part that is JSON, which must be of this kind.
///
/// # Errors
/// As [`read_kind`], or it is larger than [`MAX_JSON`].
pub(crate) fn read_json<R: Read, T: DeserializeOwned>(input: &mut R, kind: u8) -> Result<T, Error> {
    let header = Header::read(input)?;
    if header.kind != kind || header.plain as usize > MAX_JSON {
        return Err(Error::Damaged);
    }
    serde_json::from_slice(&header.read_part(input)?).map_err(|_| Error::Damaged)
}

/// Decompresses a frame to `size` bytes.
///
/// # Errors
/// It is damaged, or has another size.
pub(crate) fn decompress(frame: &[u8], size: usize) -> Result<Vec<u8>, Error> {
    let bytes = zstd::bulk::decompress(frame, size).map_err(|_| Error::Damaged)?;
    (bytes.len() == size).then_some(bytes).ok_or(Error::Damaged)
}

/// Makes parts.
pub(crate) struct Compressor(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Compressor {
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self(zstd::bulk::Compressor::new(LEVEL)?))
    }

    /// Compresses bytes to a frame.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn frame(&mut self, plain: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.compress(plain)?)
    }

    /// Appends a part to `out`.
    ///
    /// # Errors
    /// The part is larger than [`MAX_PLAIN`], or there is no memory for zstd.
    pub(crate) fn push_part(
        &mut self,
        out: &mut Vec<u8>,
        kind: u8,
        plain: &[u8],
    ) -> Result<(), Error> {
        if plain.len() > MAX_PLAIN {
            return Err(Error::TooLarge(plain.len()));
        }
        let compressed = self.frame(plain)?;
        let (compression, stored) = if compressed.len() < plain.len() {
            (ZSTD, compressed.as_slice())
        } else {
            (PLAIN, plain)
        };
        let mut header = Header {
            kind,
            compression,
            stored: stored.len() as u32,
            plain: plain.len() as u32,
            checksum: 0,
        };
        header.checksum = header.checksum(stored);
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(stored);
        Ok(())
    }
}

/// Writes parts.
#[derive(Debug)]
pub(crate) struct Parts<W> {
    /// Where to.
    pub output: W,
    /// Bytes so far.
    pub position: u64,
    compressor: Compressor,
    /// A part before it is written.
    part: Vec<u8>,
}

impl<W: Write> Parts<W> {
    /// Parts of a file that begins here.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn new(output: W) -> Result<Self, Error> {
        Ok(Self {
            output,
            position: 0,
            compressor: Compressor::new()?,
            part: Vec::new(),
        })
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// The output fails.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes a part.
    ///
    /// # Errors
    /// The output fails, or the part is larger than [`MAX_PLAIN`].
    pub(crate) fn write(&mut self, kind: u8, plain: &[u8]) -> Result<(), Error> {
        let mut part = std::mem::take(&mut self.part);
        part.clear();
        self.compressor.push_part(&mut part, kind, plain)?;
        self.write_all(&part)?;
        self.part = part;
        Ok(())
    }
}
