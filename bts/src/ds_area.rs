//! The DS management area and the branch record in their 64-bit format (SDM Vol. 3B 17.4.9, figures
//! "Layout of 64-bit DS Save Area" and "64-bit Branch Trace Record Format"), which DTES64 selects
//! in every mode.

/// Size of a branch record in bytes.
pub const RECORD_SIZE: u64 = 24;

/// Offset of the BTS index in the DS management area, in bytes.
pub const DS_INDEX_OFFSET: u64 = 0x08;

/// The part of the DS management area that BTS uses: four 64-bit little-endian words from offset 0.
/// All are linear addresses.
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
    /// Size in memory, in bytes.
    pub const SIZE: usize = 32;

    /// The fields of the first words of a DS management area.
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        let [base, index, absolute_maximum, threshold] = words;
        Self {
            base,
            index,
            absolute_maximum,
            threshold,
        }
    }

    /// Reads the fields from the first bytes of a DS management area.
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

    /// The fields as they lie in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let words = [self.base, self.index, self.absolute_maximum, self.threshold];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A branch record. Its third word, the flags, is 0: the only flag is "branch predicted", which the
/// Core microarchitecture does not support (17.4.9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchRecord {
    /// Linear address of the branch instruction, or the return address that an interrupt saves.
    pub from: u64,
    /// Linear address of the target.
    pub to: u64,
}

impl BranchRecord {
    /// Reads a record, without its flags.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; RECORD_SIZE as usize]) -> Self {
        Self {
            from: word(bytes, 0),
            to: word(bytes, 8),
        }
    }

    /// The record as it lies in memory.
    #[inline]
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        [self.from, self.to, 0]
    }

    /// The record as it lies in memory, in bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_SIZE as usize] {
        let mut bytes = [0; RECORD_SIZE as usize];
        bytes[..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.to.to_le_bytes());
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
