//! The live segment registers: descriptors in memory, and the checks that loading a segment
//! register makes (SDM Vol. 3A chapters 3.4 and 5).

use crate::insn::Abort;
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::state::descriptor::{Descriptor, is_null, rpl};
use crate::state::vector;
use crate::state::{SegAttr, Segment, cr0, efer, sreg};

/// A segment register of the live processor. Its base is the pseudo register
/// [`reg::SEGMENT`](crate::insn::reg::SEGMENT), so that an address can add it like an index.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SegmentRegister {
    pub selector: u16,
    pub limit: u32,
    pub attr: SegAttr,
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

    /// Whether a selector names a descriptor: in protected mode and IA-32e mode, and neither in
    /// real-address mode nor in virtual-8086 mode.
    pub(crate) fn uses_descriptors(&self) -> bool {
        self.is_protected() && !self.is_virtual_8086()
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

    /// Raises #UD in real-address mode and virtual-8086 mode, which have no descriptors.
    pub(crate) fn require_protected(&mut self) -> Result<(), Abort> {
        if self.uses_descriptors() {
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

    /// The linear address of the byte with the type of a descriptor; `None` if the descriptor does
    /// not lie inside its table.
    pub(crate) fn type_la(&self, selector: u16) -> Option<u64> {
        let la = self.descriptor_la(selector, 8)?;
        Some(la.wrapping_add(5))
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
        match self.type_la(selector) {
            Some(la) if old & bits != bits => self.store_system::<u8>(la, old | bits),
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
        let segment = if !self.uses_descriptors() {
            self.segment(register).in_real_mode(selector)
        } else if register == sreg::SS {
            self.stack_segment(selector, self.cpl, self.in_64_bit_mode(), vector::GP)?
        } else {
            self.data_segment(selector, vector::GP)?
        };
        self.set_segment(register, segment);
        Ok(())
    }

    /// Checks a selector for ES, DS, FS or GS at the current privilege level, and returns the
    /// segment. `fault` is as for [`Self::stack_segment`].
    pub(crate) fn data_segment(&mut self, selector: u16, fault: u8) -> Result<Segment, Abort> {
        if is_null(selector) {
            return Ok(Segment::null(selector, 0));
        }
        let d = self.descriptor(selector, fault)?;
        let privileged = self.cpl.max(rpl(selector)) > d.dpl() && !d.is_conforming_code();
        if !d.is_readable() || privileged {
            return Err(self.selector_fault(fault, selector));
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
                return Ok(Segment::null(selector, cpl));
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
        self.in_64_bit_mode() || last <= u64::from(self.seg[sreg::CS].limit)
    }

    /// The linear address of offset `ip` in the code segment.
    pub fn linear_ip(&self, ip: u64) -> u64 {
        if self.in_64_bit_mode() {
            ip
        } else {
            ip.wrapping_add(self.seg_base(sreg::CS as u8)) & 0xFFFF_FFFF
        }
    }
}
