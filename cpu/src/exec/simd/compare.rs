//! Floating-point comparisons.

use std::marker::PhantomData;

use iced_x86::Code;

use super::V;
use super::encoding::{Encoding, Legacy, OneSource, TwoSources, source};
use super::float::{
    Aligned, ByImmediate, FLOAT, Low, Operand, Xmm, by_immediate, execute, run_by_immediate,
};
use super::mxcsr::{Masked, host, with_mxcsr};
use super::rows::{Encoded, Form, Handlers, WideForm, xmm, ymm};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

by_immediate! { Cmpps = "cmpps" Cmppd = "cmppd" Cmpss = "cmpss" Cmpsd = "cmpsd" }

/// CMPPS and its relatives. Bits 7:3 of the immediate have a meaning only for AVX.
fn by_predicate<K: ByImmediate, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<Legacy, F>(
        cpu,
        insn,
        |csr, a, b| run_by_immediate!(K, insn.imm & 7, (csr, a, b), 0 1 2 3 4 5 6; 7),
    )
}

/// Kernels of VCMPPS and its relatives, which have 32 predicates.
macro_rules! vcmp {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
        impl ByImmediate for $name {
            #[inline(always)]
            fn run<const P: u8>(csr: Masked, a: V, b: V) -> (V, u32) {
                // SAFETY: the instruction has register operands only, every exception is masked in
                // `csr`, and a model that has it runs only on a host that has it.
                unsafe { host!(concat!($insn, " {a}, {a}, {b}, {p}"), csr, a, b, p = const P) }
            }
        }
    )*};
}
vcmp! { Vcmpps = "vcmpps" Vcmppd = "vcmppd" Vcmpss = "vcmpss" Vcmpsd = "vcmpsd" }

/// Runs `K` with the predicate in the low five bits of an immediate.
#[inline(always)]
fn by_predicate_of_vex<K: ByImmediate>(imm: u64, csr: Masked, a: V, b: V) -> (V, u32) {
    run_by_immediate!(
        K, imm & 31, (csr, a, b),
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; 31
    )
}

fn compare_lanes<K: ByImmediate, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.aux)?;
    let a = cpu.lanes::<L>(insn.src);
    let r = cpu.float_lanes::<L>(|csr, i| by_predicate_of_vex::<K>(insn.imm, csr, a[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

fn compare_scalar<K: ByImmediate, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<TwoSources, F>(cpu, insn, |csr, a, b| {
        by_predicate_of_vex::<K>(insn.imm, csr, a, b)
    })
}

/// CMPPS and CMPPD, with the kernel `K`, and `V` with VEX, which has more predicates.
struct Predicates<K, V>(PhantomData<(K, V)>);

impl<K: ByImmediate, V: ByImmediate> Form for Predicates<K, V> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        [by_predicate::<K, Xmm>, by_predicate::<K, Aligned>]
    }
    fn vex() -> Handlers {
        [compare_lanes::<V, 1>; 2]
    }
}

impl<K: ByImmediate, V: ByImmediate> WideForm for Predicates<K, V> {
    fn ymm() -> Handlers {
        [compare_lanes::<V, 2>; 2]
    }
}

/// CMPSS and CMPSD, as [`Predicates`].
struct ScalarPredicates<K, V, T>(PhantomData<(K, V, T)>);

impl<K: ByImmediate, V: ByImmediate, T: Int> Form for ScalarPredicates<K, V, T> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        [by_predicate::<K, Xmm>, by_predicate::<K, Low<T>>]
    }
    fn vex() -> Handlers {
        [compare_scalar::<V, Xmm>, compare_scalar::<V, Low<T>>]
    }
}

/// COMISS and its relatives: RFLAGS and MXCSR after it.
trait Compare {
    fn run(csr: Masked, a: V, b: V) -> (u64, u32);
}

macro_rules! scalar_compare {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
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

#[inline(always)]
fn compare<E: Encoding, K: Compare, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let b = F::read(cpu, insn, insn.src)?;
    let a = cpu.v(insn.dst);
    let flags = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.flags = Lazy::from_bits(flags & (rflags::ZF | rflags::PF | rflags::CF));
    Ok(Flow::Next)
}

/// The instruction of a comparison that sets flags.
struct Flags<K, T>(PhantomData<(K, T)>);

impl<K: Compare, T: Int> Encoded for Flags<K, T> {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = Some(VectorForm::ALIGNED.float().flags());

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        compare::<E, K, Xmm>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        compare::<E, K, Low<T>>(cpu, insn)
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Predicates<Cmpps, Vcmpps>>(t, [Cmpps_xmm_xmmm128_imm8, VEX_Vcmpps_xmm_xmm_xmmm128_imm8, VEX_Vcmpps_ymm_ymm_ymmm256_imm8]);
    ymm::<B, Predicates<Cmppd, Vcmppd>>(t, [Cmppd_xmm_xmmm128_imm8, VEX_Vcmppd_xmm_xmm_xmmm128_imm8, VEX_Vcmppd_ymm_ymm_ymmm256_imm8]);
    xmm::<B, ScalarPredicates<Cmpss, Vcmpss, u32>>(t, [Cmpss_xmm_xmmm32_imm8, VEX_Vcmpss_xmm_xmm_xmmm32_imm8]);
    xmm::<B, ScalarPredicates<Cmpsd, Vcmpsd, u64>>(t, [Cmpsd_xmm_xmmm64_imm8, VEX_Vcmpsd_xmm_xmm_xmmm64_imm8]);
    xmm::<B, Flags<Comiss, u32>>(t, [Comiss_xmm_xmmm32, VEX_Vcomiss_xmm_xmmm32]);
    xmm::<B, Flags<Comisd, u64>>(t, [Comisd_xmm_xmmm64, VEX_Vcomisd_xmm_xmmm64]);
    xmm::<B, Flags<Ucomiss, u32>>(t, [Ucomiss_xmm_xmmm32, VEX_Vucomiss_xmm_xmmm32]);
    xmm::<B, Flags<Ucomisd, u64>>(t, [Ucomisd_xmm_xmmm64, VEX_Vucomisd_xmm_xmmm64]);
}
