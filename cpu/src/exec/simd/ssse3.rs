//! SSSE3 (SDM Vol. 1 12.6), on lanes.

use std::array::from_fn;

use iced_x86::Code;

use super::integer::join;
use super::packed::{Binary, Unary, packed};
use super::rows::mmx;
use super::{Bits128, V, cast};
use crate::exec::table::{Backend, Table};

/// Applies `f` to each pair of lanes.
#[inline(always)]
pub(super) fn zip<T: Copy, const N: usize>(a: V, b: V, f: impl Fn(T, T) -> T) -> V
where
    [T; N]: Bits128,
{
    let (a, b): ([T; N], [T; N]) = (cast(a), cast(b));
    cast::<[T; N], V>(from_fn(|i| f(a[i], b[i])))
}

/// Pairs of adjacent lanes: those of `a`, then those of `b`.
#[inline(always)]
fn pairs<T: Copy, const N: usize>(a: V, b: V, f: impl Fn(T, T) -> T) -> V
where
    [T; N]: Bits128,
{
    let (a, b): ([T; N], [T; N]) = (cast(a), cast(b));
    cast::<[T; N], V>(from_fn(|i| {
        let (v, k) = if i < N / 2 {
            (&a, 2 * i)
        } else {
            (&b, 2 * i - N)
        };
        f(v[k], v[k + 1])
    }))
}

/// PSHUFB: `mask` selects the bits of an index.
#[inline(always)]
fn pshufb(a: V, b: V, mask: u8) -> V {
    let (a, b): ([u8; 16], [u8; 16]) = (cast(a), cast(b));
    cast::<[u8; 16], V>(b.map(|n| {
        if n & 0x80 != 0 {
            0
        } else {
            a[usize::from(n & mask)]
        }
    }))
}

/// PALIGNR of two registers of 16 bytes, `high` above `low`.
#[inline(always)]
fn palignr(high: u128, low: u128, bytes: u32) -> u128 {
    match bytes * 8 {
        0 => low,
        n @ 1..128 => low >> n | high << (128 - n),
        n => high.checked_shr(n - 128).unwrap_or(0),
    }
}

/// PMULHRSW: the product's bits 30:15, rounded. It fits except for (-1) * (-1), which wraps.
#[inline(always)]
fn mulhrs(a: i16, b: i16) -> i16 {
    ((((i32::from(a) * i32::from(b)) >> 14) + 1) >> 1) as i16
}

/// PMADDUBSW.
#[inline(always)]
fn maddubs(a: V, b: V) -> V {
    let (a, b): ([u8; 16], [i8; 16]) = (cast(a), cast(b));
    let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
    let saturate = |v: i32| v.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    cast::<[i16; 8], V>(from_fn(|i| saturate(product(2 * i) + product(2 * i + 1))))
}

/// PSIGN: `a`, negated where `b` is negative, zero where `b` is zero.
macro_rules! sign {
    ($t:ty, $n:literal, $a:expr, $b:expr) => {
        zip::<$t, $n>($a, $b, |a, b| match b {
            0 => 0,
            1.. => a,
            _ => a.wrapping_neg(),
        })
    };
}

