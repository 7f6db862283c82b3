//! Selectors and descriptors (SDM Vol. 3A 3.4.2, 3.4.5, 3.5).

use super::{SegAttr, Segment};

/// Types of system descriptors (SDM Vol. 3A table 3-2). IA-32e mode has only those without `_16`,
/// with 16 bytes.
pub(crate) mod system {
    pub(crate) const TSS_16_AVAILABLE: u8 = 0x1;
    pub(crate) const LDT: u8 = 0x2;
    pub(crate) const TSS_16_BUSY: u8 = 0x3;
    pub(crate) const CALL_GATE_16: u8 = 0x4;
    pub(crate) const TASK_GATE: u8 = 0x5;
    pub(crate) const INTERRUPT_GATE_16: u8 = 0x6;
    pub(crate) const TRAP_GATE_16: u8 = 0x7;
    pub(crate) const TSS_AVAILABLE: u8 = 0x9;
    pub(crate) const TSS_BUSY: u8 = 0xB;
    pub(crate) const CALL_GATE: u8 = 0xC;
    pub(crate) const INTERRUPT_GATE: u8 = 0xE;
    pub(crate) const TRAP_GATE: u8 = 0xF;
    /// What a TSS's type has if its task is busy.
    pub(crate) const BUSY: u8 = TSS_BUSY & !TSS_AVAILABLE;
}

/// Whether a selector is null: index 0 of the GDT, whatever its RPL.
pub(crate) fn is_null(selector: u16) -> bool {
    selector & !3 == 0
}

/// Requested privilege level of a selector.
pub(crate) fn rpl(selector: u16) -> u8 {
    (selector & 3) as u8
}

/// A descriptor of 8 bytes, or of 16: IA-32e mode widens system descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub low: u64,
    /// Zero for a descriptor of 8 bytes.
    pub high: u64,
}

impl Descriptor {
    pub(crate) fn attr(self) -> SegAttr {
        SegAttr::from_bits_retain((self.low >> 40) as u32 & 0xF0FF)
    }

    pub(crate) fn has(self, attr: SegAttr) -> bool {
        self.attr().contains(attr)
    }

    pub(crate) fn dpl(self) -> u8 {
        (self.low >> 45 & 3) as u8
    }

    pub(crate) fn is_code(self) -> bool {
        self.has(SegAttr::S.union(SegAttr::CODE))
    }

    pub(crate) fn is_conforming_code(self) -> bool {
        self.has(SegAttr::S.union(SegAttr::CODE).union(SegAttr::CONFORMING))
    }

    pub(crate) fn is_data(self) -> bool {
        self.has(SegAttr::S) && !self.has(SegAttr::CODE)
    }

    pub(crate) fn is_writable(self) -> bool {
        self.is_data() && self.has(SegAttr::RW)
    }

    pub(crate) fn is_readable(self) -> bool {
        self.is_data() || (self.is_code() && self.has(SegAttr::RW))
    }

    /// The type, if it is a system descriptor.
    pub(crate) fn system_type(self) -> Option<u8> {
        (!self.has(SegAttr::S)).then_some((self.low >> 40 & 15) as u8)
    }

    pub(crate) fn base(self) -> u64 {
        (self.low >> 16 & 0xFF_FFFF) | (self.low >> 32 & 0xFF00_0000) | self.high << 32
    }

    pub(crate) fn limit(self) -> u32 {
        let raw = (self.low & 0xFFFF) as u32 | (self.low >> 32) as u32 & 0xF_0000;
        if self.has(SegAttr::G) {
            raw << 12 | 0xFFF
        } else {
            raw
        }
    }

    /// Whether this, a gate or a TSS, is one of 16 bits.
    pub(crate) fn is_16_bit(self) -> bool {
        self.low >> 43 & 1 == 0
    }

    /// Offset of a gate's target.
    pub(crate) fn gate_offset(self) -> u64 {
        if self.is_16_bit() {
            return self.low & 0xFFFF;
        }
        (self.low & 0xFFFF) | (self.low >> 32 & 0xFFFF_0000) | self.high << 32
    }

    /// Words that a call gate copies from stack to stack; IA-32e mode copies none.
    pub(crate) fn gate_parameters(self) -> u64 {
        self.low >> 32 & 0x1F
    }

    /// Code segment of a gate's target.
    pub(crate) fn gate_selector(self) -> u16 {
        (self.low >> 16) as u16
    }

    /// Interrupt stack table entry of an interrupt or trap gate; 0 for none.
    pub(crate) fn gate_ist(self) -> u8 {
        (self.low >> 32 & 7) as u8
    }

    pub(crate) fn segment(self, selector: u16) -> Segment {
        Segment {
            selector,
            base: self.base(),
            limit: self.limit(),
            attr: self.attr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_flat_code_descriptor() {
        let d = Descriptor {
            low: 0x00AF_9B12_3456_FFFF,
            high: 0,
        };
        assert!(d.is_code() && !d.is_data() && d.is_readable() && !d.is_writable());
        assert!(d.has(SegAttr::L) && !d.has(SegAttr::DB));
        assert_eq!((d.base(), d.limit(), d.dpl()), (0x12_3456, 0xFFFF_FFFF, 0));
        assert_eq!(d.system_type(), None);
    }

    #[test]
    fn a_system_descriptor_has_a_64_bit_base() {
        let d = Descriptor {
            low: 0xAB00_8923_4567_0067,
            high: 0xFFFF_FE00,
        };
        assert_eq!(d.system_type(), Some(system::TSS_AVAILABLE));
        assert_eq!((d.base(), d.limit()), (0xFFFF_FE00_AB23_4567, 0x67));
    }
}
