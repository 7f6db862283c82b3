//! SSE4.1 (SDM Vol. 1 12.8), and PCMPGTQ of SSE4.2.
//!
//! Rounding and dot products run on the host's SSE4.1 unit, which a model that has them requires:
//! see [`Model::unsupported`](crate::Model::unsupported).

use std::array::from_fn;

use iced_x86::Code;

use super::float::{Aligned, ByImmediate, Low, Xmm, by_immediate, by_rounding};
use super::mxcsr::{Masked, host};
use super::ssse3::zip;
use super::{Encoding, Legacy, V, cast, packed, xmm};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

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

// Blends by the signs of XMM0

/// A blend by the sign of each element of the mask.
pub(super) trait BySign {
    fn run(a: V, b: V, mask: V) -> V;
}

macro_rules! by_sign {
    ($($name:ident: $t:ty, $n:literal)*) => {$(
        pub(super) struct $name;
        impl BySign for $name {
            #[inline(always)]
            fn run(a: V, b: V, mask: V) -> V {
                let signs: [$t; $n] = cast(mask);
                let (a, b): ([$t; $n], [$t; $n]) = (cast(a), cast(b));
                cast::<[$t; $n], V>(from_fn(|i| {
                    if signs[i] >> (<$t>::BITS - 1) != 0 { b[i] } else { a[i] }
                }))
            }
        }
    )*};
}
by_sign! { Pblendvb: u8, 16 Blendvps: u32, 4 Blendvpd: u64, 2 }

fn blendv<K: BySign>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.aligned_source(insn)?;
    let r = K::run(cpu.v(insn.dst), b, cpu.v(0));
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// PTEST: ZF is set if AND is zero, CF if AND NOT is zero.
fn ptest(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b: u128 = cast(cpu.aligned_source(insn)?);
    let a = cpu.xmm(insn.dst);
    let flag = |set, bit| if set { bit } else { 0 };
    cpu.flags = Lazy::from_bits(flag(a & b == 0, rflags::ZF) | flag(!a & b == 0, rflags::CF));
    Ok(Flow::Next)
}

// Extensions

/// PMOVSX and PMOVZX.
pub(super) trait Extend {
    /// The part of the source that is used.
    type Source: Int;
    fn run(b: u64) -> V;
}

macro_rules! extend {
    ($($name:ident: $source:ty, $from:ty => $as:ty as $to:ty, $n:literal)*) => {$(
        pub(super) struct $name;
        impl Extend for $name {
            type Source = $source;
            #[inline(always)]
            fn run(b: u64) -> V {
                let element = |i| (b >> (<$from>::BITS as usize * i)) as $from as $as as $to;
                cast::<[$to; $n], V>(from_fn(element))
            }
        }
    )*};
}
extend! {
    Pmovsxbw: u64, i8 => i16 as u16, 8
    Pmovsxbd: u32, i8 => i32 as u32, 4
    Pmovsxbq: u16, i8 => i64 as u64, 2
    Pmovsxwd: u64, i16 => i32 as u32, 4
    Pmovsxwq: u32, i16 => i64 as u64, 2
    Pmovsxdq: u64, i32 => i64 as u64, 2
    Pmovzxbw: u64, u8 => u16 as u16, 8
    Pmovzxbd: u32, u8 => u32 as u32, 4
    Pmovzxbq: u16, u8 => u64 as u64, 2
    Pmovzxwd: u64, u16 => u32 as u32, 4
    Pmovzxwq: u32, u16 => u64 as u64, 2
    Pmovzxdq: u64, u32 => u64 as u64, 2
}

pub(super) fn extend<E: Encoding, K: Extend>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = if insn.prefix & Insn::MEM != 0 {
        cpu.load::<K::Source>(cpu.ea(insn))?.zext()
    } else {
        cpu.xmm(insn.src) as u64
    };
    cpu.put::<E>(insn, cast(K::run(b)));
    Ok(Flow::Next)
}

// Single elements

/// Shift of element `n` of a type.
#[inline(always)]
fn shift<T: Int>(n: u64) -> u32 {
    T::BITS * (n as u32 & (128 / T::BITS - 1))
}

/// PEXTRB, PEXTRW, PEXTRD, PEXTRQ, EXTRACTPS: zero above the element.
pub(super) fn extract<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let element = T::from_u64((cpu.xmm(insn.src) >> shift::<T>(insn.imm)) as u64);
    if insn.prefix & Insn::MEM != 0 {
        cpu.store(cpu.ea(insn), element)?;
    } else {
        cpu.w(insn.dst, element.zext());
    }
    Ok(Flow::Next)
}

/// PINSRB, PINSRD, PINSRQ.
pub(super) fn insert<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let element: T = if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))?
    } else {
        T::from_u64(cpu.r::<u64>(E::second(insn)))
    };
    let shift = shift::<T>(insn.imm);
    let mask = u128::from(T::from_u64(u64::MAX).zext()) << shift;
    let value = cpu.xmm(E::first(insn)) & !mask | u128::from(element.zext()) << shift;
    cpu.put::<E>(insn, value);
    Ok(Flow::Next)
}

