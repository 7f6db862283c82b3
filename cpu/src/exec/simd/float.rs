//! Floating-point arithmetic and comparison of SSE, SSE2 and SSE3.

use std::marker::PhantomData;

use iced_x86::Code;

pub(super) use super::estimate::{Rcpps, Rcpss, Rsqrtps, Rsqrtss};
use super::mxcsr::{Masked, host, with_mxcsr};
use super::sse2::*;
use super::{Encoding, Legacy, V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

/// A floating-point operation: result and MXCSR after it.
pub(super) trait Float {
    fn run(csr: Masked, a: V, b: V) -> (V, u32);
}

/// Kernels that are one instruction of the host.
macro_rules! float {
    ($($name:ident = $insn:literal)*) => {$(
        pub(super) struct $name;
        impl Float for $name {
            #[inline(always)]
            fn run(csr: Masked, a: V, b: V) -> (V, u32) {
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in a `Masked`.
                unsafe { host!(concat!($insn, " {a}, {b}"), csr, a, b) }
            }
        }
    )*};
}
pub(super) use float;

float! {
    Addps = "addps" Addpd = "addpd" Addss = "addss" Addsd = "addsd"
    Subps = "subps" Subpd = "subpd" Subss = "subss" Subsd = "subsd"
    Mulps = "mulps" Mulpd = "mulpd" Mulss = "mulss" Mulsd = "mulsd"
    Divps = "divps" Divpd = "divpd" Divss = "divss" Divsd = "divsd"
    Minps = "minps" Minpd = "minpd" Minss = "minss" Minsd = "minsd"
    Maxps = "maxps" Maxpd = "maxpd" Maxss = "maxss" Maxsd = "maxsd"
    Sqrtps = "sqrtps" Sqrtpd = "sqrtpd" Sqrtss = "sqrtss" Sqrtsd = "sqrtsd"
}

/// A floating-point operation that a constant selects, in each instruction's immediate operand.
pub(super) trait ByImmediate {
    /// The result and MXCSR after it.
    fn run<const P: u8>(csr: Masked, a: V, b: V) -> (V, u32);
}

/// Kernels that are one instruction of the host with an immediate operand.
macro_rules! by_immediate {
    ($($name:ident = $insn:literal)*) => {$(
        pub(super) struct $name;
        impl ByImmediate for $name {
            #[inline(always)]
            fn run<const P: u8>(csr: Masked, a: V, b: V) -> (V, u32) {
                // SAFETY: the instruction has register operands only, every exception is masked in
                // `csr`, and a model that has it runs only on a host that has it.
                unsafe { host!(concat!($insn, " {a}, {b}, {p}"), csr, a, b, p = const P) }
            }
        }
    )*};
}
pub(super) use by_immediate;

by_immediate! { Cmpps = "cmpps" Cmppd = "cmppd" Cmpss = "cmpss" Cmpsd = "cmpsd" }

/// HADDPS and its relatives: the operation on the even and the odd elements of both operands. Of
/// two NaNs the result is that of the even element.
macro_rules! horizontal {
    ($($name:ident = $base:ident, $gather:ident)*) => {$(
        pub(super) struct $name;
        impl Float for $name {
            #[inline(always)]
            fn run(csr: Masked, a: V, b: V) -> (V, u32) {
                let (even, odd) = $gather(a, b);
                $base::run(csr, even, odd)
            }
        }
    )*};
}
horizontal! {
    Haddps = Addps, singles
    Hsubps = Subps, singles
    Haddpd = Addpd, doubles
    Hsubpd = Subpd, doubles
}

#[inline(always)]
fn singles(a: V, b: V) -> (V, V) {
    let (a, b): ([u32; 4], [u32; 4]) = (cast(a), cast(b));
    (
        cast([a[0], a[2], b[0], b[2]]),
        cast([a[1], a[3], b[1], b[3]]),
    )
}

#[inline(always)]
fn doubles(a: V, b: V) -> (V, V) {
    (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b))
}

