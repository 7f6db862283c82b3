//! Instructions that go by the signs of elements: masked moves, blends, tests, and masks of signs.

use std::marker::PhantomData;

use iced_x86::Code;

use super::{V, cast, source};
use crate::exec::native::VectorForm;
use crate::exec::simd::sse2::{byte_signs, double_signs, single_signs};
use crate::exec::simd::sse41::{Blendvpd, Blendvps, BySign, Pblendvb};
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

/// The elements of type `T` of a YMM register.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elements<T>([u64; 4], PhantomData<T>);

impl<T: Int> Elements<T> {
    const IN_WORD: usize = 64 / T::BITS as usize;

    #[inline(always)]
    pub(super) fn of(cpu: &Cpu, register: u8) -> Self {
        let [lower, upper] = cpu.lanes::<2>(register).map(cast::<V, [u64; 2]>);
        Self([lower[0], lower[1], upper[0], upper[1]], PhantomData)
    }

    #[inline(always)]
    pub(super) fn zero() -> Self {
        Self([0; 4], PhantomData)
    }

    #[inline(always)]
    fn shift(i: usize) -> u32 {
        T::BITS * (i % Self::IN_WORD) as u32
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> T {
        T::from_u64(self.0[i / Self::IN_WORD] >> Self::shift(i))
    }

    #[inline(always)]
    pub(super) fn set(&mut self, i: usize, element: T) {
        let ones = T::from_u64(u64::MAX).zext() << Self::shift(i);
        let word = &mut self.0[i / Self::IN_WORD];
        *word = *word & !ones | element.zext() << Self::shift(i);
    }

    /// Clears the elements from the `n`th on.
    #[inline(always)]
    pub(super) fn clear_from(&mut self, n: usize) {
        for i in n..4 * Self::IN_WORD {
            self.set(i, T::default());
        }
    }

    #[inline(always)]
    pub(super) fn put(self, cpu: &mut Cpu, register: u8) {
        let [a, b, c, d] = self.0;
        cpu.set_lanes(register, [cast([a, b]), cast([c, d])]);
    }
}

// Masked moves (SDM Vol. 2C, VMASKMOV and VPMASKMOV). Only what is selected can fault, and there is
// no #AC.

/// The effective address of the memory operand, and `offset`.
pub(super) fn effective_address(cpu: &mut Cpu, insn: &Insn, offset: u64) -> u64 {
    let relative = match insn.base {
        reg::BLOCK => insn.next_offset(),
        _ => 0,
    };
    let offset = cpu.ea(insn).wrapping_add(relative).wrapping_add(offset);
    match insn.prefix & (Insn::A16 | Insn::A32) {
        0 => offset,
        Insn::A32 => offset & 0xFFFF_FFFF,
        _ => offset & 0xFFFF,
    }
}

/// Linear address of the `i`th of elements that follow each other. As in other operands, their
/// addresses do not wrap around at the address size.
fn at<T: Int>(cpu: &mut Cpu, insn: &Insn, i: usize, write: bool) -> Result<u64, Abort> {
    let offset = effective_address(cpu, insn, 0).wrapping_add((i * T::BYTES) as u64);
    cpu.linear_address(insn.seg, offset, T::BYTES as u32, write)
}

/// Loads the selected ones of `N` elements, and zeros for the others.
fn masked_load<T: Int, const N: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let mask = Elements::<T>::of(cpu, insn.src);
    let mut result = Elements::<T>::zero();
    for i in (0..N).filter(|i| mask.get(*i).msb()) {
        let la = at::<T>(cpu, insn, i, false)?;
        result.set(i, cpu.load_as(la, cpu.privilege.without_alignment())?);
    }
    result.put(cpu, insn.dst);
    Ok(Flow::Next)
}

/// Stores the selected ones of `N` elements, all or none.
fn masked_store<T: Int, const N: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let mask = Elements::<T>::of(cpu, insn.src);
    let values = Elements::<T>::of(cpu, insn.aux);
    let selected = || (0..N).filter(|i| mask.get(*i).msb());
    let privilege = cpu.privilege.without_alignment();
    for i in selected() {
        let la = at::<T>(cpu, insn, i, true)?;
        cpu.check_writable_as(la, T::BYTES, T::BYTES, privilege)?;
    }
    for i in selected() {
        let la = at::<T>(cpu, insn, i, true)?;
        cpu.store_as(la, values.get(i), privilege)?;
    }
    Ok(Flow::Next)
}

// Blends and tests

