//! Parts of blocks, which several readers of one trace decode at the same time.

use std::io::{Read, Seek};

use super::{Piece, Reader};
use crate::branches::Decoder;
use crate::event::Event;
use crate::{Branch, Error};

/// Branches in a batch.
const BRANCHES: usize = 64 << 10;
/// Parts of a batch.
const PARTS: usize = 4 << 10;
/// Bytes of names and texts of events after which a batch ends.
const BYTES: usize = 64 << 10;

/// A part of a block. A block has a list of the different branches that it has, and its batches
/// add to it.
#[derive(Debug, Default)]
pub struct Batch {
    /// Branches that the list gets.
    pub new: Vec<Branch>,
    /// Branches, by their numbers in the list: those of the parts, one after the other.
    pub numbers: Vec<u32>,
    /// What happened, in the order of time.
    pub parts: Vec<Part>,
}

/// A part of a batch.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// So many branches of a task.
    Branches(u64, usize),
    /// An event of a task.
    Event(u64, Event),
}

impl<R: Read + Seek> Reader<R> {
    /// Another reader of the same trace, which has an input of its own.
    pub fn with_input<S>(&self, input: S) -> Reader<S> {
        Reader {
            input,
            run: self.run.clone(),
            index: self.index.clone(),
            next_block: 0,
            events: Default::default(),
            contexts: Default::default(),
            decoder: Decoder::default(),
            branches: Vec::new(),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.index.blocks.len()
    }

    /// Number of branches before a block.
    pub fn first_of_block(&self, number: usize) -> u64 {
        let block = self.index.blocks.get(number);
        block.map_or(self.index.records, |block| block.first)
    }

    /// Number of the block in which [`Reader::seek`] begins to look for branch number `record`: the
    /// events before the branch may be in the block before its own.
    pub fn block_before(&self, record: u64) -> usize {
        let blocks = &self.index.blocks;
        let after = blocks.partition_point(|block| block.first < record);
        after.saturating_sub(1)
    }

    /// Goes to the beginning of the block with this number, for [`Reader::next_batch`].
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn seek_block(&mut self, number: usize) -> Result<(), Error> {
        self.events = Default::default();
        self.begin_block(number)
    }

    /// Replaces `batch` by the next one of the block. Events that are not `wanted` are left out.
    /// `listed` is the number of branches that the list of the block has from the batches before.
    /// Returns false if this is the last batch.
    ///
    /// # Errors
    /// The input is damaged. `batch` has what is before.
    pub fn next_batch(
        &mut self,
        batch: &mut Batch,
        listed: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<bool, Error> {
        batch.new.clear();
        batch.parts.clear();
        batch.numbers.resize(BRANCHES, 0);
        let mut count = 0;
        let goes_on = self.fill(batch, &mut count, wanted);
        batch.numbers.truncate(count);
        // A block without branches has no list.
        if !batch.numbers.is_empty() {
            let new = self.decoder.branches().get(listed..).unwrap_or_default();
            batch.new.extend_from_slice(new);
        }
        goes_on
    }

    /// Fills the parts of `batch`, and the front of its numbers with `count` branches. Returns
    /// false at the end of the block.
    fn fill(
        &mut self,
        batch: &mut Batch,
        count: &mut usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<bool, Error> {
        let mut bytes = 0;
        while *count < BRANCHES && batch.parts.len() < PARTS && bytes < BYTES {
            let (_, room) = batch.numbers.split_at_mut(*count);
            match self.next_piece(room, |number, _| number)? {
                Piece::Branches(task, more) => {
                    *count += more;
                    batch.parts.push(Part::Branches(task, more));
                }
                Piece::Event(task, event) if wanted(&event) => {
                    bytes += event.size();
                    batch.parts.push(Part::Event(task, event));
                }
                Piece::Event(..) => {}
                Piece::End => return Ok(false),
            }
        }
        Ok(true)
    }
}
