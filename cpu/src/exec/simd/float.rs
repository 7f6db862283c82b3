//! Floating-point arithmetic and comparison of SSE, SSE2 and SSE3.
//!
//! RCPPS and RSQRTPS approximate: their last bits are those of the host's maker.

use std::arch::asm;

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::mxcsr::{HOST_MXCSR, host};
use super::sse2::*;
use super::{V, cast};
use crate::exec::Handler;
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};
use crate::state::rflags;

/// A floating-point operation: result and MXCSR after it. `csr` has every exception masked.
pub(super) trait Float {
    fn run(csr: u32, a: V, b: V) -> (V, u32);
}

/// Kernels that are one instruction of the host.
macro_rules! float {
    ($($name:ident = $insn:literal)*) => {$(
        pub(super) struct $name;
        impl Float for $name {
            #[inline(always)]
            fn run(csr: u32, a: V, b: V) -> (V, u32) {
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in `csr`.
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
    Rcpps = "rcpps" Rcpss = "rcpss" Rsqrtps = "rsqrtps" Rsqrtss = "rsqrtss"
}

/// A kernel for each value of the immediate operand.
macro_rules! by_immediate {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name<const P: u8>;
        impl<const P: u8> Float for $name<P> {
            #[inline(always)]
            fn run(csr: u32, a: V, b: V) -> (V, u32) {
                // SAFETY: the instruction has register operands only, every exception is masked in
                // `csr`, and a model that has it runs only on a host that has it.
                unsafe { host!(concat!($insn, " {a}, {b}, {p}"), csr, a, b, p = const P) }
            }
        }
    )*};
}
pub(super) use by_immediate;

// CMPPS and its kin, by predicate.
by_immediate! { Cmpps = "cmpps" Cmppd = "cmppd" Cmpss = "cmpss" Cmpsd = "cmpsd" }

/// HADDPS and its kin: the operation on the even elements of both operands and their odd ones. Of
/// two NaNs the even element's is the result.
macro_rules! horizontal {
    ($($name:ident = $base:ident, $gather:ident)*) => {$(
        struct $name;
        impl Float for $name {
            #[inline(always)]
            fn run(csr: u32, a: V, b: V) -> (V, u32) {
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

/// ADDSUBPS and ADDSUBPD: subtracts even elements and adds odd ones. Elements that a half does not
/// want are zeros, which raise nothing.
#[inline(always)]
fn addsub<A: Float, S: Float>(csr: u32, a: V, b: V, even: V) -> (V, u32) {
    let (d, s_csr) = S::run(csr, _mm_and_si128(a, even), _mm_and_si128(b, even));
    let (s, a_csr) = A::run(csr, _mm_andnot_si128(even, a), _mm_andnot_si128(even, b));
    (
        _mm_or_si128(_mm_and_si128(d, even), _mm_andnot_si128(even, s)),
        s_csr | a_csr,
    )
}

struct Addsubps;
impl Float for Addsubps {
    #[inline(always)]
    fn run(csr: u32, a: V, b: V) -> (V, u32) {
        addsub::<Addps, Subps>(csr, a, b, cast([u64::from(u32::MAX); 2]))
    }
}

struct Addsubpd;
impl Float for Addsubpd {
    #[inline(always)]
    fn run(csr: u32, a: V, b: V) -> (V, u32) {
        addsub::<Addpd, Subpd>(csr, a, b, cast([u64::MAX, 0]))
    }
}

fn xmm_xmm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let (a, b) = (cpu.v(insn.dst), cpu.v(insn.src));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

fn xmm_mem<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let (a, b) = (cpu.v(insn.dst), cast(cpu.load_aligned(insn)?));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// The operand has the size of `T` and need not be aligned.
fn xmm_part<K: Float, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    let (a, b) = (cpu.v(insn.dst), cast(u128::from(b)));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// The handler of an instruction with an XMM destination.
pub(super) fn shape<K: Float>(i: &Instruction) -> Handler {
    match (i.op1_kind(), i.memory_size().size()) {
        (OpKind::Register, _) => xmm_xmm::<K>,
        (_, 4) => xmm_part::<K, u32>,
        (_, 8) => xmm_part::<K, u64>,
        _ => xmm_mem::<K>,
    }
}

/// COMISS and its kin: RFLAGS and MXCSR after it.
trait Compare {
    fn run(csr: u32, a: V, b: V) -> (u64, u32);
}

macro_rules! scalar_compare {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
        impl Compare for $name {
            #[inline(always)]
            fn run(mut csr: u32, a: V, b: V) -> (u64, u32) {
                let flags: u64;
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in `csr`.
                unsafe {
                    asm!(
                        "ldmxcsr [{csr}]",
                        concat!($insn, " {a}, {b}"),
                        "pushfq",
                        "pop {flags}",
                        "stmxcsr [{csr}]",
                        "ldmxcsr [rip + {host}]",
                        csr = in(reg) &raw mut csr,
                        a = in(xmm_reg) a,
                        b = in(xmm_reg) b,
                        flags = out(reg) flags,
                        host = sym HOST_MXCSR,
                    );
                }
                (flags, csr)
            }
        }
    )*};
}
scalar_compare! { Comiss = "comiss" Comisd = "comisd" Ucomiss = "ucomiss" Ucomisd = "ucomisd" }

#[inline(always)]
fn compare<K: Compare>(cpu: &mut Cpu, insn: &Insn, b: u128) -> Exec {
    let (a, b) = (cpu.v(insn.dst), cast(b));
    let flags = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.flags = Lazy::from_bits(flags & (rflags::ZF | rflags::PF | rflags::CF));
    Ok(Flow::Next)
}

fn compare_reg<K: Compare>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.xmm(insn.src);
    compare::<K>(cpu, insn, b)
}

fn compare_mem<K: Compare, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    compare::<K>(cpu, insn, b.into())
}

fn compare_shape<K: Compare>(i: &Instruction) -> Handler {
    match (i.op1_kind(), i.memory_size().size()) {
        (OpKind::Register, _) => compare_reg::<K>,
        (_, 4) => compare_mem::<K, u32>,
        _ => compare_mem::<K, u64>,
    }
}

macro_rules! by_predicate {
    ($i:expr, $kernel:ident) => {
        // Bits 7:3 of the immediate mean something only to AVX.
        match $i.immediate8() & 7 {
            0 => shape::<$kernel<0>>($i),
            1 => shape::<$kernel<1>>($i),
            2 => shape::<$kernel<2>>($i),
            3 => shape::<$kernel<3>>($i),
            4 => shape::<$kernel<4>>($i),
            5 => shape::<$kernel<5>>($i),
            6 => shape::<$kernel<6>>($i),
            _ => shape::<$kernel<7>>($i),
        }
    };
}

macro_rules! select {
    ($i:expr; $($name:ident)*) => {
        match $i.mnemonic() {
            $(Mnemonic::$name => shape::<$name>($i),)*
            Mnemonic::Cmpps => by_predicate!($i, Cmpps),
            Mnemonic::Cmppd => by_predicate!($i, Cmppd),
            Mnemonic::Cmpss => by_predicate!($i, Cmpss),
            // The string instruction shares the mnemonic.
            Mnemonic::Cmpsd if $i.op0_register().is_xmm() => by_predicate!($i, Cmpsd),
            Mnemonic::Comiss => compare_shape::<Comiss>($i),
            Mnemonic::Comisd => compare_shape::<Comisd>($i),
            Mnemonic::Ucomiss => compare_shape::<Ucomiss>($i),
            Mnemonic::Ucomisd => compare_shape::<Ucomisd>($i),
            _ => return None,
        }
    };
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction) -> Option<Handler> {
    Some(select! { i;
        Addps Addpd Addss Addsd Subps Subpd Subss Subsd
        Mulps Mulpd Mulss Mulsd Divps Divpd Divss Divsd
        Minps Minpd Minss Minsd Maxps Maxpd Maxss Maxsd
        Sqrtps Sqrtpd Sqrtss Sqrtsd Rcpps Rcpss Rsqrtps Rsqrtss
        Haddps Haddpd Hsubps Hsubpd Addsubps Addsubpd
    })
}