/// ADDSUBPS and ADDSUBPD subtract the even elements and add the odd ones. Each step gets zeros for
/// the other elements, which raise no exception.
#[inline(always)]
fn addsub<A: Float, S: Float>(csr: Masked, a: V, b: V, even: V) -> (V, u32) {
    let (d, s_csr) = S::run(csr, _mm_and_si128(a, even), _mm_and_si128(b, even));
    let (s, a_csr) = A::run(csr, _mm_andnot_si128(even, a), _mm_andnot_si128(even, b));
    (
        _mm_or_si128(_mm_and_si128(d, even), _mm_andnot_si128(even, s)),
        s_csr | a_csr,
    )
}

pub(super) struct Addsubps;
impl Float for Addsubps {
    #[inline(always)]
    fn run(csr: Masked, a: V, b: V) -> (V, u32) {
        addsub::<Addps, Subps>(csr, a, b, cast([u64::from(u32::MAX); 2]))
    }
}

pub(super) struct Addsubpd;
impl Float for Addsubpd {
    #[inline(always)]
    fn run(csr: Masked, a: V, b: V) -> (V, u32) {
        addsub::<Addpd, Subpd>(csr, a, b, cast([u64::MAX, 0]))
    }
}

/// Where the last operand is.
pub(super) trait Operand {
    /// Its value; `n` is its number if it is a register. The rest of the vector is zero, or the
    /// kernel ignores it.
    fn read(cpu: &mut Cpu, insn: &Insn, n: u8) -> Result<V, Abort>;
}

/// An XMM register.
pub(super) struct Xmm;
impl Operand for Xmm {
    #[inline(always)]
    fn read(cpu: &mut Cpu, _: &Insn, n: u8) -> Result<V, Abort> {
        Ok(cpu.v(n))
    }
}

/// 16 bytes of memory, which must be aligned.
pub(super) struct Aligned;
impl Operand for Aligned {
    #[inline(always)]
    fn read(cpu: &mut Cpu, insn: &Insn, _: u8) -> Result<V, Abort> {
        Ok(cast(cpu.load_aligned(insn)?))
    }
}

/// Memory of the size of `T`, which need not be aligned.
pub(super) struct Low<T>(PhantomData<T>);
impl<T: Int> Operand for Low<T> {
    #[inline(always)]
    fn read(cpu: &mut Cpu, insn: &Insn, _: u8) -> Result<V, Abort> {
        let b = cpu.load::<T>(cpu.ea(insn))?.zext();
        Ok(cast(u128::from(b)))
    }
}

/// Executes an instruction with an XMM destination.
#[inline(always)]
pub(super) fn execute<E: Encoding, F: Operand>(
    cpu: &mut Cpu,
    insn: &Insn,
    kernel: impl Fn(Masked, V, V) -> (V, u32),
) -> Exec {
    E::need(cpu)?;
    let b = F::read(cpu, insn, E::second(insn))?;
    let a = cpu.v(E::first(insn));
    let r = cpu.float(|csr| kernel(csr, a, b))?;
    cpu.put::<E>(insn, cast(r));
    Ok(Flow::Next)
}

/// Executes the instruction of kernel `K`.
pub(super) fn arithmetic<E: Encoding, K: Float, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<E, F>(cpu, insn, K::run)
}

/// CMPPS and its relatives. Bits 7:3 of the immediate have a meaning only for AVX.
fn by_predicate<K: ByImmediate, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<Legacy, F>(cpu, insn, |csr, a, b| match insn.imm & 7 {
        0 => K::run::<0>(csr, a, b),
        1 => K::run::<1>(csr, a, b),
        2 => K::run::<2>(csr, a, b),
        3 => K::run::<3>(csr, a, b),
        4 => K::run::<4>(csr, a, b),
        5 => K::run::<5>(csr, a, b),
        6 => K::run::<6>(csr, a, b),
        _ => K::run::<7>(csr, a, b),
    })
}

