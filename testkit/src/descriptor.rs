//! Segment descriptors and gates as numbers (SDM Vol. 3A 3.4.5, 6.11, 6.14.1).

use vbts_cpu::state::{SegAttr, Segment};

/// 64-bit code of CPL 0.
pub const KERNEL_CODE64: u64 = 0x00AF_9B00_0000_FFFF;
/// 32-bit code of CPL 0.
pub const KERNEL_CODE32: u64 = 0x00CF_9B00_0000_FFFF;
/// Data of CPL 0.
pub const KERNEL_DATA: u64 = 0x00CF_9300_0000_FFFF;
/// 64-bit code of CPL 3.
pub const USER_CODE64: u64 = 0x00AF_FB00_0000_FFFF;
/// 32-bit code of CPL 3.
pub const USER_CODE32: u64 = 0x00CF_FB00_0000_FFFF;
/// Data of CPL 3.
pub const USER_DATA: u64 = 0x00CF_F300_0000_FFFF;

/// A busy TSS of 0x68 bytes at `base`, which is below 16 MiB.
pub const fn tss(base: u64) -> u64 {
    0x0000_8B00_0000_0067 | base << 16
}

/// Selectors, in the order that SYSCALL, SYSRET, SYSENTER and SYSEXIT need. Linux uses these
/// selectors for user code, so a program reads equal values in a guest and on the host.
pub mod selector {
    /// 64-bit code of CPL 0.
    pub const KERNEL_CS: u16 = 0x10;
    /// Stack and data of CPL 0.
    pub const KERNEL_SS: u16 = 0x18;
    /// 32-bit code of CPL 3.
    pub const USER_CS32: u16 = 0x23;
    /// Stack and data of CPL 3.
    pub const USER_SS: u16 = 0x2B;
    /// 64-bit code of CPL 3.
    pub const USER_CS: u16 = 0x33;
    /// Where SYSEXIT to 64-bit code finds its stack segment.
    pub const USER_SS_SYSEXIT: u16 = 0x3B;
    /// The TSS.
    pub const TSS: u16 = 0x40;
}

/// The segment register that a selector of this descriptor loads.
pub fn segment(selector: u16, descriptor: u64) -> Segment {
    let limit = (descriptor & 0xFFFF | descriptor >> 32 & 0xF_0000) as u32;
    let granular = descriptor >> 55 & 1 != 0;
    Segment {
        selector,
        base: descriptor >> 16 & 0xFF_FFFF | descriptor >> 56 << 24,
        limit: if granular { limit << 12 | 0xFFF } else { limit },
        attr: SegAttr::from_bits_retain((descriptor >> 40) as u32 & 0xF0FF),
    }
}

/// A segment register that holds no segment.
pub fn null() -> Segment {
    Segment {
        attr: SegAttr::UNUSABLE,
        ..Segment::default()
    }
}

/// A gate of 64-bit mode: an IDT entry, or a call gate in the GDT.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    /// The code segment that it leads to.
    pub selector: u16,
    /// The address that it leads to.
    pub offset: u64,
    /// The highest CPL that may use it by an instruction.
    pub dpl: u8,
    /// The stack of the TSS's interrupt stack table, or 0.
    pub ist: u8,
    /// The type.
    pub ty: u8,
    /// The present flag.
    pub present: bool,
}

impl Gate {
    /// Type of a call gate.
    pub const CALL: u8 = 0xC;
    /// Type of an interrupt gate.
    pub const INTERRUPT: u8 = 0xE;
    /// Type of a trap gate.
    pub const TRAP: u8 = 0xF;

    /// An interrupt gate to kernel code at `offset`, which only the kernel may use by INT.
    pub const fn to(offset: u64) -> Self {
        Self {
            selector: selector::KERNEL_CS,
            offset,
            dpl: 0,
            ist: 0,
            ty: Self::INTERRUPT,
            present: true,
        }
    }

    /// Its 16 bytes in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let attr = u64::from(self.ty) | u64::from(self.dpl) << 5 | u64::from(self.present) << 7;
        let low = self.offset & 0xFFFF
            | u64::from(self.selector) << 16
            | u64::from(self.ist) << 32
            | attr << 40
            | (self.offset >> 16 & 0xFFFF) << 48;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.offset >> 32).to_le_bytes());
        bytes
    }
}

impl Default for Gate {
    /// [`Gate::to`] address 0.
    fn default() -> Self {
        Self::to(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_the_base_and_limit_of_its_descriptor() {
        let data = segment(0x18, KERNEL_DATA);
        assert_eq!((data.base, data.limit), (0, u32::MAX));
        let task = segment(0x40, tss(0x12_3456));
        assert_eq!((task.base, task.limit), (0x12_3456, 0x67));
        let high = segment(0x48, 0x1200_9331_1223_0008);
        assert_eq!((high.base, high.limit), (0x1231_1223, 8));
    }

    #[test]
    fn a_gate_is_laid_out_as_the_manual_says() {
        let gate = Gate {
            dpl: 3,
            ist: 2,
            ty: Gate::TRAP,
            ..Gate::to(0x1122_3344_5566_7788)
        };
        let bytes = gate.to_bytes();
        assert_eq!(
            u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            0x5566_EF02_0010_7788
        );
        assert_eq!(
            u64::from_le_bytes(bytes[8..].try_into().unwrap()),
            0x1122_3344
        );
    }
}
