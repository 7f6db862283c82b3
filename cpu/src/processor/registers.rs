//! Access to general registers, effective addresses and RFLAGS.

use crate::insn::{Exec, Flow, Insn, operand, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

impl Cpu {
    /// Reads a general register (for `u8` also [`reg::HIGH8`]).
    #[inline(always)]
    pub fn r<T: Int>(&self, id: u8) -> T {
        if T::BYTES == 1 && id >= reg::HIGH8 {
            return T::from_u64(self.gpr[(id & 3) as usize] >> 8);
        }
        T::from_u64(self.gpr[usize::from(id)])
    }

    /// Writes a general register: 32-bit writes clear the upper half, narrower ones keep the rest.
    #[inline(always)]
    pub fn w<T: Int>(&mut self, id: u8, value: T) {
        let v = value.zext();
        if T::BYTES == 1 && id >= reg::HIGH8 {
            let r = &mut self.gpr[(id & 3) as usize];
            *r = (*r & !0xFF00) | v << 8;
            return;
        }
        let r = &mut self.gpr[usize::from(id)];
        *r = match T::BYTES {
            1 => (*r & !0xFF) | v,
            2 => (*r & !0xFFFF) | v,
            _ => v,
        };
    }

    /// The linear address of the memory operand. For an operation that computes an address, the sum
    /// of its fields: the offset.
    #[inline(always)]
    pub fn ea(&self, insn: &Insn) -> u64 {
        self.ea_of::<{ operand::NONE }>(insn, 0)
    }

    /// [`Cpu::ea`] with `forwarded` as the value of base or index, if `N` names it.
    #[inline(always)]
    pub(crate) fn ea_of<const N: u8>(&self, insn: &Insn, forwarded: u64) -> u64 {
        let part = |n: u8, id: u8| match n == N {
            true => forwarded,
            false => self.gpr[usize::from(id)],
        };
        part(operand::FIRST, insn.base)
            .wrapping_add(part(operand::SECOND, insn.index).wrapping_mul(insn.scale.into()))
            .wrapping_add(insn.disp as u64)
    }

    /// The first register operand: `forwarded` if `N` names this operand, else register `id`.
    #[inline(always)]
    pub(crate) fn first<const N: u8, T: Int>(&self, id: u8, forwarded: u64) -> T {
        match N == operand::FIRST {
            true => T::from_u64(forwarded),
            false => self.r(id),
        }
    }

    /// The second register operand: `forwarded` if `N` names this operand, else register `id`.
    #[inline(always)]
    pub(crate) fn second<const N: u8, T: Int>(&self, id: u8, forwarded: u64) -> T {
        match N == operand::SECOND {
            true => T::from_u64(forwarded),
            false => self.r(id),
        }
    }

    /// Writes the destination register. Returns the value to forward.
    #[inline(always)]
    pub(crate) fn set<T: Int>(&mut self, id: u8, value: T) -> u64 {
        self.w(id, value);
        value.zext()
    }

    /// Base of the segment that an address with [`Insn::seg`] adds. In 64-bit mode ES, CS, SS and
    /// DS keep bases that no address adds: the caller has [`seg::FLAT`](crate::insn::seg::FLAT)
    /// then.
    #[inline(always)]
    pub(crate) fn seg_base(&self, segment: u8) -> u64 {
        self.gpr[usize::from(reg::SEGMENT + (segment & 7))]
    }

    /// Sets the base of a segment register.
    pub(crate) fn set_seg_base(&mut self, segment: usize, base: u64) {
        self.gpr[usize::from(reg::SEGMENT) + (segment & 7)] = base;
    }

    /// RIP of the instruction itself.
    #[inline(always)]
    pub fn this_rip(&self, insn: &Insn) -> u64 {
        self.gpr[reg::BLOCK as usize].wrapping_add(u64::from(insn.offset))
    }

    /// RIP of the next instruction.
    #[inline(always)]
    pub fn next_rip(&self, insn: &Insn) -> u64 {
        self.gpr[reg::BLOCK as usize].wrapping_add(insn.next_offset())
    }

    /// Ends the block after `insn`, which does not branch: the code after it must be decoded or
    /// checked anew.
    #[inline]
    pub fn end_block(&mut self, insn: &Insn) -> Exec {
        self.rip = self.next_rip(insn);
        Ok(Flow::Jump)
    }

    /// RFLAGS.
    pub fn rflags(&self) -> u64 {
        self.eflags | self.flags.bits() | rflags::FIXED
    }

    /// Writes the bits of RFLAGS that are in `mask`.
    pub fn set_rflags(&mut self, value: u64, mask: u64) {
        let old = self.eflags;
        self.put_rflags(value, mask);
        if (old ^ self.eflags) & (rflags::IF | rflags::TF | rflags::AC | rflags::RF) != 0 {
            self.update_mode();
        }
    }

    /// [`Cpu::set_rflags`] without the update of the mode, which the caller does afterwards.
    pub(crate) fn put_rflags(&mut self, value: u64, mask: u64) {
        let new = ((self.rflags() & !mask) | (value & mask)) & rflags::ALL;
        self.flags = Lazy::from_bits(new);
        self.eflags = new & !rflags::ARITH;
    }
}
