//! Conversions between floating-point formats and integers.

use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, Legacy, OneSource, TwoSources, source};
use super::float::{
    Aligned, FLOAT, Float, Lanes, LanesOfOne, Low, Operand, Scalar, Xmm, arithmetic, float,
};
use super::mxcsr::{Masked, host, with_mxcsr};
use super::rows::{Encoded, Form, Handlers, WideForm, xmm, ymm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

float! {
    Cvtps2pd = "cvtps2pd" Cvtpd2ps = "cvtpd2ps" Cvtss2sd = "cvtss2sd" Cvtsd2ss = "cvtsd2ss"
    Cvtdq2ps = "cvtdq2ps" Cvtps2dq = "cvtps2dq" Cvttps2dq = "cvttps2dq"
    Cvtdq2pd = "cvtdq2pd" Cvtpd2dq = "cvtpd2dq" Cvttpd2dq = "cvttpd2dq"
}

/// CVTSI2SS and CVTSI2SD.
trait FromInt {
    fn run(csr: Masked, a: V, b: u64) -> (V, u32);
}

macro_rules! from_int {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
        impl FromInt for $name {
            #[inline(always)]
            fn run(csr: Masked, mut a: V, b: u64) -> (V, u32) {
                let mut csr = csr.get();
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in a `Masked`.
                unsafe {
                    with_mxcsr!(
                        csr,
                        [$insn],
                        a = inout(xmm_reg) a,
                        b = in(reg) b,
                        options(nostack, preserves_flags),
                    );
                }
                (a, csr)
            }
        }
    )*};
}
from_int! {
    Cvtsi2ss32 = "cvtsi2ss {a}, {b:e}" Cvtsi2ss64 = "cvtsi2ss {a}, {b:r}"
    Cvtsi2sd32 = "cvtsi2sd {a}, {b:e}" Cvtsi2sd64 = "cvtsi2sd {a}, {b:r}"
}

#[inline(always)]
fn from_int<E: Encoding, K: FromInt>(cpu: &mut Cpu, insn: &Insn, b: u64) -> Exec {
    let a = cpu.v(E::first(insn));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.put::<E>(insn, cast(r));
    Ok(Flow::Next)
}

/// The conversion of an integer of the size of `T`.
struct FromInteger<K, T>(PhantomData<(K, T)>);

impl<K: FromInt, T: Int> Encoded for FromInteger<K, T> {
    type Vex = TwoSources;
    const NATIVE: Option<VectorForm> = FLOAT;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let b = cpu.r::<u64>(E::second(insn));
        from_int::<E, K>(cpu, insn, b)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let b = cpu.load::<T>(cpu.ea(insn))?.zext();
        from_int::<E, K>(cpu, insn, b)
    }
}

/// CVTSS2SI and its relatives.
trait ToInt {
    /// The size of the integer.
    type Result: Int;
    fn run(csr: Masked, b: V) -> (u64, u32);
}

macro_rules! to_int {
    ($($name:ident: $t:ty = $insn:literal)*) => {$(
        struct $name;
        impl ToInt for $name {
            type Result = $t;
            #[inline(always)]
            fn run(csr: Masked, b: V) -> (u64, u32) {
                let mut csr = csr.get();
                let r: u64;
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in a `Masked`.
                unsafe {
                    with_mxcsr!(
                        csr,
                        [$insn],
                        r = out(reg) r,
                        b = in(xmm_reg) b,
                        options(nostack, preserves_flags),
                    );
                }
                (r, csr)
            }
        }
    )*};
}
to_int! {
    Cvtss2si32: u32 = "cvtss2si {r:e}, {b}" Cvtss2si64: u64 = "cvtss2si {r:r}, {b}"
    Cvtsd2si32: u32 = "cvtsd2si {r:e}, {b}" Cvtsd2si64: u64 = "cvtsd2si {r:r}, {b}"
    Cvttss2si32: u32 = "cvttss2si {r:e}, {b}" Cvttss2si64: u64 = "cvttss2si {r:r}, {b}"
    Cvttsd2si32: u32 = "cvttsd2si {r:e}, {b}" Cvttsd2si64: u64 = "cvttsd2si {r:r}, {b}"
}

#[inline(always)]
fn to_int<E: Encoding, K: ToInt, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = F::read(cpu, insn, insn.src)?;
    let r = cpu.float(|csr| K::run(csr, b))?;
    cpu.w(insn.dst, K::Result::from_u64(r));
    Ok(Flow::Next)
}

/// The conversion to an integer of an element of the size of `T`.
struct ToInteger<K, T>(PhantomData<(K, T)>);

impl<K: ToInt, T: Int> Encoded for ToInteger<K, T> {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = FLOAT;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        to_int::<E, K, Xmm>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        to_int::<E, K, Low<T>>(cpu, insn)
    }
}

