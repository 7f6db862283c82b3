//! The beginnings and ends of calls in a file, until the names of their functions are known.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};

use prost::Message;
use vbts_trace::profile::tree::NodeId;

use super::packet::SliceKind;

/// The beginning or the end of a call.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    /// The number of the task.
    #[prost(uint64, tag = "1")]
    pub task: u64,
    /// The node of the call tree.
    #[prost(uint32, tag = "2")]
    pub node: NodeId,
    #[prost(enumeration = "SliceKind", tag = "3")]
    pub kind: i32,
    /// Instructions of the task.
    #[prost(uint64, tag = "4")]
    pub clock: u64,
}

/// A file of entries.
#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    bytes: Vec<u8>,
    /// Why it could not be written.
    error: Option<io::Error>,
}

impl Spool {
    /// A spool in `file`, which is empty.
    pub(super) fn new(file: File) -> Self {
        Self {
            file: BufWriter::new(file),
            bytes: Vec::new(),
            error: None,
        }
    }

    pub(super) fn push(&mut self, task: u64, node: NodeId, kind: SliceKind, clock: u64) {
        if self.error.is_some() {
            return;
        }
        let entry = Entry {
            task,
            node,
            kind: kind.into(),
            clock,
        };
        self.bytes.clear();
        // An entry is shorter than 128 bytes: one byte has its length.
        self.bytes.push(entry.encoded_len() as u8);
        let encoded = entry.encode(&mut self.bytes);
        let written = encoded
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(&self.bytes));
        self.error = written.err();
    }

    /// Returns the entries, in their order.
    ///
    /// # Errors
    /// One could not be written, or the file cannot be read.
    pub(super) fn finish(&mut self) -> io::Result<impl Iterator<Item = io::Result<Entry>> + use<>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.file.flush()?;
        let mut file = self.file.get_ref().try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        let mut file = BufReader::new(file);
        let mut next = move || {
            let mut bytes = [0; u8::MAX as usize];
            let mut len = [0];
            if file.read(&mut len)? == 0 {
                return Ok(None);
            }
            let entry = bytes.get_mut(..usize::from(len[0])).unwrap_or_default();
            file.read_exact(entry)?;
            Ok(Some(Entry::decode(&*entry)?))
        };
        Ok(std::iter::from_fn(move || next().transpose()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_their_order() {
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        let entries = [
            (1, 2, SliceKind::Begin, 3),
            (u64::MAX, u32::MAX, SliceKind::End, u64::MAX),
        ];
        for (task, node, kind, clock) in entries {
            spool.push(task, node, kind, clock);
        }
        let found: Vec<Entry> = spool.finish().unwrap().map(Result::unwrap).collect();
        let found: Vec<_> = found
            .iter()
            .map(|e| (e.task, e.node, e.kind(), e.clock))
            .collect();
        assert_eq!(found, entries);
    }

    #[test]
    fn an_error_is_kept() {
        let read_only = File::open("/dev/null").unwrap();
        let mut spool = Spool::new(read_only);
        for clock in 0..10_000 {
            spool.push(1, 2, SliceKind::Begin, clock);
        }
        assert!(spool.finish().is_err());
    }
}
