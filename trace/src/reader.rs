//! Reads a trace.

mod batch;
mod events;
mod index;

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

pub use self::batch::{Batch, Part};
use self::events::{BlockEvents, Entry};
use self::index::{Block, Index};
use crate::branches::{Context, Decoder};
use crate::chunk::{MAGIC, VERSION, kind, read_json, read_kind};
use crate::event::Event;
use crate::run::{Run, Summary};
use crate::{Branch, Error};

/// Branches that [`Reader::next_item`] gives out at once.
const PIECE: usize = 4096;

/// Tasks that a block can have branches of: it would need larger events than a writer makes.
const MAX_CONTEXTS: usize = 1 << 21;

/// A part of a trace, in the order of time.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Branches of a task, oldest first.
    Branches {
        /// Number of the task.
        task: u64,
        /// The branches.
        branches: &'a [Branch],
    },
    /// An event.
    Event {
        /// Number of the task.
        task: u64,
        /// The event.
        event: Event,
    },
}

/// What [`Reader::pass`] passes.
#[derive(Debug, PartialEq, Eq)]
pub enum Passed {
    /// So many branches of a task.
    Branches(u64),
    /// An event.
    Event(Event),
}

/// Reads a trace from `R`.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    run: Arc<Run>,
    index: Arc<Index>,
    /// Number of the block after the one that is read.
    next_block: usize,
    events: BlockEvents,
    /// The last branches of each task in the block.
    contexts: HashMap<u64, Context>,
    decoder: Decoder,
    branches: Vec<Branch>,
}

