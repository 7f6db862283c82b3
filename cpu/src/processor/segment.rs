//! Selectors, descriptors and the checks that loading a segment register makes (SDM Vol. 3A
//! chapters 3.4 and 5).

use crate::insn::Abort;
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::state::vector;
use crate::state::{SegAttr, Segment, cr0, efer};

/// Types of system descriptors (SDM Vol. 3A table 3-2). IA-32e mode has only those without `_16`,
/// with 16 bytes.
pub(crate) mod system {
    pub const TSS_16_AVAILABLE: u8 = 0x1;
    pub const LDT: u8 = 0x2;
    pub const TSS_16_BUSY: u8 = 0x3;
    pub const CALL_GATE_16: u8 = 0x4;
    pub const TASK_GATE: u8 = 0x5;
    pub const INTERRUPT_GATE_16: u8 = 0x6;
    pub const TRAP_GATE_16: u8 = 0x7;
    pub const TSS_AVAILABLE: u8 = 0x9;
    pub const TSS_BUSY: u8 = 0xB;
    pub const CALL_GATE: u8 = 0xC;
    pub const INTERRUPT_GATE: u8 = 0xE;
    pub const TRAP_GATE: u8 = 0xF;
}

/// Numbers of the segment registers, as instructions encode them.
pub(crate) mod sreg {
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
}

/// Whether a selector is null: index 0 of the GDT, whatever its RPL.
pub(crate) fn is_null(selector: u16) -> bool {
    selector & !3 == 0
}

/// Requested privilege level of a selector.
pub(crate) fn rpl(selector: u16) -> u8 {
    (selector & 3) as u8
}

/// The segment register contents after a null selector was loaded. The DPL matters for SS: the
/// processor keeps the CPL there.
pub(crate) fn null_segment(selector: u16, dpl: u8) -> Segment {
    let attr = SegAttr::UNUSABLE | SegAttr::from_bits_retain(u32::from(dpl) << 5);
    Segment {
        selector,
        attr,
        ..Segment::default()
    }
}

/// A segment register after a load in real-address mode. The load sets the base. Limit and
/// attributes keep the values of protected mode or of reset (SDM Vol. 3A 9.9.2, 20.1.1).
pub(crate) fn real_segment(old: Segment, selector: u16) -> Segment {
    let attr = (old.attr - SegAttr::UNUSABLE) | SegAttr::P | SegAttr::S;
    Segment {
        selector,
        base: u64::from(selector) << 4,
        limit: old.limit,
        attr,
    }
}

/// A flat code segment as SYSCALL, SYSRET, SYSENTER and SYSEXIT load it. They do not read the
/// descriptor table.
pub(crate) fn flat_code(selector: u16, dpl: u8, long: bool) -> Segment {
    let size = if long { SegAttr::L } else { SegAttr::DB };
    flat(selector, dpl, SegAttr::CODE | size)
}

/// A flat stack segment as SYSCALL, SYSRET, SYSENTER and SYSEXIT load it.
pub(crate) fn flat_stack(selector: u16, dpl: u8) -> Segment {
    flat(selector, dpl, SegAttr::DB)
}

fn flat(selector: u16, dpl: u8, more: SegAttr) -> Segment {
    let attr = SegAttr::ACCESSED
        | SegAttr::RW
        | SegAttr::S
        | SegAttr::P
        | SegAttr::G
        | SegAttr::from_bits_retain(u32::from(dpl) << 5)
        | more;
    Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attr,
    }
}

/// Whether `len` bytes at `offset` lie inside a segment (SDM Vol. 3A 5.3). `len` is not zero.
pub(crate) fn within_limit(segment: &Segment, offset: u64, len: u64) -> bool {
    let last = offset + len - 1;
    let limit = u64::from(segment.limit);
    if segment.attr.contains(SegAttr::CODE) || !segment.attr.contains(SegAttr::CONFORMING) {
        last <= limit
    } else {
        let top = if segment.attr.contains(SegAttr::DB) {
            0xFFFF_FFFF
        } else {
            0xFFFF
        };
        offset > limit && last <= top
    }
}

