//! Names instructions of a block in native code.

use crate::decode::{MAX_BLOCK, MAX_INSTRUCTION};
use crate::insn::Insn;

/// The start of an instruction in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InsnStart {
    /// Number of its first operation.
    pub op: u16,
    /// Offset in bytes.
    pub offset: u16,
    /// Number of instructions before it.
    pub ordinal: u8,
}

impl InsnStart {
    /// The start of `insn`, whose first operation has the number `op`.
    pub(crate) fn of(op: usize, insn: &Insn) -> Self {
        Self {
            op: op as u16,
            offset: insn.offset,
            ordinal: insn.ordinal,
        }
    }
}

/// The instructions of a block that [`execute`](super::execute::execute) executes, as one word of
/// native code.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Part(pub u32);

impl Part {
    // Numbers of bits of the fields, from the lowest.
    const OP: u32 = 10;
    const OFFSET: u32 = 10;
    const ORDINAL: u32 = 6;
    const COUNT: u32 = 6;
    /// As a count: the rest of the block.
    pub(crate) const REST: u8 = (1 << Self::COUNT) - 1;
    /// As a count: a CALL. Rust's code pushes the return address, and native code then jumps.
    pub(crate) const CALL: u8 = 0;

    /// `count` instructions from `first` on.
    pub(crate) fn of(first: InsnStart, count: u8) -> Self {
        const {
            /// Most operations of an instruction.
            const OPS: usize = 8;
            assert!((MAX_BLOCK as usize) * OPS < 1 << Self::OP);
            assert!((MAX_BLOCK as usize) * MAX_INSTRUCTION < 1 << Self::OFFSET);
            assert!((MAX_BLOCK as usize) < 1 << Self::ORDINAL);
            assert!(MAX_BLOCK < Self::REST);
            assert!(Self::OP + Self::OFFSET + Self::ORDINAL + Self::COUNT == u32::BITS);
        }
        let offset = u32::from(first.offset) << Self::OP;
        let ordinal = u32::from(first.ordinal) << (Self::OP + Self::OFFSET);
        let count = u32::from(count) << (u32::BITS - Self::COUNT);
        Self(u32::from(first.op) | offset | ordinal | count)
    }

    /// Number of the first operation.
    pub(crate) fn op(self) -> usize {
        (self.0 & ((1 << Self::OP) - 1)) as usize
    }

    pub(crate) fn first(self) -> InsnStart {
        let field = |shift: u32, bits: u32| self.0 >> shift & ((1 << bits) - 1);
        InsnStart {
            op: self.op() as u16,
            offset: field(Self::OP, Self::OFFSET) as u16,
            ordinal: field(Self::OP + Self::OFFSET, Self::ORDINAL) as u8,
        }
    }

    pub(crate) fn count(self) -> u64 {
        u64::from(self.0 >> (u32::BITS - Self::COUNT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_part_do_not_overlap() {
        let last = InsnStart {
            op: 8 * u16::from(MAX_BLOCK),
            offset: MAX_INSTRUCTION as u16 * u16::from(MAX_BLOCK - 1),
            ordinal: MAX_BLOCK - 1,
        };
        let first = InsnStart {
            op: 1,
            offset: 2,
            ordinal: 1,
        };
        for start in [first, last] {
            for count in [1, MAX_BLOCK, Part::REST] {
                let part = Part::of(start, count);
                assert_eq!((part.first(), part.count()), (start, count.into()));
            }
        }
    }
}