/// INSERTPS: the immediate selects the source, the destination, and what becomes zero.
pub(super) fn insertps<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let imm = insn.imm as usize;
    let element: u32 = if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))?
    } else {
        cast::<u128, [u32; 4]>(cpu.xmm(E::second(insn)))[imm >> 6 & 3]
    };
    let mut r: [u32; 4] = cast(cpu.xmm(E::first(insn)));
    r[imm >> 4 & 3] = element;
    for (i, lane) in r.iter_mut().enumerate() {
        if imm >> i & 1 != 0 {
            *lane = 0;
        }
    }
    cpu.put::<E>(insn, cast(r));
    Ok(Flow::Next)
}

/// MOVNTDQA, an ordinary load: this processor has no cache.
fn movntdqa(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let v = cpu.load_aligned(insn)?;
    cpu.set_xmm(insn.dst, v);
    Ok(Flow::Next)
}

// Floating point

by_immediate! { Roundps = "roundps" Roundpd = "roundpd" Roundss = "roundss" Roundsd = "roundsd" }

/// DPPS and DPPD: the sum of all products, in every element.
pub(super) trait Dot {
    /// Elements.
    const N: u32;
    fn products(csr: Masked, a: V, b: V) -> (V, u32);
    /// The sums of two products each.
    fn sums(csr: Masked, products: V) -> (V, u32);
    fn run(csr: Masked, a: V, b: V) -> (V, u32);
}

macro_rules! dot {
    ($($name:ident: $n:literal = $multiply:literal $add:literal $insn:literal)*) => {$(
        pub(super) struct $name;
        impl Dot for $name {
            const N: u32 = $n;
            #[inline(always)]
            fn products(csr: Masked, a: V, b: V) -> (V, u32) {
                // SAFETY: as of the rounding instructions.
                unsafe { host!(concat!($multiply, " {a}, {b}"), csr, a, b) }
            }
            #[inline(always)]
            fn sums(csr: Masked, products: V) -> (V, u32) {
                // SAFETY: as of the rounding instructions.
                unsafe { host!(concat!($add, " {a}, {b}"), csr, products, products) }
            }
            #[inline(always)]
            fn run(csr: Masked, a: V, b: V) -> (V, u32) {
                // SAFETY: as of the rounding instructions.
                unsafe { host!(concat!($insn, " {a}, {b}, 255"), csr, a, b) }
            }
        }
    )*};
}
dot! { Dpps: 4 = "mulps" "haddps" "dpps" Dppd: 2 = "mulpd" "haddpd" "dppd" }

/// The elements whose bit is set.
#[inline(always)]
pub(super) fn elements<K: Dot>(bits: u64) -> u128 {
    let width = 128 / K::N;
    let ones = u128::MAX >> (128 - width);
    (0..K::N)
        .filter(|i| bits >> i & 1 != 0)
        .map(|i| ones << (width * i))
        .sum()
}