/// ROUNDPS and its relatives. The low four bits of the immediate are the rounding control, whether
/// MXCSR has it instead, and whether an inexact result raises nothing.
#[inline(always)]
pub(super) fn round<K: ByImmediate>(imm: u64, csr: Masked, a: V, b: V) -> (V, u32) {
    match imm & 15 {
        0 => K::run::<0>(csr, a, b),
        1 => K::run::<1>(csr, a, b),
        2 => K::run::<2>(csr, a, b),
        3 => K::run::<3>(csr, a, b),
        4 => K::run::<4>(csr, a, b),
        5 => K::run::<5>(csr, a, b),
        6 => K::run::<6>(csr, a, b),
        7 => K::run::<7>(csr, a, b),
        8 => K::run::<8>(csr, a, b),
        9 => K::run::<9>(csr, a, b),
        10 => K::run::<10>(csr, a, b),
        11 => K::run::<11>(csr, a, b),
        12 => K::run::<12>(csr, a, b),
        13 => K::run::<13>(csr, a, b),
        14 => K::run::<14>(csr, a, b),
        _ => K::run::<15>(csr, a, b),
    }
}

/// Executes the instruction of the rounding kernel `K`.
pub(super) fn by_rounding<E: Encoding, K: ByImmediate, F: Operand>(
    cpu: &mut Cpu,
    insn: &Insn,
) -> Exec {
    execute::<E, F>(cpu, insn, |csr, a, b| round::<K>(insn.imm, csr, a, b))
}

/// COMISS and its relatives: RFLAGS and MXCSR after it.
pub(super) trait Compare {
    fn run(csr: Masked, a: V, b: V) -> (u64, u32);
}

macro_rules! scalar_compare {
    ($($name:ident = $insn:literal)*) => {$(
        pub(super) struct $name;
        impl Compare for $name {
            #[inline(always)]
            fn run(csr: Masked, a: V, b: V) -> (u64, u32) {
                let mut csr = csr.get();
                let flags: u64;
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in a `Masked`.
                unsafe {
                    with_mxcsr!(
                        csr,
                        [concat!($insn, " {a}, {b}"), "pushfq", "pop {flags}"],
                        a = in(xmm_reg) a,
                        b = in(xmm_reg) b,
                        flags = out(reg) flags,
                    );
                }
                (flags, csr)
            }
        }
    )*};
}
scalar_compare! { Comiss = "comiss" Comisd = "comisd" Ucomiss = "ucomiss" Ucomisd = "ucomisd" }

pub(super) fn compare<E: Encoding, K: Compare, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = F::read(cpu, insn, insn.src)?;
    let a = cpu.v(insn.dst);
    let flags = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.flags = Lazy::from_bits(flags & (rflags::ZF | rflags::PF | rflags::CF));
    Ok(Flow::Next)
}

/// The row of an instruction whose second operand has 16 bytes.
pub(super) fn packed<B: Backend, K: Float>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        arithmetic::<Legacy, K, Xmm>,
        arithmetic::<Legacy, K, Aligned>,
    )
    .vector(VectorForm::ALIGNED.float());
}

