//! The buffers of a log: records of branches, and of what else it notes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use vbts_bts::{BranchRecord, RECORD_SIZE, Window};

use crate::mmu::reservation::{Reservation, ReservedMemory};

/// Words of a record.
const WORDS: usize = RECORD_SIZE as usize / 8;
/// Records of a buffer: 768 KiB, so that handing one over is rare, and several are in the cache.
const CAPACITY: usize = 1 << 15;

/// What a record of the log says. Times are the processor's, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEntry {
    /// A taken branch.
    Branch {
        /// Linear address of the branch.
        from: u64,
        /// Linear address of its target.
        to: u64,
    },
    /// What follows is of this processor. Each buffer begins with it.
    Processor {
        /// Its number.
        id: u64,
        /// When.
        time: u64,
    },
    /// The processor's address space from here on.
    AddressSpace {
        /// CR3.
        cr3: u64,
        /// When.
        time: u64,
    },
    /// The next entry is [`LogEntry::Task`], and this the name of the task.
    Name([u8; 16]),
    /// The processor executes this task of the guest's kernel from here on.
    Task {
        /// Thread ID (low half) and process ID (high half).
        ids: u64,
        /// When.
        time: u64,
    },
    /// Another accelerator has run the processor, and its branches are missing here.
    Gap {
        /// For how long, in ns.
        duration: u64,
        /// When that ended.
        time: u64,
    },
}

/// Values of the third word of a record. Others are the flags of a branch.
const PROCESSOR: u64 = 1;
const ADDRESS_SPACE: u64 = 2;
const NAME: u64 = 3;
const TASK: u64 = 4;
const GAP: u64 = 5;

impl LogEntry {
    fn to_words(self) -> [u64; WORDS] {
        match self {
            Self::Branch { from, to } => BranchRecord::new(from, to).to_words(),
            Self::Processor { id, time } => [id, time, PROCESSOR],
            Self::AddressSpace { cr3, time } => [cr3, time, ADDRESS_SPACE],
            Self::Name(name) => {
                let (words, _) = name.as_chunks();
                let word = |at: usize| words.get(at).map_or(0, |w| u64::from_le_bytes(*w));
                [word(0), word(1), NAME]
            }
            Self::Task { ids, time } => [ids, time, TASK],
            Self::Gap { duration, time } => [duration, time, GAP],
        }
    }

    /// The entry of a record.
    #[inline(always)]
    fn from_words([first, second, kind]: [u64; WORDS]) -> Self {
        match kind {
            PROCESSOR => Self::Processor {
                id: first,
                time: second,
            },
            ADDRESS_SPACE => Self::AddressSpace {
                cr3: first,
                time: second,
            },
            NAME => {
                let mut name = [0; 16];
                name[..8].copy_from_slice(&first.to_le_bytes());
                name[8..].copy_from_slice(&second.to_le_bytes());
                Self::Name(name)
            }
            TASK => Self::Task {
                ids: first,
                time: second,
            },
            GAP => Self::Gap {
                duration: first,
                time: second,
            },
            _ => Self::Branch {
                from: first,
                to: second,
            },
        }
    }
}

/// The words of a buffer.
enum Words {
    Heap(Vec<u64>),
    Reserved(ReservedMemory),
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Self::Heap(words) => words,
            // SAFETY: the memory belongs to this value, is aligned to a page, and is initialised.
            // No processor stores to it through a pointer meanwhile: it has the only reference to
            // the buffer, or another thread has the buffer.
            Self::Reserved(memory) => unsafe {
                std::slice::from_raw_parts(memory.pointer().as_ptr().cast(), memory.len() / 8)
            },
        }
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Self::Heap(words) => words,
            // SAFETY: as above.
            Self::Reserved(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.pointer().as_ptr().cast(), memory.len() / 8)
            },
        }
    }
}

/// Records of a log, oldest first.
pub struct LogBuffer {
    /// The host address of the next record, which is in the place of the BTS index, and then the
    /// records.
    words: Words,
    /// Where native code can store records.
    reservation: Option<Arc<Reservation>>,
}

impl fmt::Debug for LogBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogBuffer({} records)", self.len())
    }
}

impl LogBuffer {
    /// An empty buffer, in `reservation` if that has room.
    pub(super) fn new(reservation: Option<Arc<Reservation>>) -> Self {
        const LEN: usize = 1 + WORDS * CAPACITY;
        let reserved = (reservation.as_ref()).and_then(|to| to.map(LEN * size_of::<u64>()).ok());
        let words = reserved.map_or_else(|| Words::Heap(vec![0; LEN]), Words::Reserved);
        let mut buffer = Self { words, reservation };
        buffer.clear();
        buffer
    }

    /// Whether there is no record.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the buffer out. What is left is not used until another one replaces it.
    pub(super) fn take(&mut self) -> Self {
        Self {
            words: std::mem::replace(&mut self.words, Words::Heap(Vec::new())),
            reservation: self.reservation.clone(),
        }
    }

    /// Whether native code of a processor with this reservation reaches it, or there is none.
    pub(super) fn suits(&self, reservation: Option<&Arc<Reservation>>) -> bool {
        match (&self.reservation, reservation) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// An empty buffer for the same processor.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::new(self.reservation.clone())
    }

    /// Host address of the first record.
    fn start(&self) -> u64 {
        self.words.as_ptr() as u64 + 8
    }

    /// Number of records.
    fn len(&self) -> usize {
        let bytes = self.words[0].wrapping_sub(self.start());
        ((bytes / RECORD_SIZE) as usize).min(CAPACITY)
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.words[0] = self.start();
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry> {
        let (records, _) = self.words[1..].as_chunks();
        let records = records.get(..self.len()).unwrap_or_default();
        records.iter().map(|record| LogEntry::from_words(*record))
    }

    /// Adds an entry. Returns whether there was room.
    pub(super) fn push(&mut self, entry: LogEntry) -> bool {
        let at = 1 + WORDS * self.len();
        let Some(record) = self.words.get_mut(at..at + WORDS) else {
            return false;
        };
        record.copy_from_slice(&entry.to_words());
        self.words[0] += RECORD_SIZE;
        true
    }

    /// The free records, and the host address of the word that has the address of the next one.
    /// There are none outside the reservation, if there is one: native code reaches nothing else.
    pub(super) fn window(&mut self) -> (Window, u64) {
        let field = self.words.as_mut_ptr() as u64;
        let record = |n: usize| self.start() + n as u64 * RECORD_SIZE;
        let is_reachable = self.reservation.is_none() || matches!(self.words, Words::Reserved(_));
        let first = if is_reachable { self.len() } else { CAPACITY };
        (Window::over(record(first), record(CAPACITY)), field)
    }
}
