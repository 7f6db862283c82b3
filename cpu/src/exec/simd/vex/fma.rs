//! FMA: products and sums that are rounded once (SDM Vol. 1 14.5).

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::simd::encoding::{Encoding, TwoSources, source};
use crate::exec::simd::float::{Low, Operand, Xmm};
use crate::exec::simd::mxcsr::{Masked, with_mxcsr};
use crate::exec::simd::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// An operation on the destination and two sources: result and MXCSR after it.
trait Fused {
    fn run(csr: Masked, a: V, b: V, c: V) -> (V, u32);
}

macro_rules! fused {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
        impl Fused for $name {
            #[inline(always)]
            fn run(csr: Masked, mut a: V, b: V, c: V) -> (V, u32) {
                let mut csr = csr.get();
                // SAFETY: the instruction has register operands only, every exception is masked in
                // a `Masked`, and a model that has it runs only on a host that has it.
                unsafe {
                    with_mxcsr!(
                        csr,
                        [concat!($insn, " {a}, {b}, {c}")],
                        a = inout(xmm_reg) a,
                        b = in(xmm_reg) b,
                        c = in(xmm_reg) c,
                        options(nostack, preserves_flags),
                    );
                }
                (a, csr)
            }
        }
    )*};
}
fused! {
    Vfmadd132ps = "vfmadd132ps" Vfmadd132pd = "vfmadd132pd"
    Vfmadd132ss = "vfmadd132ss" Vfmadd132sd = "vfmadd132sd"
    Vfmadd213ps = "vfmadd213ps" Vfmadd213pd = "vfmadd213pd"
    Vfmadd213ss = "vfmadd213ss" Vfmadd213sd = "vfmadd213sd"
    Vfmadd231ps = "vfmadd231ps" Vfmadd231pd = "vfmadd231pd"
    Vfmadd231ss = "vfmadd231ss" Vfmadd231sd = "vfmadd231sd"
    Vfmsub132ps = "vfmsub132ps" Vfmsub132pd = "vfmsub132pd"
    Vfmsub132ss = "vfmsub132ss" Vfmsub132sd = "vfmsub132sd"
    Vfmsub213ps = "vfmsub213ps" Vfmsub213pd = "vfmsub213pd"
    Vfmsub213ss = "vfmsub213ss" Vfmsub213sd = "vfmsub213sd"
    Vfmsub231ps = "vfmsub231ps" Vfmsub231pd = "vfmsub231pd"
    Vfmsub231ss = "vfmsub231ss" Vfmsub231sd = "vfmsub231sd"
    Vfnmadd132ps = "vfnmadd132ps" Vfnmadd132pd = "vfnmadd132pd"
    Vfnmadd132ss = "vfnmadd132ss" Vfnmadd132sd = "vfnmadd132sd"
    Vfnmadd213ps = "vfnmadd213ps" Vfnmadd213pd = "vfnmadd213pd"
    Vfnmadd213ss = "vfnmadd213ss" Vfnmadd213sd = "vfnmadd213sd"
    Vfnmadd231ps = "vfnmadd231ps" Vfnmadd231pd = "vfnmadd231pd"
    Vfnmadd231ss = "vfnmadd231ss" Vfnmadd231sd = "vfnmadd231sd"
    Vfnmsub132ps = "vfnmsub132ps" Vfnmsub132pd = "vfnmsub132pd"
    Vfnmsub132ss = "vfnmsub132ss" Vfnmsub132sd = "vfnmsub132sd"
    Vfnmsub213ps = "vfnmsub213ps" Vfnmsub213pd = "vfnmsub213pd"
    Vfnmsub213ss = "vfnmsub213ss" Vfnmsub213sd = "vfnmsub213sd"
    Vfnmsub231ps = "vfnmsub231ps" Vfnmsub231pd = "vfnmsub231pd"
    Vfnmsub231ss = "vfnmsub231ss" Vfnmsub231sd = "vfnmsub231sd"
    Vfmaddsub132ps = "vfmaddsub132ps" Vfmaddsub132pd = "vfmaddsub132pd"
    Vfmaddsub213ps = "vfmaddsub213ps" Vfmaddsub213pd = "vfmaddsub213pd"
    Vfmaddsub231ps = "vfmaddsub231ps" Vfmaddsub231pd = "vfmaddsub231pd"
    Vfmsubadd132ps = "vfmsubadd132ps" Vfmsubadd132pd = "vfmsubadd132pd"
    Vfmsubadd213ps = "vfmsubadd213ps" Vfmsubadd213pd = "vfmsubadd213pd"
    Vfmsubadd231ps = "vfmsubadd231ps" Vfmsubadd231pd = "vfmsubadd231pd"
}

