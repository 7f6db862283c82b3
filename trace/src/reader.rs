//! Reads a trace.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use serde::de::DeserializeOwned;

use crate::branches::{Context, Decoder};
use crate::chunk::{
    END_MAGIC, HEADER, Header, MAGIC, MAX_BLOCKS, MAX_EVENT, MAX_JSON, TRAILER, VERSION, kind,
};
use crate::event::{self, Event};
use crate::run::{Run, Summary};
use crate::varint::Cursor;
use crate::{Branch, Error};

/// Branches that [`Reader::next_item`] gives out at once.
const PIECE: u64 = 4096;

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

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Position of its events in the file.
    position: u64,
    /// Branches before it.
    first: u64,
    /// Time of the last event before it.
    time: u64,
}

/// What is between branches.
#[derive(Debug)]
enum Entry {
    Event(Event),
    /// The task has changed, or it is an event of a later version of the format.
    Other,
}

/// The block that is read.
#[derive(Debug, Default)]
struct Current {
    events: Vec<u8>,
    /// Bytes of `events` that were read.
    at: usize,
    /// Branches before the next event.
    ahead: u64,
    /// Whether `ahead` belongs to an event, or to the end of the block.
    event_follows: bool,
    /// Branches after those of `ahead`.
    left: u64,
    task: u64,
    time: u64,
    /// The last branches of each task.
    contexts: HashMap<u64, Context>,
}

