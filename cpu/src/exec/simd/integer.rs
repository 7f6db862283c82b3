//! Packed integer arithmetic, comparison, logic and shifts of MMX, SSE and SSE2.

use iced_x86::{Instruction, Mnemonic};

use super::sse2::*;
use super::{V, cast, packed, shape};
use crate::exec::Handler;

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

/// Handlers of kernels named like their mnemonics.
macro_rules! select {
    ($i:expr; $($name:ident)*) => {
        match $i.mnemonic() {
            $(Mnemonic::$name => shape::<$name>($i),)*
            // The floating-point forms move and combine bits as the integer ones do.
            Mnemonic::Andps | Mnemonic::Andpd => shape::<Pand>($i),
            Mnemonic::Andnps | Mnemonic::Andnpd => shape::<Pandn>($i),
            Mnemonic::Orps | Mnemonic::Orpd => shape::<Por>($i),
            Mnemonic::Xorps | Mnemonic::Xorpd => shape::<Pxor>($i),
            Mnemonic::Unpcklps => shape::<Punpckldq>($i),
            Mnemonic::Unpckhps => shape::<Punpckhdq>($i),
            Mnemonic::Unpcklpd => shape::<Punpcklqdq>($i),
            Mnemonic::Unpckhpd => shape::<Punpckhqdq>($i),
            _ => return None,
        }
    };
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction) -> Option<Handler> {
    Some(select! { i;
        Paddb Paddw Paddd Paddq Paddsb Paddsw Paddusb Paddusw
        Psubb Psubw Psubd Psubq Psubsb Psubsw Psubusb Psubusw
        Pmullw Pmulhw Pmulhuw Pmuludq Pmaddwd Psadbw Pavgb Pavgw
        Pminub Pminsw Pmaxub Pmaxsw
        Pcmpeqb Pcmpeqw Pcmpeqd Pcmpgtb Pcmpgtw Pcmpgtd
        Pand Pandn Por Pxor
        Psllw Pslld Psllq Psrlw Psrld Psrlq Psraw Psrad Pslldq Psrldq
        Packsswb Packssdw Packuswb
        Punpcklbw Punpcklwd Punpckldq Punpcklqdq Punpckhbw Punpckhwd Punpckhdq Punpckhqdq
    })
}