/// A segment register of the live processor. Its base is the pseudo register
/// [`reg::SEGMENT`](crate::insn::reg::SEGMENT), so that an address can add it like an index.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SegmentRegister {
    pub selector: u16,
    pub limit: u32,
    pub attr: SegAttr,
}

/// A descriptor of 8 bytes, or of 16: IA-32e mode widens system descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub low: u64,
    /// Zero for a descriptor of 8 bytes.
    pub high: u64,
}

impl Descriptor {
    pub fn attr(self) -> SegAttr {
        SegAttr::from_bits_retain((self.low >> 40) as u32 & 0xF0FF)
    }

    pub fn has(self, attr: SegAttr) -> bool {
        self.attr().contains(attr)
    }

    pub fn dpl(self) -> u8 {
        (self.low >> 45 & 3) as u8
    }

    pub fn is_code(self) -> bool {
        self.has(SegAttr::S.union(SegAttr::CODE))
    }

    pub fn is_conforming_code(self) -> bool {
        self.has(SegAttr::S.union(SegAttr::CODE).union(SegAttr::CONFORMING))
    }

    pub fn is_data(self) -> bool {
        self.has(SegAttr::S) && !self.has(SegAttr::CODE)
    }

    pub fn is_writable(self) -> bool {
        self.is_data() && self.has(SegAttr::RW)
    }

    pub fn is_readable(self) -> bool {
        self.is_data() || (self.is_code() && self.has(SegAttr::RW))
    }

    /// The type, if it is a system descriptor.
    pub fn system_type(self) -> Option<u8> {
        (!self.has(SegAttr::S)).then_some((self.low >> 40 & 15) as u8)
    }

    pub fn base(self) -> u64 {
        (self.low >> 16 & 0xFF_FFFF) | (self.low >> 32 & 0xFF00_0000) | self.high << 32
    }

    pub fn limit(self) -> u32 {
        let raw = (self.low & 0xFFFF) as u32 | (self.low >> 32) as u32 & 0xF_0000;
        if self.has(SegAttr::G) {
            raw << 12 | 0xFFF
        } else {
            raw
        }
    }

    /// Whether this, a gate or a TSS, is one of 16 bits.
    pub fn is_16_bit(self) -> bool {
        self.low >> 43 & 1 == 0
    }

    /// Offset of a gate's target.
    pub fn gate_offset(self) -> u64 {
        if self.is_16_bit() {
            return self.low & 0xFFFF;
        }
        (self.low & 0xFFFF) | (self.low >> 32 & 0xFFFF_0000) | self.high << 32
    }

    /// Words that a call gate copies from stack to stack; IA-32e mode copies none.
    pub fn gate_parameters(self) -> u64 {
        self.low >> 32 & 0x1F
    }

    /// Code segment of a gate's target.
    pub fn gate_selector(self) -> u16 {
        (self.low >> 16) as u16
    }

    /// Interrupt stack table entry of an interrupt or trap gate; 0 for none.
    pub fn gate_ist(self) -> u8 {
        (self.low >> 32 & 7) as u8
    }

    pub fn segment(self, selector: u16) -> Segment {
        Segment {
            selector,
            base: self.base(),
            limit: self.limit(),
            attr: self.attr(),
        }
    }
}

impl Cpu {
    /// The segment register `n` with its hidden part.
    pub fn segment(&self, n: usize) -> Segment {
        let SegmentRegister {
            selector,
            limit,
            attr,
        } = self.seg[n];
        Segment {
            selector,
            base: self.seg_base(n as u8),
            limit,
            attr,
        }
    }

    /// Loads the segment register `n` with its hidden part.
    pub(crate) fn set_segment(&mut self, n: usize, segment: Segment) {
        let Segment {
            selector,
            base,
            limit,
            attr,
        } = segment;
        self.set_seg_base(n, base);
        self.seg[n] = SegmentRegister {
            selector,
            limit,
            attr,
        };
    }

    /// Protected mode or IA-32e mode, not real-address mode.
    pub(crate) fn is_protected(&self) -> bool {
        self.sys.cr0 & cr0::PE != 0
    }

