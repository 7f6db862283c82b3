//! The blocks that a reader has read, so that it can go back. A block of the file cannot be read
//! again by itself, because all blocks are one stream of zstd: each is kept compressed by itself.

use crate::{Error, MAX_BLOCK};

/// Level of zstd: a block is kept while a replay waits for it.
const LEVEL: i32 = 1;

/// Why the file has no more blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileEnd {
    /// The file ends, or was cut off.
    End,
    Damaged,
}

/// The blocks that were read since [`super::Reader::keep`].
#[derive(Debug)]
pub(super) struct KeptBlocks {
    /// Number of the first one in the file.
    first: u64,
    blocks: Vec<Box<[u8]>>,
    /// The end of the file, once it was reached.
    pub end: Option<FileEnd>,
}

impl KeptBlocks {
    pub(super) fn new(first: u64) -> Self {
        Self {
            first,
            blocks: Vec::new(),
            end: None,
        }
    }

    /// Keeps the block that follows the last one.
    pub(super) fn push(&mut self, contents: &[u8]) -> Result<(), Error> {
        let compressed = zstd::bulk::compress(contents, LEVEL)?;
        self.blocks.push(compressed.into());
        Ok(())
    }

    /// Number in the file of the first block that is not kept, because it is still to be read.
    pub(super) fn next(&self) -> u64 {
        self.first + self.blocks.len() as u64
    }

    /// The contents of the block with this number in the file, if it is kept.
    pub(super) fn get(&self, number: u64) -> Result<Option<Vec<u8>>, Error> {
        let place = number.checked_sub(self.first);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some(block) = place.and_then(|place| self.blocks.get(place)) else {
            return Ok(None);
        };
        Ok(Some(zstd::bulk::decompress(block, MAX_BLOCK)?))
    }
}
