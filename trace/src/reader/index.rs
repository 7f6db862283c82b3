//! Where the blocks of a trace are.

use std::io::{ErrorKind, Read, Seek, SeekFrom};

use super::events::BlockEvents;
use crate::Error;
use crate::chunk::{
    END_MAGIC, HEADER, Header, MAX_BLOCKS, MAX_BRANCHES, TRAILER, kind, read_json, read_kind,
};
use crate::run::Summary;
use crate::varint::Cursor;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Block {
    /// Position of its events in the file.
    pub position: u64,
    /// Branches before it.
    pub first: u64,
    /// Time of the last event before it.
    pub time: u64,
}

/// The blocks of a file.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// How the run ended. `None` if the file has no end.
    pub summary: Option<Summary>,
    /// The blocks, the first one first.
    pub blocks: Vec<Block>,
    /// Number of branches.
    pub records: u64,
}

impl Index {
    /// Reads the index at the end of a file.
    ///
    /// # Errors
    /// The file has none, or it is damaged.
    pub(super) fn read<R: Read + Seek>(input: &mut R) -> Result<Self, Error> {
        let mut trailer = [0; TRAILER];
        let end = input.seek(SeekFrom::End(0))?;
        let start = end.checked_sub(TRAILER as u64).ok_or(Error::Damaged)?;
        input.seek(SeekFrom::Start(start))?;
        input.read_exact(&mut trailer)?;
        let (at, magic) = trailer.split_at(8);
        if magic != END_MAGIC {
            return Err(Error::Damaged);
        }
        let at = at.try_into().map_or(0, u64::from_le_bytes);
        input.seek(SeekFrom::Start(at))?;
        let index = read_kind(input, kind::INDEX)?;
        let mut index = Cursor(&index);
        input.seek(SeekFrom::Start(index.number()?))?;
        let records = index.number()?;
        let summary = read_json(input, kind::SUMMARY)?;
        let mut blocks = Vec::new();
        let mut last = Block::default();
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
        // What [`super::Reader::seek`] relies on.
        let starts = match blocks.first() {
            Some(block) => block.first == 0,
            None => records == 0,
        };
        let is_sorted = blocks.is_sorted_by(|a, b| a.position < b.position);
        let mut nexts = blocks.iter().skip(1).map(|block| block.first);
        let fit = blocks.iter().all(|block| {
            let count = nexts.next().unwrap_or(records).checked_sub(block.first);
            count.is_some_and(|count| count <= MAX_BRANCHES)
        });
        if !starts || !is_sorted || !fit {
            return Err(Error::Damaged);
        }
        Ok(Self {
            summary: Some(summary),
            blocks,
            records,
        })
    }

    /// Finds the complete blocks of a file without an end, from `position` on.
    ///
    /// # Errors
    /// The input fails.
    pub(super) fn find<R: Read + Seek>(input: &mut R, mut position: u64) -> Result<Self, Error> {
        let mut this = Self::default();
        let mut time = 0;
        loop {
            let block = Block {
                position,
                first: this.records,
                time,
            };
            match this.add(input, block, &mut time) {
                Ok(Some(end)) => position = end,
                Ok(None) | Err(Error::Damaged) => return Ok(this),
                Err(Error::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(this);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks at a block. If it is complete, adds it to the blocks, and returns where it ends.
    fn add<R: Read + Seek>(
        &mut self,
        input: &mut R,
        block: Block,
        time: &mut u64,
    ) -> Result<Option<u64>, Error> {
        input.seek(SeekFrom::Start(block.position))?;
        let header = Header::read(input)?;
        let mut end = block.position + (HEADER as u64) + u64::from(header.stored);
        if header.kind != kind::EVENTS {
            // The end of the trace, or a part of a later version.
            let goes_on = !matches!(header.kind, kind::SUMMARY | kind::INDEX | kind::BRANCHES);
            return Ok(goes_on.then_some(end));
        }
        let (mut events, count) = BlockEvents::begin(header.read_part(input)?, block.first)?;
        if count > 0 {
            let header = Header::read(input)?;
            if header.kind != kind::BRANCHES {
                return Err(Error::Damaged);
            }
            end += HEADER as u64 + u64::from(header.stored);
            header.read_part(input)?;
        }
        while events.event_follows {
            events.entry()?;
        }
        *time = events.time.max(*time);
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Error::Damaged);
        }
        self.blocks.push(block);
        self.records = block.first.checked_add(count).ok_or(Error::Damaged)?;
        Ok(Some(end))
    }
}
