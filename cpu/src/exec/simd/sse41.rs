//! Packed integers and blends of SSE4.1 (SDM Vol. 1 12.8), and PCMPGTQ of SSE4.2.

use std::array::from_fn;

use iced_x86::Code;

use super::packed::{Binary, BinaryInSteps, Unary, packed};
use super::rows::{xmm, ymm};
use super::ssse3::zip;
use super::{V, cast};
use crate::exec::table::{Backend, Table};

/// The elements of `b` whose bit of `mask` is set, else those of `a`.
macro_rules! blend {
    ($t:ty, $n:literal, $a:expr, $b:expr, $mask:expr) => {{
        let (a, b): ([$t; $n], [$t; $n]) = (cast($a), cast($b));
        cast::<[$t; $n], V>(from_fn(|i| if $mask >> i & 1 != 0 { b[i] } else { a[i] }))
    }};
}

/// MPSADBW: sums of differences of four bytes of `b` and eight stretches of `a`.
#[inline(always)]
fn mpsadbw(a: V, b: V, imm: u8) -> V {
    let (a, b): ([u8; 16], [u8; 16]) = (cast(a), cast(b));
    let (in_a, in_b) = (usize::from(imm >> 2 & 1) * 4, usize::from(imm & 3) * 4);
    cast::<[u16; 8], V>(from_fn(|i| {
        (0..4)
            .map(|k| u16::from(a[in_a + i + k].abs_diff(b[in_b + k])))
            .sum()
    }))
}

/// PHMINPOSUW: the least word, and where it is first.
#[inline(always)]
fn phminposuw(b: V) -> V {
    let b: [u16; 8] = cast(b);
    let (mut least, mut at) = (b[0], 0);
    for (i, &word) in b.iter().enumerate() {
        if word < least {
            (least, at) = (word, i as u16);
        }
    }
    cast([least, at, 0, 0, 0, 0, 0, 0])
}

/// PACKUSDW.
#[inline(always)]
fn packusdw(a: V, b: V) -> V {
    let (a, b): ([i32; 4], [i32; 4]) = (cast(a), cast(b));
    let saturate = |v: i32| v.clamp(0, u16::MAX.into()) as u16;
    cast::<[u16; 8], V>(from_fn(|i| saturate(if i < 4 { a[i] } else { b[i - 4] })))
}

/// PMULDQ: products of the even elements.
#[inline(always)]
fn pmuldq(a: V, b: V) -> V {
    let (a, b): ([i32; 4], [i32; 4]) = (cast(a), cast(b));
    let product = |i: usize| (i64::from(a[i]) * i64::from(b[i])) as u64;
    cast([product(0), product(2)])
}

/// All ones where `f` holds.
#[inline(always)]
fn compare64(a: V, b: V, f: impl Fn(i64, i64) -> bool) -> V {
    let (a, b): ([u64; 2], [u64; 2]) = (cast(a), cast(b));
    let lane = |i: usize| u64::from(f(a[i] as i64, b[i] as i64)).wrapping_neg();
    cast([lane(0), lane(1)])
}

