//! The DS management area and the branch record (SDM Vol. 3B 17.4.9) in both formats.

use crate::formats::{Format, PREDICTED, Word};

/// Size of a branch record in bytes, in the 64-bit format.
pub const RECORD_SIZE: u64 = Format::Bits64.record_size();

/// Offset of the BTS index in the DS management area in bytes, in the 64-bit format.
pub const DS_INDEX_OFFSET: u64 = Format::Bits64.index_offset();

/// The part of the DS management area that BTS uses: four little-endian words from offset 0. All
/// are linear addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BtsFields {
    /// First byte of the buffer.
    pub base: u64,
    /// Where the next record goes.
    pub index: u64,
    /// First byte past the buffer; the manual also lets software set it one byte further
    /// (17.4.9.2).
    pub absolute_maximum: u64,
    /// An index that reaches it asks for an interrupt.
    pub threshold: u64,
}

impl BtsFields {
    /// Size in memory in bytes, in the 64-bit format.
    pub const SIZE: usize = Format::Bits64.fields_size() as usize;

    /// The fields of the first words of a DS management area.
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

    /// The fields as they lie in memory. In the 32-bit format, their upper halves are lost.
    #[must_use]
    pub fn to_words<W: Word>(self) -> [W; 4] {
        [
            W::truncate(self.base),
            W::truncate(self.index),
            W::truncate(self.absolute_maximum),
            W::truncate(self.threshold),
        ]
    }

    /// Reads the fields from the first bytes of a DS management area of the 64-bit format.
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

    /// The fields as they lie in memory in the 64-bit format, in bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(self.to_words::<u64>()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A branch record: three words, of which the last has the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchRecord {
    /// Linear address of the branch instruction, or the return address that an interrupt saves.
    pub from: u64,
    /// Linear address of the target.
    pub to: u64,
    /// The flag "branch predicted". It is clear where a microarchitecture does not have it.
    pub predicted: bool,
}

impl BranchRecord {
    /// A record without flags.
    #[inline]
    #[must_use]
    pub const fn new(from: u64, to: u64) -> Self {
        Self {
            from,
            to,
            predicted: false,
        }
    }

    /// Reads a record.
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

    /// The record as it lies in memory.
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

    /// Reads a record of the 64-bit format.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RECORD_SIZE as usize]) -> Self {
        Self::from_words([word(bytes, 0), word(bytes, 8), word(bytes, 16)])
    }

    /// The record as it lies in memory in the 64-bit format, in bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_SIZE as usize] {
        let mut bytes = [0; RECORD_SIZE as usize];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(self.to_words::<u64>()) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The little-endian word at byte `at`, which every caller gives as a constant inside the array.
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
