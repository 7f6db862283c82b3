//! NOP, PAUSE, and the hints of later processors, which `decode` leaves without a memory operand.

use iced_x86::Code;

use crate::exec::table::{Backend, Inlined, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// NOP, and the hints that this processor ignores.
struct Nop;

impl Inlined for Nop {
    const KEEPS_REGISTERS: bool = true;

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(_: &mut Cpu, _: &Insn) -> Exec {
        Ok(Flow::Next)
    }
}

fn pause(cpu: &mut Cpu, insn: &Insn) -> Exec {
    match cpu.pause(insn.ordinal) {
        true => cpu.end_block(insn),
        false => Ok(Flow::Next),
    }
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    for code in [
        Nopw,
        Nopd,
        Nopq,
        Reservednop_rm16_r16_0F0D,
        Reservednop_rm32_r32_0F0D,
        Reservednop_rm64_r64_0F0D,
        Reservednop_rm16_r16_0F18,
        Reservednop_rm32_r32_0F18,
        Reservednop_rm64_r64_0F18,
        Reservednop_rm16_r16_0F19,
        Reservednop_rm32_r32_0F19,
        Reservednop_rm64_r64_0F19,
        Reservednop_rm16_r16_0F1A,
        Reservednop_rm32_r32_0F1A,
        Reservednop_rm64_r64_0F1A,
        Reservednop_rm16_r16_0F1B,
        Reservednop_rm32_r32_0F1B,
        Reservednop_rm64_r64_0F1B,
        Reservednop_rm16_r16_0F1C,
        Reservednop_rm32_r32_0F1C,
        Reservednop_rm64_r64_0F1C,
        Reservednop_rm16_r16_0F1D,
        Reservednop_rm32_r32_0F1D,
        Reservednop_rm64_r64_0F1D,
        Reservednop_rm16_r16_0F1E,
        Reservednop_rm32_r32_0F1E,
        Reservednop_rm64_r64_0F1E,
        Reservednop_rm16_r16_0F1F,
        Reservednop_rm32_r32_0F1F,
        Reservednop_rm64_r64_0F1F,
    ] {
        t.inlined::<Nop, u64>(code);
    }
    t.handler([Pause], pause);
}
