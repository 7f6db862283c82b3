//! Moves between registers and memory, single elements, and comparisons of strings.

use iced_x86::Code;

use super::{OneSource, TwoSources, V, cast, one_source, source};
use crate::exec::native::VectorForm;
use crate::exec::simd::integer::Punpcklqdq;
use crate::exec::simd::mxcsr::{ldmxcsr, stmxcsr};
use crate::exec::simd::shuffle::{movddup_mem, movddup_reg};
use crate::exec::simd::sse41::*;
use crate::exec::simd::sse42::{Explicit32, Explicit64, Implicit, index, mask};
use crate::exec::simd::transfer::*;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

fn load<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let v: [V; L] = source(cpu, insn, insn.src)?;
    cpu.set_lanes(insn.dst, v);
    Ok(Flow::Next)
}

fn load_aligned<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.aligned::<L>(insn)?;
    let v = cpu.load::<[u128; L]>(la)?;
    cpu.set_lanes(insn.dst, v.map(cast));
    Ok(Flow::Next)
}

#[inline(always)]
fn store_at<const L: usize>(cpu: &mut Cpu, insn: &Insn, la: u64) -> Exec {
    let v = cpu.lanes::<L>(insn.src).map(cast::<V, u128>);
    cpu.store(la, v)?;
    Ok(Flow::Next)
}

fn store<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.ea(insn);
    store_at::<L>(cpu, insn, la)
}

fn store_aligned<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let la = cpu.aligned::<L>(insn)?;
    store_at::<L>(cpu, insn, la)
}

/// Number of the registers that VZEROALL and VZEROUPPER clear.
fn registers(cpu: &Cpu) -> u8 {
    if cpu.in_64_bit_mode() { 16 } else { 8 }
}

fn vzeroupper(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_avx()?;
    let count = registers(cpu).into();
    cpu.ymm_high[..count].fill(0);
    Ok(Flow::Next)
}

fn vzeroall(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_avx()?;
    for n in 0..registers(cpu) {
        cpu.set_ymm(n, 0, 0);
    }
    Ok(Flow::Next)
}

/// The rows of moves whose memory operand need not be aligned.
fn unaligned<B: Backend, const L: usize>(t: &mut Table<B>, loads: [Code; 3], stores: [Code; 3]) {
    t.handler(loads, load::<L>).vector(VectorForm::UNALIGNED);
    t.handlers(stores, load::<L>, store::<L>)
        .vector(VectorForm::UNALIGNED);
}

/// The rows of moves whose memory operand must be aligned.
fn aligned<B: Backend, const L: usize>(t: &mut Table<B>, loads: [Code; 3], stores: [Code; 3]) {
    t.handlers(loads, load::<L>, load_aligned::<L>)
        .vector(VectorForm::ALIGNED);
    t.handlers(stores, load::<L>, store_aligned::<L>)
        .vector(VectorForm::ALIGNED);
}

