//! Conversions between floating-point formats and integers.

use iced_x86::Code;

use super::float::{Aligned, Float, Low, Operand, Xmm, arithmetic, float, packed, scalar};
use super::mxcsr::{Masked, host, with_mxcsr};
use super::{Encoding, Legacy, V, cast};
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
pub(super) trait FromInt {
    fn run(csr: Masked, a: V, b: u64) -> (V, u32);
}

macro_rules! from_int {
    ($($name:ident = $insn:literal)*) => {$(
        pub(super) struct $name;
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

pub(super) fn from_reg<E: Encoding, K: FromInt>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = cpu.r::<u64>(E::second(insn));
    from_int::<E, K>(cpu, insn, b)
}

pub(super) fn from_mem<E: Encoding, K: FromInt, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    from_int::<E, K>(cpu, insn, b)
}

#[inline(always)]
fn from_int<E: Encoding, K: FromInt>(cpu: &mut Cpu, insn: &Insn, b: u64) -> Exec {
    let a = cpu.v(E::first(insn));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.put::<E>(insn, cast(r));
    Ok(Flow::Next)
}

/// CVTSS2SI and its relatives.
pub(super) trait ToInt {
    /// The size of the integer.
    type Result: Int;
    fn run(csr: Masked, b: V) -> (u64, u32);
}

macro_rules! to_int {
    ($($name:ident: $t:ty = $insn:literal)*) => {$(
        pub(super) struct $name;
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

pub(super) fn to_int<E: Encoding, K: ToInt, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = F::read(cpu, insn, insn.src)?;
    let r = cpu.float(|csr| K::run(csr, b))?;
    cpu.w(insn.dst, K::Result::from_u64(r));
    Ok(Flow::Next)
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

/// The row of a conversion to an integer whose operand is of the size of `T` if it is in memory.
fn integer<B: Backend, K: ToInt, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        to_int::<Legacy, K, Xmm>,
        to_int::<Legacy, K, Low<T>>,
    )
    .vector(VectorForm::ALIGNED.float());
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handlers([Cvtsi2ss_xmm_rm32], from_reg::<Legacy, Cvtsi2ss32>, from_mem::<Legacy, Cvtsi2ss32, u32>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cvtsi2ss_xmm_rm64], from_reg::<Legacy, Cvtsi2ss64>, from_mem::<Legacy, Cvtsi2ss64, u64>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cvtsi2sd_xmm_rm32], from_reg::<Legacy, Cvtsi2sd32>, from_mem::<Legacy, Cvtsi2sd32, u32>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cvtsi2sd_xmm_rm64], from_reg::<Legacy, Cvtsi2sd64>, from_mem::<Legacy, Cvtsi2sd64, u64>).vector(VectorForm::ALIGNED.float());
    integer::<B, Cvtss2si32, u32>(t, Cvtss2si_r32_xmmm32);
    integer::<B, Cvtss2si64, u32>(t, Cvtss2si_r64_xmmm32);
    integer::<B, Cvttss2si32, u32>(t, Cvttss2si_r32_xmmm32);
    integer::<B, Cvttss2si64, u32>(t, Cvttss2si_r64_xmmm32);
    integer::<B, Cvtsd2si32, u64>(t, Cvtsd2si_r32_xmmm64);
    integer::<B, Cvtsd2si64, u64>(t, Cvtsd2si_r64_xmmm64);
    integer::<B, Cvttsd2si32, u64>(t, Cvttsd2si_r32_xmmm64);
    integer::<B, Cvttsd2si64, u64>(t, Cvttsd2si_r64_xmmm64);
    // From memory they access no MMX register, and leave the x87 FPU alone.
    t.handlers([Cvtpi2ps_xmm_mmm64], xmm_mm::<Cvtpi2ps>, arithmetic::<Legacy, Cvtpi2ps, Low<u64>>);
    t.handlers([Cvtpi2pd_xmm_mmm64], xmm_mm::<Cvtdq2pd>, arithmetic::<Legacy, Cvtdq2pd, Low<u64>>);
    t.handlers([Cvtps2pi_mm_xmmm64], mm_xmm::<LowerHalf<Cvtps2dq>, Xmm>, mm_xmm::<Cvtps2dq, Low<u64>>);
    t.handlers([Cvttps2pi_mm_xmmm64], mm_xmm::<LowerHalf<Cvttps2dq>, Xmm>, mm_xmm::<Cvttps2dq, Low<u64>>);
    t.handlers([Cvtpd2pi_mm_xmmm128], mm_xmm::<Cvtpd2dq, Xmm>, mm_xmm::<Cvtpd2dq, Aligned>);
    t.handlers([Cvttpd2pi_mm_xmmm128], mm_xmm::<Cvttpd2dq, Xmm>, mm_xmm::<Cvttpd2dq, Aligned>);
    scalar::<B, Cvtps2pd, u64>(t, Cvtps2pd_xmm_xmmm64);
    packed::<B, Cvtpd2ps>(t, Cvtpd2ps_xmm_xmmm128);
    scalar::<B, Cvtss2sd, u32>(t, Cvtss2sd_xmm_xmmm32);
    scalar::<B, Cvtsd2ss, u64>(t, Cvtsd2ss_xmm_xmmm64);
    packed::<B, Cvtdq2ps>(t, Cvtdq2ps_xmm_xmmm128);
    packed::<B, Cvtps2dq>(t, Cvtps2dq_xmm_xmmm128);
    packed::<B, Cvttps2dq>(t, Cvttps2dq_xmm_xmmm128);
    scalar::<B, Cvtdq2pd, u64>(t, Cvtdq2pd_xmm_xmmm64);
    packed::<B, Cvtpd2dq>(t, Cvtpd2dq_xmm_xmmm128);
    packed::<B, Cvttpd2dq>(t, Cvttpd2dq_xmm_xmmm128);
}
