//! VZEROUPPER and VZEROALL.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// Number of the registers that VZEROALL and VZEROUPPER clear.
fn registers(cpu: &Cpu) -> u8 {
    if cpu.in_64_bit_mode() { 16 } else { 8 }
}

fn vzeroupper(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_avx()?;
    let count = registers(cpu).into();
    cpu.ymm_high[..count].fill(0);
    Ok(Flow::Next)
}

fn vzeroall(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_avx()?;
    for n in 0..registers(cpu) {
        cpu.set_ymm(n, 0, 0);
    }
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([VEX_Vzeroupper], vzeroupper);
    t.handler([VEX_Vzeroall], vzeroall);
}