/// The row of an instruction whose second operand is of the size of `T` if it is in memory.
pub(super) fn scalar<B: Backend, K: Float, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        arithmetic::<Legacy, K, Xmm>,
        arithmetic::<Legacy, K, Low<T>>,
    )
    .vector(VectorForm::ALIGNED.float());
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    packed::<B, Addps>(t, Addps_xmm_xmmm128);
    packed::<B, Addpd>(t, Addpd_xmm_xmmm128);
    scalar::<B, Addss, u32>(t, Addss_xmm_xmmm32);
    scalar::<B, Addsd, u64>(t, Addsd_xmm_xmmm64);
    packed::<B, Subps>(t, Subps_xmm_xmmm128);
    packed::<B, Subpd>(t, Subpd_xmm_xmmm128);
    scalar::<B, Subss, u32>(t, Subss_xmm_xmmm32);
    scalar::<B, Subsd, u64>(t, Subsd_xmm_xmmm64);
    packed::<B, Mulps>(t, Mulps_xmm_xmmm128);
    packed::<B, Mulpd>(t, Mulpd_xmm_xmmm128);
    scalar::<B, Mulss, u32>(t, Mulss_xmm_xmmm32);
    scalar::<B, Mulsd, u64>(t, Mulsd_xmm_xmmm64);
    packed::<B, Divps>(t, Divps_xmm_xmmm128);
    packed::<B, Divpd>(t, Divpd_xmm_xmmm128);
    scalar::<B, Divss, u32>(t, Divss_xmm_xmmm32);
    scalar::<B, Divsd, u64>(t, Divsd_xmm_xmmm64);
    packed::<B, Minps>(t, Minps_xmm_xmmm128);
    packed::<B, Minpd>(t, Minpd_xmm_xmmm128);
    scalar::<B, Minss, u32>(t, Minss_xmm_xmmm32);
    scalar::<B, Minsd, u64>(t, Minsd_xmm_xmmm64);
    packed::<B, Maxps>(t, Maxps_xmm_xmmm128);
    packed::<B, Maxpd>(t, Maxpd_xmm_xmmm128);
    scalar::<B, Maxss, u32>(t, Maxss_xmm_xmmm32);
    scalar::<B, Maxsd, u64>(t, Maxsd_xmm_xmmm64);
    packed::<B, Sqrtps>(t, Sqrtps_xmm_xmmm128);
    packed::<B, Sqrtpd>(t, Sqrtpd_xmm_xmmm128);
    scalar::<B, Sqrtss, u32>(t, Sqrtss_xmm_xmmm32);
    scalar::<B, Sqrtsd, u64>(t, Sqrtsd_xmm_xmmm64);
    packed::<B, Rcpps>(t, Rcpps_xmm_xmmm128);
    scalar::<B, Rcpss, u32>(t, Rcpss_xmm_xmmm32);
    packed::<B, Rsqrtps>(t, Rsqrtps_xmm_xmmm128);
    scalar::<B, Rsqrtss, u32>(t, Rsqrtss_xmm_xmmm32);
    packed::<B, Haddps>(t, Haddps_xmm_xmmm128);
    packed::<B, Haddpd>(t, Haddpd_xmm_xmmm128);
    packed::<B, Hsubps>(t, Hsubps_xmm_xmmm128);
    packed::<B, Hsubpd>(t, Hsubpd_xmm_xmmm128);
    packed::<B, Addsubps>(t, Addsubps_xmm_xmmm128);
    packed::<B, Addsubpd>(t, Addsubpd_xmm_xmmm128);
    t.handlers([Cmpps_xmm_xmmm128_imm8], by_predicate::<Cmpps, Xmm>, by_predicate::<Cmpps, Aligned>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cmppd_xmm_xmmm128_imm8], by_predicate::<Cmppd, Xmm>, by_predicate::<Cmppd, Aligned>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cmpss_xmm_xmmm32_imm8], by_predicate::<Cmpss, Xmm>, by_predicate::<Cmpss, Low<u32>>).vector(VectorForm::ALIGNED.float());
    t.handlers([Cmpsd_xmm_xmmm64_imm8], by_predicate::<Cmpsd, Xmm>, by_predicate::<Cmpsd, Low<u64>>).vector(VectorForm::ALIGNED.float());
    t.handlers([Comiss_xmm_xmmm32], compare::<Legacy, Comiss, Xmm>, compare::<Legacy, Comiss, Low<u32>>).vector(VectorForm::ALIGNED.float().flags());
    t.handlers([Comisd_xmm_xmmm64], compare::<Legacy, Comisd, Xmm>, compare::<Legacy, Comisd, Low<u64>>).vector(VectorForm::ALIGNED.float().flags());
    t.handlers([Ucomiss_xmm_xmmm32], compare::<Legacy, Ucomiss, Xmm>, compare::<Legacy, Ucomiss, Low<u32>>).vector(VectorForm::ALIGNED.float().flags());
    t.handlers([Ucomisd_xmm_xmmm64], compare::<Legacy, Ucomisd, Xmm>, compare::<Legacy, Ucomisd, Low<u64>>).vector(VectorForm::ALIGNED.float().flags());
    // The host's estimates depend on its vendor.
    t.called([Rcpps_xmm_xmmm128, Rcpss_xmm_xmmm32, Rsqrtps_xmm_xmmm128, Rsqrtss_xmm_xmmm32]);
    // They are rare.
    t.called([Haddps_xmm_xmmm128, Haddpd_xmm_xmmm128, Hsubps_xmm_xmmm128, Hsubpd_xmm_xmmm128, Addsubps_xmm_xmmm128, Addsubpd_xmm_xmmm128]);
}
