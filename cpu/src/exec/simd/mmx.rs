//! Moves of MMX registers. Without VEX, and on no other registers.

use iced_x86::Code;

use super::cast;
use super::sse2::byte_signs;
use super::transfer::masked_store;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

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

fn with_word(old: u128, word: u16, n: u64) -> u128 {
    let shift = 16 * (n & 7) as u32;
    old & !(0xFFFF << shift) | u128::from(word) << shift
}

fn pinsrw_mm_reg(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let r = with_word(cpu.x87.mm(insn.dst).into(), cpu.r(insn.src), insn.imm & 3);
    cpu.x87.set_mm(insn.dst, r as u64);
    Ok(Flow::Next)
}

fn pinsrw_mm_mem(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let word = cpu.load(cpu.ea(insn))?;
    let r = with_word(cpu.x87.mm(insn.dst).into(), word, insn.imm & 3);
    cpu.x87.set_mm(insn.dst, r as u64);
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

fn maskmovq(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let (value, mask) = (cpu.x87.mm(insn.src), cpu.x87.mm(insn.aux));
    masked_store::<8>(cpu, insn, value.into(), mask.into())?;
    cpu.x87.enter_mmx();
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handlers([Movd_mm_rm32], mm_from_gpr::<u32>, mm_load::<u32>);
    t.handlers([Movq_mm_rm64], mm_from_gpr::<u64>, mm_load::<u64>);
    t.handlers([Movd_rm32_mm], gpr_from_mm::<u32>, mm_store::<u32>);
    t.handlers([Movq_rm64_mm], gpr_from_mm::<u64>, mm_store::<u64>);
    t.handlers([Movq_mm_mmm64], mm_mov, mm_load::<u64>);
    t.handlers([Movq_mmm64_mm], mm_mov, mm_store::<u64>);
    t.handler([Movntq_m64_mm], mm_store::<u64>);
    t.handler([Movq2dq_xmm_mm], movq2dq);
    t.handler([Movdq2q_mm_xmm], movdq2q);
    t.handler([Emms], emms);
    t.handlers([Pinsrw_mm_r32m16_imm8, Pinsrw_mm_r64m16_imm8], pinsrw_mm_reg, pinsrw_mm_mem);
    t.handler([Pextrw_r32_mm_imm8, Pextrw_r64_mm_imm8], pextrw_mm);
    t.handler([Pmovmskb_r32_mm, Pmovmskb_r64_mm], pmovmskb_mm);
    t.handler([Maskmovq_rDI_mm_mm], maskmovq);
}
