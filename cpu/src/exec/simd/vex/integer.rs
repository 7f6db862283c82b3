//! Packed integers: arithmetic, comparison, logic, shifts, shuffles and blends.

use std::array::from_fn;

use iced_x86::Code;

use super::{binary, binary_in_steps, cast, source, unary};
use crate::exec::native::VectorForm;
use crate::exec::simd::integer::*;
use crate::exec::simd::shuffle::*;
use crate::exec::simd::sse41::*;
use crate::exec::simd::ssse3::*;
use crate::exec::simd::{Packed, V, packed};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// VPSLLVD and its relatives: each element of `a`, shifted by that of `b`.
macro_rules! by_element {
    ($t:ty, $n:literal, $a:expr, $b:expr, $shift:expr) => {{
        let shift: fn($t, u32) -> $t = $shift;
        zip::<$t, $n>($a, $b, |a, b| shift(a, b.try_into().unwrap_or(u32::MAX)))
    }};
}

packed! {
    Psllvd(a, b, _) => by_element!(u32, 4, a, b, |a, n| a.checked_shl(n).unwrap_or(0)),
    Psllvq(a, b, _) => by_element!(u64, 2, a, b, |a, n| a.checked_shl(n).unwrap_or(0)),
    Psrlvd(a, b, _) => by_element!(u32, 4, a, b, |a, n| a.checked_shr(n).unwrap_or(0)),
    Psrlvq(a, b, _) => by_element!(u64, 2, a, b, |a, n| a.checked_shr(n).unwrap_or(0)),
    Psravd(a, b, _) => by_element!(u32, 4, a, b, |a, n| (a as i32 >> n.min(31)) as u32),
}

/// Shifts all elements by the same count, which has 128 bits.
fn shift<K: Packed, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [count] = source(cpu, insn, insn.aux)?;
    let r = cpu.lanes::<L>(insn.src).map(|a| K::full(a, count, 0));
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// Shifts by an immediate.
fn shift_imm<K: Packed, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let count = insn.imm as u8;
    let a = cpu.lanes::<L>(insn.src);
    let r = from_fn(|i| K::full(a[i], cast(u128::from(count)), count));
    cpu.set_lanes::<L>(insn.dst, r);
    Ok(Flow::Next)
}

/// The rows of a shift of which every element has the same count.
fn counted<B: Backend, K: Packed>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], shift::<K, 1>)
        .vector(VectorForm::UNALIGNED);
    t.handler([ymm], shift::<K, 2>)
        .vector(VectorForm::UNALIGNED);
}

