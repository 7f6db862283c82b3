//! Single elements: PEXTRB, PINSRB and their relatives, INSERTPS.

use std::marker::PhantomData;

use iced_x86::Code;

use super::cast;
use super::encoding::{Encoding, OneSource, TwoSources};
use super::rows::{Encoded, xmm};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// Shift of element `n` of a type.
#[inline(always)]
fn shift<T: Int>(n: u64) -> u32 {
    T::BITS * (n as u32 & (128 / T::BITS - 1))
}

/// PEXTRB, PEXTRW, PEXTRD, PEXTRQ, EXTRACTPS: zero above the element.
struct Extract<T>(PhantomData<T>);

impl<T: Int> Encoded for Extract<T> {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let element = T::from_u64((cpu.xmm(insn.src) >> shift::<T>(insn.imm)) as u64);
        if insn.prefix & Insn::MEM != 0 {
            cpu.store(cpu.ea(insn), element)?;
        } else {
            cpu.w(insn.dst, element.zext());
        }
        Ok(Flow::Next)
    }
}

/// PEXTRW of SSE2, to a register alone.
struct Pextrw;

impl Encoded for Pextrw {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let word = (cpu.xmm(insn.src) >> (16 * (insn.imm & 7))) as u16;
        cpu.w(insn.dst, u64::from(word));
        Ok(Flow::Next)
    }
}

/// PINSRB, PINSRW, PINSRD, PINSRQ.
struct Insert<T>(PhantomData<T>);

impl<T: Int> Encoded for Insert<T> {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let element: T = if insn.prefix & Insn::MEM != 0 {
            cpu.load(cpu.ea(insn))?
        } else {
            T::from_u64(cpu.r::<u64>(E::second(insn)))
        };
        let shift = shift::<T>(insn.imm);
        let mask = u128::from(T::from_u64(u64::MAX).zext()) << shift;
        let value = cpu.xmm(E::first(insn)) & !mask | u128::from(element.zext()) << shift;
        cpu.put::<E>(insn, value);
        Ok(Flow::Next)
    }
}

/// INSERTPS: the immediate selects the source, the destination, and what becomes zero.
struct Insertps;

impl Encoded for Insertps {
    type Vex = TwoSources;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let imm = insn.imm as usize;
        let element: u32 = if insn.prefix & Insn::MEM != 0 {
            cpu.load(cpu.ea(insn))?
        } else {
            cast::<u128, [u32; 4]>(cpu.xmm(E::second(insn)))[imm >> 6 & 3]
        };
        let mut r: [u32; 4] = cast(cpu.xmm(E::first(insn)));
        r[imm >> 4 & 3] = element;
        for (i, lane) in r.iter_mut().enumerate() {
            if imm >> i & 1 != 0 {
                *lane = 0;
            }
        }
        cpu.put::<E>(insn, cast(r));
        Ok(Flow::Next)
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, Extract<u8>>(t, [Pextrb_r32m8_xmm_imm8, VEX_Vpextrb_r32m8_xmm_imm8]);
    xmm::<B, Extract<u8>>(t, [Pextrb_r64m8_xmm_imm8, VEX_Vpextrb_r64m8_xmm_imm8]);
    xmm::<B, Extract<u16>>(t, [Pextrw_r32m16_xmm_imm8, VEX_Vpextrw_r32m16_xmm_imm8]);
    xmm::<B, Extract<u16>>(t, [Pextrw_r64m16_xmm_imm8, VEX_Vpextrw_r64m16_xmm_imm8]);
    xmm::<B, Extract<u32>>(t, [Pextrd_rm32_xmm_imm8, VEX_Vpextrd_rm32_xmm_imm8]);
    xmm::<B, Extract<u32>>(t, [Extractps_rm32_xmm_imm8, VEX_Vextractps_rm32_xmm_imm8]);
    xmm::<B, Extract<u32>>(t, [Extractps_r64m32_xmm_imm8, VEX_Vextractps_r64m32_xmm_imm8]);
    xmm::<B, Extract<u64>>(t, [Pextrq_rm64_xmm_imm8, VEX_Vpextrq_rm64_xmm_imm8]);
    xmm::<B, Pextrw>(t, [Pextrw_r32_xmm_imm8, VEX_Vpextrw_r32_xmm_imm8]);
    xmm::<B, Pextrw>(t, [Pextrw_r64_xmm_imm8, VEX_Vpextrw_r64_xmm_imm8]);
    xmm::<B, Insert<u8>>(t, [Pinsrb_xmm_r32m8_imm8, VEX_Vpinsrb_xmm_xmm_r32m8_imm8]);
    xmm::<B, Insert<u8>>(t, [Pinsrb_xmm_r64m8_imm8, VEX_Vpinsrb_xmm_xmm_r64m8_imm8]);
    xmm::<B, Insert<u16>>(t, [Pinsrw_xmm_r32m16_imm8, VEX_Vpinsrw_xmm_xmm_r32m16_imm8]);
    xmm::<B, Insert<u16>>(t, [Pinsrw_xmm_r64m16_imm8, VEX_Vpinsrw_xmm_xmm_r64m16_imm8]);
    xmm::<B, Insert<u32>>(t, [Pinsrd_xmm_rm32_imm8, VEX_Vpinsrd_xmm_xmm_rm32_imm8]);
    xmm::<B, Insert<u64>>(t, [Pinsrq_xmm_rm64_imm8, VEX_Vpinsrq_xmm_xmm_rm64_imm8]);
    xmm::<B, Insertps>(t, [Insertps_xmm_xmmm32_imm8, VEX_Vinsertps_xmm_xmm_xmmm32_imm8]);
}
