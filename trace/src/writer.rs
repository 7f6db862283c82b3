//! Writes a trace.

use std::io::Write;

use serde::Serialize;

use crate::block::{BlockEncoder, EncodeBlocks, EncodedBlock};
use crate::branches::MAX_RUN;
use crate::chunk::{END_MAGIC, MAGIC, MAX_JSON, Parts, VERSION, kind};
use crate::event::Event;
use crate::run::{Run, Summary};
use crate::{Branch, Error, varint};

/// Branches that a segment can have: as many as a block can have.
const SEGMENT_BRANCHES: u64 = MAX_RUN;
/// Bytes of events after which a segment ends.
const SEGMENT_EVENTS: usize = 8 << 20;
/// Bytes of an event without its names and texts, about.
const EVENT: usize = 8;
/// Branches between two looks at the size of the segment and of the block.
const PIECE: usize = 4096;

/// Writes a trace to `W`, in blocks that `E` encodes: what was not flushed is in memory, at most
/// about 100 MB with a [`BlockEncoder`].
#[derive(Debug)]
pub struct Writer<W, E = BlockEncoder> {
    parts: Parts<W>,
    blocks: E,
    /// Branches so far.
    records: u64,
    /// Branches of the segment, and bytes of its events.
    segment: (u64, usize),
    /// Branches that are written.
    written: u64,
    /// For each block: its position, the branches before it, and the time before it.
    index: Vec<[u64; 3]>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// The output fails, or there is no memory for the compression.
    pub fn new(output: W, run: &Run) -> Result<Self, Error> {
        Self::with_encoder(output, run, BlockEncoder::new()?)
    }
}

impl<W: Write, E: EncodeBlocks> Writer<W, E> {
    /// Begins a trace whose blocks `blocks` encodes. The file does not depend on that.
    ///
    /// # Errors
    /// The output fails, or there is no memory for the compression.
    pub fn with_encoder(output: W, run: &Run, blocks: E) -> Result<Self, Error> {
        let mut parts = Parts::new(output)?;
        parts.write_all(&MAGIC)?;
        parts.write_all(&VERSION.to_le_bytes())?;
        parts.write(kind::RUN, &json(run)?)?;
        Ok(Self {
            parts,
            blocks,
            records: 0,
            segment: (0, 0),
            written: 0,
            index: Vec::new(),
        })
    }

    /// The output.
    pub fn output(&mut self) -> &mut W {
        &mut self.parts.output
    }

    /// The encoder of the blocks.
    pub fn encoder(&mut self) -> &mut E {
        &mut self.blocks
    }

    /// Number of branches so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Number of branches that are not written yet, because their block is not complete.
    pub fn kept(&self) -> u64 {
        self.records - self.written
    }

    /// Adds branches of a task, oldest first.
    ///
    /// # Errors
    /// The output fails, or a block is lost because there is no memory for the compression.
    pub fn branches(&mut self, task: u64, branches: &[Branch]) -> Result<(), Error> {
        for piece in branches.chunks(PIECE) {
            let count = piece.len() as u64;
            if self.segment.0 + count > SEGMENT_BRANCHES {
                self.end_segment();
            }
            self.segment.0 += count;
            self.records += count;
            self.blocks.branches(task, piece);
            self.write_blocks(false)?;
        }
        Ok(())
    }

    /// Adds an event of a task.
    ///
    /// # Errors
    /// As [`Self::branches`], or the event has more than 32 MiB.
    pub fn event(&mut self, task: u64, event: &Event) -> Result<(), Error> {
        if self.segment.1 >= SEGMENT_EVENTS {
            self.end_segment();
        }
        self.segment.1 += EVENT + event.size();
        self.blocks.event(task, event);
        self.write_blocks(false)
    }

    fn end_segment(&mut self) {
        self.blocks.end_segment();
        self.segment = (0, 0);
    }

    /// Writes the blocks that are complete. With `wait`, those of all segments that have ended.
    fn write_blocks(&mut self, wait: bool) -> Result<(), Error> {
        while let Some(block) = self.blocks.next_block(wait) {
            self.write_block(&block?)?;
        }
        Ok(())
    }

    fn write_block(&mut self, block: &EncodedBlock) -> Result<(), Error> {
        let position = self.parts.position;
        self.index.push([position, block.first, block.began]);
        self.written = block.first + block.count;
        self.parts.write_all(&block.bytes)
    }

    /// Writes everything so far, so that a reader finds it even if the file ends here. Many small
    /// blocks make a large file.
    ///
    /// # Errors
    /// As [`Self::branches`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.end_segment();
        self.write_blocks(true)
    }

    /// Ends the trace. Nothing must follow.
    ///
    /// # Errors
    /// The output fails.
    pub fn finish(&mut self, summary: &Summary) -> Result<(), Error> {
        self.flush()?;
        let at = self.parts.position;
        self.parts.write(kind::SUMMARY, &json(summary)?)?;
        let mut index = Vec::new();
        varint::push(&mut index, at);
        varint::push(&mut index, self.records);
        let mut last = [0; 3];
        for block in &self.index {
            for (value, last) in block.iter().zip(&last) {
                varint::push_signed(&mut index, value.wrapping_sub(*last).cast_signed());
            }
            last = *block;
        }
        let at = self.parts.position;
        self.parts.write(kind::INDEX, &index)?;
        self.parts.write_all(&at.to_le_bytes())?;
        self.parts.write_all(&END_MAGIC)?;
        self.parts.output.flush()?;
        Ok(())
    }
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let json = serde_json::to_vec(value).map_err(|error| Error::Io(error.into()))?;
    match json.len() {
        ..=MAX_JSON => Ok(json),
        len => Err(Error::TooLarge(len)),
    }
}
