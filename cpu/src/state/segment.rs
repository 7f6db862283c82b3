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
    /// The segment register contents after a null selector was loaded. The DPL matters for SS: the
    /// processor keeps the CPL there.
    pub(crate) fn null(selector: u16, dpl: u8) -> Self {
        let attr = SegAttr::UNUSABLE | SegAttr::from_bits_retain(u32::from(dpl) << 5);
        Self {
            selector,
            attr,
            ..Self::default()
        }
    }

    /// The segment register after a load of `selector` in real-address mode. The load sets the
    /// base. Limit and attributes keep the values of protected mode or of reset (SDM Vol. 3A 9.9.2,
    /// 20.1.1).
    pub(crate) fn in_real_mode(self, selector: u16) -> Self {
        let attr = (self.attr - SegAttr::UNUSABLE) | SegAttr::P | SegAttr::S;
        Self {
            selector,
            base: u64::from(selector) << 4,
            limit: self.limit,
            attr,
        }
    }

    /// A segment register in virtual-8086 mode, CS among them: 64 KBytes at CPL 3 (SDM Vol. 3C
    /// 26.3.1.2).
    pub(crate) fn virtual_8086(selector: u16) -> Self {
        let attr = SegAttr::ACCESSED | SegAttr::RW | SegAttr::S | SegAttr::P | SegAttr::DPL;
        Self {
            selector,
            base: u64::from(selector) << 4,
            limit: 0xFFFF,
            attr,
        }
    }

    /// A flat code segment as SYSCALL, SYSRET, SYSENTER and SYSEXIT load it. They do not read the
    /// descriptor table.
    pub(crate) fn flat_code(selector: u16, dpl: u8, long: bool) -> Self {
        let size = if long { SegAttr::L } else { SegAttr::DB };
        Self::flat(selector, dpl, SegAttr::CODE | size)
    }

    /// A flat stack segment as SYSCALL, SYSRET, SYSENTER and SYSEXIT load it.
    pub(crate) fn flat_stack(selector: u16, dpl: u8) -> Self {
        Self::flat(selector, dpl, SegAttr::DB)
    }

    fn flat(selector: u16, dpl: u8, more: SegAttr) -> Self {
        let attr = SegAttr::ACCESSED
            | SegAttr::RW
            | SegAttr::S
            | SegAttr::P
            | SegAttr::G
            | SegAttr::from_bits_retain(u32::from(dpl) << 5)
            | more;
        Self {
            selector,
            base: 0,
            limit: u32::MAX,
            attr,
        }
    }

    /// Descriptor privilege level, 0 to 3.
    pub fn dpl(&self) -> u8 {
        ((self.attr.bits() >> 5) & 3) as u8
    }

    /// Type field, bits 3:0.
    pub fn ty(&self) -> u8 {
        (self.attr.bits() & 15) as u8
    }

    /// Whether `len` bytes at `offset` lie inside the segment (SDM Vol. 3A 5.3). `len` is not zero.
    pub(crate) fn within_limit(&self, offset: u64, len: u64) -> bool {
        let last = offset + len - 1;
        let limit = u64::from(self.limit);
        if self.attr.contains(SegAttr::CODE) || !self.attr.contains(SegAttr::CONFORMING) {
            last <= limit
        } else {
            let top = if self.attr.contains(SegAttr::DB) {
                0xFFFF_FFFF
            } else {
                0xFFFF
            };
            offset > limit && last <= top
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_expand_down_inverts_them() {
        let mut s = Segment {
            limit: 0xFFF,
            ..Segment::default()
        };
        assert!(s.within_limit(0xFF8, 8) && !s.within_limit(0xFF9, 8));
        s.attr = SegAttr::CONFORMING;
        assert!(!s.within_limit(0xFFF, 1) && s.within_limit(0x1000, 8));
        assert!(s.within_limit(0xFFFE, 2) && !s.within_limit(0xFFFF, 2));
    }
}
