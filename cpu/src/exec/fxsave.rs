//! FXSAVE and FXRSTOR (SDM Vol. 1 10.5).

use iced_x86::Code;

use super::x87;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::X87State;
use crate::state::xsave::{MXCSR_MASK, Pointers, XsaveArea};

/// Alignment of the area in bytes.
const ALIGNMENT: usize = 16;

/// Linear address of the area, which must be aligned: #GP(0).
fn area(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    cpu.need_fpu()?;
    let la = cpu.ea(insn);
    if la & (ALIGNMENT as u64 - 1) != 0 {
        return Err(cpu.gp(0));
    }
    Ok(la)
}

/// The form with REX.W is `LONG`.
pub(super) fn pointers<const LONG: bool>() -> Pointers {
    if LONG {
        Pointers::Bits64
    } else {
        Pointers::Bits32
    }
}

/// FXSAVE does not write the bytes after the last register.
fn fxsave<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = area(cpu, insn)?;
    let mut area = XsaveArea::default();
    area.put_x87(&cpu.x87, pointers::<LONG>());
    area.put_mxcsr(cpu.mxcsr);
    area.put_xmm(&cpu.xmm);
    let size = XsaveArea::xmm_range(cpu.vector_registers()).end;
    cpu.store_bytes(la, &area.bytes()[..size], ALIGNMENT)?;
    Ok(Flow::Next)
}

fn fxrstor<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = area(cpu, insn)?;
    let count = cpu.vector_registers();
    let mut area = XsaveArea::default();
    let size = XsaveArea::xmm_range(count).end;
    cpu.load_bytes(la, &mut area.bytes_mut()[..size], ALIGNMENT)?;
    let mxcsr = area.mxcsr();
    if mxcsr & !MXCSR_MASK != 0 {
        return Err(cpu.gp(0));
    }
    cpu.mxcsr = mxcsr;
    load_x87(cpu, area.x87(pointers::<LONG>()));
    cpu.xmm[..count].copy_from_slice(&area.xmm()[..count]);
    Ok(Flow::Next)
}

/// Loads x87 state from memory. Bits that no software can change are ignored.
pub(super) fn load_x87(cpu: &mut Cpu, image: X87State) {
    cpu.x87 = image;
    x87::load_status(&mut cpu.x87, image.fsw);
    x87::load_control(&mut cpu.x87, image.fcw);
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Fxsave_m512byte], fxsave::<false>);
    t.handler([Fxsave64_m512byte], fxsave::<true>);
    t.handler([Fxrstor_m512byte], fxrstor::<false>);
    t.handler([Fxrstor64_m512byte], fxrstor::<true>);
}
