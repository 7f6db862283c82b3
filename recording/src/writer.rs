//! Writes recordings.

use std::io::Write;

use crate::block::Compressor;
use crate::{Error, FORMAT_VERSION, Header, Item, MAGIC, MAX_BLOCK, MAX_FILE, MAX_ITEM};

/// Bytes of items for which a block is written before [`Writer::flush`].
const FULL: usize = 256 << 10;
/// Bytes of a file's contents in one item.
const PIECE: usize = 256 << 10;

/// Writes a recording to a file. Each block is written when it is full, so that the file has what
/// happened until then.
#[derive(Debug)]
pub struct Writer<W> {
    file: W,
    compressor: Compressor,
    /// Items that no block has yet.
    items: Vec<u8>,
    /// The bytes of the block that is written.
    block: Vec<u8>,
    written: u64,
    /// Maximum size of the file in bytes.
    max_size: u64,
    /// A write has failed. What follows has no place in the file.
    failed: bool,
}

impl<W: Write> Writer<W> {
    /// Begins a recording of at most `max_size` bytes.
    ///
    /// # Errors
    /// The file cannot be written, or the header is too large.
    pub fn new(file: W, header: &Header, max_size: u64) -> Result<Self, Error> {
        let mut writer = Self {
            file,
            compressor: Compressor::new()?,
            items: Vec::new(),
            block: [&MAGIC[..], &FORMAT_VERSION.to_le_bytes()].concat(),
            written: 0,
            max_size,
            failed: false,
        };
        let header = serde_json::to_vec(header).map_err(std::io::Error::other)?;
        if header.len() > MAX_BLOCK {
            return Err(Error::TooLarge(header.len()));
        }
        writer.compressor.block(&header, &mut writer.block)?;
        writer.write_block()?;
        Ok(writer)
    }

    /// Adds the contents of a file of the guest.
    ///
    /// # Errors
    /// The file cannot be written, or the contents are too large.
    pub fn file(&mut self, number: u8, contents: &[u8]) -> Result<(), Error> {
        if contents.len() > MAX_FILE {
            return Err(Error::TooLarge(contents.len()));
        }
        contents.chunks(PIECE).try_for_each(|bytes| {
            let bytes = bytes.into();
            self.item(&Item::File { number, bytes })
        })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The file cannot be written, has reached its maximum size, or the item is too large.
    pub fn item(&mut self, item: &Item<'_>) -> Result<(), Error> {
        let start = self.items.len();
        let items = std::mem::take(&mut self.items);
        self.items = postcard::to_extend(item, items).map_err(std::io::Error::other)?;
        let size = self.items.len() - start;
        if size > MAX_ITEM {
            self.items.truncate(start);
            return Err(Error::TooLarge(size));
        }
        match self.items.len() >= FULL {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes the items that no block has yet. After an error nothing is written any more.
    ///
    /// # Errors
    /// The file cannot be written, or has reached its maximum size.
    pub fn flush(&mut self) -> Result<(), Error> {
        let items = std::mem::take(&mut self.items);
        if items.is_empty() || self.failed {
            return Ok(());
        }
        let compressed = self.compressor.block(&items, &mut self.block);
        let written = compressed.and_then(|()| self.write_block());
        self.failed = written.is_err();
        self.items = items;
        self.items.clear();
        written
    }

    fn write_block(&mut self) -> Result<(), Error> {
        let size = self.written + self.block.len() as u64;
        if size > self.max_size {
            return Err(Error::Full(self.max_size));
        }
        self.file.write_all(&self.block)?;
        self.block.clear();
        self.written = size;
        Ok(())
    }

    /// Bytes of the file so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The file.
    pub fn into_inner(self) -> W {
        self.file
    }
}