packed! {
    Blendps(a, b, imm) => blend!(u32, 4, a, b, imm),
    Blendpd(a, b, imm) => blend!(u64, 2, a, b, imm),
    Pblendw(a, b, imm) => blend!(u16, 8, a, b, imm),
    Mpsadbw(a, b, imm) => mpsadbw(a, b, imm),
    Phminposuw(_, b, _) => phminposuw(b),
    Packusdw(a, b, _) => packusdw(a, b),
    Pmuldq(a, b, _) => pmuldq(a, b),
    Pmulld(a, b, _) => zip::<u32, 4>(a, b, u32::wrapping_mul),
    Pcmpeqq(a, b, _) => compare64(a, b, |a, b| a == b),
    Pcmpgtq(a, b, _) => compare64(a, b, |a, b| a > b),
    Pminsb(a, b, _) => zip::<i8, 16>(a, b, i8::min),
    Pmaxsb(a, b, _) => zip::<i8, 16>(a, b, i8::max),
    Pminuw(a, b, _) => zip::<u16, 8>(a, b, u16::min),
    Pmaxuw(a, b, _) => zip::<u16, 8>(a, b, u16::max),
    Pminsd(a, b, _) => zip::<i32, 4>(a, b, i32::min),
    Pmaxsd(a, b, _) => zip::<i32, 4>(a, b, i32::max),
    Pminud(a, b, _) => zip::<u32, 4>(a, b, u32::min),
    Pmaxud(a, b, _) => zip::<u32, 4>(a, b, u32::max),
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, BinaryInSteps<Blendps, 4>>(t, [Blendps_xmm_xmmm128_imm8, VEX_Vblendps_xmm_xmm_xmmm128_imm8, VEX_Vblendps_ymm_ymm_ymmm256_imm8]);
    ymm::<B, BinaryInSteps<Blendpd, 2>>(t, [Blendpd_xmm_xmmm128_imm8, VEX_Vblendpd_xmm_xmm_xmmm128_imm8, VEX_Vblendpd_ymm_ymm_ymmm256_imm8]);
    ymm::<B, Binary<Pblendw>>(t, [Pblendw_xmm_xmmm128_imm8, VEX_Vpblendw_xmm_xmm_xmmm128_imm8, VEX_Vpblendw_ymm_ymm_ymmm256_imm8]);
    ymm::<B, BinaryInSteps<Mpsadbw, 3>>(t, [Mpsadbw_xmm_xmmm128_imm8, VEX_Vmpsadbw_xmm_xmm_xmmm128_imm8, VEX_Vmpsadbw_ymm_ymm_ymmm256_imm8]);
    ymm::<B, Binary<Packusdw>>(t, [Packusdw_xmm_xmmm128, VEX_Vpackusdw_xmm_xmm_xmmm128, VEX_Vpackusdw_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmuldq>>(t, [Pmuldq_xmm_xmmm128, VEX_Vpmuldq_xmm_xmm_xmmm128, VEX_Vpmuldq_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmulld>>(t, [Pmulld_xmm_xmmm128, VEX_Vpmulld_xmm_xmm_xmmm128, VEX_Vpmulld_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pcmpeqq>>(t, [Pcmpeqq_xmm_xmmm128, VEX_Vpcmpeqq_xmm_xmm_xmmm128, VEX_Vpcmpeqq_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pcmpgtq>>(t, [Pcmpgtq_xmm_xmmm128, VEX_Vpcmpgtq_xmm_xmm_xmmm128, VEX_Vpcmpgtq_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pminsb>>(t, [Pminsb_xmm_xmmm128, VEX_Vpminsb_xmm_xmm_xmmm128, VEX_Vpminsb_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmaxsb>>(t, [Pmaxsb_xmm_xmmm128, VEX_Vpmaxsb_xmm_xmm_xmmm128, VEX_Vpmaxsb_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pminuw>>(t, [Pminuw_xmm_xmmm128, VEX_Vpminuw_xmm_xmm_xmmm128, VEX_Vpminuw_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmaxuw>>(t, [Pmaxuw_xmm_xmmm128, VEX_Vpmaxuw_xmm_xmm_xmmm128, VEX_Vpmaxuw_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pminsd>>(t, [Pminsd_xmm_xmmm128, VEX_Vpminsd_xmm_xmm_xmmm128, VEX_Vpminsd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmaxsd>>(t, [Pmaxsd_xmm_xmmm128, VEX_Vpmaxsd_xmm_xmm_xmmm128, VEX_Vpmaxsd_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pminud>>(t, [Pminud_xmm_xmmm128, VEX_Vpminud_xmm_xmm_xmmm128, VEX_Vpminud_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pmaxud>>(t, [Pmaxud_xmm_xmmm128, VEX_Vpmaxud_xmm_xmm_xmmm128, VEX_Vpmaxud_ymm_ymm_ymmm256]);
    xmm::<B, Unary<Phminposuw>>(t, [Phminposuw_xmm_xmmm128, VEX_Vphminposuw_xmm_xmmm128]);
}
