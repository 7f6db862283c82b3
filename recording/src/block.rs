//! Blocks: a header of 12 bytes, and a part of the file's stream of zstd.

use std::io::Read;

use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use crate::{Error, MAX_BLOCK};

/// Size of a header in bytes: the size of the stored bytes, that of the contents, and a checksum,
/// little-endian.
pub(crate) const HEADER: usize = 12;
/// Level of zstd: a recording costs the run little time.
const LEVEL: i32 = 1;
/// Logarithm of the distance in bytes over which a content that recurs is found, and of the memory
/// that a reader needs.
const WINDOW_LOG: u32 = 27;
/// Maximum size of stored bytes: that of contents, and what zstd adds to those that it cannot
/// compress.
const MAX_STORED: usize = MAX_BLOCK + (MAX_BLOCK >> 7) + 1024;

/// Compresses blocks.
pub(crate) struct Compressor(Encoder<'static>);

impl Compressor {
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn new() -> Result<Self, Error> {
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        Ok(Self(encoder))
    }

    /// Appends the block that has `contents` to `out`.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn block(&mut self, contents: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let mut input = InBuffer::around(contents);
        let mut piece = [0; 16 << 10];
        while input.pos() < contents.len() {
            let mut output = OutBuffer::around(&mut piece[..]);
            self.0.run(&mut input, &mut output)?;
            out.extend_from_slice(output.as_slice());
        }
        loop {
            let mut output = OutBuffer::around(&mut piece[..]);
            let left = self.0.flush(&mut output)?;
            out.extend_from_slice(output.as_slice());
            if left == 0 {
                break;
            }
        }
        let stored = out.get(start + HEADER..).unwrap_or_default();
        let sizes = [stored.len() as u32, contents.len() as u32];
        let checksum = checksum(sizes, stored);
        let header = [sizes[0], sizes[1], checksum].map(u32::to_le_bytes);
        if let Some(place) = out.get_mut(start..start + HEADER) {
            place.copy_from_slice(header.as_flattened());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

/// Decompresses blocks.
pub(crate) struct Decompressor(Decoder<'static>);

impl Decompressor {
    /// # Errors
    /// There is no memory for zstd.
    pub(crate) fn new() -> Result<Self, Error> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Self(decoder))
    }

    /// Reads the next block of `file` into `contents`. Returns `false` if the file ends before its
    /// end.
    ///
    /// # Errors
    /// The file cannot be read, or the block is damaged.
    pub(crate) fn block(
        &mut self,
        file: &mut impl Read,
        contents: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        contents.clear();
        let mut header = [0; HEADER];
        if !read_whole(file, &mut header)? {
            return Ok(false);
        }
        let [stored_size, size, expected] =
            [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|n| header[at + n])));
        let (stored_len, len) = (stored_size as usize, size as usize);
        if stored_len > MAX_STORED || len > MAX_BLOCK {
            return Err(Error::Damaged);
        }
        let mut stored = vec![0; stored_len];
        if !read_whole(file, &mut stored)? {
            return Ok(false);
        }
        if checksum([stored_size, size], &stored) != expected {
            return Err(Error::Damaged);
        }
        contents.resize(len, 0);
        let mut input = InBuffer::around(stored.as_slice());
        let mut output = OutBuffer::around(contents.as_mut_slice());
        loop {
            let before = (input.pos(), output.pos());
            self.0
                .run(&mut input, &mut output)
                .map_err(|_| Error::Damaged)?;
            if (input.pos(), output.pos()) == before {
                break;
            }
        }
        let (read, written) = (input.pos(), output.pos());
        if read != stored_len || written != len {
            return Err(Error::Damaged);
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

/// CRC-32 (IEEE 802.3) of the sizes and of the stored bytes.
fn checksum(sizes: [u32; 2], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(sizes.map(u32::to_le_bytes).as_flattened());
    hasher.update(stored);
    hasher.finalize()
}

/// Fills `buffer`. Returns `false` if the file ends before.
fn read_whole(file: &mut impl Read, buffer: &mut [u8]) -> Result<bool, Error> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}