/// The rows of a shift by an immediate.
fn by_immediate<B: Backend, K: Packed>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], shift_imm::<K, 1>)
        .vector(VectorForm::UNALIGNED);
    t.handler([ymm], shift_imm::<K, 2>)
        .vector(VectorForm::UNALIGNED);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    binary::<B, Punpckldq>(t, VEX_Vunpcklps_xmm_xmm_xmmm128, VEX_Vunpcklps_ymm_ymm_ymmm256);
    binary::<B, Punpcklqdq>(t, VEX_Vunpcklpd_xmm_xmm_xmmm128, VEX_Vunpcklpd_ymm_ymm_ymmm256);
    binary::<B, Punpckhdq>(t, VEX_Vunpckhps_xmm_xmm_xmmm128, VEX_Vunpckhps_ymm_ymm_ymmm256);
    binary::<B, Punpckhqdq>(t, VEX_Vunpckhpd_xmm_xmm_xmmm128, VEX_Vunpckhpd_ymm_ymm_ymmm256);
    binary::<B, Pand>(t, VEX_Vandps_xmm_xmm_xmmm128, VEX_Vandps_ymm_ymm_ymmm256);
    binary::<B, Pand>(t, VEX_Vandpd_xmm_xmm_xmmm128, VEX_Vandpd_ymm_ymm_ymmm256);
    binary::<B, Pandn>(t, VEX_Vandnps_xmm_xmm_xmmm128, VEX_Vandnps_ymm_ymm_ymmm256);
    binary::<B, Pandn>(t, VEX_Vandnpd_xmm_xmm_xmmm128, VEX_Vandnpd_ymm_ymm_ymmm256);
    binary::<B, Por>(t, VEX_Vorps_xmm_xmm_xmmm128, VEX_Vorps_ymm_ymm_ymmm256);
    binary::<B, Por>(t, VEX_Vorpd_xmm_xmm_xmmm128, VEX_Vorpd_ymm_ymm_ymmm256);
    binary::<B, Pxor>(t, VEX_Vxorps_xmm_xmm_xmmm128, VEX_Vxorps_ymm_ymm_ymmm256);
    binary::<B, Pxor>(t, VEX_Vxorpd_xmm_xmm_xmmm128, VEX_Vxorpd_ymm_ymm_ymmm256);
    binary::<B, Punpcklbw>(t, VEX_Vpunpcklbw_xmm_xmm_xmmm128, VEX_Vpunpcklbw_ymm_ymm_ymmm256);
    binary::<B, Punpcklwd>(t, VEX_Vpunpcklwd_xmm_xmm_xmmm128, VEX_Vpunpcklwd_ymm_ymm_ymmm256);
    binary::<B, Punpckldq>(t, VEX_Vpunpckldq_xmm_xmm_xmmm128, VEX_Vpunpckldq_ymm_ymm_ymmm256);
    binary::<B, Packsswb>(t, VEX_Vpacksswb_xmm_xmm_xmmm128, VEX_Vpacksswb_ymm_ymm_ymmm256);
    binary::<B, Pcmpgtb>(t, VEX_Vpcmpgtb_xmm_xmm_xmmm128, VEX_Vpcmpgtb_ymm_ymm_ymmm256);
    binary::<B, Pcmpgtw>(t, VEX_Vpcmpgtw_xmm_xmm_xmmm128, VEX_Vpcmpgtw_ymm_ymm_ymmm256);
    binary::<B, Pcmpgtd>(t, VEX_Vpcmpgtd_xmm_xmm_xmmm128, VEX_Vpcmpgtd_ymm_ymm_ymmm256);
    binary::<B, Packuswb>(t, VEX_Vpackuswb_xmm_xmm_xmmm128, VEX_Vpackuswb_ymm_ymm_ymmm256);
    binary::<B, Punpckhbw>(t, VEX_Vpunpckhbw_xmm_xmm_xmmm128, VEX_Vpunpckhbw_ymm_ymm_ymmm256);
    binary::<B, Punpckhwd>(t, VEX_Vpunpckhwd_xmm_xmm_xmmm128, VEX_Vpunpckhwd_ymm_ymm_ymmm256);
    binary::<B, Punpckhdq>(t, VEX_Vpunpckhdq_xmm_xmm_xmmm128, VEX_Vpunpckhdq_ymm_ymm_ymmm256);
    binary::<B, Packssdw>(t, VEX_Vpackssdw_xmm_xmm_xmmm128, VEX_Vpackssdw_ymm_ymm_ymmm256);
    binary::<B, Punpcklqdq>(t, VEX_Vpunpcklqdq_xmm_xmm_xmmm128, VEX_Vpunpcklqdq_ymm_ymm_ymmm256);
    binary::<B, Punpckhqdq>(t, VEX_Vpunpckhqdq_xmm_xmm_xmmm128, VEX_Vpunpckhqdq_ymm_ymm_ymmm256);
    binary::<B, Pcmpeqb>(t, VEX_Vpcmpeqb_xmm_xmm_xmmm128, VEX_Vpcmpeqb_ymm_ymm_ymmm256);
    binary::<B, Pcmpeqw>(t, VEX_Vpcmpeqw_xmm_xmm_xmmm128, VEX_Vpcmpeqw_ymm_ymm_ymmm256);
    binary::<B, Pcmpeqd>(t, VEX_Vpcmpeqd_xmm_xmm_xmmm128, VEX_Vpcmpeqd_ymm_ymm_ymmm256);
    binary::<B, Shufps>(t, VEX_Vshufps_xmm_xmm_xmmm128_imm8, VEX_Vshufps_ymm_ymm_ymmm256_imm8);
    binary::<B, Paddq>(t, VEX_Vpaddq_xmm_xmm_xmmm128, VEX_Vpaddq_ymm_ymm_ymmm256);
    binary::<B, Pmullw>(t, VEX_Vpmullw_xmm_xmm_xmmm128, VEX_Vpmullw_ymm_ymm_ymmm256);
    binary::<B, Psubusb>(t, VEX_Vpsubusb_xmm_xmm_xmmm128, VEX_Vpsubusb_ymm_ymm_ymmm256);
    binary::<B, Psubusw>(t, VEX_Vpsubusw_xmm_xmm_xmmm128, VEX_Vpsubusw_ymm_ymm_ymmm256);
    binary::<B, Pminub>(t, VEX_Vpminub_xmm_xmm_xmmm128, VEX_Vpminub_ymm_ymm_ymmm256);
    binary::<B, Pand>(t, VEX_Vpand_xmm_xmm_xmmm128, VEX_Vpand_ymm_ymm_ymmm256);
    binary::<B, Paddusb>(t, VEX_Vpaddusb_xmm_xmm_xmmm128, VEX_Vpaddusb_ymm_ymm_ymmm256);
    binary::<B, Paddusw>(t, VEX_Vpaddusw_xmm_xmm_xmmm128, VEX_Vpaddusw_ymm_ymm_ymmm256);
    binary::<B, Pmaxub>(t, VEX_Vpmaxub_xmm_xmm_xmmm128, VEX_Vpmaxub_ymm_ymm_ymmm256);
    binary::<B, Pandn>(t, VEX_Vpandn_xmm_xmm_xmmm128, VEX_Vpandn_ymm_ymm_ymmm256);
    binary::<B, Pavgb>(t, VEX_Vpavgb_xmm_xmm_xmmm128, VEX_Vpavgb_ymm_ymm_ymmm256);
    binary::<B, Pavgw>(t, VEX_Vpavgw_xmm_xmm_xmmm128, VEX_Vpavgw_ymm_ymm_ymmm256);
    binary::<B, Pmulhuw>(t, VEX_Vpmulhuw_xmm_xmm_xmmm128, VEX_Vpmulhuw_ymm_ymm_ymmm256);
    binary::<B, Pmulhw>(t, VEX_Vpmulhw_xmm_xmm_xmmm128, VEX_Vpmulhw_ymm_ymm_ymmm256);
    binary::<B, Psubsb>(t, VEX_Vpsubsb_xmm_xmm_xmmm128, VEX_Vpsubsb_ymm_ymm_ymmm256);
    binary::<B, Psubsw>(t, VEX_Vpsubsw_xmm_xmm_xmmm128, VEX_Vpsubsw_ymm_ymm_ymmm256);
    binary::<B, Pminsw>(t, VEX_Vpminsw_xmm_xmm_xmmm128, VEX_Vpminsw_ymm_ymm_ymmm256);
    binary::<B, Por>(t, VEX_Vpor_xmm_xmm_xmmm128, VEX_Vpor_ymm_ymm_ymmm256);
    binary::<B, Paddsb>(t, VEX_Vpaddsb_xmm_xmm_xmmm128, VEX_Vpaddsb_ymm_ymm_ymmm256);
    binary::<B, Paddsw>(t, VEX_Vpaddsw_xmm_xmm_xmmm128, VEX_Vpaddsw_ymm_ymm_ymmm256);
    binary::<B, Pmaxsw>(t, VEX_Vpmaxsw_xmm_xmm_xmmm128, VEX_Vpmaxsw_ymm_ymm_ymmm256);
    binary::<B, Pxor>(t, VEX_Vpxor_xmm_xmm_xmmm128, VEX_Vpxor_ymm_ymm_ymmm256);
    binary::<B, Pmuludq>(t, VEX_Vpmuludq_xmm_xmm_xmmm128, VEX_Vpmuludq_ymm_ymm_ymmm256);
    binary::<B, Pmaddwd>(t, VEX_Vpmaddwd_xmm_xmm_xmmm128, VEX_Vpmaddwd_ymm_ymm_ymmm256);
    binary::<B, Psadbw>(t, VEX_Vpsadbw_xmm_xmm_xmmm128, VEX_Vpsadbw_ymm_ymm_ymmm256);
    binary::<B, Psubb>(t, VEX_Vpsubb_xmm_xmm_xmmm128, VEX_Vpsubb_ymm_ymm_ymmm256);
    binary::<B, Psubw>(t, VEX_Vpsubw_xmm_xmm_xmmm128, VEX_Vpsubw_ymm_ymm_ymmm256);
    binary::<B, Psubd>(t, VEX_Vpsubd_xmm_xmm_xmmm128, VEX_Vpsubd_ymm_ymm_ymmm256);
    binary::<B, Psubq>(t, VEX_Vpsubq_xmm_xmm_xmmm128, VEX_Vpsubq_ymm_ymm_ymmm256);
    binary::<B, Paddb>(t, VEX_Vpaddb_xmm_xmm_xmmm128, VEX_Vpaddb_ymm_ymm_ymmm256);
    binary::<B, Paddw>(t, VEX_Vpaddw_xmm_xmm_xmmm128, VEX_Vpaddw_ymm_ymm_ymmm256);
    binary::<B, Paddd>(t, VEX_Vpaddd_xmm_xmm_xmmm128, VEX_Vpaddd_ymm_ymm_ymmm256);
    binary::<B, Pshufb>(t, VEX_Vpshufb_xmm_xmm_xmmm128, VEX_Vpshufb_ymm_ymm_ymmm256);
    binary::<B, Phaddw>(t, VEX_Vphaddw_xmm_xmm_xmmm128, VEX_Vphaddw_ymm_ymm_ymmm256);
    binary::<B, Phaddd>(t, VEX_Vphaddd_xmm_xmm_xmmm128, VEX_Vphaddd_ymm_ymm_ymmm256);
    binary::<B, Phaddsw>(t, VEX_Vphaddsw_xmm_xmm_xmmm128, VEX_Vphaddsw_ymm_ymm_ymmm256);
    binary::<B, Pmaddubsw>(t, VEX_Vpmaddubsw_xmm_xmm_xmmm128, VEX_Vpmaddubsw_ymm_ymm_ymmm256);
    binary::<B, Phsubw>(t, VEX_Vphsubw_xmm_xmm_xmmm128, VEX_Vphsubw_ymm_ymm_ymmm256);
    binary::<B, Phsubd>(t, VEX_Vphsubd_xmm_xmm_xmmm128, VEX_Vphsubd_ymm_ymm_ymmm256);
    binary::<B, Phsubsw>(t, VEX_Vphsubsw_xmm_xmm_xmmm128, VEX_Vphsubsw_ymm_ymm_ymmm256);
    binary::<B, Psignb>(t, VEX_Vpsignb_xmm_xmm_xmmm128, VEX_Vpsignb_ymm_ymm_ymmm256);
    binary::<B, Psignw>(t, VEX_Vpsignw_xmm_xmm_xmmm128, VEX_Vpsignw_ymm_ymm_ymmm256);
    binary::<B, Psignd>(t, VEX_Vpsignd_xmm_xmm_xmmm128, VEX_Vpsignd_ymm_ymm_ymmm256);
    binary::<B, Pmulhrsw>(t, VEX_Vpmulhrsw_xmm_xmm_xmmm128, VEX_Vpmulhrsw_ymm_ymm_ymmm256);
    binary::<B, Pmuldq>(t, VEX_Vpmuldq_xmm_xmm_xmmm128, VEX_Vpmuldq_ymm_ymm_ymmm256);
    binary::<B, Pcmpeqq>(t, VEX_Vpcmpeqq_xmm_xmm_xmmm128, VEX_Vpcmpeqq_ymm_ymm_ymmm256);
    binary::<B, Packusdw>(t, VEX_Vpackusdw_xmm_xmm_xmmm128, VEX_Vpackusdw_ymm_ymm_ymmm256);
    binary::<B, Pcmpgtq>(t, VEX_Vpcmpgtq_xmm_xmm_xmmm128, VEX_Vpcmpgtq_ymm_ymm_ymmm256);
    binary::<B, Pminsb>(t, VEX_Vpminsb_xmm_xmm_xmmm128, VEX_Vpminsb_ymm_ymm_ymmm256);
    binary::<B, Pminsd>(t, VEX_Vpminsd_xmm_xmm_xmmm128, VEX_Vpminsd_ymm_ymm_ymmm256);
    binary::<B, Pminuw>(t, VEX_Vpminuw_xmm_xmm_xmmm128, VEX_Vpminuw_ymm_ymm_ymmm256);
    binary::<B, Pminud>(t, VEX_Vpminud_xmm_xmm_xmmm128, VEX_Vpminud_ymm_ymm_ymmm256);
    binary::<B, Pmaxsb>(t, VEX_Vpmaxsb_xmm_xmm_xmmm128, VEX_Vpmaxsb_ymm_ymm_ymmm256);
    binary::<B, Pmaxsd>(t, VEX_Vpmaxsd_xmm_xmm_xmmm128, VEX_Vpmaxsd_ymm_ymm_ymmm256);
    binary::<B, Pmaxuw>(t, VEX_Vpmaxuw_xmm_xmm_xmmm128, VEX_Vpmaxuw_ymm_ymm_ymmm256);
    binary::<B, Pmaxud>(t, VEX_Vpmaxud_xmm_xmm_xmmm128, VEX_Vpmaxud_ymm_ymm_ymmm256);
    binary::<B, Pmulld>(t, VEX_Vpmulld_xmm_xmm_xmmm128, VEX_Vpmulld_ymm_ymm_ymmm256);
    binary::<B, Pblendw>(t, VEX_Vpblendw_xmm_xmm_xmmm128_imm8, VEX_Vpblendw_ymm_ymm_ymmm256_imm8);
    binary::<B, Palignr>(t, VEX_Vpalignr_xmm_xmm_xmmm128_imm8, VEX_Vpalignr_ymm_ymm_ymmm256_imm8);
    // Each lane has bits of its own in the immediate.
    binary_in_steps::<B, Shufpd, 2>(t, VEX_Vshufpd_xmm_xmm_xmmm128_imm8, VEX_Vshufpd_ymm_ymm_ymmm256_imm8);
    binary_in_steps::<B, Blendps, 4>(t, VEX_Vpblendd_xmm_xmm_xmmm128_imm8, VEX_Vpblendd_ymm_ymm_ymmm256_imm8);
    binary_in_steps::<B, Blendps, 4>(t, VEX_Vblendps_xmm_xmm_xmmm128_imm8, VEX_Vblendps_ymm_ymm_ymmm256_imm8);
    binary_in_steps::<B, Blendpd, 2>(t, VEX_Vblendpd_xmm_xmm_xmmm128_imm8, VEX_Vblendpd_ymm_ymm_ymmm256_imm8);
    binary_in_steps::<B, Mpsadbw, 3>(t, VEX_Vmpsadbw_xmm_xmm_xmmm128_imm8, VEX_Vmpsadbw_ymm_ymm_ymmm256_imm8);
    unary::<B, Movsldup>(t, VEX_Vmovsldup_xmm_xmmm128, VEX_Vmovsldup_ymm_ymmm256);
    unary::<B, Movshdup>(t, VEX_Vmovshdup_xmm_xmmm128, VEX_Vmovshdup_ymm_ymmm256);
    unary::<B, Pshufd>(t, VEX_Vpshufd_xmm_xmmm128_imm8, VEX_Vpshufd_ymm_ymmm256_imm8);
    unary::<B, Pshufhw>(t, VEX_Vpshufhw_xmm_xmmm128_imm8, VEX_Vpshufhw_ymm_ymmm256_imm8);
    unary::<B, Pshuflw>(t, VEX_Vpshuflw_xmm_xmmm128_imm8, VEX_Vpshuflw_ymm_ymmm256_imm8);
    unary::<B, Pabsb>(t, VEX_Vpabsb_xmm_xmmm128, VEX_Vpabsb_ymm_ymmm256);
    unary::<B, Pabsw>(t, VEX_Vpabsw_xmm_xmmm128, VEX_Vpabsw_ymm_ymmm256);
    unary::<B, Pabsd>(t, VEX_Vpabsd_xmm_xmmm128, VEX_Vpabsd_ymm_ymmm256);
    counted::<B, Psrlw>(t, VEX_Vpsrlw_xmm_xmm_xmmm128, VEX_Vpsrlw_ymm_ymm_xmmm128);
    counted::<B, Psrld>(t, VEX_Vpsrld_xmm_xmm_xmmm128, VEX_Vpsrld_ymm_ymm_xmmm128);
    counted::<B, Psrlq>(t, VEX_Vpsrlq_xmm_xmm_xmmm128, VEX_Vpsrlq_ymm_ymm_xmmm128);
    counted::<B, Psraw>(t, VEX_Vpsraw_xmm_xmm_xmmm128, VEX_Vpsraw_ymm_ymm_xmmm128);
    counted::<B, Psrad>(t, VEX_Vpsrad_xmm_xmm_xmmm128, VEX_Vpsrad_ymm_ymm_xmmm128);
    counted::<B, Psllw>(t, VEX_Vpsllw_xmm_xmm_xmmm128, VEX_Vpsllw_ymm_ymm_xmmm128);
    counted::<B, Pslld>(t, VEX_Vpslld_xmm_xmm_xmmm128, VEX_Vpslld_ymm_ymm_xmmm128);
    counted::<B, Psllq>(t, VEX_Vpsllq_xmm_xmm_xmmm128, VEX_Vpsllq_ymm_ymm_xmmm128);
    by_immediate::<B, Psrlw>(t, VEX_Vpsrlw_xmm_xmm_imm8, VEX_Vpsrlw_ymm_ymm_imm8);
    by_immediate::<B, Psraw>(t, VEX_Vpsraw_xmm_xmm_imm8, VEX_Vpsraw_ymm_ymm_imm8);
    by_immediate::<B, Psllw>(t, VEX_Vpsllw_xmm_xmm_imm8, VEX_Vpsllw_ymm_ymm_imm8);
    by_immediate::<B, Psrld>(t, VEX_Vpsrld_xmm_xmm_imm8, VEX_Vpsrld_ymm_ymm_imm8);
    by_immediate::<B, Psrad>(t, VEX_Vpsrad_xmm_xmm_imm8, VEX_Vpsrad_ymm_ymm_imm8);
    by_immediate::<B, Pslld>(t, VEX_Vpslld_xmm_xmm_imm8, VEX_Vpslld_ymm_ymm_imm8);
    by_immediate::<B, Psrlq>(t, VEX_Vpsrlq_xmm_xmm_imm8, VEX_Vpsrlq_ymm_ymm_imm8);
    by_immediate::<B, Psrldq>(t, VEX_Vpsrldq_xmm_xmm_imm8, VEX_Vpsrldq_ymm_ymm_imm8);
    by_immediate::<B, Psllq>(t, VEX_Vpsllq_xmm_xmm_imm8, VEX_Vpsllq_ymm_ymm_imm8);
    by_immediate::<B, Pslldq>(t, VEX_Vpslldq_xmm_xmm_imm8, VEX_Vpslldq_ymm_ymm_imm8);
    binary::<B, Psllvd>(t, VEX_Vpsllvd_xmm_xmm_xmmm128, VEX_Vpsllvd_ymm_ymm_ymmm256);
    binary::<B, Psllvq>(t, VEX_Vpsllvq_xmm_xmm_xmmm128, VEX_Vpsllvq_ymm_ymm_ymmm256);
    binary::<B, Psrlvd>(t, VEX_Vpsrlvd_xmm_xmm_xmmm128, VEX_Vpsrlvd_ymm_ymm_ymmm256);
    binary::<B, Psrlvq>(t, VEX_Vpsrlvq_xmm_xmm_xmmm128, VEX_Vpsrlvq_ymm_ymm_ymmm256);
    binary::<B, Psravd>(t, VEX_Vpsravd_xmm_xmm_xmmm128, VEX_Vpsravd_ymm_ymm_ymmm256);
}
