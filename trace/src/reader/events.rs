//! The events of a block, and how many branches are between them.

use crate::Error;
use crate::chunk::{MAX_BRANCHES, MAX_EVENT};
use crate::event::{self, Event};
use crate::varint::Cursor;

/// What is between branches.
#[derive(Debug)]
pub(super) enum Entry {
    /// An event.
    Event(Event),
    /// The task has changed, or it is an event of a later version of the format.
    Other,
}

/// The events of a block, and what was read of them.
#[derive(Debug, Default)]
pub(super) struct BlockEvents {
    bytes: Vec<u8>,
    /// Number of `bytes` that were read.
    at: usize,
    /// Branches before the next event.
    pub ahead: u64,
    /// Whether `ahead` belongs to an event, or to the end of the block.
    pub event_follows: bool,
    /// Branches after those of `ahead`.
    left: u64,
    /// Number of the task that has the branches of `ahead`, and the next event.
    pub task: u64,
    /// Time of the last event that has one.
    pub time: u64,
}

impl BlockEvents {
    /// Begins a block that has these events, with `first` branches before it. Returns the number of
    /// its branches, too.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn begin(bytes: Vec<u8>, first: u64) -> Result<(Self, u64), Error> {
        let mut cursor = Cursor(&bytes);
        let (before, count) = (cursor.number()?, cursor.number()?);
        if before != first || count > MAX_BRANCHES {
            return Err(Error::Damaged);
        }
        let at = bytes.len() - cursor.0.len();
        let mut this = Self {
            bytes,
            at,
            left: count,
            ..Self::default()
        };
        this.look_ahead()?;
        Ok((this, count))
    }

    /// Reads how many branches precede the next event.
    fn look_ahead(&mut self) -> Result<(), Error> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.event_follows = !rest.is_empty();
        let mut cursor = Cursor(rest);
        self.ahead = match self.event_follows {
            true => cursor.number()?,
            false => self.left,
        };
        self.at = self.bytes.len() - cursor.0.len();
        self.left = self.left.checked_sub(self.ahead).ok_or(Error::Damaged)?;
        Ok(())
    }

    /// Reads the event.
    ///
    /// # Errors
    /// It is damaged.
    pub(super) fn entry(&mut self) -> Result<Entry, Error> {
        let mut cursor = Cursor(self.bytes.get(self.at..).unwrap_or_default());
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
        self.at = self.bytes.len() - cursor.0.len();
        self.look_ahead()?;
        Ok(entry)
    }
}
