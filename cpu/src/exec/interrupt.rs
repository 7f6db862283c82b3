//! Software interrupts: INT n, INT3, INTO, INT1 and BOUND.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::interrupt::Source;
use crate::state::int::Int;
use crate::state::vector;

fn int(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if cpu.is_virtual_8086()
        && let Some(flow) = cpu.redirect_interrupt(insn, insn.imm as u8)?
    {
        return Ok(flow);
    }
    cpu.software_interrupt(insn, insn.imm as u8, Source::Software)
}

fn int3(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.software_interrupt(insn, vector::BP, Source::Software)
}

fn into(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if cpu.flags.of() {
        cpu.software_interrupt(insn, vector::OF, Source::Software)
    } else {
        Ok(Flow::Next)
    }
}

/// BOUND: #BR if the signed index in the register is not between the two bounds in memory, both
/// inclusive. Intel's processors load the upper one only if the index is not below the lower one.
fn bound<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = cpu.ea(insn);
    let index = cpu.r::<T>(insn.dst).sext() as i64;
    if index < cpu.load::<T>(la)?.sext() as i64 {
        return Err(cpu.exception(vector::BR, None));
    }
    let upper = cpu.load::<T>(la.wrapping_add(T::BYTES as u64) & 0xFFFF_FFFF)?;
    if index > upper.sext() as i64 {
        return Err(cpu.exception(vector::BR, None));
    }
    Ok(Flow::Next)
}

/// INT1 raises #DB as hardware does: it does not check the gate's DPL, and leaves DR6 unchanged. It
/// drops a trap that MOV SS has held, which would raise a second #DB at the first instruction of
/// the handler.
fn int1(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let flow = cpu.software_interrupt(insn, vector::DB, Source::Exception)?;
    cpu.drop_debug_trap();
    cpu.prepare_debug_handler();
    Ok(flow)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Int_imm8], int);
    t.handler([Int3], int3);
    t.handler([Into], into);
    t.handler([Bound_r16_m1616], bound::<u16>);
    t.handler([Bound_r32_m3232], bound::<u32>);
    t.handler([Int1], int1);
}
