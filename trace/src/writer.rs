//! Writes a trace.

use std::collections::HashMap;
use std::io::Write;

use serde::Serialize;

use crate::branches::{Context, Encoder};
use crate::chunk::{END_MAGIC, MAGIC, MAX_EVENT, MAX_JSON, Parts, VERSION, kind};
use crate::event::{self, Event};
use crate::run::{Run, Summary};
use crate::{Branch, Error, varint};

/// Bytes of encoded branches, or of events, after which a block ends. It also ends when the encoder
/// is full, after about 4 million branches. Each block begins with empty tables, so that a reader
/// can begin there.
const BLOCK_BYTES: usize = 8 << 20;
/// Branches between two looks at the size of the block.
const PIECE: usize = 4096;

/// Writes a trace to `W`, in blocks: what was not flushed is in memory, at most about 100 MB.
#[derive(Debug)]
pub struct Writer<W: Write> {
    parts: Parts<W>,
    encoder: Encoder,
    /// The last branches of each task of the block.
    contexts: HashMap<u64, Context>,
    /// The events of the block.
    events: Vec<u8>,
    /// An event while it is encoded.
    event: Vec<u8>,
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
    /// For each block: its position, the branches before it, and the time before it.
    index: Vec<[u64; 3]>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// The output fails.
    pub fn new(output: W, run: &Run) -> Result<Self, Error> {
        let mut parts = Parts::new(output)?;
        parts.write_all(&MAGIC)?;
        parts.write_all(&VERSION.to_le_bytes())?;
        parts.write(kind::RUN, &json(run)?)?;
        Ok(Self {
            parts,
            encoder: Encoder::default(),
            contexts: HashMap::new(),
            events: Vec::new(),
            event: Vec::new(),
            task: None,
            told: 0,
            time: 0,
            block_time: 0,
            began: 0,
            first: 0,
            index: Vec::new(),
        })
    }

    /// The output.
    pub fn output(&mut self) -> &mut W {
        &mut self.parts.output
    }

    /// Number of branches so far.
    pub fn records(&self) -> u64 {
        self.first + self.encoder.count()
    }

    /// Number of branches that are not written yet, because their block is not complete.
    pub fn kept(&self) -> u64 {
        self.encoder.count()
    }

    /// Adds branches of a task, oldest first.
    ///
    /// # Errors
    /// The output fails.
    pub fn branches(&mut self, task: u64, branches: &[Branch]) -> Result<(), Error> {
        for piece in branches.chunks(PIECE) {
            if self.encoder.len() >= BLOCK_BYTES || self.encoder.is_full(piece.len()) {
                self.flush()?;
            }
            self.select(task);
            let context = self.contexts.entry(task).or_default();
            self.encoder.push(piece, context);
        }
        Ok(())
    }

    /// Adds an event of a task.
    ///
    /// # Errors
    /// The output fails, or the event has more than 32 MiB.
    pub fn event(&mut self, task: u64, event: &Event) -> Result<(), Error> {
        if self.events.len() >= BLOCK_BYTES {
            self.flush()?;
        }
        self.select(task);
        self.event.clear();
        let kind = event.encode(&mut self.event);
        let len = self.event.len();
        if len > MAX_EVENT {
            return Err(Error::TooLarge(len));
        }
        self.begin_event(kind, event.time());
        varint::push_bytes(&mut self.events, &self.event);
        Ok(())
    }

    /// Names the task of what follows.
    fn select(&mut self, task: u64) {
        if self.task == Some(task) {
            return;
        }
        self.task = Some(task);
        self.begin_event(event::SELECT, None);
        self.event.clear();
        varint::push(&mut self.event, task);
        varint::push_bytes(&mut self.events, &self.event);
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

    /// Writes everything so far, so that a reader finds it even if the file ends here. Many small
    /// blocks make a large file.
    ///
    /// # Errors
    /// The output fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        let count = self.encoder.count();
        if count == 0 && self.events.is_empty() {
            return Ok(());
        }
        let position = self.parts.position;
        self.index.push([position, self.first, self.began]);
        let mut part = Vec::with_capacity(self.events.len() + 20);
        varint::push(&mut part, self.first);
        varint::push(&mut part, count);
        part.append(&mut self.events);
        self.parts.write(kind::EVENTS, &part)?;
        if count > 0 {
            part.clear();
            let compressor = &mut self.parts.compressor;
            self.encoder.finish(&mut part, compressor)?;
            self.parts.write(kind::BRANCHES, &part)?;
        }
        self.contexts.clear();
        (self.task, self.told, self.block_time) = (None, 0, 0);
        self.first += count;
        self.began = self.time;
        Ok(())
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
        varint::push(&mut index, self.first);
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