fn lanes<K: Fused, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let c: [V; L] = source(cpu, insn, insn.aux)?;
    let (a, b) = (cpu.lanes::<L>(insn.dst), cpu.lanes::<L>(insn.src));
    let r = cpu.float_lanes::<L>(|csr, i| K::run(csr, a[i], b[i], c[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// On the lowest elements. The destination keeps the others of its XMM register.
fn lowest<K: Fused, F: Operand>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let c = F::read(cpu, insn, TwoSources::second(insn))?;
    let (a, b) = (cpu.v(insn.dst), cpu.v(TwoSources::first(insn)));
    let r = cpu.float(|csr| K::run(csr, a, b, c))?;
    cpu.put::<TwoSources>(insn, cast(r));
    Ok(Flow::Next)
}

fn packed<B: Backend, K: Fused>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], lanes::<K, 1>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([ymm], lanes::<K, 2>)
        .vector(VectorForm::UNALIGNED.float());
}

fn scalar<B: Backend, K: Fused, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers([code], lowest::<K, Xmm>, lowest::<K, Low<T>>)
        .vector(VectorForm::UNALIGNED.float());
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    packed::<B, Vfmadd132ps>(t, VEX_Vfmadd132ps_xmm_xmm_xmmm128, VEX_Vfmadd132ps_ymm_ymm_ymmm256);
    packed::<B, Vfmadd132pd>(t, VEX_Vfmadd132pd_xmm_xmm_xmmm128, VEX_Vfmadd132pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmadd132ss, u32>(t, VEX_Vfmadd132ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmadd132sd, u64>(t, VEX_Vfmadd132sd_xmm_xmm_xmmm64);
    packed::<B, Vfmadd213ps>(t, VEX_Vfmadd213ps_xmm_xmm_xmmm128, VEX_Vfmadd213ps_ymm_ymm_ymmm256);
    packed::<B, Vfmadd213pd>(t, VEX_Vfmadd213pd_xmm_xmm_xmmm128, VEX_Vfmadd213pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmadd213ss, u32>(t, VEX_Vfmadd213ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmadd213sd, u64>(t, VEX_Vfmadd213sd_xmm_xmm_xmmm64);
    packed::<B, Vfmadd231ps>(t, VEX_Vfmadd231ps_xmm_xmm_xmmm128, VEX_Vfmadd231ps_ymm_ymm_ymmm256);
    packed::<B, Vfmadd231pd>(t, VEX_Vfmadd231pd_xmm_xmm_xmmm128, VEX_Vfmadd231pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmadd231ss, u32>(t, VEX_Vfmadd231ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmadd231sd, u64>(t, VEX_Vfmadd231sd_xmm_xmm_xmmm64);
    packed::<B, Vfmsub132ps>(t, VEX_Vfmsub132ps_xmm_xmm_xmmm128, VEX_Vfmsub132ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsub132pd>(t, VEX_Vfmsub132pd_xmm_xmm_xmmm128, VEX_Vfmsub132pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmsub132ss, u32>(t, VEX_Vfmsub132ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmsub132sd, u64>(t, VEX_Vfmsub132sd_xmm_xmm_xmmm64);
    packed::<B, Vfmsub213ps>(t, VEX_Vfmsub213ps_xmm_xmm_xmmm128, VEX_Vfmsub213ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsub213pd>(t, VEX_Vfmsub213pd_xmm_xmm_xmmm128, VEX_Vfmsub213pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmsub213ss, u32>(t, VEX_Vfmsub213ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmsub213sd, u64>(t, VEX_Vfmsub213sd_xmm_xmm_xmmm64);
    packed::<B, Vfmsub231ps>(t, VEX_Vfmsub231ps_xmm_xmm_xmmm128, VEX_Vfmsub231ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsub231pd>(t, VEX_Vfmsub231pd_xmm_xmm_xmmm128, VEX_Vfmsub231pd_ymm_ymm_ymmm256);
    scalar::<B, Vfmsub231ss, u32>(t, VEX_Vfmsub231ss_xmm_xmm_xmmm32);
    scalar::<B, Vfmsub231sd, u64>(t, VEX_Vfmsub231sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmadd132ps>(t, VEX_Vfnmadd132ps_xmm_xmm_xmmm128, VEX_Vfnmadd132ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmadd132pd>(t, VEX_Vfnmadd132pd_xmm_xmm_xmmm128, VEX_Vfnmadd132pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmadd132ss, u32>(t, VEX_Vfnmadd132ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmadd132sd, u64>(t, VEX_Vfnmadd132sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmadd213ps>(t, VEX_Vfnmadd213ps_xmm_xmm_xmmm128, VEX_Vfnmadd213ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmadd213pd>(t, VEX_Vfnmadd213pd_xmm_xmm_xmmm128, VEX_Vfnmadd213pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmadd213ss, u32>(t, VEX_Vfnmadd213ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmadd213sd, u64>(t, VEX_Vfnmadd213sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmadd231ps>(t, VEX_Vfnmadd231ps_xmm_xmm_xmmm128, VEX_Vfnmadd231ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmadd231pd>(t, VEX_Vfnmadd231pd_xmm_xmm_xmmm128, VEX_Vfnmadd231pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmadd231ss, u32>(t, VEX_Vfnmadd231ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmadd231sd, u64>(t, VEX_Vfnmadd231sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmsub132ps>(t, VEX_Vfnmsub132ps_xmm_xmm_xmmm128, VEX_Vfnmsub132ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmsub132pd>(t, VEX_Vfnmsub132pd_xmm_xmm_xmmm128, VEX_Vfnmsub132pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmsub132ss, u32>(t, VEX_Vfnmsub132ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmsub132sd, u64>(t, VEX_Vfnmsub132sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmsub213ps>(t, VEX_Vfnmsub213ps_xmm_xmm_xmmm128, VEX_Vfnmsub213ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmsub213pd>(t, VEX_Vfnmsub213pd_xmm_xmm_xmmm128, VEX_Vfnmsub213pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmsub213ss, u32>(t, VEX_Vfnmsub213ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmsub213sd, u64>(t, VEX_Vfnmsub213sd_xmm_xmm_xmmm64);
    packed::<B, Vfnmsub231ps>(t, VEX_Vfnmsub231ps_xmm_xmm_xmmm128, VEX_Vfnmsub231ps_ymm_ymm_ymmm256);
    packed::<B, Vfnmsub231pd>(t, VEX_Vfnmsub231pd_xmm_xmm_xmmm128, VEX_Vfnmsub231pd_ymm_ymm_ymmm256);
    scalar::<B, Vfnmsub231ss, u32>(t, VEX_Vfnmsub231ss_xmm_xmm_xmmm32);
    scalar::<B, Vfnmsub231sd, u64>(t, VEX_Vfnmsub231sd_xmm_xmm_xmmm64);
    packed::<B, Vfmaddsub132ps>(t, VEX_Vfmaddsub132ps_xmm_xmm_xmmm128, VEX_Vfmaddsub132ps_ymm_ymm_ymmm256);
    packed::<B, Vfmaddsub132pd>(t, VEX_Vfmaddsub132pd_xmm_xmm_xmmm128, VEX_Vfmaddsub132pd_ymm_ymm_ymmm256);
    packed::<B, Vfmaddsub213ps>(t, VEX_Vfmaddsub213ps_xmm_xmm_xmmm128, VEX_Vfmaddsub213ps_ymm_ymm_ymmm256);
    packed::<B, Vfmaddsub213pd>(t, VEX_Vfmaddsub213pd_xmm_xmm_xmmm128, VEX_Vfmaddsub213pd_ymm_ymm_ymmm256);
    packed::<B, Vfmaddsub231ps>(t, VEX_Vfmaddsub231ps_xmm_xmm_xmmm128, VEX_Vfmaddsub231ps_ymm_ymm_ymmm256);
    packed::<B, Vfmaddsub231pd>(t, VEX_Vfmaddsub231pd_xmm_xmm_xmmm128, VEX_Vfmaddsub231pd_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd132ps>(t, VEX_Vfmsubadd132ps_xmm_xmm_xmmm128, VEX_Vfmsubadd132ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd132pd>(t, VEX_Vfmsubadd132pd_xmm_xmm_xmmm128, VEX_Vfmsubadd132pd_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd213ps>(t, VEX_Vfmsubadd213ps_xmm_xmm_xmmm128, VEX_Vfmsubadd213ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd213pd>(t, VEX_Vfmsubadd213pd_xmm_xmm_xmmm128, VEX_Vfmsubadd213pd_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd231ps>(t, VEX_Vfmsubadd231ps_xmm_xmm_xmmm128, VEX_Vfmsubadd231ps_ymm_ymm_ymmm256);
    packed::<B, Vfmsubadd231pd>(t, VEX_Vfmsubadd231pd_xmm_xmm_xmmm128, VEX_Vfmsubadd231pd_ymm_ymm_ymmm256);
}
