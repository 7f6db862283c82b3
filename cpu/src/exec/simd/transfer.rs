//! Moves of parts of XMM registers, and the masked store.

use std::marker::PhantomData;

use iced_x86::Code;

use super::cast;
use super::encoding::{Encoding, OneSource, TwoSources};
use super::rows::{Encoded, split_xmm, xmm};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::gpr;
use crate::state::int::Int;

const LOW: u128 = u64::MAX as u128;

/// The source's low bits, those of `mask`, replace the destination's.
#[inline(always)]
fn merge<E: Encoding>(cpu: &mut Cpu, insn: &Insn, value: u128, mask: u128) {
    cpu.put::<E>(insn, cpu.xmm(E::first(insn)) & !mask | value & mask);
}

/// The lowest `T` replaces that of the destination.
#[inline(always)]
fn merge_low<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let mask = T::from_u64(u64::MAX).zext();
    merge::<E>(cpu, insn, cpu.xmm(E::second(insn)), mask.into());
    Ok(Flow::Next)
}

/// From memory: zero above.
#[inline(always)]
fn load_low<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    let v = cpu.load::<T>(cpu.ea(insn))?.zext();
    cpu.put::<E>(insn, v.into());
    Ok(Flow::Next)
}

#[inline(always)]
fn store_low<E: Encoding, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.store(cpu.ea(insn), T::from_u64(cpu.xmm(insn.src) as u64))?;
    Ok(Flow::Next)
}

/// MOVSS and MOVSD to a register.
struct LoadScalar<T>(PhantomData<T>);

impl<T: Int> Encoded for LoadScalar<T> {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        merge_low::<E, T>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        load_low::<E, T>(cpu, insn)
    }
}

/// MOVSS and MOVSD from a register.
struct StoreScalar<T>(PhantomData<T>);

impl<T: Int> Encoded for StoreScalar<T> {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        merge_low::<E, T>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        store_low::<E, T>(cpu, insn)
    }
}

/// MOVD and MOVQ from a general register or memory.
struct FromGeneral<T>(PhantomData<T>);

impl<T: Int> Encoded for FromGeneral<T> {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let v = cpu.r::<T>(insn.src).zext();
        cpu.put::<E>(insn, v.into());
        Ok(Flow::Next)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        load_low::<E, T>(cpu, insn)
    }
}

/// MOVD and MOVQ to a general register or memory.
struct ToGeneral<T>(PhantomData<T>);

impl<T: Int> Encoded for ToGeneral<T> {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        cpu.w(insn.dst, T::from_u64(cpu.xmm(insn.src) as u64));
        Ok(Flow::Next)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        store_low::<E, T>(cpu, insn)
    }
}

/// MOVQ between XMM registers: zero above.
#[inline(always)]
fn movq<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    E::need(cpu)?;
    cpu.put::<E>(insn, cpu.xmm(insn.src) & LOW);
    Ok(Flow::Next)
}

/// MOVQ to an XMM register.
struct LoadMovq;

impl Encoded for LoadMovq {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        movq::<E>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        load_low::<E, u64>(cpu, insn)
    }
}

/// MOVQ from an XMM register. MOVLPS and MOVLPD have the form with memory.
struct StoreMovq;

impl Encoded for StoreMovq {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        movq::<E>(cpu, insn)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        store_low::<E, u64>(cpu, insn)
    }
}

struct Movhlps;

impl Encoded for Movhlps {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        merge::<E>(cpu, insn, cpu.xmm(E::second(insn)) >> 64, LOW);
        Ok(Flow::Next)
    }
}

struct Movlhps;

impl Encoded for Movlhps {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        merge::<E>(cpu, insn, cpu.xmm(E::second(insn)) << 64, !LOW);
        Ok(Flow::Next)
    }
}

/// MOVLPS and MOVLPD from memory.
struct LoadLow;

impl Encoded for LoadLow {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let v = cpu.load::<u64>(cpu.ea(insn))?;
        merge::<E>(cpu, insn, v.into(), LOW);
        Ok(Flow::Next)
    }
}

/// MOVHPS and MOVHPD from memory.
struct LoadHigh;

impl Encoded for LoadHigh {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let v = cpu.load::<u64>(cpu.ea(insn))?;
        merge::<E>(cpu, insn, u128::from(v) << 64, !LOW);
        Ok(Flow::Next)
    }
}

/// MOVHPS and MOVHPD to memory.
struct StoreHigh;

impl Encoded for StoreHigh {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        cpu.store(cpu.ea(insn), (cpu.xmm(insn.src) >> 64) as u64)?;
        Ok(Flow::Next)
    }
}

/// Linear address of byte `n` at rDI; the address size is in `dst`.
fn at_rdi(cpu: &mut Cpu, insn: &Insn, n: u64) -> Result<u64, Abort> {
    let size = u64::MAX >> (64 - u32::from(insn.dst));
    let offset = (cpu.gpr[gpr::RDI] & size).wrapping_add(n) & size;
    cpu.linear_address(insn.seg, offset, 1, true)
}

