//! Encodes the blocks of a file. A block begins with empty tables, so that a reader can begin
//! there, and so that several threads can encode blocks at the same time.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;

use crate::branches::{Context, Encoder};
use crate::chunk::{Compressor, MAX_EVENT, kind};
use crate::event::{self, Event};
use crate::{Branch, Error, varint};

/// Bytes of encoded branches, or of events, after which a block ends.
const BLOCK_BYTES: usize = 8 << 20;

/// A block as it is in the file.
#[derive(Debug)]
pub struct EncodedBlock {
    /// Branches before it.
    pub(crate) first: u64,
    /// Branches in it.
    pub(crate) count: u64,
    /// Time of the last event before it.
    pub(crate) began: u64,
    /// The parts, with their headers.
    pub(crate) bytes: Vec<u8>,
}

/// Makes blocks of branches and events, in their order. The blocks do not depend on how it does so.
///
/// A segment is a part of a file that ends after a number of branches or bytes of events, so that
/// its end is known before it is encoded. It becomes one block, or several if its tables become too
/// large.
pub trait EncodeBlocks: Debug {
    /// Adds branches of a task, oldest first. The number of branches is limited.
    fn branches(&mut self, task: u64, branches: &[Branch]);

    /// Adds an event of a task.
    fn event(&mut self, task: u64, event: &Event);

    /// Ends a segment. The next one begins with empty tables.
    fn end_segment(&mut self);

    /// Returns the next block, or why a part of the trace is lost, if there is one now. With
    /// `wait`, waits for the blocks of all segments that have ended.
    fn next_block(&mut self, wait: bool) -> Option<Result<EncodedBlock, Error>>;
}

/// Encodes blocks in the thread that adds branches and events.
#[derive(Debug)]
pub struct BlockEncoder {
    encoder: Encoder,
    compressor: Compressor,
    /// The last branches of each task of the block.
    contexts: HashMap<u64, Context>,
    /// The events of the block.
    events: Vec<u8>,
    /// An event, or the first part of the block, while it is encoded.
    part: Vec<u8>,
    /// The task of what follows.
    task: Option<u64>,
    /// Branches of the block before its last event.
    told: u64,
    /// Time of the last event.
    time: u64,
    /// Time of the last event of the block; 0 before its first one.
    block_time: u64,
    /// Time of the last event before the block.
    began: u64,
    /// Branches before the block.
    first: u64,
    /// Complete blocks, and errors.
    blocks: VecDeque<Result<EncodedBlock, Error>>,
}

impl BlockEncoder {
    /// # Errors
    /// There is no memory for zstd.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            encoder: Encoder::default(),
            compressor: Compressor::new()?,
            contexts: HashMap::new(),
            events: Vec::new(),
            part: Vec::new(),
            task: None,
            told: 0,
            time: 0,
            block_time: 0,
            began: 0,
            first: 0,
            blocks: VecDeque::new(),
        })
    }

    /// Begins a segment after `first` branches, and after an event at `time`.
    pub fn begin_segment(&mut self, first: u64, time: u64) {
        (self.first, self.began, self.time) = (first, time, time);
    }

    /// Names the task of what follows.
    fn select(&mut self, task: u64) {
        if self.task == Some(task) {
            return;
        }
        self.task = Some(task);
        self.begin_event(event::SELECT, None);
        self.part.clear();
        varint::push(&mut self.part, task);
        varint::push_bytes(&mut self.events, &self.part);
    }

    /// Appends what is in front of an event: the branches since the last one, its kind and time.
    fn begin_event(&mut self, kind: u8, time: Option<u64>) {
        let count = self.encoder.count();
        varint::push(&mut self.events, count - self.told);
        self.told = count;
        self.events.push(kind);
        if let Some(time) = time {
            let difference = time.wrapping_sub(self.block_time).cast_signed();
            varint::push_signed(&mut self.events, difference);
            (self.time, self.block_time) = (time, time);
        }
    }

    /// Ends the block, unless it is empty.
    fn end_block(&mut self) {
        let count = self.encoder.count();
        if count == 0 && self.events.is_empty() {
            return;
        }
        let block = self.encode(count);
        self.blocks.push_back(block);
        self.events.clear();
        self.contexts.clear();
        (self.task, self.told, self.block_time) = (None, 0, 0);
        self.first += count;
        self.began = self.time;
    }

    /// Encodes the block, which has `count` branches.
    fn encode(&mut self, count: u64) -> Result<EncodedBlock, Error> {
        let compressor = &mut self.compressor;
        let mut branches = Vec::new();
        if count > 0 {
            self.encoder.finish(&mut branches, compressor)?;
        }
        let events = &mut self.part;
        events.clear();
        varint::push(events, self.first);
        varint::push(events, count);
        events.append(&mut self.events);
        let mut bytes = Vec::new();
        compressor.push_part(&mut bytes, kind::EVENTS, events)?;
        if count > 0 {
            compressor.push_part(&mut bytes, kind::BRANCHES, &branches)?;
        }
        Ok(EncodedBlock {
            first: self.first,
            count,
            began: self.began,
            bytes,
        })
    }
}

impl EncodeBlocks for BlockEncoder {
    fn branches(&mut self, task: u64, branches: &[Branch]) {
        if self.encoder.len() >= BLOCK_BYTES || self.encoder.is_full(branches.len()) {
            self.end_block();
        }
        self.select(task);
        let context = self.contexts.entry(task).or_default();
        self.encoder.push(branches, context);
    }

    fn event(&mut self, task: u64, event: &Event) {
        if self.events.len() >= BLOCK_BYTES {
            self.end_block();
        }
        self.select(task);
        let mut part = std::mem::take(&mut self.part);
        part.clear();
        let kind = event.encode(&mut part);
        if part.len() <= MAX_EVENT {
            self.begin_event(kind, event.time());
            varint::push_bytes(&mut self.events, &part);
        } else {
            self.blocks.push_back(Err(Error::TooLarge(part.len())));
        }
        self.part = part;
    }

    fn end_segment(&mut self) {
        self.end_block();
    }

    fn next_block(&mut self, _wait: bool) -> Option<Result<EncodedBlock, Error>> {
        self.blocks.pop_front()
    }
}

impl<E: EncodeBlocks + ?Sized> EncodeBlocks for Box<E> {
    fn branches(&mut self, task: u64, branches: &[Branch]) {
        (**self).branches(task, branches);
    }

    fn event(&mut self, task: u64, event: &Event) {
        (**self).event(task, event);
    }

    fn end_segment(&mut self) {
        (**self).end_segment();
    }

    fn next_block(&mut self, wait: bool) -> Option<Result<EncodedBlock, Error>> {
        (**self).next_block(wait)
    }
}