    /// IA-32e mode: 64-bit or compatibility mode.
    pub(crate) fn is_ia32e(&self) -> bool {
        self.sys.efer & efer::LMA != 0
    }

    /// Whether a code segment with these attributes has 64-bit code. Outside IA-32e mode L has no
    /// effect.
    pub(crate) fn is_code64(&self, attr: SegAttr) -> bool {
        self.is_ia32e() && attr.contains(SegAttr::L)
    }

    /// Raises #UD in real-address mode, which has no descriptors.
    pub(crate) fn require_protected(&mut self) -> Result<(), Abort> {
        if self.is_protected() {
            Ok(())
        } else {
            Err(self.ud())
        }
    }

    /// Raises a fault with a selector as its error code.
    #[cold]
    pub(crate) fn selector_fault(&mut self, vector: u8, selector: u16) -> Abort {
        self.exception(vector, Some(u32::from(selector & !3)))
    }

    /// Linear address of a descriptor of `size` bytes; `None` if it does not lie inside its table.
    fn descriptor_la(&self, selector: u16, size: u64) -> Option<u64> {
        let offset = u64::from(selector & !7);
        let (base, limit) = if selector & 4 == 0 {
            (self.sys.gdtr.base, u64::from(self.sys.gdtr.limit))
        } else if self.sys.ldtr.attr.contains(SegAttr::UNUSABLE) {
            return None;
        } else {
            (self.sys.ldtr.base, u64::from(self.sys.ldtr.limit))
        };
        (offset + size - 1 <= limit).then(|| base.wrapping_add(offset))
    }

    /// Reads a descriptor of 8 bytes; `None` if the selector points outside its table.
    pub(crate) fn find_descriptor(&mut self, selector: u16) -> Result<Option<Descriptor>, Abort> {
        let Some(la) = self.descriptor_la(selector, 8) else {
            return Ok(None);
        };
        Ok(Some(Descriptor {
            low: self.load_system(la)?,
            high: 0,
        }))
    }

    /// Reads a code or data descriptor, or the first half of a system descriptor; `fault`(selector)
    /// if it is outside its table.
    pub(crate) fn descriptor(&mut self, selector: u16, fault: u8) -> Result<Descriptor, Abort> {
        match self.find_descriptor(selector)? {
            Some(d) => Ok(d),
            None => Err(self.selector_fault(fault, selector)),
        }
    }

    /// Reads a system descriptor, which in IA-32e mode has 16 bytes; `fault`(selector) if it is
    /// outside its table, or if its upper half has a type of its own (SDM Vol. 3A 3.5.2).
    pub(crate) fn system_descriptor(
        &mut self,
        selector: u16,
        fault: u8,
    ) -> Result<Descriptor, Abort> {
        if !self.is_ia32e() {
            return self.descriptor(selector, fault);
        }
        let Some(la) = self.descriptor_la(selector, 16) else {
            return Err(self.selector_fault(fault, selector));
        };
        let d = Descriptor {
            low: self.load_system(la)?,
            high: self.load_system(la.wrapping_add(8))?,
        };
        if d.high >> 40 & 0x1F != 0 {
            return Err(self.selector_fault(fault, selector));
        }
        Ok(d)
    }

    /// Sets type bits of a descriptor in memory: "accessed", or a TSS's "busy". They are bits 40
    /// and up.
    pub(crate) fn set_type_bits(
        &mut self,
        selector: u16,
        d: Descriptor,
        bits: u8,
    ) -> Result<(), Abort> {
        let old = (d.low >> 40) as u8;
        match self.descriptor_la(selector, 8) {
            Some(la) if old & bits != bits => {
                self.store_system::<u8>(la.wrapping_add(5), old | bits)
            }
            _ => Ok(()),
        }
    }

    /// Marks a checked descriptor as accessed, and returns the contents of the segment register.
    pub(crate) fn accessed(&mut self, selector: u16, d: Descriptor) -> Result<Segment, Abort> {
        self.set_type_bits(selector, d, SegAttr::ACCESSED.bits() as u8)?;
        let mut segment = d.segment(selector);
        segment.attr |= SegAttr::ACCESSED;
        Ok(segment)
    }