#[rustfmt::skip]
fn whole_registers<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    unaligned::<B, 1>(t, [VEX_Vmovups_xmm_xmmm128, VEX_Vmovupd_xmm_xmmm128, VEX_Vmovdqu_xmm_xmmm128], [VEX_Vmovups_xmmm128_xmm, VEX_Vmovupd_xmmm128_xmm, VEX_Vmovdqu_xmmm128_xmm]);
    unaligned::<B, 2>(t, [VEX_Vmovups_ymm_ymmm256, VEX_Vmovupd_ymm_ymmm256, VEX_Vmovdqu_ymm_ymmm256], [VEX_Vmovups_ymmm256_ymm, VEX_Vmovupd_ymmm256_ymm, VEX_Vmovdqu_ymmm256_ymm]);
    aligned::<B, 1>(t, [VEX_Vmovaps_xmm_xmmm128, VEX_Vmovapd_xmm_xmmm128, VEX_Vmovdqa_xmm_xmmm128], [VEX_Vmovaps_xmmm128_xmm, VEX_Vmovapd_xmmm128_xmm, VEX_Vmovdqa_xmmm128_xmm]);
    aligned::<B, 2>(t, [VEX_Vmovaps_ymm_ymmm256, VEX_Vmovapd_ymm_ymmm256, VEX_Vmovdqa_ymm_ymmm256], [VEX_Vmovaps_ymmm256_ymm, VEX_Vmovapd_ymmm256_ymm, VEX_Vmovdqa_ymmm256_ymm]);
    t.handler([VEX_Vlddqu_xmm_m128], load::<1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vlddqu_ymm_m256], load::<2>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovntdqa_xmm_m128], load_aligned::<1>).vector_as([VEX_Vmovdqa_xmm_xmmm128], VectorForm::ALIGNED);
    t.handler([VEX_Vmovntdqa_ymm_m256], load_aligned::<2>).vector_as([VEX_Vmovdqa_ymm_ymmm256], VectorForm::ALIGNED);
    t.handler([VEX_Vmovntps_m128_xmm, VEX_Vmovntpd_m128_xmm, VEX_Vmovntdq_m128_xmm], store_aligned::<1>).vector_as([VEX_Vmovaps_xmmm128_xmm, VEX_Vmovapd_xmmm128_xmm, VEX_Vmovdqa_xmmm128_xmm], VectorForm::ALIGNED);
    t.handler([VEX_Vmovntps_m256_ymm, VEX_Vmovntpd_m256_ymm, VEX_Vmovntdq_m256_ymm], store_aligned::<2>).vector_as([VEX_Vmovaps_ymmm256_ymm, VEX_Vmovapd_ymmm256_ymm, VEX_Vmovdqa_ymmm256_ymm], VectorForm::ALIGNED);
    t.handler([VEX_Vzeroupper], vzeroupper);
    t.handler([VEX_Vzeroall], vzeroall);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    whole_registers(t);
    t.handler([VEX_Vmovss_xmm_xmm_xmm, VEX_Vmovss_xmm_xmm_xmm_0F11], movss_reg::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovsd_xmm_xmm_xmm, VEX_Vmovsd_xmm_xmm_xmm_0F11], movsd_reg::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovss_xmm_m32], load_low::<OneSource, u32>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovsd_xmm_m64], load_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovss_m32_xmm], store_low::<OneSource, u32>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovsd_m64_xmm, VEX_Vmovlps_m64_xmm, VEX_Vmovlpd_m64_xmm], store_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovhps_m64_xmm, VEX_Vmovhpd_m64_xmm], movhps_store::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovhlps_xmm_xmm_xmm], movhlps::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovlhps_xmm_xmm_xmm], movlhps::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovlps_xmm_xmm_m64, VEX_Vmovlpd_xmm_xmm_m64], movlps_load::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovhps_xmm_xmm_m64, VEX_Vmovhpd_xmm_xmm_m64], movhps_load::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovd_xmm_rm32], xmm_from_gpr::<OneSource, u32>, load_low::<OneSource, u32>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovq_xmm_rm64], xmm_from_gpr::<OneSource, u64>, load_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovd_rm32_xmm], gpr_from_xmm::<OneSource, u32>, store_low::<OneSource, u32>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovq_rm64_xmm], gpr_from_xmm::<OneSource, u64>, store_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovq_xmm_xmmm64], movq_reg::<OneSource>, load_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovq_xmmm64_xmm], movq_reg::<OneSource>, store_low::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vmovddup_xmm_xmmm64], movddup_reg::<OneSource>, movddup_mem::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovddup_ymm_ymmm256], one_source::<Punpcklqdq, 0, 2>).vector(VectorForm::UNALIGNED);
    t.handlers([VEX_Vpinsrw_xmm_xmm_r32m16_imm8, VEX_Vpinsrw_xmm_xmm_r64m16_imm8], pinsrw_xmm_reg::<TwoSources>, pinsrw_xmm_mem::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpinsrb_xmm_xmm_r32m8_imm8, VEX_Vpinsrb_xmm_xmm_r64m8_imm8], insert::<TwoSources, u8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpinsrd_xmm_xmm_rm32_imm8], insert::<TwoSources, u32>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpinsrq_xmm_xmm_rm64_imm8], insert::<TwoSources, u64>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vinsertps_xmm_xmm_xmmm32_imm8], insertps::<TwoSources>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpextrw_r32_xmm_imm8, VEX_Vpextrw_r64_xmm_imm8], pextrw_xmm::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpextrb_r32m8_xmm_imm8, VEX_Vpextrb_r64m8_xmm_imm8], extract::<OneSource, u8>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpextrw_r32m16_xmm_imm8, VEX_Vpextrw_r64m16_xmm_imm8], extract::<OneSource, u16>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpextrd_rm32_xmm_imm8, VEX_Vextractps_rm32_xmm_imm8, VEX_Vextractps_r64m32_xmm_imm8], extract::<OneSource, u32>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpextrq_rm64_xmm_imm8], extract::<OneSource, u64>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovmskb_r32_xmm, VEX_Vpmovmskb_r64_xmm], pmovmskb_xmm::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovmskps_r32_xmm, VEX_Vmovmskps_r64_xmm], movmskps::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmovmskpd_r32_xmm, VEX_Vmovmskpd_r64_xmm], movmskpd::<OneSource>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vmaskmovdqu_rDI_xmm_xmm], maskmovdqu::<OneSource>);
    t.handler([VEX_Vphminposuw_xmm_xmmm128], one_source::<Phminposuw, 0, 1>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxbw_xmm_xmmm64], extend::<OneSource, Pmovsxbw>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxbd_xmm_xmmm32], extend::<OneSource, Pmovsxbd>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxbq_xmm_xmmm16], extend::<OneSource, Pmovsxbq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxwd_xmm_xmmm64], extend::<OneSource, Pmovsxwd>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxwq_xmm_xmmm32], extend::<OneSource, Pmovsxwq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovsxdq_xmm_xmmm64], extend::<OneSource, Pmovsxdq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxbw_xmm_xmmm64], extend::<OneSource, Pmovzxbw>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxbd_xmm_xmmm32], extend::<OneSource, Pmovzxbd>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxbq_xmm_xmmm16], extend::<OneSource, Pmovzxbq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxwd_xmm_xmmm64], extend::<OneSource, Pmovzxwd>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxwq_xmm_xmmm32], extend::<OneSource, Pmovzxwq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpmovzxdq_xmm_xmmm64], extend::<OneSource, Pmovzxdq>).vector(VectorForm::UNALIGNED);
    t.handler([VEX_Vpcmpestri_xmm_xmmm128_imm8], index::<OneSource, Explicit32>);
    t.handler([VEX_Vpcmpestri64_xmm_xmmm128_imm8], index::<OneSource, Explicit64>);
    t.handler([VEX_Vpcmpestrm_xmm_xmmm128_imm8], mask::<OneSource, Explicit32>);
    t.handler([VEX_Vpcmpestrm64_xmm_xmmm128_imm8], mask::<OneSource, Explicit64>);
    t.handler([VEX_Vpcmpistri_xmm_xmmm128_imm8], index::<OneSource, Implicit>);
    t.handler([VEX_Vpcmpistrm_xmm_xmmm128_imm8], mask::<OneSource, Implicit>);
    t.handler([VEX_Vldmxcsr_m32], ldmxcsr::<OneSource>);
    t.handler([VEX_Vstmxcsr_m32], stmxcsr::<OneSource>);
}
