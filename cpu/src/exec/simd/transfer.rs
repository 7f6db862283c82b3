//! Moves between registers and memory, single elements, masks of signs.

use iced_x86::Code;

use super::sse2::{byte_signs, double_signs, single_signs};
use super::{Encoding, Legacy, V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::gpr;
use crate::state::int::Int;

const LOW: u128 = u64::MAX as u128;

// Whole registers

fn mov(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.set_xmm(insn.dst, cpu.xmm(insn.src));
    Ok(Flow::Next)
}

fn load_unaligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load128(cpu.ea(insn))?;
    cpu.set_xmm(insn.dst, v);
    Ok(Flow::Next)
}

fn load_aligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load_aligned(insn)?;
    cpu.set_xmm(insn.dst, v);
    Ok(Flow::Next)
}

fn store_unaligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.store128(cpu.ea(insn), cpu.xmm(insn.src))?;
    Ok(Flow::Next)
}

fn store_aligned(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let la = cpu.ea(insn);
    if la & 15 != 0 {
        return Err(cpu.gp(0));
    }
    cpu.store128(la, cpu.xmm(insn.src))?;
    Ok(Flow::Next)
}

// Parts of registers

/// The source's low bits, those of `mask`, replace the destination's.
#[inline(always)]
fn merge<E: Encoding>(cpu: &mut Cpu, insn: &Insn, value: u128, mask: u128) {
    cpu.put::<E>(insn, cpu.xmm(E::first(insn)) & !mask | value & mask);
}

pub(super) fn movss_reg<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    merge::<E>(cpu, insn, cpu.xmm(E::second(insn)), u32::MAX.into());
    Ok(Flow::Next)
}

pub(super) fn movsd_reg<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    merge::<E>(cpu, insn, cpu.xmm(E::second(insn)), LOW);
    Ok(Flow::Next)
}

pub(super) fn movhlps<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    merge::<E>(cpu, insn, cpu.xmm(E::second(insn)) >> 64, LOW);
    Ok(Flow::Next)
}

pub(super) fn movlhps<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    merge::<E>(cpu, insn, cpu.xmm(E::second(insn)) << 64, !LOW);
    Ok(Flow::Next)
}

pub(super) fn movlps_load<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let v = cpu.load::<u64>(cpu.ea(insn))?;
    merge::<E>(cpu, insn, v.into(), LOW);
    Ok(Flow::Next)
}

pub(super) fn movhps_load<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let v = cpu.load::<u64>(cpu.ea(insn))?;
    merge::<E>(cpu, insn, u128::from(v) << 64, !LOW);
    Ok(Flow::Next)
}

pub(super) fn movhps_store<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.store(cpu.ea(insn), (cpu.xmm(insn.src) >> 64) as u64)?;
    Ok(Flow::Next)
}

/// MOVSS, MOVSD, MOVD and MOVQ from memory: zero above.
pub(super) fn load_low<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let v = cpu.load::<T>(cpu.ea(insn))?.zext();
    cpu.put::<E>(insn, v.into());
    Ok(Flow::Next)
}

pub(super) fn store_low<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.store(cpu.ea(insn), T::from_u64(cpu.xmm(insn.src) as u64))?;
    Ok(Flow::Next)
}

/// MOVQ between XMM registers: zero above.
pub(super) fn movq_reg<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.put::<E>(insn, cpu.xmm(insn.src) & LOW);
    Ok(Flow::Next)
}

pub(super) fn xmm_from_gpr<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let v = cpu.r::<T>(insn.src).zext();
    cpu.put::<E>(insn, v.into());
    Ok(Flow::Next)
}

pub(super) fn gpr_from_xmm<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.w(insn.dst, T::from_u64(cpu.xmm(insn.src) as u64));
    Ok(Flow::Next)
}

// MMX registers

fn mm_from_gpr<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.r::<T>(insn.src).zext();
    cpu.x87.set_mm(insn.dst, v);
    Ok(Flow::Next)
}

fn gpr_from_mm<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.w(insn.dst, T::from_u64(cpu.x87.mm(insn.src)));
    Ok(Flow::Next)
}

fn mm_load<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.load::<T>(cpu.ea(insn))?.zext();
    cpu.x87.set_mm(insn.dst, v);
    Ok(Flow::Next)
}

fn mm_store<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    cpu.store(cpu.ea(insn), T::from_u64(cpu.x87.mm(insn.src)))?;
    cpu.x87.enter_mmx();
    Ok(Flow::Next)
}

fn mm_mov(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let v = cpu.x87.mm(insn.src);
    cpu.x87.set_mm(insn.dst, v);
    Ok(Flow::Next)
}