    /// Loads ES, SS, DS, FS or GS (SDM Vol. 2B, MOV "Loading a segment register").
    pub(crate) fn load_segment(&mut self, register: usize, selector: u16) -> Result<(), Abort> {
        let segment = if !self.is_protected() {
            real_segment(self.segment(register), selector)
        } else if register == sreg::SS {
            self.stack_segment(selector, self.cpl, self.code64, vector::GP)?
        } else {
            self.data_segment(selector)?
        };
        self.set_segment(register, segment);
        Ok(())
    }

    fn data_segment(&mut self, selector: u16) -> Result<Segment, Abort> {
        if is_null(selector) {
            return Ok(null_segment(selector, 0));
        }
        let d = self.descriptor(selector, vector::GP)?;
        let privileged = self.cpl.max(rpl(selector)) > d.dpl() && !d.is_conforming_code();
        if !d.is_readable() || privileged {
            return Err(self.selector_fault(vector::GP, selector));
        }
        if !d.has(SegAttr::P) {
            return Err(self.selector_fault(vector::NP, selector));
        }
        self.accessed(selector, d)
    }

    /// Checks a selector for SS at privilege level `cpl`, and returns the segment. `fault` is the
    /// exception for an unsuitable selector: #GP, or #TS if it came from a TSS. A null selector is
    /// allowed for 64-bit code at CPL 0 to 2.
    pub(crate) fn stack_segment(
        &mut self,
        selector: u16,
        cpl: u8,
        code64: bool,
        fault: u8,
    ) -> Result<Segment, Abort> {
        if is_null(selector) {
            if code64 && cpl < 3 && rpl(selector) == cpl {
                return Ok(null_segment(selector, cpl));
            }
            return Err(self.exception(fault, Some(0)));
        }
        let d = self.descriptor(selector, fault)?;
        if rpl(selector) != cpl || d.dpl() != cpl || !d.is_writable() {
            return Err(self.selector_fault(fault, selector));
        }
        if !d.has(SegAttr::P) {
            return Err(self.selector_fault(vector::SS, selector));
        }
        self.accessed(selector, d)
    }

    /// A code segment must be present, and in IA-32e mode not be both 64-bit and 32-bit (SDM Vol.
    /// 3A 5.2.1).
    pub(crate) fn check_code_segment(&mut self, selector: u16, d: Descriptor) -> Result<(), Abort> {
        if self.is_ia32e() && d.has(SegAttr::L.union(SegAttr::DB)) {
            return Err(self.selector_fault(vector::GP, selector));
        }
        if !d.has(SegAttr::P) {
            return Err(self.selector_fault(vector::NP, selector));
        }
        Ok(())
    }

    /// A jump target must be inside its code segment, or canonical in 64-bit code.
    pub(crate) fn check_target(&mut self, attr: SegAttr, limit: u32, ip: u64) -> Result<(), Abort> {
        let good = if self.is_code64(attr) {
            canonical(ip)
        } else {
            ip <= u64::from(limit)
        };
        if good { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Whether `len` bytes of code at RIP are inside the code segment; 64-bit code has no limit.
    pub(crate) fn within_code_segment(&self, len: u64) -> bool {
        let last = self.rip.wrapping_add(len).wrapping_sub(1);
        self.code64 || last <= u64::from(self.seg[sreg::CS].limit)
    }

    /// The linear address of offset `ip` in the code segment.
    pub(crate) fn linear_ip(&self, ip: u64) -> u64 {
        if self.code64 {
            ip
        } else {
            ip.wrapping_add(self.seg_base(sreg::CS as u8)) & 0xFFFF_FFFF
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

    #[test]
    fn limits_are_inclusive_and_expand_down_inverts_them() {
        let mut s = Segment {
            limit: 0xFFF,
            ..Segment::default()
        };
        assert!(within_limit(&s, 0xFF8, 8) && !within_limit(&s, 0xFF9, 8));
        s.attr = SegAttr::CONFORMING;
        assert!(!within_limit(&s, 0xFFF, 1) && within_limit(&s, 0x1000, 8));
        assert!(within_limit(&s, 0xFFFE, 2) && !within_limit(&s, 0xFFFF, 2));
    }
}