packed! {
    Pshufb(a, b, _) => pshufb(a, b, 15); half => pshufb(a, b, 7),
    Phaddw(a, b, _) => pairs::<u16, 8>(a, b, u16::wrapping_add);
        half => pairs::<u16, 8>(join(a, b), a, u16::wrapping_add),
    Phaddd(a, b, _) => pairs::<u32, 4>(a, b, u32::wrapping_add);
        half => pairs::<u32, 4>(join(a, b), a, u32::wrapping_add),
    Phaddsw(a, b, _) => pairs::<i16, 8>(a, b, i16::saturating_add);
        half => pairs::<i16, 8>(join(a, b), a, i16::saturating_add),
    Phsubw(a, b, _) => pairs::<u16, 8>(a, b, u16::wrapping_sub);
        half => pairs::<u16, 8>(join(a, b), a, u16::wrapping_sub),
    Phsubd(a, b, _) => pairs::<u32, 4>(a, b, u32::wrapping_sub);
        half => pairs::<u32, 4>(join(a, b), a, u32::wrapping_sub),
    Phsubsw(a, b, _) => pairs::<i16, 8>(a, b, i16::saturating_sub);
        half => pairs::<i16, 8>(join(a, b), a, i16::saturating_sub),
    Pmaddubsw(a, b, _) => maddubs(a, b),
    Pmulhrsw(a, b, _) => zip::<i16, 8>(a, b, mulhrs),
    Psignb(a, b, _) => sign!(i8, 16, a, b),
    Psignw(a, b, _) => sign!(i16, 8, a, b),
    Psignd(a, b, _) => sign!(i32, 4, a, b),
    Pabsb(_, b, _) => zip::<i8, 16>(b, b, |b, _| b.wrapping_abs()),
    Pabsw(_, b, _) => zip::<i16, 8>(b, b, |b, _| b.wrapping_abs()),
    Pabsd(_, b, _) => zip::<i32, 4>(b, b, |b, _| b.wrapping_abs()),
    Palignr(a, b, n) => cast(palignr(cast(a), cast(b), n.into()));
        half => cast(palignr(0, cast(join(b, a)), n.into())),
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    mmx::<B, Binary<Pshufb>>(t, [Pshufb_mm_mmm64, Pshufb_xmm_xmmm128, VEX_Vpshufb_xmm_xmm_xmmm128, VEX_Vpshufb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phaddw>>(t, [Phaddw_mm_mmm64, Phaddw_xmm_xmmm128, VEX_Vphaddw_xmm_xmm_xmmm128, VEX_Vphaddw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phaddd>>(t, [Phaddd_mm_mmm64, Phaddd_xmm_xmmm128, VEX_Vphaddd_xmm_xmm_xmmm128, VEX_Vphaddd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phaddsw>>(t, [Phaddsw_mm_mmm64, Phaddsw_xmm_xmmm128, VEX_Vphaddsw_xmm_xmm_xmmm128, VEX_Vphaddsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phsubw>>(t, [Phsubw_mm_mmm64, Phsubw_xmm_xmmm128, VEX_Vphsubw_xmm_xmm_xmmm128, VEX_Vphsubw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phsubd>>(t, [Phsubd_mm_mmm64, Phsubd_xmm_xmmm128, VEX_Vphsubd_xmm_xmm_xmmm128, VEX_Vphsubd_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Phsubsw>>(t, [Phsubsw_mm_mmm64, Phsubsw_xmm_xmmm128, VEX_Vphsubsw_xmm_xmm_xmmm128, VEX_Vphsubsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmaddubsw>>(t, [Pmaddubsw_mm_mmm64, Pmaddubsw_xmm_xmmm128, VEX_Vpmaddubsw_xmm_xmm_xmmm128, VEX_Vpmaddubsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Pmulhrsw>>(t, [Pmulhrsw_mm_mmm64, Pmulhrsw_xmm_xmmm128, VEX_Vpmulhrsw_xmm_xmm_xmmm128, VEX_Vpmulhrsw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psignb>>(t, [Psignb_mm_mmm64, Psignb_xmm_xmmm128, VEX_Vpsignb_xmm_xmm_xmmm128, VEX_Vpsignb_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psignw>>(t, [Psignw_mm_mmm64, Psignw_xmm_xmmm128, VEX_Vpsignw_xmm_xmm_xmmm128, VEX_Vpsignw_ymm_ymm_ymmm256]);
    mmx::<B, Binary<Psignd>>(t, [Psignd_mm_mmm64, Psignd_xmm_xmmm128, VEX_Vpsignd_xmm_xmm_xmmm128, VEX_Vpsignd_ymm_ymm_ymmm256]);
    mmx::<B, Unary<Pabsb>>(t, [Pabsb_mm_mmm64, Pabsb_xmm_xmmm128, VEX_Vpabsb_xmm_xmmm128, VEX_Vpabsb_ymm_ymmm256]);
    mmx::<B, Unary<Pabsw>>(t, [Pabsw_mm_mmm64, Pabsw_xmm_xmmm128, VEX_Vpabsw_xmm_xmmm128, VEX_Vpabsw_ymm_ymmm256]);
    mmx::<B, Unary<Pabsd>>(t, [Pabsd_mm_mmm64, Pabsd_xmm_xmmm128, VEX_Vpabsd_xmm_xmmm128, VEX_Vpabsd_ymm_ymmm256]);
    mmx::<B, Binary<Palignr>>(t, [Palignr_mm_mmm64_imm8, Palignr_xmm_xmmm128_imm8, VEX_Vpalignr_xmm_xmm_xmmm128_imm8, VEX_Vpalignr_ymm_ymm_ymmm256_imm8]);
}
