//! The vector instructions with VEX: AVX, AVX2, FMA and F16C (SDM Vol. 1 14).
//!
//! Most do with each lane of 128 bits what the SSE instruction does, so they use its kernel. They
//! have a destination of their own, of which they clear the bits above the vector, and their
//! memory operands need not be aligned.

mod broadcast;
mod convert;
mod float;
mod fma;
mod gather;
mod integer;
mod mask;
mod permute;
mod transfer;

use std::array::from_fn;

use iced_x86::Code;

use super::aes::*;
use super::{Encoding, Packed, V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::xsave::component;
use crate::state::{cr0, cr4, vector};

impl Cpu {
    /// AVX instructions: #UD or #NM unless the system has them on (SDM Vol. 2A 2.4).
    #[inline(always)]
    fn need_avx(&mut self) -> Result<(), Abort> {
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

    /// The lanes of an XMM register (`L` = 1) or a YMM register (`L` = 2), the lower one first.
    #[inline(always)]
    fn lanes<const L: usize>(&self, n: u8) -> [V; L] {
        from_fn(|i| match i {
            0 => self.v(n),
            _ => cast(self.ymm_high[usize::from(n & 15)]),
        })
    }

    /// Sets a register to these lanes and zeros above them.
    #[inline(always)]
    fn set_lanes<const L: usize>(&mut self, n: u8, lanes: [V; L]) {
        let upper = lanes.get(1).map_or(0, |upper| cast(*upper));
        self.set_ymm(n, cast(lanes[0]), upper);
    }

    #[inline(always)]
    fn set_ymm(&mut self, n: u8, lower: u128, upper: u128) {
        self.set_xmm(n, lower);
        self.ymm_high[usize::from(n & 15)] = upper;
    }

    /// Linear address of a memory operand that must be aligned to its size: #GP(0).
    #[inline(always)]
    fn aligned<const L: usize>(&mut self, insn: &Insn) -> Result<u64, Abort> {
        let la = self.ea(insn);
        if la & (16 * L as u64 - 1) != 0 {
            return Err(self.gp(0));
        }
        Ok(la)
    }
}

/// With VEX and a register beside the last source. A YMM register loses its upper half.
struct TwoSources;
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

/// With VEX and the operands of [`Legacy`](super::Legacy).
struct OneSource;
impl Encoding for OneSource {
    #[inline(always)]
    fn need(cpu: &mut Cpu) -> Result<(), Abort> {
        cpu.need_avx()
    }
    #[inline(always)]
    fn first(insn: &Insn) -> u8 {
        insn.dst
    }
    #[inline(always)]
    fn second(insn: &Insn) -> u8 {
        insn.src
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, n: u8, value: u128) {
        cpu.set_ymm(n, value, 0);
    }
}

/// The last source: memory, which need not be aligned, or register `n`.
#[inline(always)]
fn source<const L: usize>(cpu: &mut Cpu, insn: &Insn, n: u8) -> Result<[V; L], Abort> {
    if insn.prefix & Insn::MEM == 0 {
        return Ok(cpu.lanes(n));
    }
    Ok(cpu.load::<[u128; L]>(cpu.ea(insn))?.map(cast))
}

/// `K` on each lane. The immediate of a lane is that of the one below, shifted by `STEP`.
#[inline(always)]
fn each<K: Packed, const STEP: usize, const L: usize>(a: [V; L], b: [V; L], imm: u64) -> [V; L] {
    from_fn(|i| K::full(a[i], b[i], (imm >> (STEP * i)) as u8))
}

fn two_sources<K: Packed, const STEP: usize, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b = source(cpu, insn, insn.aux)?;
    let r = each::<K, STEP, L>(cpu.lanes(insn.src), b, insn.imm);
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

fn one_source<K: Packed, const STEP: usize, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b = source(cpu, insn, insn.src)?;
    let r = each::<K, STEP, L>(b, b, insn.imm);
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// The rows of an instruction with two sources, on XMM and on YMM registers.
fn binary<B: Backend, K: Packed>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    binary_in_steps::<B, K, 0>(t, xmm, ymm);
}

/// [`binary`] where each lane has `STEP` bits of the immediate.
fn binary_in_steps<B: Backend, K: Packed, const STEP: usize>(
    t: &mut Table<B>,
    xmm: Code,
    ymm: Code,
) {
    t.handler([xmm], two_sources::<K, STEP, 1>)
        .vector(VectorForm::UNALIGNED);
    t.handler([ymm], two_sources::<K, STEP, 2>)
        .vector(VectorForm::UNALIGNED);
}

/// The rows of an instruction with one source, on XMM and on YMM registers.
fn unary<B: Backend, K: Packed>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], one_source::<K, 0, 1>)
        .vector(VectorForm::UNALIGNED);
    t.handler([ymm], one_source::<K, 0, 2>)
        .vector(VectorForm::UNALIGNED);
}

/// The rows of AES and carry-less multiplication. Those on YMM registers are VAES and VPCLMULQDQ.
#[rustfmt::skip]
fn aes<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    binary::<B, Aesenc>(t, VEX_Vaesenc_xmm_xmm_xmmm128, VEX_Vaesenc_ymm_ymm_ymmm256);
    binary::<B, Aesenclast>(t, VEX_Vaesenclast_xmm_xmm_xmmm128, VEX_Vaesenclast_ymm_ymm_ymmm256);
    binary::<B, Aesdec>(t, VEX_Vaesdec_xmm_xmm_xmmm128, VEX_Vaesdec_ymm_ymm_ymmm256);
    binary::<B, Aesdeclast>(t, VEX_Vaesdeclast_xmm_xmm_xmmm128, VEX_Vaesdeclast_ymm_ymm_ymmm256);
    binary::<B, Pclmulqdq>(t, VEX_Vpclmulqdq_xmm_xmm_xmmm128_imm8, VEX_Vpclmulqdq_ymm_ymm_ymmm256_imm8);
    t.handler([VEX_Vaesimc_xmm_xmmm128], one_source::<Aesimc, 0, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vaeskeygenassist_xmm_xmmm128_imm8], one_source::<Aeskeygenassist, 0, 1>).vector(VectorForm::UNALIGNED);
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    aes(t);
    transfer::rows(t);
    integer::rows(t);
    float::rows(t);
    convert::rows(t);
    broadcast::rows(t);
    permute::rows(t);
    mask::rows(t);
    gather::rows(t);
    fma::rows(t);
}
