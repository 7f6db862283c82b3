//! Floating-point arithmetic, comparison and rounding.

use iced_x86::Code;

use super::{OneSource, TwoSources, V, cast, source};
use crate::exec::native::VectorForm;
use crate::exec::simd::float::*;
use crate::exec::simd::mxcsr::{Masked, host};
use crate::exec::simd::sse41::{Dot, Dppd, Dpps, Roundpd, Roundps, Roundsd, Roundss, elements};
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

impl Cpu {
    /// Runs a floating-point operation on the lanes of a vector: [`Cpu::float`] with the flags of
    /// all lanes. The operation also gets the number of the lane.
    #[inline(always)]
    pub(super) fn float_lanes<const L: usize>(
        &mut self,
        f: impl Fn(Masked, usize) -> (V, u32),
    ) -> Result<[V; L], Abort> {
        self.float(|csr| {
            let mut after = 0;
            let r = std::array::from_fn(|i| {
                let (lane, csr) = f(csr, i);
                after |= csr;
                lane
            });
            (r, after)
        })
    }
}

fn two_sources<K: Float, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.aux)?;
    let a = cpu.lanes::<L>(insn.src);
    let r = cpu.float_lanes::<L>(|csr, i| K::run(csr, a[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

fn one_source<K: Float, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.src)?;
    let r = cpu.float_lanes::<L>(|csr, i| K::run(csr, b[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// VROUNDPS and VROUNDPD.
fn round_lanes<K: ByImmediate, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.src)?;
    let r = cpu.float_lanes::<L>(|csr, i| round::<K>(insn.imm, csr, b[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// VDPPS and VDPPD, as DPPS and DPPD.
fn dot<K: Dot, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
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

/// Kernels of VCMPPS and its relatives, which have 32 predicates.
macro_rules! compare {
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
compare! { Vcmpps = "vcmpps" Vcmppd = "vcmppd" Vcmpss = "vcmpss" Vcmpsd = "vcmpsd" }

/// Runs `K` with the predicate in the low five bits of an immediate.
#[inline(always)]
fn by_predicate<K: ByImmediate>(imm: u64, csr: Masked, a: V, b: V) -> (V, u32) {
    macro_rules! select {
        ($($p:literal)*) => {
            match imm & 31 {
                $($p => K::run::<$p>(csr, a, b),)*
                _ => K::run::<31>(csr, a, b),
            }
        };
    }
    select!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30)
}

fn compare_lanes<K: ByImmediate, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.aux)?;
    let a = cpu.lanes::<L>(insn.src);
    let r = cpu.float_lanes::<L>(|csr, i| by_predicate::<K>(insn.imm, csr, a[i], b[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

fn compare_scalar<K: ByImmediate, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    execute::<TwoSources, F>(cpu, insn, |csr, a, b| {
        by_predicate::<K>(insn.imm, csr, a, b)
    })
}

/// The rows of an instruction with two sources, on XMM and on YMM registers.
fn binary<B: Backend, K: Float>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], two_sources::<K, 1>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([ymm], two_sources::<K, 2>)
        .vector(VectorForm::UNALIGNED.float());
}

/// The rows of an instruction with one source, on XMM and on YMM registers.
pub(super) fn unary<B: Backend, K: Float>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], one_source::<K, 1>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([ymm], one_source::<K, 2>)
        .vector(VectorForm::UNALIGNED.float());
}

/// The row of an instruction on the lowest elements, of the size of `T`.
pub(super) fn scalar<B: Backend, K: Float, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        arithmetic::<TwoSources, K, Xmm>,
        arithmetic::<TwoSources, K, Low<T>>,
    )
    .vector(VectorForm::UNALIGNED.float());
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    binary::<B, Addps>(t, VEX_Vaddps_xmm_xmm_xmmm128, VEX_Vaddps_ymm_ymm_ymmm256);
    binary::<B, Addpd>(t, VEX_Vaddpd_xmm_xmm_xmmm128, VEX_Vaddpd_ymm_ymm_ymmm256);
    scalar::<B, Addss, u32>(t, VEX_Vaddss_xmm_xmm_xmmm32);
    scalar::<B, Addsd, u64>(t, VEX_Vaddsd_xmm_xmm_xmmm64);
    binary::<B, Subps>(t, VEX_Vsubps_xmm_xmm_xmmm128, VEX_Vsubps_ymm_ymm_ymmm256);
    binary::<B, Subpd>(t, VEX_Vsubpd_xmm_xmm_xmmm128, VEX_Vsubpd_ymm_ymm_ymmm256);
    scalar::<B, Subss, u32>(t, VEX_Vsubss_xmm_xmm_xmmm32);
    scalar::<B, Subsd, u64>(t, VEX_Vsubsd_xmm_xmm_xmmm64);
    binary::<B, Mulps>(t, VEX_Vmulps_xmm_xmm_xmmm128, VEX_Vmulps_ymm_ymm_ymmm256);
    binary::<B, Mulpd>(t, VEX_Vmulpd_xmm_xmm_xmmm128, VEX_Vmulpd_ymm_ymm_ymmm256);
    scalar::<B, Mulss, u32>(t, VEX_Vmulss_xmm_xmm_xmmm32);
    scalar::<B, Mulsd, u64>(t, VEX_Vmulsd_xmm_xmm_xmmm64);
    binary::<B, Divps>(t, VEX_Vdivps_xmm_xmm_xmmm128, VEX_Vdivps_ymm_ymm_ymmm256);
    binary::<B, Divpd>(t, VEX_Vdivpd_xmm_xmm_xmmm128, VEX_Vdivpd_ymm_ymm_ymmm256);
    scalar::<B, Divss, u32>(t, VEX_Vdivss_xmm_xmm_xmmm32);
    scalar::<B, Divsd, u64>(t, VEX_Vdivsd_xmm_xmm_xmmm64);
    binary::<B, Minps>(t, VEX_Vminps_xmm_xmm_xmmm128, VEX_Vminps_ymm_ymm_ymmm256);
    binary::<B, Minpd>(t, VEX_Vminpd_xmm_xmm_xmmm128, VEX_Vminpd_ymm_ymm_ymmm256);
    scalar::<B, Minss, u32>(t, VEX_Vminss_xmm_xmm_xmmm32);
    scalar::<B, Minsd, u64>(t, VEX_Vminsd_xmm_xmm_xmmm64);
    binary::<B, Maxps>(t, VEX_Vmaxps_xmm_xmm_xmmm128, VEX_Vmaxps_ymm_ymm_ymmm256);
    binary::<B, Maxpd>(t, VEX_Vmaxpd_xmm_xmm_xmmm128, VEX_Vmaxpd_ymm_ymm_ymmm256);
    scalar::<B, Maxss, u32>(t, VEX_Vmaxss_xmm_xmm_xmmm32);
    scalar::<B, Maxsd, u64>(t, VEX_Vmaxsd_xmm_xmm_xmmm64);
    unary::<B, Sqrtps>(t, VEX_Vsqrtps_xmm_xmmm128, VEX_Vsqrtps_ymm_ymmm256);
    unary::<B, Sqrtpd>(t, VEX_Vsqrtpd_xmm_xmmm128, VEX_Vsqrtpd_ymm_ymmm256);
    scalar::<B, Sqrtss, u32>(t, VEX_Vsqrtss_xmm_xmm_xmmm32);
    scalar::<B, Sqrtsd, u64>(t, VEX_Vsqrtsd_xmm_xmm_xmmm64);
    unary::<B, Rcpps>(t, VEX_Vrcpps_xmm_xmmm128, VEX_Vrcpps_ymm_ymmm256);
    scalar::<B, Rcpss, u32>(t, VEX_Vrcpss_xmm_xmm_xmmm32);
    unary::<B, Rsqrtps>(t, VEX_Vrsqrtps_xmm_xmmm128, VEX_Vrsqrtps_ymm_ymmm256);
    scalar::<B, Rsqrtss, u32>(t, VEX_Vrsqrtss_xmm_xmm_xmmm32);
    binary::<B, Haddps>(t, VEX_Vhaddps_xmm_xmm_xmmm128, VEX_Vhaddps_ymm_ymm_ymmm256);
    binary::<B, Haddpd>(t, VEX_Vhaddpd_xmm_xmm_xmmm128, VEX_Vhaddpd_ymm_ymm_ymmm256);
    binary::<B, Hsubps>(t, VEX_Vhsubps_xmm_xmm_xmmm128, VEX_Vhsubps_ymm_ymm_ymmm256);
    binary::<B, Hsubpd>(t, VEX_Vhsubpd_xmm_xmm_xmmm128, VEX_Vhsubpd_ymm_ymm_ymmm256);
    binary::<B, Addsubps>(t, VEX_Vaddsubps_xmm_xmm_xmmm128, VEX_Vaddsubps_ymm_ymm_ymmm256);
    binary::<B, Addsubpd>(t, VEX_Vaddsubpd_xmm_xmm_xmmm128, VEX_Vaddsubpd_ymm_ymm_ymmm256);
    t.handler([VEX_Vroundps_xmm_xmmm128_imm8], round_lanes::<Roundps, 1>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vroundps_ymm_ymmm256_imm8], round_lanes::<Roundps, 2>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vroundpd_xmm_xmmm128_imm8], round_lanes::<Roundpd, 1>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vroundpd_ymm_ymmm256_imm8], round_lanes::<Roundpd, 2>).vector(VectorForm::UNALIGNED.float());
    t.handlers([VEX_Vroundss_xmm_xmm_xmmm32_imm8], by_rounding::<TwoSources, Roundss, Xmm>, by_rounding::<TwoSources, Roundss, Low<u32>>).vector(VectorForm::UNALIGNED.float());
    t.handlers([VEX_Vroundsd_xmm_xmm_xmmm64_imm8], by_rounding::<TwoSources, Roundsd, Xmm>, by_rounding::<TwoSources, Roundsd, Low<u64>>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vdpps_xmm_xmm_xmmm128_imm8], dot::<Dpps, 1>);
    t.handler([VEX_Vdpps_ymm_ymm_ymmm256_imm8], dot::<Dpps, 2>);
    t.handler([VEX_Vdppd_xmm_xmm_xmmm128_imm8], dot::<Dppd, 1>);
    t.handler([VEX_Vcmpps_xmm_xmm_xmmm128_imm8], compare_lanes::<Vcmpps, 1>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vcmpps_ymm_ymm_ymmm256_imm8], compare_lanes::<Vcmpps, 2>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vcmppd_xmm_xmm_xmmm128_imm8], compare_lanes::<Vcmppd, 1>).vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vcmppd_ymm_ymm_ymmm256_imm8], compare_lanes::<Vcmppd, 2>).vector(VectorForm::UNALIGNED.float());
    t.handlers([VEX_Vcmpss_xmm_xmm_xmmm32_imm8], compare_scalar::<Vcmpss, Xmm>, compare_scalar::<Vcmpss, Low<u32>>).vector(VectorForm::UNALIGNED.float());
    t.handlers([VEX_Vcmpsd_xmm_xmm_xmmm64_imm8], compare_scalar::<Vcmpsd, Xmm>, compare_scalar::<Vcmpsd, Low<u64>>).vector(VectorForm::UNALIGNED.float());
    t.handlers([VEX_Vcomiss_xmm_xmmm32], compare::<OneSource, Comiss, Xmm>, compare::<OneSource, Comiss, Low<u32>>).vector(VectorForm::UNALIGNED.float().flags());
    t.handlers([VEX_Vcomisd_xmm_xmmm64], compare::<OneSource, Comisd, Xmm>, compare::<OneSource, Comisd, Low<u64>>).vector(VectorForm::UNALIGNED.float().flags());
    t.handlers([VEX_Vucomiss_xmm_xmmm32], compare::<OneSource, Ucomiss, Xmm>, compare::<OneSource, Ucomiss, Low<u32>>).vector(VectorForm::UNALIGNED.float().flags());
    t.handlers([VEX_Vucomisd_xmm_xmmm64], compare::<OneSource, Ucomisd, Xmm>, compare::<OneSource, Ucomisd, Low<u64>>).vector(VectorForm::UNALIGNED.float().flags());
    // The reasons are those of SSE.
    t.called([VEX_Vrcpps_xmm_xmmm128, VEX_Vrcpps_ymm_ymmm256, VEX_Vrcpss_xmm_xmm_xmmm32]);
    t.called([VEX_Vrsqrtps_xmm_xmmm128, VEX_Vrsqrtps_ymm_ymmm256, VEX_Vrsqrtss_xmm_xmm_xmmm32]);
    t.called([VEX_Vhaddps_xmm_xmm_xmmm128, VEX_Vhaddps_ymm_ymm_ymmm256, VEX_Vhaddpd_xmm_xmm_xmmm128, VEX_Vhaddpd_ymm_ymm_ymmm256]);
    t.called([VEX_Vhsubps_xmm_xmm_xmmm128, VEX_Vhsubps_ymm_ymm_ymmm256, VEX_Vhsubpd_xmm_xmm_xmmm128, VEX_Vhsubpd_ymm_ymm_ymmm256]);
    t.called([VEX_Vaddsubps_xmm_xmm_xmmm128, VEX_Vaddsubps_ymm_ymm_ymmm256, VEX_Vaddsubpd_xmm_xmm_xmmm128, VEX_Vaddsubpd_ymm_ymm_ymmm256]);
}
