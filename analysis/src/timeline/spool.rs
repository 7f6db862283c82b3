//! The beginnings and ends of calls in a file, until the names of their functions are known.
//!
//! An entry begins with a number of variable length ([`varint`]). Its bits 0 and 1 are the kind,
//! and the others the instructions of the task since its last entry. The node of a call that begins
//! follows as another number. The number of a task is followed by its instructions. Most entries
//! take one to three bytes.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use vbts_trace::profile::tree::NodeId;
use vbts_trace::varint;

/// Bytes that are written at once.
const CHUNK: usize = 1 << 18;
/// Maximum length of an entry: three numbers of 64 bits.
const MAX_ENTRY: usize = 30;
/// Number of bits of a kind.
const KIND_BITS: u32 = 2;

/// Kinds of entries.
const BEGIN: u64 = 0;
const END: u64 = 1;
const TASK: u64 = 2;

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The entries that follow are those of the task with this number.
    Task(u64),
    /// A call begins.
    Begin {
        /// Node of the call tree.
        node: NodeId,
        /// Instructions of the task.
        clock: u64,
    },
    /// The innermost call ends.
    End {
        /// Instructions of the task.
        clock: u64,
    },
}

/// A file of entries.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    /// Entries that are not yet in the file.
    bytes: Vec<u8>,
    /// The task of the last entry, and its instructions there.
    last: Option<(u64, u64)>,
    /// Why it could not be written.
    error: Option<io::Error>,
}

impl Spool {
    /// A spool in `file`, which is empty.
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            bytes: Vec::with_capacity(CHUNK + 2 * MAX_ENTRY),
            last: None,
            error: None,
        }
    }

    /// A call of a task begins.
    #[inline(always)]
    pub(super) fn begin(&mut self, task: u64, node: NodeId, clock: u64) {
        let elapsed = self.elapsed(task, clock);
        self.number(elapsed << KIND_BITS | BEGIN);
        self.number(node.into());
    }

    /// The innermost call of a task ends.
    #[inline(always)]
    pub(super) fn end(&mut self, task: u64, clock: u64) {
        let elapsed = self.elapsed(task, clock);
        self.number(elapsed << KIND_BITS | END);
    }

    /// Returns the instructions of a task since the last entry, which becomes one of the task.
    #[inline(always)]
    fn elapsed(&mut self, task: u64, clock: u64) -> u64 {
        if self.bytes.len() >= CHUNK {
            self.write();
        }
        match &mut self.last {
            Some((last, before)) if *last == task => {
                clock.saturating_sub(std::mem::replace(before, clock))
            }
            _ => self.switch_to(task, clock),
        }
    }

    #[cold]
    fn switch_to(&mut self, task: u64, clock: u64) -> u64 {
        self.last = Some((task, clock));
        for value in [TASK, task, clock] {
            self.long_number(value);
        }
        0
    }

    #[inline(always)]
    fn number(&mut self, value: u64) {
        match value {
            0..0x80 => self.bytes.push(value as u8),
            _ => self.long_number(value),
        }
    }

    #[inline(never)]
    fn long_number(&mut self, value: u64) {
        varint::push(&mut self.bytes, value);
    }

    #[cold]
    fn write(&mut self) {
        if self.error.is_none() {
            self.error = self.file.write_all(&self.bytes).err();
        }
        self.bytes.clear();
    }

    /// Returns the entries, in their order.
    ///
    /// # Errors
    /// One could not be written, or the file cannot be read.
    pub(super) fn finish(&mut self) -> io::Result<Entries> {
        self.write();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Entries {
            file,
            bytes: Vec::new(),
            at: 0,
            clock: 0,
        })
    }
}

/// Reads the entries of a spool.
#[derive(Debug)]
pub(super) struct Entries {
    file: File,
    bytes: Vec<u8>,
    /// Number of bytes that were read from `bytes`.
    at: usize,
    /// Instructions of the task at the last entry.
    clock: u64,
}

impl Entries {
    /// Reads the next entry, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or an entry is not complete.
    #[inline(always)]
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        if self.bytes.len() - self.at < MAX_ENTRY {
            self.fill()?;
            if self.at == self.bytes.len() {
                return Ok(None);
            }
        }
        let first = self.number()?;
        self.clock = self.clock.saturating_add(first >> KIND_BITS);
        let kind = first & ((1 << KIND_BITS) - 1);
        Ok(Some(match kind {
            BEGIN => Entry::Begin {
                node: self.number()? as NodeId,
                clock: self.clock,
            },
            END => Entry::End { clock: self.clock },
            _ => {
                let task = self.number()?;
                self.clock = self.number()?;
                Entry::Task(task)
            }
        }))
    }

    /// Reads the next part of the file.
    #[cold]
    fn fill(&mut self) -> io::Result<()> {
        self.bytes.drain(..self.at);
        self.at = 0;
        let mut file = (&self.file).take(CHUNK as u64);
        file.read_to_end(&mut self.bytes)?;
        Ok(())
    }

    #[inline(always)]
    fn number(&mut self) -> io::Result<u64> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(byte.into())
            }
            _ => self.long_number(),
        }
    }

    #[inline(never)]
    fn long_number(&mut self) -> io::Result<u64> {
        let mut rest = varint::Cursor(self.bytes.get(self.at..).unwrap_or_default());
        let value = rest.number().map_err(io::Error::other)?;
        self.at = self.bytes.len() - rest.0.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_their_order() {
        const LAST: u64 = u64::MAX >> KIND_BITS;
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        spool.begin(1, 2, 3);
        spool.begin(1, 300, 500);
        spool.begin(u64::MAX, u32::MAX, 0);
        spool.end(u64::MAX, LAST);
        spool.end(1, 501);
        let mut entries = spool.finish().unwrap();
        let found = std::iter::from_fn(|| entries.next().unwrap());
        let begin = |node, clock| Entry::Begin { node, clock };
        let end = |clock| Entry::End { clock };
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                Entry::Task(1),
                begin(2, 3),
                begin(300, 500),
                Entry::Task(u64::MAX),
                begin(u32::MAX, 0),
                end(LAST),
                Entry::Task(1),
                end(501),
            ]
        );
    }

    #[test]
    fn entries_of_several_chunks_come_back() {
        const COUNT: u64 = 2 * CHUNK as u64;
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        for clock in 0..COUNT {
            spool.begin(7, clock as NodeId, 1000 * clock);
        }
        let mut entries = spool.finish().unwrap();
        assert_eq!(entries.next().unwrap(), Some(Entry::Task(7)));
        for clock in 0..COUNT {
            let begin = Entry::Begin {
                node: clock as NodeId,
                clock: 1000 * clock,
            };
            assert_eq!(entries.next().unwrap(), Some(begin));
        }
        assert_eq!(entries.next().unwrap(), None);
    }

    #[test]
    fn an_error_is_kept() {
        let read_only = File::open("/dev/null").unwrap();
        let mut spool = Spool::new(read_only);
        for clock in 0..CHUNK as u64 {
            spool.begin(1, 2, clock);
        }
        assert!(spool.finish().is_err());
    }
}