/// The upper half of the immediate selects the elements that are multiplied, the lower those that
/// get the result. The others are +0.0, and so is the product of two zeros, which raises nothing.
fn dot<K: Dot>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let wanted = elements::<K>(insn.imm >> 4);
    let b: u128 = cast(cpu.aligned_source(insn)?);
    let (a, b) = (cpu.xmm(insn.dst) & wanted, b & wanted);
    // After an unmasked exception the processor does not execute the next step, so that step raises
    // nothing.
    let products = cpu.float(|csr| K::products(csr, cast(a), cast(b)))?;
    cpu.float(|csr| K::sums(csr, products))?;
    let r = cpu.float(|csr| K::run(csr, cast(a), cast(b)))?;
    cpu.set_xmm(insn.dst, cast::<V, u128>(r) & elements::<K>(insn.imm));
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, Blendps>(t, Blendps_xmm_xmmm128_imm8);
    xmm::<B, Blendpd>(t, Blendpd_xmm_xmmm128_imm8);
    xmm::<B, Pblendw>(t, Pblendw_xmm_xmmm128_imm8);
    xmm::<B, Mpsadbw>(t, Mpsadbw_xmm_xmmm128_imm8);
    xmm::<B, Phminposuw>(t, Phminposuw_xmm_xmmm128);
    xmm::<B, Packusdw>(t, Packusdw_xmm_xmmm128);
    xmm::<B, Pmuldq>(t, Pmuldq_xmm_xmmm128);
    xmm::<B, Pmulld>(t, Pmulld_xmm_xmmm128);
    xmm::<B, Pcmpeqq>(t, Pcmpeqq_xmm_xmmm128);
    xmm::<B, Pcmpgtq>(t, Pcmpgtq_xmm_xmmm128);
    xmm::<B, Pminsb>(t, Pminsb_xmm_xmmm128);
    xmm::<B, Pmaxsb>(t, Pmaxsb_xmm_xmmm128);
    xmm::<B, Pminuw>(t, Pminuw_xmm_xmmm128);
    xmm::<B, Pmaxuw>(t, Pmaxuw_xmm_xmmm128);
    xmm::<B, Pminsd>(t, Pminsd_xmm_xmmm128);
    xmm::<B, Pmaxsd>(t, Pmaxsd_xmm_xmmm128);
    xmm::<B, Pminud>(t, Pminud_xmm_xmmm128);
    xmm::<B, Pmaxud>(t, Pmaxud_xmm_xmmm128);
    t.handler([Pmovsxbw_xmm_xmmm64], extend::<Legacy, Pmovsxbw>).vector(VectorForm::ALIGNED);
    t.handler([Pmovsxbd_xmm_xmmm32], extend::<Legacy, Pmovsxbd>).vector(VectorForm::ALIGNED);
    t.handler([Pmovsxbq_xmm_xmmm16], extend::<Legacy, Pmovsxbq>).vector(VectorForm::ALIGNED);
    t.handler([Pmovsxwd_xmm_xmmm64], extend::<Legacy, Pmovsxwd>).vector(VectorForm::ALIGNED);
    t.handler([Pmovsxwq_xmm_xmmm32], extend::<Legacy, Pmovsxwq>).vector(VectorForm::ALIGNED);
    t.handler([Pmovsxdq_xmm_xmmm64], extend::<Legacy, Pmovsxdq>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxbw_xmm_xmmm64], extend::<Legacy, Pmovzxbw>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxbd_xmm_xmmm32], extend::<Legacy, Pmovzxbd>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxbq_xmm_xmmm16], extend::<Legacy, Pmovzxbq>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxwd_xmm_xmmm64], extend::<Legacy, Pmovzxwd>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxwq_xmm_xmmm32], extend::<Legacy, Pmovzxwq>).vector(VectorForm::ALIGNED);
    t.handler([Pmovzxdq_xmm_xmmm64], extend::<Legacy, Pmovzxdq>).vector(VectorForm::ALIGNED);
    t.handler([Pblendvb_xmm_xmmm128], blendv::<Pblendvb>).vector(VectorForm::ALIGNED);
    t.handler([Blendvps_xmm_xmmm128], blendv::<Blendvps>).vector(VectorForm::ALIGNED);
    t.handler([Blendvpd_xmm_xmmm128], blendv::<Blendvpd>).vector(VectorForm::ALIGNED);
    t.handler([Ptest_xmm_xmmm128], ptest).vector(VectorForm::ALIGNED.flags());
    t.handler([Pextrb_r32m8_xmm_imm8, Pextrb_r64m8_xmm_imm8], extract::<Legacy, u8>).vector(VectorForm::ALIGNED);
    // The forms of PEXTRW that SSE2 has are in `transfer`.
    t.handler([Pextrw_r32m16_xmm_imm8, Pextrw_r64m16_xmm_imm8], extract::<Legacy, u16>).vector(VectorForm::ALIGNED);
    t.handler([Pextrd_rm32_xmm_imm8], extract::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handler([Extractps_rm32_xmm_imm8, Extractps_r64m32_xmm_imm8], extract::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handler([Pextrq_rm64_xmm_imm8], extract::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handler([Pinsrb_xmm_r32m8_imm8, Pinsrb_xmm_r64m8_imm8], insert::<Legacy, u8>).vector(VectorForm::ALIGNED);
    t.handler([Pinsrd_xmm_rm32_imm8], insert::<Legacy, u32>).vector(VectorForm::ALIGNED);
    t.handler([Pinsrq_xmm_rm64_imm8], insert::<Legacy, u64>).vector(VectorForm::ALIGNED);
    t.handler([Insertps_xmm_xmmm32_imm8], insertps::<Legacy>).vector(VectorForm::ALIGNED);
    t.handler([Movntdqa_xmm_m128], movntdqa).vector_as([Movdqa_xmm_xmmm128], VectorForm::ALIGNED);
    t.handlers([Roundps_xmm_xmmm128_imm8], by_rounding::<Legacy, Roundps, Xmm>, by_rounding::<Legacy, Roundps, Aligned>).vector(VectorForm::ALIGNED.float());
    t.handlers([Roundpd_xmm_xmmm128_imm8], by_rounding::<Legacy, Roundpd, Xmm>, by_rounding::<Legacy, Roundpd, Aligned>).vector(VectorForm::ALIGNED.float());
    t.handlers([Roundss_xmm_xmmm32_imm8], by_rounding::<Legacy, Roundss, Xmm>, by_rounding::<Legacy, Roundss, Low<u32>>).vector(VectorForm::ALIGNED.float());
    t.handlers([Roundsd_xmm_xmmm64_imm8], by_rounding::<Legacy, Roundsd, Xmm>, by_rounding::<Legacy, Roundsd, Low<u64>>).vector(VectorForm::ALIGNED.float());
    t.handler([Dpps_xmm_xmmm128_imm8], dot::<Dpps>);
    t.handler([Dppd_xmm_xmmm128_imm8], dot::<Dppd>);
}
