//! Segment registers and descriptor-table registers.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// Attributes of a segment, as in bytes 5 and 6 of its descriptor (SDM Vol. 3A 3.4.5), plus
    /// `UNUSABLE`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    pub struct SegAttr: u32 {
        /// Accessed (code and data segments).
        const ACCESSED = 1 << 0;
        /// Readable (code), writable (data).
        const RW = 1 << 1;
        /// Conforming (code), expand-down (data).
        const CONFORMING = 1 << 2;
        /// Code segment, if `S`.
        const CODE = 1 << 3;
        /// Code or data, not a system segment.
        const S = 1 << 4;
        /// Descriptor privilege level.
        const DPL = 3 << 5;
        /// Present.
        const P = 1 << 7;
        /// Available to software.
        const AVL = 1 << 12;
        /// 64-bit code segment.
        const L = 1 << 13;
        /// Default operand size 32 bits.
        const DB = 1 << 14;
        /// Limit counts pages.
        const G = 1 << 15;
        /// Loaded with a null selector.
        const UNUSABLE = 1 << 16;
        const _ = !0;
    }
}

/// A segment register with its hidden part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Segment {
    /// Visible selector.
    pub selector: u16,
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, inclusive (granularity already applied).
    pub limit: u32,
    /// Attributes.
    pub attr: SegAttr,
}

impl Segment {
    /// Descriptor privilege level, 0 to 3.
    pub fn dpl(&self) -> u8 {
        ((self.attr.bits() >> 5) & 3) as u8
    }
    /// Type field, bits 3:0.
    pub fn ty(&self) -> u8 {
        (self.attr.bits() & 15) as u8
    }
}

/// GDTR or IDTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TableRegister {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, inclusive.
    pub limit: u16,
}
