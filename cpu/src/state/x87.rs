//! The registers of the x87 FPU.

use serde::{Deserialize, Serialize};

/// x87 FPU (SDM Vol. 1 8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct X87State {
    /// The **physical** registers R0-R7, 80 bits each. ST(i) is R((TOP + i) mod 8), see
    /// [`X87State::st`]; MMi is in the low 64 bits of Ri.
    pub r: [u128; 8],
    /// Control word.
    pub fcw: u16,
    /// Status word, TOP included.
    pub fsw: u16,
    /// Abridged tag word: bit *i* set if Ri is not empty.
    pub ftw: u8,
    /// Last instruction opcode, 11 bits.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
}

impl X87State {
    /// Physical number of ST(0): TOP.
    #[inline(always)]
    pub fn top(&self) -> usize {
        usize::from(self.fsw >> 11 & 7)
    }

    /// ST(`i`), 80 bits, as FXSAVE stores it.
    #[inline(always)]
    pub fn st(&self, i: usize) -> u128 {
        self.r[(self.top() + i) & 7]
    }

    /// Writes ST(`i`), of which only 80 bits are kept; its tag is not changed.
    #[inline(always)]
    pub fn set_st(&mut self, i: usize, value: u128) {
        self.r[(self.top() + i) & 7] = value & (u128::MAX >> 48);
    }
}

impl Default for X87State {
    /// As after FNINIT.
    fn default() -> Self {
        Self {
            r: [0; 8],
            fcw: 0x37F,
            fsw: 0,
            ftw: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
        }
    }
}