impl<R: Read + Seek> Reader<R> {
    /// Begins to read a trace. If it has no end, because its writer was interrupted or still
    /// writes, this reads all of its events to find what is complete.
    ///
    /// # Errors
    /// The input fails, or it is no trace of a version that this crate knows.
    pub fn new(mut input: R) -> Result<Self, Error> {
        let mut begin = [0; MAGIC.len() + 4];
        input.rewind()?;
        read_exact(&mut input, &mut begin, Error::NotATrace)?;
        let (magic, version) = begin.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Error::NotATrace);
        }
        let version = version.try_into().map_or(0, u32::from_le_bytes);
        if version != VERSION {
            return Err(Error::Version(version, VERSION));
        }
        let run = read_json(&mut input, kind::RUN)?;
        let first = input.stream_position()?;
        let index = match Index::read(&mut input) {
            Ok(index) => index,
            Err(_) => Index::find(&mut input, first)?,
        };
        Ok(Self {
            input,
            run: Arc::new(run),
            index: Arc::new(index),
            next_block: 0,
            events: BlockEvents::default(),
            contexts: HashMap::new(),
            decoder: Decoder::default(),
            branches: Vec::new(),
        })
    }

    /// What it reads from.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// What is known about the run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// How the run ended. `None` if the file has no end.
    pub fn summary(&self) -> Option<&Summary> {
        self.index.summary.as_ref()
    }

    /// Number of branches in the file.
    pub fn records(&self) -> u64 {
        self.index.records
    }

    /// Goes to branch number `record`: the next item begins with it, or is an event between it and
    /// the branch before. Beyond the last branch, it goes to the end.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn seek(&mut self, record: u64) -> Result<(), Error> {
        self.next_block = self.block_before(record);
        self.events = BlockEvents::default();
        let Some(block) = self.index.blocks.get(self.next_block) else {
            return Ok(());
        };
        let mut skip = record - block.first;
        while skip > 0 {
            match self.next_at_most(usize::try_from(skip).unwrap_or(PIECE))? {
                Some(Item::Branches { branches, .. }) => skip -= branches.len() as u64,
                Some(Item::Event { .. }) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// Calls `take` with each event that precedes those that [`Reader::seek`] leaves, and its task,
    /// so that the names and mappings there are known. It does not decode branches. The position is
    /// undefined afterwards: [`Reader::seek`] sets it.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn events_before(
        &mut self,
        record: u64,
        mut take: impl FnMut(u64, Event),
    ) -> Result<(), Error> {
        self.pass(record, |task, passed| {
            if let Passed::Event(event) = passed {
                take(task, event);
            }
        })
    }

    /// Calls `take` like [`Reader::events_before`], and also with the branches between the events,
    /// as far as they precede branch number `record`.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn pass(&mut self, record: u64, take: impl FnMut(u64, Passed)) -> Result<(), Error> {
        self.pass_blocks(0..self.blocks(), record, take)
    }

    /// As [`Reader::pass`], for these blocks alone.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn pass_blocks(
        &mut self,
        blocks: Range<usize>,
        record: u64,
        mut take: impl FnMut(u64, Passed),
    ) -> Result<(), Error> {
        for at in blocks {
            let Some(block) = self.index.blocks.get(at).copied() else {
                break;
            };
            if block.first >= record {
                break;
            }
            let (mut events, _) = self.events_of(block)?;
            let mut number = block.first;
            loop {
                let count = events.ahead.min(record - number);
                if count > 0 {
                    take(events.task, Passed::Branches(count));
                }
                number = number.saturating_add(events.ahead);
                if !events.event_follows || number >= record {
                    break;
                }
                if let Entry::Event(event) = events.entry()? {
                    take(events.task, Passed::Event(event));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of the first branch after the events before `time`.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn record_at(&mut self, time: u64) -> Result<u64, Error> {
        let after = self.index.blocks.partition_point(|block| block.time < time);
        let Some(block) = self.index.blocks.get(after.saturating_sub(1)).copied() else {
            return Ok(self.index.records);
        };
        let (mut events, _) = self.events_of(block)?;
        let mut number = block.first.saturating_add(events.ahead);
        while events.event_follows {
            if let Entry::Event(event) = events.entry()?
                && event.time().is_some_and(|at| at >= time)
            {
                return Ok(number);
            }
            number = number.saturating_add(events.ahead);
        }
        Ok(number)
    }

    /// Returns the next item; `None` at the end.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, Error> {
        self.next_at_most(PIECE)
    }

    /// Reads the events of a block, and the number of its branches.
    fn events_of(&mut self, block: Block) -> Result<(BlockEvents, u64), Error> {
        self.input.seek(SeekFrom::Start(block.position))?;
        BlockEvents::begin(read_kind(&mut self.input, kind::EVENTS)?, block.first)
    }

    fn next_at_most(&mut self, most: usize) -> Result<Option<Item<'_>>, Error> {
        let mut branches = std::mem::take(&mut self.branches);
        branches.resize(PIECE, Branch::default());
        let piece = loop {
            let (out, _) = branches.split_at_mut(most.min(PIECE));
            match self.next_piece(out, |_, branch| *branch) {
                Ok(Piece::End) if self.next_block < self.index.blocks.len() => {
                    self.begin_block(self.next_block)?;
                }
                piece => break piece,
            }
        };
        self.branches = branches;
        Ok(match piece? {
            Piece::Branches(task, count) => {
                let branches = self.branches.get(..count).unwrap_or_default();
                Some(Item::Branches { task, branches })
            }
            Piece::Event(task, event) => Some(Item::Event { task, event }),
            Piece::End => None,
        })
    }

    /// Begins to read the block with this number.
    fn begin_block(&mut self, number: usize) -> Result<(), Error> {
        let Some(block) = self.index.blocks.get(number).copied() else {
            return Ok(());
        };
        self.next_block = number + 1;
        self.contexts.clear();
        let (events, count) = self.events_of(block)?;
        self.events = events;
        if count > 0 {
            let branches = read_kind(&mut self.input, kind::BRANCHES)?;
            self.decoder.start(&branches)?;
        }
        Ok(())
    }

    /// Reads the next part of the block: an event, or branches. It fills the front of `out` with
    /// what `of` makes of each branch.
    fn next_piece<T>(
        &mut self,
        out: &mut [T],
        of: impl Fn(u32, &Branch) -> T,
    ) -> Result<Piece, Error> {
        loop {
            let events = &mut self.events;
            let task = events.task;
            if events.ahead > 0 {
                if self.contexts.len() >= MAX_CONTEXTS {
                    return Err(Error::Damaged);
                }
                let ahead = usize::try_from(events.ahead).unwrap_or(usize::MAX);
                let (out, _) = out.split_at_mut(ahead.min(out.len()));
                let context = self.contexts.entry(task).or_default();
                self.decoder.take(context, out, of)?;
                events.ahead -= out.len() as u64;
                return Ok(Piece::Branches(task, out.len()));
            }
            if !events.event_follows {
                return Ok(Piece::End);
            }
            if let Entry::Event(event) = events.entry()? {
                return Ok(Piece::Event(task, event));
            }
        }
    }
}

/// A part of a block.
enum Piece {
    /// So many branches of a task.
    Branches(u64, usize),
    /// An event of a task.
    Event(u64, Event),
    /// The block has no more.
    End,
}

/// Fills `bytes`. If the input ends before, returns `short`.
fn read_exact<R: Read>(input: &mut R, bytes: &mut [u8], short: Error) -> Result<(), Error> {
    match input.read_exact(bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(short),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::chunk::{
        END_MAGIC, HEADER, Header, MAX_BLOCKS, MAX_BRANCHES, MAX_JSON, Parts, TRAILER,
    };
    use crate::{Writer, varint};

    /// In memory, such a part would be 20 times as large.
    #[test]
    fn what_is_known_of_a_run_is_not_large() {
        let large = "[],".repeat(MAX_JSON / 3);
        for (json, is_read) in [
            ("{}".to_owned(), true),
            (format!("{{\"a\":[{large}[]]}}"), false),
        ] {
            let mut file = Vec::new();
            let mut parts = Parts::new(&mut file).unwrap();
            parts.write_all(&MAGIC).unwrap();
            parts.write_all(&VERSION.to_le_bytes()).unwrap();
            parts.write(kind::RUN, json.as_bytes()).unwrap();
            let read = Reader::new(Cursor::new(&file));
            assert_eq!(read.is_ok(), is_read);
        }
        let run = Run {
            directory: "a".repeat(MAX_JSON),
            ..Run::default()
        };
        let written = Writer::new(Vec::new(), &run);
        assert!(matches!(written, Err(Error::TooLarge(_))));
    }

    #[test]
    fn an_index_names_a_limited_number_of_blocks() {
        let mut file = Vec::new();
        Writer::new(&mut file, &Run::default())
            .unwrap()
            .finish(&Summary::default())
            .unwrap();
        let reader = Reader::new(Cursor::new(&file)).unwrap();
        assert!(reader.summary().is_some());
        // The index again, with blocks that follow each other.
        let (at, _) = file[file.len() - TRAILER..].split_at(8);
        let at = u64::from_le_bytes(at.try_into().unwrap()) as usize;
        let mut index = Header::read(&mut &file[at..])
            .unwrap()
            .read_part(&mut &file[at + HEADER..])
            .unwrap();
        file.truncate(at);
        index.extend([2, 0, 0].repeat(MAX_BLOCKS + 1));
        let mut parts = Parts::new(&mut file).unwrap();
        parts.write(kind::INDEX, &index).unwrap();
        file.extend((at as u64).to_le_bytes());
        file.extend(END_MAGIC);
        let reader = Reader::new(Cursor::new(&file)).unwrap();
        assert_eq!(reader.summary(), None);
    }

    /// A file with a block that claims `count` branches, and an index that does, too.
    fn with_count(count: u64) -> Vec<u8> {
        let mut file = Vec::new();
        let mut parts = Parts::new(&mut file).unwrap();
        parts.write_all(&MAGIC).unwrap();
        parts.write_all(&VERSION.to_le_bytes()).unwrap();
        parts.write(kind::RUN, b"{}").unwrap();
        let block = parts.position;
        let mut events = Vec::new();
        varint::push(&mut events, 0);
        varint::push(&mut events, count);
        parts.write(kind::EVENTS, &events).unwrap();
        // A prediction that is always right: all streams are empty.
        parts.write(kind::BRANCHES, &[0; 100]).unwrap();
        let summary = parts.position;
        parts.write(kind::SUMMARY, b"{}").unwrap();
        let (at, mut index) = (parts.position, Vec::new());
        varint::push(&mut index, summary);
        varint::push(&mut index, count);
        varint::push_signed(&mut index, block.cast_signed());
        index.extend([0, 0]);
        parts.write(kind::INDEX, &index).unwrap();
        parts.write_all(&at.to_le_bytes()).unwrap();
        parts.write_all(&END_MAGIC).unwrap();
        file
    }

    #[test]
    fn a_block_has_a_limited_number_of_branches() {
        for (count, expected) in [
            (MAX_BRANCHES, (MAX_BRANCHES, true)),
            (MAX_BRANCHES + 1, (0, false)),
            (1 << 63, (0, false)),
        ] {
            let file = with_count(count);
            let mut reader = Reader::new(Cursor::new(&file)).unwrap();
            assert_eq!((reader.records(), reader.summary().is_some()), expected);
            let mut read = 0;
            while let Some(item) = reader.next_item().unwrap() {
                if let Item::Branches { branches, .. } = item {
                    read += branches.len() as u64;
                }
            }
            assert_eq!(read, expected.0);
        }
    }
}