/// Stores the bytes of `value` whose byte of `mask` has its sign set, all or none.
pub(super) fn masked_store<const N: usize>(
    cpu: &mut Cpu,
    insn: &Insn,
    value: u128,
    mask: u128,
) -> Exec {
    let (value, mask): ([u8; 16], [u8; 16]) = (cast(value), cast(mask));
    let mut selected = [(0, 0); N];
    let mut count = 0;
    for (i, (&byte, _)) in value
        .iter()
        .zip(&mask)
        .enumerate()
        .take(N)
        .filter(|(_, (_, m))| **m & 0x80 != 0)
    {
        let la = at_rdi(cpu, insn, i as u64)?;
        cpu.check_writable(la, 1)?;
        selected[count] = (la, byte);
        count += 1;
    }
    for &(la, byte) in &selected[..count] {
        cpu.store(la, byte)?;
    }
    Ok(Flow::Next)
}

struct Maskmovdqu;

impl Encoded for Maskmovdqu {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = None;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        masked_store::<16>(cpu, insn, cpu.xmm(insn.src), cpu.xmm(insn.aux))
    }
}

// No vector registers

fn movnti<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.store(cpu.ea(insn), cpu.r::<T>(insn.src))?;
    Ok(Flow::Next)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    split_xmm::<B, LoadScalar<u32>>(t, [Movss_xmm_xmmm32, VEX_Vmovss_xmm_xmm_xmm, VEX_Vmovss_xmm_m32]);
    split_xmm::<B, StoreScalar<u32>>(t, [Movss_xmmm32_xmm, VEX_Vmovss_xmm_xmm_xmm_0F11, VEX_Vmovss_m32_xmm]);
    split_xmm::<B, LoadScalar<u64>>(t, [Movsd_xmm_xmmm64, VEX_Vmovsd_xmm_xmm_xmm, VEX_Vmovsd_xmm_m64]);
    split_xmm::<B, StoreScalar<u64>>(t, [Movsd_xmmm64_xmm, VEX_Vmovsd_xmm_xmm_xmm_0F11, VEX_Vmovsd_m64_xmm]);
    xmm::<B, FromGeneral<u32>>(t, [Movd_xmm_rm32, VEX_Vmovd_xmm_rm32]);
    xmm::<B, FromGeneral<u64>>(t, [Movq_xmm_rm64, VEX_Vmovq_xmm_rm64]);
    xmm::<B, ToGeneral<u32>>(t, [Movd_rm32_xmm, VEX_Vmovd_rm32_xmm]);
    xmm::<B, ToGeneral<u64>>(t, [Movq_rm64_xmm, VEX_Vmovq_rm64_xmm]);
    xmm::<B, LoadMovq>(t, [Movq_xmm_xmmm64, VEX_Vmovq_xmm_xmmm64]);
    xmm::<B, StoreMovq>(t, [Movq_xmmm64_xmm, VEX_Vmovq_xmmm64_xmm]);
    xmm::<B, Movhlps>(t, [Movhlps_xmm_xmm, VEX_Vmovhlps_xmm_xmm_xmm]);
    xmm::<B, Movlhps>(t, [Movlhps_xmm_xmm, VEX_Vmovlhps_xmm_xmm_xmm]);
    xmm::<B, LoadLow>(t, [Movlps_xmm_m64, VEX_Vmovlps_xmm_xmm_m64]);
    xmm::<B, LoadLow>(t, [Movlpd_xmm_m64, VEX_Vmovlpd_xmm_xmm_m64]);
    xmm::<B, StoreMovq>(t, [Movlps_m64_xmm, VEX_Vmovlps_m64_xmm]);
    xmm::<B, StoreMovq>(t, [Movlpd_m64_xmm, VEX_Vmovlpd_m64_xmm]);
    xmm::<B, LoadHigh>(t, [Movhps_xmm_m64, VEX_Vmovhps_xmm_xmm_m64]);
    xmm::<B, LoadHigh>(t, [Movhpd_xmm_m64, VEX_Vmovhpd_xmm_xmm_m64]);
    xmm::<B, StoreHigh>(t, [Movhps_m64_xmm, VEX_Vmovhps_m64_xmm]);
    xmm::<B, StoreHigh>(t, [Movhpd_m64_xmm, VEX_Vmovhpd_m64_xmm]);
    xmm::<B, Maskmovdqu>(t, [Maskmovdqu_rDI_xmm_xmm, VEX_Vmaskmovdqu_rDI_xmm_xmm]);
    t.handler([Movnti_m32_r32], movnti::<u32>);
    t.handler([Movnti_m64_r64], movnti::<u64>);
}
