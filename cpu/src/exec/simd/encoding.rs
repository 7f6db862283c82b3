//! How an instruction is encoded: whether the system has it on, where its operands are, and what
//! becomes of the rest of a register that it writes.

use std::array::from_fn;

use super::{V, cast};
use crate::insn::{Abort, Insn};
use crate::processor::cpu::Cpu;
use crate::state::xsave::component;
use crate::state::{cr0, cr4, vector};

/// How an instruction on XMM registers is encoded.
pub(super) trait Encoding {
    /// Raises the exception if the system does not have the instructions on.
    fn need(cpu: &mut Cpu) -> Result<(), Abort>;
    /// The register of the first of two sources: the destination, except with [`TwoSources`].
    #[inline(always)]
    fn first(insn: &Insn) -> u8 {
        insn.dst
    }
    /// The register of the last source.
    #[inline(always)]
    fn second(insn: &Insn) -> u8 {
        insn.src
    }
    /// Sets an XMM register.
    fn set(cpu: &mut Cpu, n: u8, value: u128);
}

/// Without VEX: the destination is the first source, and a YMM register keeps its upper half.
pub(super) struct Legacy;
impl Encoding for Legacy {
    #[inline(always)]
    fn need(cpu: &mut Cpu) -> Result<(), Abort> {
        cpu.need_sse()
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, n: u8, value: u128) {
        cpu.set_xmm(n, value);
    }
}

/// With VEX and a register beside the last source. A YMM register loses its upper half.
pub(super) struct TwoSources;
impl Encoding for TwoSources {
    #[inline(always)]
    fn need(cpu: &mut Cpu) -> Result<(), Abort> {
        cpu.need_avx()
    }
    #[inline(always)]
    fn first(insn: &Insn) -> u8 {
        insn.src
    }
    #[inline(always)]
    fn second(insn: &Insn) -> u8 {
        insn.aux
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, n: u8, value: u128) {
        cpu.set_ymm(n, value, 0);
    }
}

/// With VEX and the operands of [`Legacy`].
pub(super) struct OneSource;
impl Encoding for OneSource {
    #[inline(always)]
    fn need(cpu: &mut Cpu) -> Result<(), Abort> {
        cpu.need_avx()
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, n: u8, value: u128) {
        cpu.set_ymm(n, value, 0);
    }
}

impl Cpu {
    /// Writes the destination of an instruction.
    #[inline(always)]
    pub(super) fn put<E: Encoding>(&mut self, insn: &Insn, value: u128) {
        E::set(self, insn.dst, value);
    }

    /// SSE instructions: #UD or #NM unless the system has them on (SDM Vol. 3A 13.1.3).
    #[inline(always)]
    pub(super) fn need_sse(&mut self) -> Result<(), Abort> {
        if self.sys.cr0 & (cr0::EM | cr0::TS) != 0 || self.sys.cr4 & cr4::OSFXSR == 0 {
            return Err(self.no_sse());
        }
        Ok(())
    }

    #[cold]
    fn no_sse(&mut self) -> Abort {
        if self.sys.cr0 & cr0::EM != 0 || self.sys.cr4 & cr4::OSFXSR == 0 {
            self.ud()
        } else {
            self.exception(vector::NM, None)
        }
    }

    /// MMX instructions: #UD or #NM unless the system has them on, #MF if an x87 exception is
    /// pending (SDM Vol. 3A 12.1, 12.5).
    #[inline(always)]
    pub(super) fn need_mmx(&mut self) -> Result<(), Abort> {
        if self.sys.cr0 & (cr0::EM | cr0::TS) != 0 || self.x87.pending() {
            return Err(self.no_mmx());
        }
        Ok(())
    }

    #[cold]
    fn no_mmx(&mut self) -> Abort {
        if self.sys.cr0 & cr0::EM != 0 {
            self.ud()
        } else if self.sys.cr0 & cr0::TS != 0 {
            self.exception(vector::NM, None)
        } else {
            self.exception(vector::MF, None)
        }
    }

    /// AVX instructions: #UD or #NM unless the system has them on (SDM Vol. 2A 2.4).
    #[inline(always)]
    pub(super) fn need_avx(&mut self) -> Result<(), Abort> {
        let s = &self.sys;
        if s.cr0 & cr0::TS != 0 || s.cr4 & cr4::OSXSAVE == 0 || s.xcr0 & component::AVX == 0 {
            return Err(self.no_avx());
        }
        Ok(())
    }

    #[cold]
    fn no_avx(&mut self) -> Abort {
        let s = &self.sys;
        if s.cr4 & cr4::OSXSAVE != 0 && s.xcr0 & component::AVX != 0 {
            self.exception(vector::NM, None)
        } else {
            self.ud()
        }
    }

    #[inline(always)]
    pub(super) fn xmm(&self, n: u8) -> u128 {
        self.xmm[usize::from(n & 15)]
    }

    #[inline(always)]
    pub(super) fn set_xmm(&mut self, n: u8, value: u128) {
        self.xmm[usize::from(n & 15)] = value;
    }

    #[inline(always)]
    pub(super) fn v(&self, n: u8) -> V {
        cast(self.xmm(n))
    }

    /// Loads a memory operand of 16 bytes, which must be aligned: #GP(0).
    #[inline(always)]
    pub(super) fn load_aligned(&mut self, insn: &Insn) -> Result<u128, Abort> {
        let la = self.aligned::<1>(insn)?;
        self.load128(la)
    }

    /// The source of 16 bytes: a register, or memory that must be aligned.
    #[inline(always)]
    pub(super) fn aligned_source(&mut self, insn: &Insn) -> Result<V, Abort> {
        Ok(if insn.prefix & Insn::MEM != 0 {
            cast(self.load_aligned(insn)?)
        } else {
            self.v(insn.src)
        })
    }

    /// The lanes of an XMM register (`L` = 1) or a YMM register (`L` = 2), the lower one first.
    #[inline(always)]
    pub(super) fn lanes<const L: usize>(&self, n: u8) -> [V; L] {
        from_fn(|i| match i {
            0 => self.v(n),
            _ => cast(self.ymm_high[usize::from(n & 15)]),
        })
    }

    /// Sets a register to these lanes and zeros above them.
    #[inline(always)]
    pub(super) fn set_lanes<const L: usize>(&mut self, n: u8, lanes: [V; L]) {
        let upper = lanes.get(1).map_or(0, |upper| cast(*upper));
        self.set_ymm(n, cast(lanes[0]), upper);
    }

    #[inline(always)]
    pub(super) fn set_ymm(&mut self, n: u8, lower: u128, upper: u128) {
        self.set_xmm(n, lower);
        self.ymm_high[usize::from(n & 15)] = upper;
    }

    /// Linear address of a memory operand that must be aligned to its size: #GP(0).
    #[inline(always)]
    pub(super) fn aligned<const L: usize>(&mut self, insn: &Insn) -> Result<u64, Abort> {
        let la = self.ea(insn);
        if la & (16 * L as u64 - 1) != 0 {
            return Err(self.gp(0));
        }
        Ok(la)
    }
}

/// The last source with VEX: memory, which need not be aligned, or register `n`.
#[inline(always)]
pub(super) fn source<const L: usize>(cpu: &mut Cpu, insn: &Insn, n: u8) -> Result<[V; L], Abort> {
    if insn.prefix & Insn::MEM == 0 {
        return Ok(cpu.lanes(n));
    }
    Ok(cpu.load::<[u128; L]>(cpu.ea(insn))?.map(cast))
}
