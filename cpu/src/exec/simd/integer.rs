//! Packed integer arithmetic, comparison, logic and shifts of MMX, SSE2 and AVX2.

use iced_x86::Code;

use super::packed::{Binary, BinaryHalf, Shift, ShiftByImmediate, packed};
use super::rows::{mmx, ymm};
use super::sse2::*;
use super::{V, cast};
use crate::exec::table::{Backend, Table};

/// Both operands of an MMX instruction in one vector, for kernels that put results of the second
/// above those of the first.
#[inline(always)]
pub(super) fn join(a: V, b: V) -> V {
    _mm_unpacklo_epi64(a, b)
}

/// The upper half, moved down.
#[inline(always)]
fn upper(a: V) -> V {
    _mm_unpackhi_epi64(a, a)
}

packed! {
    Paddb(a, b, _) => _mm_add_epi8(a, b),
    Paddw(a, b, _) => _mm_add_epi16(a, b),
    Paddd(a, b, _) => _mm_add_epi32(a, b),
    Paddq(a, b, _) => _mm_add_epi64(a, b),
    Paddsb(a, b, _) => _mm_adds_epi8(a, b),
    Paddsw(a, b, _) => _mm_adds_epi16(a, b),
    Paddusb(a, b, _) => _mm_adds_epu8(a, b),
    Paddusw(a, b, _) => _mm_adds_epu16(a, b),
    Psubb(a, b, _) => _mm_sub_epi8(a, b),
    Psubw(a, b, _) => _mm_sub_epi16(a, b),
    Psubd(a, b, _) => _mm_sub_epi32(a, b),
    Psubq(a, b, _) => _mm_sub_epi64(a, b),
    Psubsb(a, b, _) => _mm_subs_epi8(a, b),
    Psubsw(a, b, _) => _mm_subs_epi16(a, b),
    Psubusb(a, b, _) => _mm_subs_epu8(a, b),
    Psubusw(a, b, _) => _mm_subs_epu16(a, b),
    Pmullw(a, b, _) => _mm_mullo_epi16(a, b),
    Pmulhw(a, b, _) => _mm_mulhi_epi16(a, b),
    Pmulhuw(a, b, _) => _mm_mulhi_epu16(a, b),
    Pmuludq(a, b, _) => _mm_mul_epu32(a, b),
    Pmaddwd(a, b, _) => _mm_madd_epi16(a, b),
    Psadbw(a, b, _) => _mm_sad_epu8(a, b),
    Pavgb(a, b, _) => _mm_avg_epu8(a, b),
    Pavgw(a, b, _) => _mm_avg_epu16(a, b),
    Pminub(a, b, _) => _mm_min_epu8(a, b),
    Pminsw(a, b, _) => _mm_min_epi16(a, b),
    Pmaxub(a, b, _) => _mm_max_epu8(a, b),
    Pmaxsw(a, b, _) => _mm_max_epi16(a, b),
    Pcmpeqb(a, b, _) => _mm_cmpeq_epi8(a, b),
    Pcmpeqw(a, b, _) => _mm_cmpeq_epi16(a, b),
    Pcmpeqd(a, b, _) => _mm_cmpeq_epi32(a, b),
    Pcmpgtb(a, b, _) => _mm_cmpgt_epi8(a, b),
    Pcmpgtw(a, b, _) => _mm_cmpgt_epi16(a, b),
    Pcmpgtd(a, b, _) => _mm_cmpgt_epi32(a, b),
    Pand(a, b, _) => _mm_and_si128(a, b),
    Pandn(a, b, _) => _mm_andnot_si128(a, b),
    Por(a, b, _) => _mm_or_si128(a, b),
    Pxor(a, b, _) => _mm_xor_si128(a, b),
    Psllw(a, n, _) => _mm_sll_epi16(a, n),
    Pslld(a, n, _) => _mm_sll_epi32(a, n),
    Psllq(a, n, _) => _mm_sll_epi64(a, n),
    Psrlw(a, n, _) => _mm_srl_epi16(a, n),
    Psrld(a, n, _) => _mm_srl_epi32(a, n),
    Psrlq(a, n, _) => _mm_srl_epi64(a, n),
    Psraw(a, n, _) => _mm_sra_epi16(a, n),
    Psrad(a, n, _) => _mm_sra_epi32(a, n),
    Pslldq(a, _, n) => cast(cast::<V, u128>(a).checked_shl(u32::from(n) * 8).unwrap_or(0)),
    Psrldq(a, _, n) => cast(cast::<V, u128>(a).checked_shr(u32::from(n) * 8).unwrap_or(0)),
    Packsswb(a, b, _) => _mm_packs_epi16(a, b); half => _mm_packs_epi16(join(a, b), a),
    Packssdw(a, b, _) => _mm_packs_epi32(a, b); half => _mm_packs_epi32(join(a, b), a),
    Packuswb(a, b, _) => _mm_packus_epi16(a, b); half => _mm_packus_epi16(join(a, b), a),
    Punpcklbw(a, b, _) => _mm_unpacklo_epi8(a, b),
    Punpcklwd(a, b, _) => _mm_unpacklo_epi16(a, b),
    Punpckldq(a, b, _) => _mm_unpacklo_epi32(a, b),
    Punpcklqdq(a, b, _) => _mm_unpacklo_epi64(a, b),
    Punpckhbw(a, b, _) => _mm_unpackhi_epi8(a, b); half => upper(_mm_unpacklo_epi8(a, b)),
    Punpckhwd(a, b, _) => _mm_unpackhi_epi16(a, b); half => upper(_mm_unpacklo_epi16(a, b)),
    Punpckhdq(a, b, _) => _mm_unpackhi_epi32(a, b); half => upper(_mm_unpacklo_epi32(a, b)),
    Punpckhqdq(a, b, _) => _mm_unpackhi_epi64(a, b),
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    mmx::<B, Binary<Paddb>>(t, [Paddb_mm_mmm64, Paddb_xmm_xmmm128, VEX_Vpaddb_xmm_xmm_xmmm128, VEX_Vpaddb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddw>>(t, [Paddw_mm_mmm64, Paddw_xmm_xmmm128, VEX_Vpaddw_xmm_xmm_xmmm128, VEX_Vpaddw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddd>>(t, [Paddd_mm_mmm64, Paddd_xmm_xmmm128, VEX_Vpaddd_xmm_xmm_xmmm128, VEX_Vpaddd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddq>>(t, [Paddq_mm_mmm64, Paddq_xmm_xmmm128, VEX_Vpaddq_xmm_xmm_xmmm128, VEX_Vpaddq_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddsb>>(t, [Paddsb_mm_mmm64, Paddsb_xmm_xmmm128, VEX_Vpaddsb_xmm_xmm_xmmm128, VEX_Vpaddsb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddsw>>(t, [Paddsw_mm_mmm64, Paddsw_xmm_xmmm128, VEX_Vpaddsw_xmm_xmm_xmmm128, VEX_Vpaddsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddusb>>(t, [Paddusb_mm_mmm64, Paddusb_xmm_xmmm128, VEX_Vpaddusb_xmm_xmm_xmmm128, VEX_Vpaddusb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Paddusw>>(t, [Paddusw_mm_mmm64, Paddusw_xmm_xmmm128, VEX_Vpaddusw_xmm_xmm_xmmm128, VEX_Vpaddusw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubb>>(t, [Psubb_mm_mmm64, Psubb_xmm_xmmm128, VEX_Vpsubb_xmm_xmm_xmmm128, VEX_Vpsubb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubw>>(t, [Psubw_mm_mmm64, Psubw_xmm_xmmm128, VEX_Vpsubw_xmm_xmm_xmmm128, VEX_Vpsubw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubd>>(t, [Psubd_mm_mmm64, Psubd_xmm_xmmm128, VEX_Vpsubd_xmm_xmm_xmmm128, VEX_Vpsubd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubq>>(t, [Psubq_mm_mmm64, Psubq_xmm_xmmm128, VEX_Vpsubq_xmm_xmm_xmmm128, VEX_Vpsubq_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubsb>>(t, [Psubsb_mm_mmm64, Psubsb_xmm_xmmm128, VEX_Vpsubsb_xmm_xmm_xmmm128, VEX_Vpsubsb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubsw>>(t, [Psubsw_mm_mmm64, Psubsw_xmm_xmmm128, VEX_Vpsubsw_xmm_xmm_xmmm128, VEX_Vpsubsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubusb>>(t, [Psubusb_mm_mmm64, Psubusb_xmm_xmmm128, VEX_Vpsubusb_xmm_xmm_xmmm128, VEX_Vpsubusb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psubusw>>(t, [Psubusw_mm_mmm64, Psubusw_xmm_xmmm128, VEX_Vpsubusw_xmm_xmm_xmmm128, VEX_Vpsubusw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmullw>>(t, [Pmullw_mm_mmm64, Pmullw_xmm_xmmm128, VEX_Vpmullw_xmm_xmm_xmmm128, VEX_Vpmullw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmulhw>>(t, [Pmulhw_mm_mmm64, Pmulhw_xmm_xmmm128, VEX_Vpmulhw_xmm_xmm_xmmm128, VEX_Vpmulhw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmulhuw>>(t, [Pmulhuw_mm_mmm64, Pmulhuw_xmm_xmmm128, VEX_Vpmulhuw_xmm_xmm_xmmm128, VEX_Vpmulhuw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmuludq>>(t, [Pmuludq_mm_mmm64, Pmuludq_xmm_xmmm128, VEX_Vpmuludq_xmm_xmm_xmmm128, VEX_Vpmuludq_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmaddwd>>(t, [Pmaddwd_mm_mmm64, Pmaddwd_xmm_xmmm128, VEX_Vpmaddwd_xmm_xmm_xmmm128, VEX_Vpmaddwd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psadbw>>(t, [Psadbw_mm_mmm64, Psadbw_xmm_xmmm128, VEX_Vpsadbw_xmm_xmm_xmmm128, VEX_Vpsadbw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pavgb>>(t, [Pavgb_mm_mmm64, Pavgb_xmm_xmmm128, VEX_Vpavgb_xmm_xmm_xmmm128, VEX_Vpavgb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pavgw>>(t, [Pavgw_mm_mmm64, Pavgw_xmm_xmmm128, VEX_Vpavgw_xmm_xmm_xmmm128, VEX_Vpavgw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pminub>>(t, [Pminub_mm_mmm64, Pminub_xmm_xmmm128, VEX_Vpminub_xmm_xmm_xmmm128, VEX_Vpminub_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pminsw>>(t, [Pminsw_mm_mmm64, Pminsw_xmm_xmmm128, VEX_Vpminsw_xmm_xmm_xmmm128, VEX_Vpminsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmaxub>>(t, [Pmaxub_mm_mmm64, Pmaxub_xmm_xmmm128, VEX_Vpmaxub_xmm_xmm_xmmm128, VEX_Vpmaxub_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmaxsw>>(t, [Pmaxsw_mm_mmm64, Pmaxsw_xmm_xmmm128, VEX_Vpmaxsw_xmm_xmm_xmmm128, VEX_Vpmaxsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpeqb>>(t, [Pcmpeqb_mm_mmm64, Pcmpeqb_xmm_xmmm128, VEX_Vpcmpeqb_xmm_xmm_xmmm128, VEX_Vpcmpeqb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpeqw>>(t, [Pcmpeqw_mm_mmm64, Pcmpeqw_xmm_xmmm128, VEX_Vpcmpeqw_xmm_xmm_xmmm128, VEX_Vpcmpeqw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpeqd>>(t, [Pcmpeqd_mm_mmm64, Pcmpeqd_xmm_xmmm128, VEX_Vpcmpeqd_xmm_xmm_xmmm128, VEX_Vpcmpeqd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpgtb>>(t, [Pcmpgtb_mm_mmm64, Pcmpgtb_xmm_xmmm128, VEX_Vpcmpgtb_xmm_xmm_xmmm128, VEX_Vpcmpgtb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpgtw>>(t, [Pcmpgtw_mm_mmm64, Pcmpgtw_xmm_xmmm128, VEX_Vpcmpgtw_xmm_xmm_xmmm128, VEX_Vpcmpgtw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pcmpgtd>>(t, [Pcmpgtd_mm_mmm64, Pcmpgtd_xmm_xmmm128, VEX_Vpcmpgtd_xmm_xmm_xmmm128, VEX_Vpcmpgtd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pand>>(t, [Pand_mm_mmm64, Pand_xmm_xmmm128, VEX_Vpand_xmm_xmm_xmmm128, VEX_Vpand_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pandn>>(t, [Pandn_mm_mmm64, Pandn_xmm_xmmm128, VEX_Vpandn_xmm_xmm_xmmm128, VEX_Vpandn_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Por>>(t, [Por_mm_mmm64, Por_xmm_xmmm128, VEX_Vpor_xmm_xmm_xmmm128, VEX_Vpor_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pxor>>(t, [Pxor_mm_mmm64, Pxor_xmm_xmmm128, VEX_Vpxor_xmm_xmm_xmmm128, VEX_Vpxor_ymm_ymm_ymmm256]);
    mmx::<B, Shift<Psllw>>(t, [Psllw_mm_mmm64, Psllw_xmm_xmmm128, VEX_Vpsllw_xmm_xmm_xmmm128, VEX_Vpsllw_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psllw>>(t, [Psllw_mm_imm8, Psllw_xmm_imm8, VEX_Vpsllw_xmm_xmm_imm8, VEX_Vpsllw_ymm_ymm_imm8]);
    mmx::<B, Shift<Pslld>>(t, [Pslld_mm_mmm64, Pslld_xmm_xmmm128, VEX_Vpslld_xmm_xmm_xmmm128, VEX_Vpslld_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Pslld>>(t, [Pslld_mm_imm8, Pslld_xmm_imm8, VEX_Vpslld_xmm_xmm_imm8, VEX_Vpslld_ymm_ymm_imm8]);
    mmx::<B, Shift<Psllq>>(t, [Psllq_mm_mmm64, Psllq_xmm_xmmm128, VEX_Vpsllq_xmm_xmm_xmmm128, VEX_Vpsllq_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psllq>>(t, [Psllq_mm_imm8, Psllq_xmm_imm8, VEX_Vpsllq_xmm_xmm_imm8, VEX_Vpsllq_ymm_ymm_imm8]);
    mmx::<B, Shift<Psrlw>>(t, [Psrlw_mm_mmm64, Psrlw_xmm_xmmm128, VEX_Vpsrlw_xmm_xmm_xmmm128, VEX_Vpsrlw_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psrlw>>(t, [Psrlw_mm_imm8, Psrlw_xmm_imm8, VEX_Vpsrlw_xmm_xmm_imm8, VEX_Vpsrlw_ymm_ymm_imm8]);
    mmx::<B, Shift<Psrld>>(t, [Psrld_mm_mmm64, Psrld_xmm_xmmm128, VEX_Vpsrld_xmm_xmm_xmmm128, VEX_Vpsrld_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psrld>>(t, [Psrld_mm_imm8, Psrld_xmm_imm8, VEX_Vpsrld_xmm_xmm_imm8, VEX_Vpsrld_ymm_ymm_imm8]);
    mmx::<B, Shift<Psrlq>>(t, [Psrlq_mm_mmm64, Psrlq_xmm_xmmm128, VEX_Vpsrlq_xmm_xmm_xmmm128, VEX_Vpsrlq_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psrlq>>(t, [Psrlq_mm_imm8, Psrlq_xmm_imm8, VEX_Vpsrlq_xmm_xmm_imm8, VEX_Vpsrlq_ymm_ymm_imm8]);
    mmx::<B, Shift<Psraw>>(t, [Psraw_mm_mmm64, Psraw_xmm_xmmm128, VEX_Vpsraw_xmm_xmm_xmmm128, VEX_Vpsraw_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psraw>>(t, [Psraw_mm_imm8, Psraw_xmm_imm8, VEX_Vpsraw_xmm_xmm_imm8, VEX_Vpsraw_ymm_ymm_imm8]);
    mmx::<B, Shift<Psrad>>(t, [Psrad_mm_mmm64, Psrad_xmm_xmmm128, VEX_Vpsrad_xmm_xmm_xmmm128, VEX_Vpsrad_ymm_ymm_xmmm128]);
    mmx::<B, ShiftByImmediate<Psrad>>(t, [Psrad_mm_imm8, Psrad_xmm_imm8, VEX_Vpsrad_xmm_xmm_imm8, VEX_Vpsrad_ymm_ymm_imm8]);
    ymm::<B, ShiftByImmediate<Pslldq>>(t, [Pslldq_xmm_imm8, VEX_Vpslldq_xmm_xmm_imm8, VEX_Vpslldq_ymm_ymm_imm8]);
    ymm::<B, ShiftByImmediate<Psrldq>>(t, [Psrldq_xmm_imm8, VEX_Vpsrldq_xmm_xmm_imm8, VEX_Vpsrldq_ymm_ymm_imm8]);
    mmx::<B, Binary<Packsswb>>(t, [Packsswb_mm_mmm64, Packsswb_xmm_xmmm128, VEX_Vpacksswb_xmm_xmm_xmmm128, VEX_Vpacksswb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Packssdw>>(t, [Packssdw_mm_mmm64, Packssdw_xmm_xmmm128, VEX_Vpackssdw_xmm_xmm_xmmm128, VEX_Vpackssdw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Packuswb>>(t, [Packuswb_mm_mmm64, Packuswb_xmm_xmmm128, VEX_Vpackuswb_xmm_xmm_xmmm128, VEX_Vpackuswb_ymm_ymm_ymmm256]);
    mmx::<B, BinaryHalf<Punpcklbw>>(t, [Punpcklbw_mm_mmm32, Punpcklbw_xmm_xmmm128, VEX_Vpunpcklbw_xmm_xmm_xmmm128, VEX_Vpunpcklbw_ymm_ymm_ymmm256]);
    mmx::<B, BinaryHalf<Punpcklwd>>(t, [Punpcklwd_mm_mmm32, Punpcklwd_xmm_xmmm128, VEX_Vpunpcklwd_xmm_xmm_xmmm128, VEX_Vpunpcklwd_ymm_ymm_ymmm256]);
    mmx::<B, BinaryHalf<Punpckldq>>(t, [Punpckldq_mm_mmm32, Punpckldq_xmm_xmmm128, VEX_Vpunpckldq_xmm_xmm_xmmm128, VEX_Vpunpckldq_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpcklqdq>>(t, [Punpcklqdq_xmm_xmmm128, VEX_Vpunpcklqdq_xmm_xmm_xmmm128, VEX_Vpunpcklqdq_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Punpckhbw>>(t, [Punpckhbw_mm_mmm64, Punpckhbw_xmm_xmmm128, VEX_Vpunpckhbw_xmm_xmm_xmmm128, VEX_Vpunpckhbw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Punpckhwd>>(t, [Punpckhwd_mm_mmm64, Punpckhwd_xmm_xmmm128, VEX_Vpunpckhwd_xmm_xmm_xmmm128, VEX_Vpunpckhwd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Punpckhdq>>(t, [Punpckhdq_mm_mmm64, Punpckhdq_xmm_xmmm128, VEX_Vpunpckhdq_xmm_xmm_xmmm128, VEX_Vpunpckhdq_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpckhqdq>>(t, [Punpckhqdq_xmm_xmmm128, VEX_Vpunpckhqdq_xmm_xmm_xmmm128, VEX_Vpunpckhqdq_ymm_ymm_ymmm256]);
    // The floating-point forms move and combine bits as the integer forms do.
    ymm::<B, Binary<Pand>>(t, [Andps_xmm_xmmm128, VEX_Vandps_xmm_xmm_xmmm128, VEX_Vandps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pand>>(t, [Andpd_xmm_xmmm128, VEX_Vandpd_xmm_xmm_xmmm128, VEX_Vandpd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pandn>>(t, [Andnps_xmm_xmmm128, VEX_Vandnps_xmm_xmm_xmmm128, VEX_Vandnps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pandn>>(t, [Andnpd_xmm_xmmm128, VEX_Vandnpd_xmm_xmm_xmmm128, VEX_Vandnpd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Por>>(t, [Orps_xmm_xmmm128, VEX_Vorps_xmm_xmm_xmmm128, VEX_Vorps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Por>>(t, [Orpd_xmm_xmmm128, VEX_Vorpd_xmm_xmm_xmmm128, VEX_Vorpd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pxor>>(t, [Xorps_xmm_xmmm128, VEX_Vxorps_xmm_xmm_xmmm128, VEX_Vxorps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pxor>>(t, [Xorpd_xmm_xmmm128, VEX_Vxorpd_xmm_xmm_xmmm128, VEX_Vxorpd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpckldq>>(t, [Unpcklps_xmm_xmmm128, VEX_Vunpcklps_xmm_xmm_xmmm128, VEX_Vunpcklps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpckhdq>>(t, [Unpckhps_xmm_xmmm128, VEX_Vunpckhps_xmm_xmm_xmmm128, VEX_Vunpckhps_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpcklqdq>>(t, [Unpcklpd_xmm_xmmm128, VEX_Vunpcklpd_xmm_xmm_xmmm128, VEX_Vunpcklpd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Punpckhqdq>>(t, [Unpckhpd_xmm_xmmm128, VEX_Vunpckhpd_xmm_xmm_xmmm128, VEX_Vunpckhpd_ymm_ymm_ymmm256]);
}
