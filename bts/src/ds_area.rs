//! The fields of the DS management area that BTS uses, and the branch record (SDM Vol. 3B 17.4.9).
//!
//! Both types hold 64-bit values, whatever the format. They convert to and from the words of either
//! format, and, for the 64-bit format, to and from bytes.

use crate::formats::{Format, PREDICTED, Word};

/// Size of a branch record of the 64-bit format, in bytes.
pub const RECORD_SIZE: u64 = Format::Bits64.record_size();

/// Offset of the BTS index in a DS management area of the 64-bit format, in bytes.
pub const DS_INDEX_OFFSET: u64 = Format::Bits64.index_offset();

/// The part of the DS management area that BTS uses: four little-endian words from offset 0, each a
/// linear address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BtsFields {
    /// Address of the first record of the buffer.
    pub base: u64,
    /// Address of the next record.
    pub index: u64,
    /// Address of the first byte past the buffer (Linux), or of the byte after that one (17.4.9.2).
    /// No record extends beyond it.
    pub absolute_maximum: u64,
    /// With BTINT set, the record that takes the index to or past this address raises a
    /// performance-monitoring interrupt.
    pub threshold: u64,
}

impl BtsFields {
    /// Size of the fields in the 64-bit format, in bytes.
    pub const SIZE: usize = Format::Bits64.fields_size() as usize;

    /// Converts the first four words of a DS management area.
    #[inline]
    #[must_use]
    pub fn from_words<W: Word>(words: [W; 4]) -> Self {
        let [base, index, absolute_maximum, threshold] = words;
        Self {
            base: base.extend(),
            index: index.extend(),
            absolute_maximum: absolute_maximum.extend(),
            threshold: threshold.extend(),
        }
    }

    /// Converts the fields to words of memory. The 32-bit format loses their upper halves.
    #[must_use]
    pub fn to_words<W: Word>(self) -> [W; 4] {
        [
            W::truncate(self.base),
            W::truncate(self.index),
            W::truncate(self.absolute_maximum),
            W::truncate(self.threshold),
        ]
    }

    /// Parses the first bytes of a DS management area of the 64-bit format.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        Self {
            base: word(bytes, 0),
            index: word(bytes, 8),
            absolute_maximum: word(bytes, 16),
            threshold: word(bytes, 24),
        }
    }

    /// Serialises the fields in the 64-bit format.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(self.to_words::<u64>()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A branch record: three words, the last of which contains the flags (17.4.9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchRecord {
    /// Linear address of the branch instruction. For an interrupt or exception, the return address
    /// that its delivery saves.
    pub from: u64,
    /// Linear address of the branch target.
    pub to: u64,
    /// The "branch predicted" flag. Clear on microarchitectures without the flag.
    pub predicted: bool,
}

impl BranchRecord {
    /// Creates a record without flags.
    #[inline]
    #[must_use]
    pub const fn new(from: u64, to: u64) -> Self {
        Self {
            from,
            to,
            predicted: false,
        }
    }

    /// Converts the three words of a record. Undefined flags are ignored.
    #[inline]
    #[must_use]
    pub fn from_words<W: Word>(words: [W; 3]) -> Self {
        let [from, to, flags] = words;
        Self {
            from: from.extend(),
            to: to.extend(),
            predicted: flags.extend() & PREDICTED != 0,
        }
    }

    /// Converts the record to words of memory. The 32-bit format loses the upper halves of the
    /// addresses.
    #[inline]
    #[must_use]
    pub fn to_words<W: Word>(self) -> [W; 3] {
        let flags = if self.predicted { PREDICTED } else { 0 };
        [
            W::truncate(self.from),
            W::truncate(self.to),
            W::truncate(flags),
        ]
    }

    /// Parses a record of the 64-bit format.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RECORD_SIZE as usize]) -> Self {
        Self::from_words([word(bytes, 0), word(bytes, 8), word(bytes, 16)])
    }

    /// Serialises the record in the 64-bit format.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_SIZE as usize] {
        let mut bytes = [0; RECORD_SIZE as usize];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(self.to_words::<u64>()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Returns the little-endian word at offset `at`. Each caller passes a constant inside the array.
#[inline]
const fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut word = 0;
    let mut i = 0;
    while i < 8 {
        word |= (bytes[at + i] as u64) << (8 * i);
        i += 1;
    }
    word
}