/// The fourth operand, the mask, is in the immediate.
fn blendv<K: BySign, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.aux)?;
    let (a, mask) = (cpu.lanes::<L>(insn.src), cpu.lanes::<L>(insn.imm as u8));
    let r = std::array::from_fn(|i| K::run(a[i], b[i], mask[i]));
    cpu.set_lanes::<L>(insn.dst, r);
    Ok(Flow::Next)
}

/// The bits of which a test takes account.
const ALL: u128 = u128::MAX;
const SINGLE_SIGNS: u128 = 0x8000_0000_8000_0000_8000_0000_8000_0000;
const DOUBLE_SIGNS: u128 = 0x8000_0000_0000_0000_8000_0000_0000_0000;

/// VPTEST, VTESTPS and VTESTPD: ZF is set if AND is zero, CF if AND NOT is zero.
fn test<const BITS: u128, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.src)?;
    let a = cpu.lanes::<L>(insn.dst);
    let (mut and, mut and_not) = (0, 0);
    for (a, b) in a.into_iter().zip(b) {
        let (a, b): (u128, u128) = (cast(a), cast(b));
        and |= a & b & BITS;
        and_not |= !a & b & BITS;
    }
    let flag = |set, bit| if set { bit } else { 0 };
    cpu.flags = Lazy::from_bits(flag(and == 0, rflags::ZF) | flag(and_not == 0, rflags::CF));
    Ok(Flow::Next)
}

/// The masks of signs of a YMM register, with `N` elements in a lane.
#[inline(always)]
fn signs<const N: u32>(cpu: &mut Cpu, insn: &Insn, of: impl Fn(V) -> u64) -> Exec {
    cpu.need_avx()?;
    let [lower, upper] = cpu.lanes::<2>(insn.src);
    cpu.w(insn.dst, of(lower) | of(upper) << N);
    Ok(Flow::Next)
}

fn bytes(cpu: &mut Cpu, insn: &Insn) -> Exec {
    signs::<16>(cpu, insn, byte_signs)
}

fn singles(cpu: &mut Cpu, insn: &Insn) -> Exec {
    signs::<4>(cpu, insn, single_signs)
}

fn doubles(cpu: &mut Cpu, insn: &Insn) -> Exec {
    signs::<2>(cpu, insn, double_signs)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([VEX_Vmaskmovps_xmm_xmm_m128, VEX_Vpmaskmovd_xmm_xmm_m128], masked_load::<u32, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_ymm_ymm_m256, VEX_Vpmaskmovd_ymm_ymm_m256], masked_load::<u32, 8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_xmm_xmm_m128, VEX_Vpmaskmovq_xmm_xmm_m128], masked_load::<u64, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_ymm_ymm_m256, VEX_Vpmaskmovq_ymm_ymm_m256], masked_load::<u64, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_m128_xmm_xmm, VEX_Vpmaskmovd_m128_xmm_xmm], masked_store::<u32, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovps_m256_ymm_ymm, VEX_Vpmaskmovd_m256_ymm_ymm], masked_store::<u32, 8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_m128_xmm_xmm, VEX_Vpmaskmovq_m128_xmm_xmm], masked_store::<u64, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovpd_m256_ymm_ymm, VEX_Vpmaskmovq_m256_ymm_ymm], masked_store::<u64, 4>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vblendvps_xmm_xmm_xmmm128_xmm], blendv::<Blendvps, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vblendvps_ymm_ymm_ymmm256_ymm], blendv::<Blendvps, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vblendvpd_xmm_xmm_xmmm128_xmm], blendv::<Blendvpd, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vblendvpd_ymm_ymm_ymmm256_ymm], blendv::<Blendvpd, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpblendvb_xmm_xmm_xmmm128_xmm], blendv::<Pblendvb, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpblendvb_ymm_ymm_ymmm256_ymm], blendv::<Pblendvb, 2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vptest_xmm_xmmm128], test::<ALL, 1>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vptest_ymm_ymmm256], test::<ALL, 2>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vtestps_xmm_xmmm128], test::<SINGLE_SIGNS, 1>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vtestps_ymm_ymmm256], test::<SINGLE_SIGNS, 2>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vtestpd_xmm_xmmm128], test::<DOUBLE_SIGNS, 1>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vtestpd_ymm_ymmm256], test::<DOUBLE_SIGNS, 2>).vector(VectorForm::UNALIGNED.flags());
    t.handler([VEX_Vpmovmskb_r32_ymm, VEX_Vpmovmskb_r64_ymm], bytes).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovmskps_r32_ymm, VEX_Vmovmskps_r64_ymm], singles).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovmskpd_r32_ymm, VEX_Vmovmskpd_r64_ymm], doubles).vector(VectorForm::UNALIGNED);
}