fn movq2dq(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.set_xmm(insn.dst, cpu.x87.mm(insn.src).into());
    Ok(Flow::Next)
}

fn movdq2q(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    cpu.x87.set_mm(insn.dst, cpu.xmm(insn.src) as u64);
    Ok(Flow::Next)
}

fn emms(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.leave_mmx();
    Ok(Flow::Next)
}

// Words, and masks of signs

fn pinsrw(old: u128, word: u16, n: u64) -> u128 {
    let shift = 16 * (n & 7) as u32;
    old & !(0xFFFF << shift) | u128::from(word) << shift
}

pub(super) fn pinsrw_xmm_reg<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.put::<E>(
        insn,
        pinsrw(cpu.xmm(E::first(insn)), cpu.r(E::second(insn)), insn.imm),
    );
    Ok(Flow::Next)
}

pub(super) fn pinsrw_xmm_mem<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let word = cpu.load(cpu.ea(insn))?;
    cpu.put::<E>(insn, pinsrw(cpu.xmm(E::first(insn)), word, insn.imm));
    Ok(Flow::Next)
}

fn pinsrw_mm_reg(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let r = pinsrw(cpu.x87.mm(insn.dst).into(), cpu.r(insn.src), insn.imm & 3);
    cpu.x87.set_mm(insn.dst, r as u64);
    Ok(Flow::Next)
}

fn pinsrw_mm_mem(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let word = cpu.load(cpu.ea(insn))?;
    let r = pinsrw(cpu.x87.mm(insn.dst).into(), word, insn.imm & 3);
    cpu.x87.set_mm(insn.dst, r as u64);
    Ok(Flow::Next)
}

pub(super) fn pextrw_xmm<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let word = (cpu.xmm(insn.src) >> (16 * (insn.imm & 7))) as u16;
    cpu.w(insn.dst, u64::from(word));
    Ok(Flow::Next)
}

fn pextrw_mm(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    let word = (cpu.x87.mm(insn.src) >> (16 * (insn.imm & 3))) as u16;
    cpu.w(insn.dst, u64::from(word));
    Ok(Flow::Next)
}

fn pmovmskb_mm(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    cpu.x87.enter_mmx();
    cpu.w(insn.dst, byte_signs(cast(u128::from(cpu.x87.mm(insn.src)))));
    Ok(Flow::Next)
}

#[inline(always)]
fn xmm_signs<E: Encoding>(cpu: &mut Cpu, insn: &Insn, signs: impl Fn(V) -> u64) -> Exec {
    E::need(cpu)?;
    cpu.w(insn.dst, signs(cpu.v(insn.src)));
    Ok(Flow::Next)
}

pub(super) fn pmovmskb_xmm<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    xmm_signs::<E>(cpu, insn, byte_signs)
}

pub(super) fn movmskps<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    xmm_signs::<E>(cpu, insn, single_signs)
}

pub(super) fn movmskpd<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    xmm_signs::<E>(cpu, insn, double_signs)
}

/// Linear address of byte `n` at rDI; the address size is in `dst`.
fn at_rdi(cpu: &mut Cpu, insn: &Insn, n: u64) -> Result<u64, Abort> {
    let size = u64::MAX >> (64 - u32::from(insn.dst));
    let offset = (cpu.gpr[gpr::RDI] & size).wrapping_add(n) & size;
    cpu.linear_address(insn.seg, offset, 1, true)
}

/// Stores the bytes of `value` whose byte of `mask` has its sign set, all or none.
fn masked_store<const N: usize>(cpu: &mut Cpu, insn: &Insn, value: u128, mask: u128) -> Exec {
    let (value, mask): ([u8; 16], [u8; 16]) = (cast(value), cast(mask));
    let mut selected = [(0, 0); N];
    let mut count = 0;
    for (i, (&byte, _)) in value
        .iter()
        .zip(&mask)
        .enumerate()
        .take(N)
        .filter(|(_, (_, m))| **m & 0x80 != 0)
    {
        let la = at_rdi(cpu, insn, i as u64)?;
        cpu.check_writable(la, 1)?;
        selected[count] = (la, byte);
        count += 1;
    }
    for &(la, byte) in &selected[..count] {
        cpu.store(la, byte)?;
    }
    Ok(Flow::Next)
}

pub(super) fn maskmovdqu<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    masked_store::<16>(cpu, insn, cpu.xmm(insn.src), cpu.xmm(insn.aux))
}

fn maskmovq(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let (value, mask) = (cpu.x87.mm(insn.src), cpu.x87.mm(insn.aux));
    masked_store::<8>(cpu, insn, value.into(), mask.into())?;
    cpu.x87.enter_mmx();
    Ok(Flow::Next)
}

// No vector registers

