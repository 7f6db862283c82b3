//! Floating-point arithmetic of SSE, SSE2, SSE3 and AVX.

use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, Legacy, TwoSources, source};
use super::estimate::{Rcpps, Rcpss, Rsqrtps, Rsqrtss};
use super::mxcsr::{Masked, host};
use super::rows::{Called, Encoded, Form, Handlers, WideForm, xmm, ymm};
use super::sse2::*;
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

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

/// Runs the kernel `$kernel` with the value of `$imm` as its immediate: one of those before the
/// semicolon, or else the last one.
macro_rules! run_by_immediate {
    ($kernel:ident, $imm:expr, $operands:tt, $($value:literal)*; $last:literal) => {
        match $imm {
            $($value => $kernel::run::<$value> $operands,)*
            _ => $kernel::run::<$last> $operands,
        }
    };
}
pub(super) use run_by_immediate;

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

/// How native code executes floating-point arithmetic.
pub(super) const FLOAT: Option<VectorForm> = Some(VectorForm::ALIGNED.float());

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

/// Two sources of 16 bytes, on whole registers.
pub(super) struct Lanes<K>(PhantomData<K>);

impl<K: Float> Form for Lanes<K> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        [
            arithmetic::<Legacy, K, Xmm>,
            arithmetic::<Legacy, K, Aligned>,
        ]
    }
    fn vex() -> Handlers {
        [two_sources::<K, 1>; 2]
    }
}

impl<K: Float> WideForm for Lanes<K> {
    fn ymm() -> Handlers {
        [two_sources::<K, 2>; 2]
    }
}

/// One source of 16 bytes, on whole registers.
pub(super) struct LanesOfOne<K>(PhantomData<K>);

impl<K: Float> Form for LanesOfOne<K> {
    const NATIVE: Option<VectorForm> = FLOAT;

    fn sse() -> Handlers {
        Lanes::<K>::sse()
    }
    fn vex() -> Handlers {
        [one_source::<K, 1>; 2]
    }
}

impl<K: Float> WideForm for LanesOfOne<K> {
    fn ymm() -> Handlers {
        [one_source::<K, 2>; 2]
    }
}

/// The lowest element. The second operand is of the size of `T` if it is in memory.
pub(super) struct Scalar<K, T>(PhantomData<(K, T)>);

