//! Reads recordings.

mod kept_blocks;

use std::borrow::Cow;
use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::block::Decompressor;
use crate::{Error, FORMAT_VERSION, Header, Item, MAGIC, MAX_FILE, REPLAY_VERSION};
use kept_blocks::{FileEnd, KeptBlocks};

/// The place of an item in a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Number of its block in the file.
    block: u64,
    /// Its place in the contents of the block, in bytes.
    at: usize,
}

/// Reads the items of a recording one after another.
#[derive(Debug)]
pub struct Reader<R> {
    file: R,
    decompressor: Decompressor,
    /// The contents of the present block.
    block: Vec<u8>,
    /// The place of the next item.
    position: Position,
    /// The blocks to which the reader can go back.
    kept: Option<KeptBlocks>,
}

impl<R: Read> Reader<R> {
    /// Opens a recording.
    ///
    /// # Errors
    /// The file cannot be read, is no recording, or is one that this program cannot replay.
    pub fn new(mut file: R) -> Result<(Header, Self), Error> {
        let mut start = [0; MAGIC.len() + 4];
        match file.read_exact(&mut start) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Error::NotARecording);
            }
            read => read?,
        }
        let [magic @ .., a, b, c, d] = start;
        if magic != MAGIC {
            return Err(Error::NotARecording);
        }
        match u32::from_le_bytes([a, b, c, d]) {
            FORMAT_VERSION => {}
            other => return Err(Error::Format(other)),
        }
        let mut reader = Self {
            file,
            decompressor: Decompressor::new()?,
            block: Vec::new(),
            position: Position::default(),
            kept: None,
        };
        if !reader.fill()? {
            return Err(Error::Damaged);
        }
        let header: Header = serde_json::from_slice(&reader.block).map_err(|_| Error::Damaged)?;
        if header.replay_version != REPLAY_VERSION {
            return Err(Error::Replay {
                writer: header.writer,
                version: header.replay_version,
            });
        }
        reader.block.clear();
        Ok((header, reader))
    }

    /// Reads the guest's files, up to [`Item::Boot`]: by their numbers, `count` of them.
    ///
    /// # Errors
    /// The file is damaged, or ends before.
    pub fn files(&mut self, count: u8) -> Result<Vec<Vec<u8>>, Error> {
        let mut files = vec![Vec::new(); count.into()];
        loop {
            match self.next()? {
                Some(Item::File { number, bytes }) => {
                    let file = files.get_mut(usize::from(number)).ok_or(Error::Damaged)?;
                    if file.len() + bytes.len() > MAX_FILE {
                        return Err(Error::Damaged);
                    }
                    file.extend_from_slice(&bytes);
                }
                Some(Item::Boot) => return Ok(files),
                _ => return Err(Error::Damaged),
            }
        }
    }

    /// Reads the next item. Returns `None` at the end of the file, which may have been cut off.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    #[expect(
        clippy::should_implement_trait,
        reason = "it returns a result of an option"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'static>>, Error> {
        while self.position.at >= self.block.len() {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let rest = self.block.get(self.position.at..).unwrap_or_default();
        let (item, after) =
            postcard::take_from_bytes::<Item<'_>>(rest).map_err(|_| Error::Damaged)?;
        self.position.at += rest.len() - after.len();
        Ok(Some(into_owned(item)))
    }

    /// Keeps the blocks from the present one on, so that [`Self::seek`] can go back to them.
    ///
    /// # Errors
    /// There is no memory for zstd.
    pub fn keep(&mut self) -> Result<(), Error> {
        if self.kept.is_none() {
            let mut kept = KeptBlocks::new(self.position.block);
            kept.push(&self.block)?;
            self.kept = Some(kept);
        }
        Ok(())
    }

    /// The place of the next item, in the block that has it. The reader goes to that block, so that
    /// [`Self::keep`] keeps it.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn position(&mut self) -> Result<Position, Error> {
        while self.position.at >= self.block.len() && self.fill()? {}
        Ok(self.position)
    }

    /// Goes to a place, which is not before that of [`Self::keep`].
    ///
    /// # Errors
    /// The recording has no such place, or cannot be read up to there.
    pub fn seek(&mut self, to: Position) -> Result<(), Error> {
        if to.block != self.position.block {
            let kept = self.kept.as_ref().ok_or(Error::Damaged)?;
            if let Some(block) = kept.get(to.block)? {
                self.block = block;
                self.position.block = to.block;
            } else {
                self.position.block = kept.next().saturating_sub(1);
                while self.position.block < to.block {
                    if !self.fill()? {
                        return Err(Error::Damaged);
                    }
                }
            }
        }
        if self.position.block != to.block || to.at > self.block.len() {
            return Err(Error::Damaged);
        }
        self.position = to;
        Ok(())
    }

    /// Goes to the next block, if there is one.
    fn fill(&mut self) -> Result<bool, Error> {
        let next = self.position.block + 1;
        if let Some(kept) = &mut self.kept {
            if let Some(block) = kept.get(next)? {
                self.block = block;
                self.position = Position { block: next, at: 0 };
                return Ok(true);
            }
            match kept.end {
                None => {}
                Some(FileEnd::End) => return Ok(false),
                Some(FileEnd::Damaged) => return Err(Error::Damaged),
            }
        }
        let mut block = Vec::new();
        let read = self.decompressor.block(&mut self.file, &mut block);
        match (&read, &mut self.kept) {
            (Ok(true), Some(kept)) => kept.push(&block)?,
            (Ok(false), Some(kept)) => kept.end = Some(FileEnd::End),
            (Err(_), Some(kept)) => kept.end = Some(FileEnd::Damaged),
            (_, None) => {}
        }
        if matches!(read, Ok(true)) {
            self.block = block;
            self.position = Position { block: next, at: 0 };
        }
        read
    }
}

fn into_owned(item: Item<'_>) -> Item<'static> {
    let own = |bytes: Cow<'_, [u8]>| Cow::Owned(bytes.into_owned());
    match item {
        Item::File { number, bytes } => Item::File {
            number,
            bytes: own(bytes),
        },
        Item::Boot => Item::Boot,
        Item::Reply {
            server,
            time,
            request,
            reply,
        } => Item::Reply {
            server,
            time,
            request,
            reply: own(reply),
        },
        Item::Random { wanted, bytes } => Item::Random {
            wanted,
            bytes: own(bytes),
        },
        Item::Wait { time, until } => Item::Wait { time, until },
        Item::Input {
            time,
            exit,
            is_event,
            bytes,
        } => Item::Input {
            time,
            exit,
            is_event,
            bytes: own(bytes),
        },
        Item::Mark {
            time,
            instructions,
            registers,
            output,
        } => Item::Mark {
            time,
            instructions,
            registers,
            output,
        },
        Item::Excluded { server, time, path } => Item::Excluded {
            server,
            time,
            path: Cow::Owned(path.into_owned()),
        },
        Item::End {
            time,
            instructions,
            output,
            status,
            host,
        } => Item::End {
            time,
            instructions,
            output,
            status,
            host: host.map(|host| Cow::Owned(host.into_owned())),
        },
    }
}

#[cfg(test)]
mod tests;
