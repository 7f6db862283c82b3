//! Packed integer arithmetic, comparison, logic and shifts of MMX, SSE and SSE2.

use iced_x86::Code;

use super::sse2::*;
use super::{V, cast, mm_imm, mm_mem, mm_mm, mmx_and_xmm, packed, xmm, xmm_imm};
use crate::exec::native::VectorForm;
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
    mmx_and_xmm::<B, Paddb>(t, Paddb_mm_mmm64, Paddb_xmm_xmmm128);
    mmx_and_xmm::<B, Paddw>(t, Paddw_mm_mmm64, Paddw_xmm_xmmm128);
    mmx_and_xmm::<B, Paddd>(t, Paddd_mm_mmm64, Paddd_xmm_xmmm128);
    mmx_and_xmm::<B, Paddq>(t, Paddq_mm_mmm64, Paddq_xmm_xmmm128);
    mmx_and_xmm::<B, Paddsb>(t, Paddsb_mm_mmm64, Paddsb_xmm_xmmm128);
    mmx_and_xmm::<B, Paddsw>(t, Paddsw_mm_mmm64, Paddsw_xmm_xmmm128);
    mmx_and_xmm::<B, Paddusb>(t, Paddusb_mm_mmm64, Paddusb_xmm_xmmm128);
    mmx_and_xmm::<B, Paddusw>(t, Paddusw_mm_mmm64, Paddusw_xmm_xmmm128);
    mmx_and_xmm::<B, Psubb>(t, Psubb_mm_mmm64, Psubb_xmm_xmmm128);
    mmx_and_xmm::<B, Psubw>(t, Psubw_mm_mmm64, Psubw_xmm_xmmm128);
    mmx_and_xmm::<B, Psubd>(t, Psubd_mm_mmm64, Psubd_xmm_xmmm128);
    mmx_and_xmm::<B, Psubq>(t, Psubq_mm_mmm64, Psubq_xmm_xmmm128);
    mmx_and_xmm::<B, Psubsb>(t, Psubsb_mm_mmm64, Psubsb_xmm_xmmm128);
    mmx_and_xmm::<B, Psubsw>(t, Psubsw_mm_mmm64, Psubsw_xmm_xmmm128);
    mmx_and_xmm::<B, Psubusb>(t, Psubusb_mm_mmm64, Psubusb_xmm_xmmm128);
    mmx_and_xmm::<B, Psubusw>(t, Psubusw_mm_mmm64, Psubusw_xmm_xmmm128);
    mmx_and_xmm::<B, Pmullw>(t, Pmullw_mm_mmm64, Pmullw_xmm_xmmm128);
    mmx_and_xmm::<B, Pmulhw>(t, Pmulhw_mm_mmm64, Pmulhw_xmm_xmmm128);
    mmx_and_xmm::<B, Pmulhuw>(t, Pmulhuw_mm_mmm64, Pmulhuw_xmm_xmmm128);
    mmx_and_xmm::<B, Pmuludq>(t, Pmuludq_mm_mmm64, Pmuludq_xmm_xmmm128);
    mmx_and_xmm::<B, Pmaddwd>(t, Pmaddwd_mm_mmm64, Pmaddwd_xmm_xmmm128);
    mmx_and_xmm::<B, Psadbw>(t, Psadbw_mm_mmm64, Psadbw_xmm_xmmm128);
    mmx_and_xmm::<B, Pavgb>(t, Pavgb_mm_mmm64, Pavgb_xmm_xmmm128);
    mmx_and_xmm::<B, Pavgw>(t, Pavgw_mm_mmm64, Pavgw_xmm_xmmm128);
    mmx_and_xmm::<B, Pminub>(t, Pminub_mm_mmm64, Pminub_xmm_xmmm128);
    mmx_and_xmm::<B, Pminsw>(t, Pminsw_mm_mmm64, Pminsw_xmm_xmmm128);
    mmx_and_xmm::<B, Pmaxub>(t, Pmaxub_mm_mmm64, Pmaxub_xmm_xmmm128);
    mmx_and_xmm::<B, Pmaxsw>(t, Pmaxsw_mm_mmm64, Pmaxsw_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpeqb>(t, Pcmpeqb_mm_mmm64, Pcmpeqb_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpeqw>(t, Pcmpeqw_mm_mmm64, Pcmpeqw_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpeqd>(t, Pcmpeqd_mm_mmm64, Pcmpeqd_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpgtb>(t, Pcmpgtb_mm_mmm64, Pcmpgtb_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpgtw>(t, Pcmpgtw_mm_mmm64, Pcmpgtw_xmm_xmmm128);
    mmx_and_xmm::<B, Pcmpgtd>(t, Pcmpgtd_mm_mmm64, Pcmpgtd_xmm_xmmm128);
    mmx_and_xmm::<B, Pand>(t, Pand_mm_mmm64, Pand_xmm_xmmm128);
    mmx_and_xmm::<B, Pandn>(t, Pandn_mm_mmm64, Pandn_xmm_xmmm128);
    mmx_and_xmm::<B, Por>(t, Por_mm_mmm64, Por_xmm_xmmm128);
    mmx_and_xmm::<B, Pxor>(t, Pxor_mm_mmm64, Pxor_xmm_xmmm128);
    mmx_and_xmm::<B, Psllw>(t, Psllw_mm_mmm64, Psllw_xmm_xmmm128);
    t.handler([Psllw_mm_imm8], mm_imm::<Psllw>);
    t.handler([Psllw_xmm_imm8], xmm_imm::<Psllw>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Pslld>(t, Pslld_mm_mmm64, Pslld_xmm_xmmm128);
    t.handler([Pslld_mm_imm8], mm_imm::<Pslld>);
    t.handler([Pslld_xmm_imm8], xmm_imm::<Pslld>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psllq>(t, Psllq_mm_mmm64, Psllq_xmm_xmmm128);
    t.handler([Psllq_mm_imm8], mm_imm::<Psllq>);
    t.handler([Psllq_xmm_imm8], xmm_imm::<Psllq>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psrlw>(t, Psrlw_mm_mmm64, Psrlw_xmm_xmmm128);
    t.handler([Psrlw_mm_imm8], mm_imm::<Psrlw>);
    t.handler([Psrlw_xmm_imm8], xmm_imm::<Psrlw>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psrld>(t, Psrld_mm_mmm64, Psrld_xmm_xmmm128);
    t.handler([Psrld_mm_imm8], mm_imm::<Psrld>);
    t.handler([Psrld_xmm_imm8], xmm_imm::<Psrld>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psrlq>(t, Psrlq_mm_mmm64, Psrlq_xmm_xmmm128);
    t.handler([Psrlq_mm_imm8], mm_imm::<Psrlq>);
    t.handler([Psrlq_xmm_imm8], xmm_imm::<Psrlq>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psraw>(t, Psraw_mm_mmm64, Psraw_xmm_xmmm128);
    t.handler([Psraw_mm_imm8], mm_imm::<Psraw>);
    t.handler([Psraw_xmm_imm8], xmm_imm::<Psraw>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Psrad>(t, Psrad_mm_mmm64, Psrad_xmm_xmmm128);
    t.handler([Psrad_mm_imm8], mm_imm::<Psrad>);
    t.handler([Psrad_xmm_imm8], xmm_imm::<Psrad>).vector(VectorForm::ALIGNED);
    t.handler([Pslldq_xmm_imm8], xmm_imm::<Pslldq>).vector(VectorForm::ALIGNED);
    t.handler([Psrldq_xmm_imm8], xmm_imm::<Psrldq>).vector(VectorForm::ALIGNED);
    mmx_and_xmm::<B, Packsswb>(t, Packsswb_mm_mmm64, Packsswb_xmm_xmmm128);
    mmx_and_xmm::<B, Packssdw>(t, Packssdw_mm_mmm64, Packssdw_xmm_xmmm128);
    mmx_and_xmm::<B, Packuswb>(t, Packuswb_mm_mmm64, Packuswb_xmm_xmmm128);
    t.handlers([Punpcklbw_mm_mmm32], mm_mm::<Punpcklbw>, mm_mem::<Punpcklbw, u32>);
    xmm::<B, Punpcklbw>(t, Punpcklbw_xmm_xmmm128);
    t.handlers([Punpcklwd_mm_mmm32], mm_mm::<Punpcklwd>, mm_mem::<Punpcklwd, u32>);
    xmm::<B, Punpcklwd>(t, Punpcklwd_xmm_xmmm128);
    t.handlers([Punpckldq_mm_mmm32], mm_mm::<Punpckldq>, mm_mem::<Punpckldq, u32>);
    xmm::<B, Punpckldq>(t, Punpckldq_xmm_xmmm128);
    xmm::<B, Punpcklqdq>(t, Punpcklqdq_xmm_xmmm128);
    mmx_and_xmm::<B, Punpckhbw>(t, Punpckhbw_mm_mmm64, Punpckhbw_xmm_xmmm128);
    mmx_and_xmm::<B, Punpckhwd>(t, Punpckhwd_mm_mmm64, Punpckhwd_xmm_xmmm128);
    mmx_and_xmm::<B, Punpckhdq>(t, Punpckhdq_mm_mmm64, Punpckhdq_xmm_xmmm128);
    xmm::<B, Punpckhqdq>(t, Punpckhqdq_xmm_xmmm128);
    // The floating-point forms move and combine bits as the integer forms do.
    xmm::<B, Pand>(t, Andps_xmm_xmmm128);
    xmm::<B, Pand>(t, Andpd_xmm_xmmm128);
    xmm::<B, Pandn>(t, Andnps_xmm_xmmm128);
    xmm::<B, Pandn>(t, Andnpd_xmm_xmmm128);
    xmm::<B, Por>(t, Orps_xmm_xmmm128);
    xmm::<B, Por>(t, Orpd_xmm_xmmm128);
    xmm::<B, Pxor>(t, Xorps_xmm_xmmm128);
    xmm::<B, Pxor>(t, Xorpd_xmm_xmmm128);
    xmm::<B, Punpckldq>(t, Unpcklps_xmm_xmmm128);
    xmm::<B, Punpckhdq>(t, Unpckhps_xmm_xmmm128);
    xmm::<B, Punpcklqdq>(t, Unpcklpd_xmm_xmmm128);
    xmm::<B, Punpckhqdq>(t, Unpckhpd_xmm_xmmm128);
}