impl<K: Float, T: Int> Encoded for Scalar<K, T> {
    type Vex = TwoSources;
    const NATIVE: Option<VectorForm> = FLOAT;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        arithmetic::<E, K, Xmm>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        arithmetic::<E, K, Low<T>>(cpu, insn)
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Lanes<Addps>>(t, [Addps_xmm_xmmm128, VEX_Vaddps_xmm_xmm_xmmm128, VEX_Vaddps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Addpd>>(t, [Addpd_xmm_xmmm128, VEX_Vaddpd_xmm_xmm_xmmm128, VEX_Vaddpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Addss, u32>>(t, [Addss_xmm_xmmm32, VEX_Vaddss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Addsd, u64>>(t, [Addsd_xmm_xmmm64, VEX_Vaddsd_xmm_xmm_xmmm64]);
    ymm::<B, Lanes<Subps>>(t, [Subps_xmm_xmmm128, VEX_Vsubps_xmm_xmm_xmmm128, VEX_Vsubps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Subpd>>(t, [Subpd_xmm_xmmm128, VEX_Vsubpd_xmm_xmm_xmmm128, VEX_Vsubpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Subss, u32>>(t, [Subss_xmm_xmmm32, VEX_Vsubss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Subsd, u64>>(t, [Subsd_xmm_xmmm64, VEX_Vsubsd_xmm_xmm_xmmm64]);
    ymm::<B, Lanes<Mulps>>(t, [Mulps_xmm_xmmm128, VEX_Vmulps_xmm_xmm_xmmm128, VEX_Vmulps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Mulpd>>(t, [Mulpd_xmm_xmmm128, VEX_Vmulpd_xmm_xmm_xmmm128, VEX_Vmulpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Mulss, u32>>(t, [Mulss_xmm_xmmm32, VEX_Vmulss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Mulsd, u64>>(t, [Mulsd_xmm_xmmm64, VEX_Vmulsd_xmm_xmm_xmmm64]);
    ymm::<B, Lanes<Divps>>(t, [Divps_xmm_xmmm128, VEX_Vdivps_xmm_xmm_xmmm128, VEX_Vdivps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Divpd>>(t, [Divpd_xmm_xmmm128, VEX_Vdivpd_xmm_xmm_xmmm128, VEX_Vdivpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Divss, u32>>(t, [Divss_xmm_xmmm32, VEX_Vdivss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Divsd, u64>>(t, [Divsd_xmm_xmmm64, VEX_Vdivsd_xmm_xmm_xmmm64]);
    ymm::<B, Lanes<Minps>>(t, [Minps_xmm_xmmm128, VEX_Vminps_xmm_xmm_xmmm128, VEX_Vminps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Minpd>>(t, [Minpd_xmm_xmmm128, VEX_Vminpd_xmm_xmm_xmmm128, VEX_Vminpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Minss, u32>>(t, [Minss_xmm_xmmm32, VEX_Vminss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Minsd, u64>>(t, [Minsd_xmm_xmmm64, VEX_Vminsd_xmm_xmm_xmmm64]);
    ymm::<B, Lanes<Maxps>>(t, [Maxps_xmm_xmmm128, VEX_Vmaxps_xmm_xmm_xmmm128, VEX_Vmaxps_ymm_ymm_ymmm256]);
    ymm::<B, Lanes<Maxpd>>(t, [Maxpd_xmm_xmmm128, VEX_Vmaxpd_xmm_xmm_xmmm128, VEX_Vmaxpd_ymm_ymm_ymmm256]);
    xmm::<B, Scalar<Maxss, u32>>(t, [Maxss_xmm_xmmm32, VEX_Vmaxss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Maxsd, u64>>(t, [Maxsd_xmm_xmmm64, VEX_Vmaxsd_xmm_xmm_xmmm64]);
    ymm::<B, LanesOfOne<Sqrtps>>(t, [Sqrtps_xmm_xmmm128, VEX_Vsqrtps_xmm_xmmm128, VEX_Vsqrtps_ymm_ymmm256]);
    ymm::<B, LanesOfOne<Sqrtpd>>(t, [Sqrtpd_xmm_xmmm128, VEX_Vsqrtpd_xmm_xmmm128, VEX_Vsqrtpd_ymm_ymmm256]);
    xmm::<B, Scalar<Sqrtss, u32>>(t, [Sqrtss_xmm_xmmm32, VEX_Vsqrtss_xmm_xmm_xmmm32]);
    xmm::<B, Scalar<Sqrtsd, u64>>(t, [Sqrtsd_xmm_xmmm64, VEX_Vsqrtsd_xmm_xmm_xmmm64]);
    // The host's estimates depend on its vendor.
    ymm::<B, Called<LanesOfOne<Rcpps>>>(t, [Rcpps_xmm_xmmm128, VEX_Vrcpps_xmm_xmmm128, VEX_Vrcpps_ymm_ymmm256]);
    xmm::<B, Called<Scalar<Rcpss, u32>>>(t, [Rcpss_xmm_xmmm32, VEX_Vrcpss_xmm_xmm_xmmm32]);
    ymm::<B, Called<LanesOfOne<Rsqrtps>>>(t, [Rsqrtps_xmm_xmmm128, VEX_Vrsqrtps_xmm_xmmm128, VEX_Vrsqrtps_ymm_ymmm256]);
    xmm::<B, Called<Scalar<Rsqrtss, u32>>>(t, [Rsqrtss_xmm_xmmm32, VEX_Vrsqrtss_xmm_xmm_xmmm32]);
    // They are rare.
    ymm::<B, Called<Lanes<Haddps>>>(t, [Haddps_xmm_xmmm128, VEX_Vhaddps_xmm_xmm_xmmm128, VEX_Vhaddps_ymm_ymm_ymmm256]);
    ymm::<B, Called<Lanes<Haddpd>>>(t, [Haddpd_xmm_xmmm128, VEX_Vhaddpd_xmm_xmm_xmmm128, VEX_Vhaddpd_ymm_ymm_ymmm256]);
    ymm::<B, Called<Lanes<Hsubps>>>(t, [Hsubps_xmm_xmmm128, VEX_Vhsubps_xmm_xmm_xmmm128, VEX_Vhsubps_ymm_ymm_ymmm256]);
    ymm::<B, Called<Lanes<Hsubpd>>>(t, [Hsubpd_xmm_xmmm128, VEX_Vhsubpd_xmm_xmm_xmmm128, VEX_Vhsubpd_ymm_ymm_ymmm256]);
    ymm::<B, Called<Lanes<Addsubps>>>(t, [Addsubps_xmm_xmmm128, VEX_Vaddsubps_xmm_xmm_xmmm128, VEX_Vaddsubps_ymm_ymm_ymmm256]);
    ymm::<B, Called<Lanes<Addsubpd>>>(t, [Addsubpd_xmm_xmmm128, VEX_Vaddsubpd_xmm_xmm_xmmm128, VEX_Vaddsubpd_ymm_ymm_ymmm256]);
}
