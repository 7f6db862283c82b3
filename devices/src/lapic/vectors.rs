//! The 256-bit registers of the local APIC, which have a bit for each vector.

use serde::{Deserialize, Serialize};

/// A 256-bit register: ISR, TMR or IRR.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vectors([u64; 4]);

impl Vectors {
    pub(super) fn set(&mut self, vector: u8, value: bool) {
        let (word, bit) = (usize::from(vector >> 6), 1 << (vector & 63));
        if value {
            self.0[word] |= bit
        } else {
            self.0[word] &= !bit
        }
    }

    pub(super) fn get(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 6)] >> (vector & 63) & 1 != 0
    }

    /// The highest vector that is set, which is the one with the highest priority.
    pub(super) fn highest(&self) -> Option<u8> {
        (0u8..4).rev().find_map(|word| {
            let bits = self.0[usize::from(word)];
            (bits != 0).then(|| word * 64 + (63 - bits.leading_zeros() as u8))
        })
    }

    /// The 32 bits of the register at `offset` from the first one of the eight.
    pub(super) fn register(&self, offset: u64) -> u32 {
        let index = (offset >> 4 & 7) as usize;
        (self.0[index / 2] >> (index % 2 * 32)) as u32
    }
}
