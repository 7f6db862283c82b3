//! Intrinsics that every x86-64 processor has, as safe functions.

use std::arch::x86_64;

use super::V;

macro_rules! binary {
    ($($name:ident)*) => {$(
        #[inline(always)]
        pub(super) fn $name(a: V, b: V) -> V {
            // SAFETY: SSE2 is part of x86-64.
            unsafe { x86_64::$name(a, b) }
        }
    )*};
}

binary! {
    _mm_add_epi8 _mm_add_epi16 _mm_add_epi32 _mm_add_epi64
    _mm_adds_epi8 _mm_adds_epi16 _mm_adds_epu8 _mm_adds_epu16
    _mm_sub_epi8 _mm_sub_epi16 _mm_sub_epi32 _mm_sub_epi64
    _mm_subs_epi8 _mm_subs_epi16 _mm_subs_epu8 _mm_subs_epu16
    _mm_mullo_epi16 _mm_mulhi_epi16 _mm_mulhi_epu16 _mm_mul_epu32 _mm_madd_epi16
    _mm_sad_epu8 _mm_avg_epu8 _mm_avg_epu16
    _mm_min_epu8 _mm_min_epi16 _mm_max_epu8 _mm_max_epi16
    _mm_cmpeq_epi8 _mm_cmpeq_epi16 _mm_cmpeq_epi32
    _mm_cmpgt_epi8 _mm_cmpgt_epi16 _mm_cmpgt_epi32
    _mm_and_si128 _mm_andnot_si128 _mm_or_si128 _mm_xor_si128
    _mm_sll_epi16 _mm_sll_epi32 _mm_sll_epi64
    _mm_srl_epi16 _mm_srl_epi32 _mm_srl_epi64
    _mm_sra_epi16 _mm_sra_epi32
    _mm_packs_epi16 _mm_packs_epi32 _mm_packus_epi16
    _mm_unpacklo_epi8 _mm_unpacklo_epi16 _mm_unpacklo_epi32 _mm_unpacklo_epi64
    _mm_unpackhi_epi8 _mm_unpackhi_epi16 _mm_unpackhi_epi32 _mm_unpackhi_epi64
}

/// The sign of each byte.
#[inline(always)]
pub(super) fn byte_signs(v: V) -> u64 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { x86_64::_mm_movemask_epi8(v) as u64 }
}

/// The sign of each float.
#[inline(always)]
pub(super) fn single_signs(v: V) -> u64 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { x86_64::_mm_movemask_ps(x86_64::_mm_castsi128_ps(v)) as u64 }
}

/// The sign of each double.
#[inline(always)]
pub(super) fn double_signs(v: V) -> u64 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { x86_64::_mm_movemask_pd(x86_64::_mm_castsi128_pd(v)) as u64 }
}