fn movnti<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.store(cpu.ea(insn), cpu.r::<T>(insn.src))?;
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handlers([Movaps_xmm_xmmm128, Movapd_xmm_xmmm128, Movdqa_xmm_xmmm128], mov, load_aligned).vector(VectorForm::ALIGNED);
    t.handlers([Movaps_xmmm128_xmm, Movapd_xmmm128_xmm, Movdqa_xmmm128_xmm], mov, store_aligned).vector(VectorForm::ALIGNED);
    t.handlers([Movups_xmm_xmmm128, Movupd_xmm_xmmm128, Movdqu_xmm_xmmm128], mov, load_unaligned).vector(VectorForm::UNALIGNED);
    t.handlers([Movups_xmmm128_xmm, Movupd_xmmm128_xmm, Movdqu_xmmm128_xmm], mov, store_unaligned).vector(VectorForm::UNALIGNED);
    t.handler([Lddqu_xmm_m128], load_unaligned).vector(VectorForm::UNALIGNED);
    t.handler([Movntps_m128_xmm, Movntpd_m128_xmm, Movntdq_m128_xmm], store_aligned).vector_as([Movaps_xmmm128_xmm, Movapd_xmmm128_xmm, Movdqa_xmmm128_xmm], VectorForm::ALIGNED);
    t.handlers([Movss_xmm_xmmm32], movss_reg::<Legacy>, load_low::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handlers([Movss_xmmm32_xmm], movss_reg::<Legacy>, store_low::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handlers([Movsd_xmm_xmmm64], movsd_reg::<Legacy>, load_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movsd_xmmm64_xmm], movsd_reg::<Legacy>, store_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movd_xmm_rm32], xmm_from_gpr::<Legacy, u32>, load_low::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handlers([Movq_xmm_rm64], xmm_from_gpr::<Legacy, u64>, load_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movd_rm32_xmm], gpr_from_xmm::<Legacy, u32>, store_low::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handlers([Movq_rm64_xmm], gpr_from_xmm::<Legacy, u64>, store_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movq_xmm_xmmm64], movq_reg::<Legacy>, load_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movq_xmmm64_xmm], movq_reg::<Legacy>, store_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handlers([Movd_mm_rm32], mm_from_gpr::<u32>, mm_load::<u32>);
    t.handlers([Movq_mm_rm64], mm_from_gpr::<u64>, mm_load::<u64>);
    t.handlers([Movd_rm32_mm], gpr_from_mm::<u32>, mm_store::<u32>);
    t.handlers([Movq_rm64_mm], gpr_from_mm::<u64>, mm_store::<u64>);
    t.handlers([Movq_mm_mmm64], mm_mov, mm_load::<u64>);
    t.handlers([Movq_mmm64_mm], mm_mov, mm_store::<u64>);
    t.handler([Movhlps_xmm_xmm], movhlps::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movlhps_xmm_xmm], movlhps::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movlps_xmm_m64, Movlpd_xmm_m64], movlps_load::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movlps_m64_xmm, Movlpd_m64_xmm], store_low::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handler([Movhps_xmm_m64, Movhpd_xmm_m64], movhps_load::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movhps_m64_xmm, Movhpd_m64_xmm], movhps_store::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movntq_m64_mm], mm_store::<u64>);
    t.handler([Movq2dq_xmm_mm], movq2dq);
    t.handler([Movdq2q_mm_xmm], movdq2q);
    t.handler([Emms], emms);
    t.handlers([Pinsrw_mm_r32m16_imm8, Pinsrw_mm_r64m16_imm8], pinsrw_mm_reg, pinsrw_mm_mem);
    t.handlers([Pinsrw_xmm_r32m16_imm8, Pinsrw_xmm_r64m16_imm8], pinsrw_xmm_reg::<Legacy>, pinsrw_xmm_mem::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Pextrw_r32_mm_imm8, Pextrw_r64_mm_imm8], pextrw_mm);
    t.handler([Pextrw_r32_xmm_imm8, Pextrw_r64_xmm_imm8], pextrw_xmm::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Pmovmskb_r32_mm, Pmovmskb_r64_mm], pmovmskb_mm);
    t.handler([Pmovmskb_r32_xmm, Pmovmskb_r64_xmm], pmovmskb_xmm::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movmskps_r32_xmm, Movmskps_r64_xmm], movmskps::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movmskpd_r32_xmm, Movmskpd_r64_xmm], movmskpd::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Maskmovq_rDI_mm_mm], maskmovq);
    t.handler([Maskmovdqu_rDI_xmm_xmm], maskmovdqu::<Legacy>);
    t.handler([Movnti_m32_r32], movnti::<u32>);
    t.handler([Movnti_m64_r64], movnti::<u64>);
}