/// Reads a trace from `R`.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    run: Run,
    summary: Option<Summary>,
    blocks: Vec<Block>,
    records: u64,
    /// Index of the block after the current one.
    next_block: usize,
    current: Current,
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
        let run = json(&mut input, kind::RUN)?;
        let first = input.stream_position()?;
        let mut reader = Self {
            input,
            run,
            summary: None,
            blocks: Vec::new(),
            records: 0,
            next_block: 0,
            current: Current::default(),
            decoder: Decoder::default(),
            branches: Vec::new(),
        };
        if reader.read_index().is_err() {
            reader.find_blocks(first)?;
        }
        Ok(reader)
    }

    /// What is known about the run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// How the run ended. `None` if the file has no end.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Number of branches in the file.
    pub fn records(&self) -> u64 {
        self.records
    }

    fn read_index(&mut self) -> Result<(), Error> {
        let mut trailer = [0; TRAILER];
        let end = self.input.seek(SeekFrom::End(0))?;
        let start = end.checked_sub(TRAILER as u64).ok_or(Error::Damaged)?;
        self.input.seek(SeekFrom::Start(start))?;
        self.input.read_exact(&mut trailer)?;
        let (at, magic) = trailer.split_at(8);
        if magic != END_MAGIC {
            return Err(Error::Damaged);
        }
        let at = at.try_into().map_or(0, u64::from_le_bytes);
        self.input.seek(SeekFrom::Start(at))?;
        let index = part(&mut self.input, kind::INDEX)?;
        let mut index = Cursor(&index);
        self.input.seek(SeekFrom::Start(index.number()?))?;
        let records = index.number()?;
        let summary = json(&mut self.input, kind::SUMMARY)?;
        let mut blocks = Vec::new();
        let mut last = Block {
            position: 0,
            first: 0,
            time: 0,
        };
        while !index.0.is_empty() {
            if blocks.len() >= MAX_BLOCKS {
                return Err(Error::Damaged);
            }
            last = Block {
                position: last.position.wrapping_add_signed(index.signed()?),
                first: last.first.wrapping_add_signed(index.signed()?),
                time: last.time.wrapping_add_signed(index.signed()?),
            };
            blocks.push(last);
        }
        // What [`Self::seek`] relies on.
        let starts = blocks.first().is_none_or(|block| block.first == 0);
        let is_sorted = blocks.is_sorted_by(|a, b| a.position < b.position && a.first <= b.first);
        if !starts || !is_sorted || last.first > records {
            return Err(Error::Damaged);
        }
        (self.records, self.summary, self.blocks) = (records, Some(summary), blocks);
        Ok(())
    }

    /// Finds the complete blocks of a file without an end.
    fn find_blocks(&mut self, mut position: u64) -> Result<(), Error> {
        self.blocks.clear();
        let mut time = 0;
        loop {
            let block = Block {
                position,
                first: self.records,
                time,
            };
            match self.skip_block(block, &mut time) {
                Ok(Some(end)) => position = end,
                Ok(None) | Err(Error::Damaged) => return Ok(()),
                Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks at a block. If it is complete, adds it to the blocks, and returns where it ends.
    fn skip_block(&mut self, block: Block, time: &mut u64) -> Result<Option<u64>, Error> {
        self.input.seek(SeekFrom::Start(block.position))?;
        let header = Header::read(&mut self.input)?;
        let mut end = block.position + (HEADER as u64) + u64::from(header.stored);
        if header.kind != kind::EVENTS {
            // The end of the trace, or a part of a later version.
            let goes_on = !matches!(header.kind, kind::SUMMARY | kind::INDEX | kind::BRANCHES);
            return Ok(goes_on.then_some(end));
        }
        let mut current = Current::default();
        let count = current.begin(header.read_part(&mut self.input)?, block.first)?;
        if count > 0 {
            let header = Header::read(&mut self.input)?;
            if header.kind != kind::BRANCHES {
                return Err(Error::Damaged);
            }
            end += HEADER as u64 + u64::from(header.stored);
            header.read_part(&mut self.input)?;
        }
        while current.event_follows {
            current.entry()?;
        }
        *time = current.time.max(*time);
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Error::Damaged);
        }
        self.blocks.push(block);
        self.records = block.first.checked_add(count).ok_or(Error::Damaged)?;
        Ok(Some(end))
    }

    /// Goes to branch number `record`: the next item begins with it, or is an event between it and
    /// the branch before. Beyond the last branch, it goes to the end.
    ///
    /// # Errors
    /// The input fails, or it is damaged.
    pub fn seek(&mut self, record: u64) -> Result<(), Error> {
        // The events before the branch may be in the block before its own.
        let after = self.blocks.partition_point(|block| block.first < record);
        self.next_block = after.saturating_sub(1);
        self.current = Current::default();
        let Some(block) = self.blocks.get(self.next_block) else {
            return Ok(());
        };
        let mut skip = record - block.first;
        while skip > 0 {
            match self.next_at_most(skip)? {
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
    pub fn pass(&mut self, record: u64, mut take: impl FnMut(u64, Passed)) -> Result<(), Error> {
        for at in 0..self.blocks.len() {
            let Some(block) = self.blocks.get(at).copied() else {
                break;
            };
            if block.first >= record {
                break;
            }
            self.input.seek(SeekFrom::Start(block.position))?;
            let mut current = Current::default();
            current.begin(part(&mut self.input, kind::EVENTS)?, block.first)?;
            let mut number = block.first;
            loop {
                let count = current.ahead.min(record - number);
                if count > 0 {
                    take(current.task, Passed::Branches(count));
                }
                number = number.saturating_add(current.ahead);
                if !current.event_follows || number >= record {
                    break;
                }
                if let Entry::Event(event) = current.entry()? {
                    take(current.task, Passed::Event(event));
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
        let after = self.blocks.partition_point(|block| block.time < time);
        let Some(block) = self.blocks.get(after.saturating_sub(1)).copied() else {
            return Ok(self.records);
        };
        self.input.seek(SeekFrom::Start(block.position))?;
        let mut current = Current::default();
        current.begin(part(&mut self.input, kind::EVENTS)?, block.first)?;
        let mut number = block.first.saturating_add(current.ahead);
        while current.event_follows {
            if let Entry::Event(event) = current.entry()?
                && event.time().is_some_and(|at| at >= time)
            {
                return Ok(number);
            }
            number = number.saturating_add(current.ahead);
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

    fn next_at_most(&mut self, most: u64) -> Result<Option<Item<'_>>, Error> {
        loop {
            let current = &mut self.current;
            if current.ahead > 0 {
                let count = current.ahead.min(PIECE).min(most);
                if current.contexts.len() >= MAX_CONTEXTS {
                    return Err(Error::Damaged);
                }
                let context = current.contexts.entry(current.task).or_default();
                self.branches.clear();
                self.decoder
                    .take(count as usize, context, &mut self.branches)?;
                current.ahead -= count;
                return Ok(Some(Item::Branches {
                    task: current.task,
                    branches: &self.branches,
                }));
            }
            if current.event_follows {
                match current.entry()? {
                    Entry::Event(event) => {
                        let task = current.task;
                        return Ok(Some(Item::Event { task, event }));
                    }
                    Entry::Other => continue,
                }
            }
            let Some(block) = self.blocks.get(self.next_block).copied() else {
                return Ok(None);
            };
            self.next_block += 1;
            self.input.seek(SeekFrom::Start(block.position))?;
            let events = part(&mut self.input, kind::EVENTS)?;
            self.current = Current::default();
            if self.current.begin(events, block.first)? > 0 {
                let branches = part(&mut self.input, kind::BRANCHES)?;
                self.decoder.start(&branches)?;
            }
        }
    }
}

impl Current {
    /// Begins a block with `first` branches before it. Returns the number of its branches.
    fn begin(&mut self, events: Vec<u8>, first: u64) -> Result<u64, Error> {
        let mut cursor = Cursor(&events);
        let (before, count) = (cursor.number()?, cursor.number()?);
        if before != first {
            return Err(Error::Damaged);
        }
        let at = events.len() - cursor.0.len();
        *self = Self {
            events,
            at,
            left: count,
            ..Self::default()
        };
        self.look_ahead()?;
        Ok(count)
    }

    /// Reads how many branches precede the next event.
    fn look_ahead(&mut self) -> Result<(), Error> {
        let rest = self.events.get(self.at..).unwrap_or_default();
        self.event_follows = !rest.is_empty();
        let mut cursor = Cursor(rest);
        self.ahead = match self.event_follows {
            true => cursor.number()?,
            false => self.left,
        };
        self.at = self.events.len() - cursor.0.len();
        self.left = self.left.checked_sub(self.ahead).ok_or(Error::Damaged)?;
        Ok(())
    }

    /// Reads the event.
    fn entry(&mut self) -> Result<Entry, Error> {
        let mut cursor = Cursor(self.events.get(self.at..).unwrap_or_default());
        let &[kind] = cursor.take(1)? else {
            return Err(Error::Damaged);
        };
        if Event::has_time(kind) {
            self.time = self.time.wrapping_add_signed(cursor.signed()?);
        }
        let bytes = cursor.bytes()?;
        if bytes.len() > MAX_EVENT {
            return Err(Error::Damaged);
        }
        let entry = if kind == event::SELECT {
            self.task = Cursor(bytes).number()?;
            Entry::Other
        } else {
            match Event::decode(kind, self.time, bytes)? {
                Some(event) => Entry::Event(event),
                None => Entry::Other,
            }
        };
        self.at = self.events.len() - cursor.0.len();
        self.look_ahead()?;
        Ok(entry)
    }
}

/// Reads a part of a kind that is JSON.
fn json<R: Read, T: DeserializeOwned>(input: &mut R, kind: u8) -> Result<T, Error> {
    let header = Header::read(input)?;
    if header.kind != kind || header.plain as usize > MAX_JSON {
        return Err(Error::Damaged);
    }
    serde_json::from_slice(&header.read_part(input)?).map_err(|_| Error::Damaged)
}

/// Reads a part of a kind.
fn part<R: Read>(input: &mut R, kind: u8) -> Result<Vec<u8>, Error> {
    let header = Header::read(input)?;
    if header.kind != kind {
        return Err(Error::Damaged);
    }
    header.read_part(input)
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
    use crate::Writer;
    use crate::chunk::Parts;

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
}
