//! Rounding and dot products of SSE4.1 and AVX. They run on the host's SSE4.1 unit, which a model
//! that has them requires: see [`Model::unsupported`](crate::Model::unsupported).

use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, Legacy, TwoSources, source};
use super::float::{
    Aligned, ByImmediate, FLOAT, Low, Operand, Xmm, by_immediate, execute, run_by_immediate,
};
use super::mxcsr::{Masked, host};
use super::rows::{Encoded, Form, Handlers, WideForm, xmm, ymm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

by_immediate! { Roundps = "roundps" Roundpd = "roundpd" Roundss = "roundss" Roundsd = "roundsd" }

/// ROUNDPS and its relatives. The low four bits of the immediate are the rounding control, whether
/// MXCSR has it instead, and whether an inexact result raises nothing.
#[inline(always)]
fn round<K: ByImmediate>(imm: u64, csr: Masked, a: V, b: V) -> (V, u32) {
    run_by_immediate!(K, imm & 15, (csr, a, b), 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14; 15)
}

/// Executes the instruction of the rounding kernel `K`.
#[inline(always)]
fn by_rounding<E: Encoding, K: ByImmediate, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<E, F>(cpu, insn, |csr, a, b| round::<K>(insn.imm, csr, a, b))
}

/// VROUNDPS and VROUNDPD.
fn round_lanes<K: ByImmediate, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.src)?;
    let r = cpu.float_lanes::<L>(|csr, i| round::<K>(insn.imm, csr, b[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// ROUNDPS and ROUNDPD.
struct Round<K>(PhantomData<K>);

impl<K: ByImmediate> Form for Round<K> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        [
            by_rounding::<Legacy, K, Xmm>,
            by_rounding::<Legacy, K, Aligned>,
        ]
    }
    fn vex() -> Handlers {
        [round_lanes::<K, 1>; 2]
    }
}

impl<K: ByImmediate> WideForm for Round<K> {
    fn ymm() -> Handlers {
        [round_lanes::<K, 2>; 2]
    }
}

/// ROUNDSS and ROUNDSD.
struct RoundScalar<K, T>(PhantomData<(K, T)>);

impl<K: ByImmediate, T: Int> Encoded for RoundScalar<K, T> {
    type Vex = TwoSources;
    const NATIVE: Option<VectorForm> = FLOAT;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        by_rounding::<E, K, Xmm>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        by_rounding::<E, K, Low<T>>(cpu, insn)
    }
}

/// DPPS and DPPD: the sum of all products, in every element.
trait Dot {
    /// Elements.
    const N: u32;
    fn products(csr: Masked, a: V, b: V) -> (V, u32);
    /// The sums of two products each.
    fn sums(csr: Masked, products: V) -> (V, u32);
    fn run(csr: Masked, a: V, b: V) -> (V, u32);
}

macro_rules! dot {
    ($($name:ident: $n:literal = $multiply:literal $add:literal $insn:literal)*) => {$(
        struct $name;
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
fn elements<K: Dot>(bits: u64) -> u128 {
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

/// VDPPS and VDPPD, as DPPS and DPPD.
fn dot_lanes<K: Dot, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let wanted = elements::<K>(insn.imm >> 4);
    let select = |v: V| cast(cast::<V, u128>(v) & wanted);
    let b: [V; L] = source::<L>(cpu, insn, insn.aux)?.map(select);
    let a: [V; L] = cpu.lanes::<L>(insn.src).map(select);
    let products = cpu.float_lanes::<L>(|csr, i| K::products(csr, a[i], b[i]))?;
    cpu.float_lanes::<L>(|csr, i| K::sums(csr, products[i]))?;
    let r = cpu.float_lanes::<L>(|csr, i| K::run(csr, a[i], b[i]))?;
    let kept = elements::<K>(insn.imm);
    cpu.set_lanes(insn.dst, r.map(|v| cast(cast::<V, u128>(v) & kept)));
    Ok(Flow::Next)
}

/// The instruction of a dot product, which native code calls: it is rare.
struct Product<K>(PhantomData<K>);

impl<K: Dot> Form for Product<K> {
    const NATIVE: Option<VectorForm> = None;

    fn sse() -> Handlers {
        [dot::<K>; 2]
    }
    fn vex() -> Handlers {
        [dot_lanes::<K, 1>; 2]
    }
}

impl<K: Dot> WideForm for Product<K> {
    fn ymm() -> Handlers {
        [dot_lanes::<K, 2>; 2]
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Round<Roundps>>(t, [Roundps_xmm_xmmm128_imm8, VEX_Vroundps_xmm_xmmm128_imm8, VEX_Vroundps_ymm_ymmm256_imm8]);
    ymm::<B, Round<Roundpd>>(t, [Roundpd_xmm_xmmm128_imm8, VEX_Vroundpd_xmm_xmmm128_imm8, VEX_Vroundpd_ymm_ymmm256_imm8]);
    xmm::<B, RoundScalar<Roundss, u32>>(t, [Roundss_xmm_xmmm32_imm8, VEX_Vroundss_xmm_xmm_xmmm32_imm8]);
    xmm::<B, RoundScalar<Roundsd, u64>>(t, [Roundsd_xmm_xmmm64_imm8, VEX_Vroundsd_xmm_xmm_xmmm64_imm8]);
    ymm::<B, Product<Dpps>>(t, [Dpps_xmm_xmmm128_imm8, VEX_Vdpps_xmm_xmm_xmmm128_imm8, VEX_Vdpps_ymm_ymm_ymmm256_imm8]);
    xmm::<B, Product<Dppd>>(t, [Dppd_xmm_xmmm128_imm8, VEX_Vdppd_xmm_xmm_xmmm128_imm8]);
}