#[inline(always)]
fn lower_half(v: V) -> V {
    cast(cast::<V, u128>(v) & u128::from(u64::MAX))
}

/// Two integers to two floats, in the lower half; the upper one is kept.
struct Cvtpi2ps;
impl Float for Cvtpi2ps {
    #[inline(always)]
    fn run(csr: Masked, a: V, b: V) -> (V, u32) {
        let (r, csr) = Cvtdq2ps::run(csr, a, lower_half(b));
        let (a, r): ([u64; 2], [u64; 2]) = (cast(a), cast(r));
        (cast([r[0], a[1]]), csr)
    }
}

/// Clears the upper half of the second operand. Zero converts without an exception.
struct LowerHalf<K>(K);
impl<K: Float> Float for LowerHalf<K> {
    #[inline(always)]
    fn run(csr: Masked, a: V, b: V) -> (V, u32) {
        K::run(csr, a, lower_half(b))
    }
}

/// XMM from MMX.
fn xmm_mm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let (a, b) = (cpu.v(insn.dst), cast(u128::from(cpu.x87.mm(insn.src))));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.x87.enter_mmx();
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// MMX from XMM or memory.
fn mm_xmm<K: Float, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let b = F::read(cpu, insn, insn.src)?;
    let r = cpu.float(|csr| K::run(csr, cast(0u128), b))?;
    cpu.x87.set_mm(insn.dst, cast::<V, u128>(r) as u64);
    Ok(Flow::Next)
}

#[inline(always)]
fn upper_half(v: V) -> V {
    cast(cast::<V, u128>(v) >> 64)
}

/// The lower halves of the lanes, in one.
#[inline(always)]
pub(super) fn join_halves(lower: V, upper: V) -> V {
    let (lower, upper): ([u64; 2], [u64; 2]) = (cast(lower), cast(upper));
    cast([lower[0], upper[0]])
}

/// Elements of twice the size, in a YMM register: each lane converts its half of the source.
fn widen<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [b] = source(cpu, insn, insn.src)?;
    let halves = [b, upper_half(b)];
    let r = cpu.float_lanes::<2>(|csr, i| K::run(csr, b, halves[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// Elements of half the size, of a YMM register.
fn narrow<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; 2] = source(cpu, insn, insn.src)?;
    let [lower, upper] = cpu.float_lanes(|csr, i| K::run(csr, b[i], b[i]))?;
    cpu.set_lanes(insn.dst, [join_halves(lower, upper)]);
    Ok(Flow::Next)
}

/// Elements of half the size, of an XMM register or memory.
fn narrow_xmm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [b] = source(cpu, insn, insn.src)?;
    let [r] = cpu.float_lanes(|csr, _| K::run(csr, b, b))?;
    cpu.set_lanes(insn.dst, [r]);
    Ok(Flow::Next)
}

/// Elements of twice the size: without VEX and on XMM registers, of the lower half of the source.
pub(super) struct Wider<K>(PhantomData<K>);

impl<K: Float> Form for Wider<K> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        [
            arithmetic::<Legacy, K, Xmm>,
            arithmetic::<Legacy, K, Low<u64>>,
        ]
    }
    fn vex() -> Handlers {
        [
            arithmetic::<OneSource, K, Xmm>,
            arithmetic::<OneSource, K, Low<u64>>,
        ]
    }
}

impl<K: Float> WideForm for Wider<K> {
    fn ymm() -> Handlers {
        [widen::<K>; 2]
    }
}

/// Elements of half the size, of a whole register.
struct Narrower<K>(PhantomData<K>);

impl<K: Float> Form for Narrower<K> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        Lanes::<K>::sse()
    }
    fn vex() -> Handlers {
        [narrow_xmm::<K>; 2]
    }
}

