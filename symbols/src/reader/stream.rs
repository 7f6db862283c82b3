//! A section that is read a part at a time, because the whole may be larger than what there is
//! memory for.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use flate2::bufread::ZlibDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::elf::{refusal, take};
use crate::protocol::Refusal;
use vbts_host::FileAt;

type Part<'a> = io::Take<FileAt<&'a File>>;

enum Source<'a> {
    Plain(Part<'a>),
    Decompressed(Box<dyn Read + 'a>),
}

/// The contents of a section, from their front.
pub(super) struct Stream<'a> {
    source: Source<'a>,
    /// Bytes that may still be read into memory.
    left: &'a Cell<u64>,
}

impl std::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

fn part(file: &File, at: u64, size: u64) -> Part<'_> {
    FileAt::new(file, at).take(size)
}

impl<'a> Stream<'a> {
    /// What the file has at `at`.
    pub(super) fn plain(file: &'a File, at: u64, size: u64, left: &'a Cell<u64>) -> Self {
        let source = Source::Plain(part(file, at, size));
        Self { source, left }
    }

    /// What zlib has compressed there.
    pub(super) fn zlib(file: &'a File, at: u64, size: u64, left: &'a Cell<u64>) -> Self {
        let decoder = ZlibDecoder::new(BufReader::new(part(file, at, size)));
        let source = Source::Decompressed(Box::new(decoder));
        Self { source, left }
    }

    /// What zstd has compressed there.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn zstd(
        file: &'a File,
        at: u64,
        size: u64,
        left: &'a Cell<u64>,
    ) -> Result<Self, Refusal> {
        let decoder = StreamingDecoder::new(BufReader::new(part(file, at, size)));
        let decoder = decoder.map_err(|_| Refusal::NotElf)?;
        let source = Source::Decompressed(Box::new(decoder));
        Ok(Self { source, left })
    }

    /// Appends the next `size` bytes to `out`. Returns false if there are fewer.
    ///
    /// # Errors
    /// There is no memory for them, or the host cannot read them.
    pub(super) fn read(&mut self, size: u64, out: &mut Vec<u8>) -> Result<bool, Refusal> {
        take(self.left, size)?;
        let source: &mut dyn Read = match &mut self.source {
            Source::Plain(part) => part,
            Source::Decompressed(decoder) => decoder,
        };
        let read = source.take(size).read_to_end(out);
        is_whole(read.map(|read| read as u64), size)
    }

    /// Passes `size` bytes. Returns false if there are fewer, if that is known.
    ///
    /// # Errors
    /// The host cannot read them.
    pub(super) fn skip(&mut self, size: u64) -> Result<bool, Refusal> {
        match &mut self.source {
            Source::Plain(part) => {
                let left = part.limit().checked_sub(size);
                part.set_limit(left.unwrap_or(0));
                let distance = i64::try_from(size).ok().filter(|_| left.is_some());
                let moved = distance.map(|by| part.get_mut().seek(SeekFrom::Current(by)));
                Ok(matches!(moved, Some(Ok(_))))
            }
            Source::Decompressed(decoder) => {
                let passed = io::copy(&mut decoder.take(size), &mut io::sink());
                is_whole(passed, size)
            }
        }
    }
}

/// Whether what was read is all that was wanted. What cannot be decompressed is not there.
fn is_whole(read: io::Result<u64>, size: u64) -> Result<bool, Refusal> {
    match read {
        Ok(read) => Ok(read == size),
        Err(error) => match refusal(&error) {
            Refusal::NotElf => Ok(false),
            refusal => Err(refusal),
        },
    }
}