impl<K: Float> WideForm for Narrower<K> {
    fn ymm() -> Handlers {
        [narrow::<K>; 2]
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, FromInteger<Cvtsi2ss32, u32>>(t, [Cvtsi2ss_xmm_rm32, VEX_Vcvtsi2ss_xmm_xmm_rm32]);
    xmm::<B, FromInteger<Cvtsi2ss64, u64>>(t, [Cvtsi2ss_xmm_rm64, VEX_Vcvtsi2ss_xmm_xmm_rm64]);
    xmm::<B, FromInteger<Cvtsi2sd32, u32>>(t, [Cvtsi2sd_xmm_rm32, VEX_Vcvtsi2sd_xmm_xmm_rm32]);
    xmm::<B, FromInteger<Cvtsi2sd64, u64>>(t, [Cvtsi2sd_xmm_rm64, VEX_Vcvtsi2sd_xmm_xmm_rm64]);
    xmm::<B, ToInteger<Cvtss2si32, u32>>(t, [Cvtss2si_r32_xmmm32, VEX_Vcvtss2si_r32_xmmm32]);
    xmm::<B, ToInteger<Cvtss2si64, u32>>(t, [Cvtss2si_r64_xmmm32, VEX_Vcvtss2si_r64_xmmm32]);
    xmm::<B, ToInteger<Cvttss2si32, u32>>(t, [Cvttss2si_r32_xmmm32, VEX_Vcvttss2si_r32_xmmm32]);
    xmm::<B, ToInteger<Cvttss2si64, u32>>(t, [Cvttss2si_r64_xmmm32, VEX_Vcvttss2si_r64_xmmm32]);
    xmm::<B, ToInteger<Cvtsd2si32, u64>>(t, [Cvtsd2si_r32_xmmm64, VEX_Vcvtsd2si_r32_xmmm64]);
    xmm::<B, ToInteger<Cvtsd2si64, u64>>(t, [Cvtsd2si_r64_xmmm64, VEX_Vcvtsd2si_r64_xmmm64]);
    xmm::<B, ToInteger<Cvttsd2si32, u64>>(t, [Cvttsd2si_r32_xmmm64, VEX_Vcvttsd2si_r32_xmmm64]);
    xmm::<B, ToInteger<Cvttsd2si64, u64>>(t, [Cvttsd2si_r64_xmmm64, VEX_Vcvttsd2si_r64_xmmm64]);
    ymm::<B, Wider<Cvtps2pd>>(t, [Cvtps2pd_xmm_xmmm64, VEX_Vcvtps2pd_xmm_xmmm64, VEX_Vcvtps2pd_ymm_xmmm128]);
    ymm::<B, Narrower<Cvtpd2ps>>(t, [Cvtpd2ps_xmm_xmmm128, VEX_Vcvtpd2ps_xmm_xmmm128, VEX_Vcvtpd2ps_xmm_ymmm256]);
    xmm::<B, Scalar<Cvtss2sd, u32>>(t, [Cvtss2sd_xmm_xmmm32, VEX_Vcvtss2sd_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Cvtsd2ss, u64>>(t, [Cvtsd2ss_xmm_xmmm64, VEX_Vcvtsd2ss_xmm_xmm_xmmm64]);
    ymm::<B, LanesOfOne<Cvtdq2ps>>(t, [Cvtdq2ps_xmm_xmmm128, VEX_Vcvtdq2ps_xmm_xmmm128, VEX_Vcvtdq2ps_ymm_ymmm256]);
    ymm::<B, LanesOfOne<Cvtps2dq>>(t, [Cvtps2dq_xmm_xmmm128, VEX_Vcvtps2dq_xmm_xmmm128, VEX_Vcvtps2dq_ymm_ymmm256]);
    ymm::<B, LanesOfOne<Cvttps2dq>>(t, [Cvttps2dq_xmm_xmmm128, VEX_Vcvttps2dq_xmm_xmmm128, VEX_Vcvttps2dq_ymm_ymmm256]);
    ymm::<B, Wider<Cvtdq2pd>>(t, [Cvtdq2pd_xmm_xmmm64, VEX_Vcvtdq2pd_xmm_xmmm64, VEX_Vcvtdq2pd_ymm_xmmm128]);
    ymm::<B, Narrower<Cvtpd2dq>>(t, [Cvtpd2dq_xmm_xmmm128, VEX_Vcvtpd2dq_xmm_xmmm128, VEX_Vcvtpd2dq_xmm_ymmm256]);
    ymm::<B, Narrower<Cvttpd2dq>>(t, [Cvttpd2dq_xmm_xmmm128, VEX_Vcvttpd2dq_xmm_xmmm128, VEX_Vcvttpd2dq_xmm_ymmm256]);
    // From memory they access no MMX register, and leave the x87 FPU alone.
    t.handlers([Cvtpi2ps_xmm_mmm64], xmm_mm::<Cvtpi2ps>, arithmetic::<Legacy, Cvtpi2ps, Low<u64>>);
    t.handlers([Cvtpi2pd_xmm_mmm64], xmm_mm::<Cvtdq2pd>, arithmetic::<Legacy, Cvtdq2pd, Low<u64>>);
    t.handlers([Cvtps2pi_mm_xmmm64], mm_xmm::<LowerHalf<Cvtps2dq>, Xmm>, mm_xmm::<Cvtps2dq, Low<u64>>);
    t.handlers([Cvttps2pi_mm_xmmm64], mm_xmm::<LowerHalf<Cvttps2dq>, Xmm>, mm_xmm::<Cvttps2dq, Low<u64>>);
    t.handlers([Cvtpd2pi_mm_xmmm128], mm_xmm::<Cvtpd2dq, Xmm>, mm_xmm::<Cvtpd2dq, Aligned>);
    t.handlers([Cvttpd2pi_mm_xmmm128], mm_xmm::<Cvttpd2dq, Xmm>, mm_xmm::<Cvttpd2dq, Aligned>);
}
