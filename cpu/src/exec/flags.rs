//! Single flags: LAHF, SAHF, CLC, STC, CMC, CLD, STD, SALC.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::{gpr, rflags};

const AL: u8 = gpr::RAX as u8;
const AH: u8 = reg::HIGH8;

/// SALC: AL is all ones if CF is set, else zero. The manual does not document it; every processor
/// has it.
fn salc(cpu: &mut Cpu, _: &Insn) -> Exec {
    let v = if cpu.flags.cf() { 0xFF } else { 0 };
    cpu.w::<u8>(AL, v);
    Ok(Flow::Next)
}

fn lahf(cpu: &mut Cpu, _: &Insn) -> Exec {
    let f = cpu.rflags() as u8;
    cpu.w(AH, f);
    Ok(Flow::Next)
}

fn sahf(cpu: &mut Cpu, _: &Insn) -> Exec {
    let low = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;
    let ah = cpu.r::<u8>(AH);
    let bits = (cpu.flags.bits() & !low) | (u64::from(ah) & low);
    cpu.flags = Lazy::from_bits(bits);
    Ok(Flow::Next)
}

fn clc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(false);
    Ok(Flow::Next)
}

fn stc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(true);
    Ok(Flow::Next)
}

fn cmc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(!cpu.flags.cf());
    Ok(Flow::Next)
}

fn cld(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.eflags &= !rflags::DF;
    Ok(Flow::Next)
}

fn std(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.eflags |= rflags::DF;
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Lahf], lahf);
    t.handler([Sahf], sahf);
    t.handler([Clc], clc);
    t.handler([Stc], stc);
    t.handler([Cmc], cmc);
    t.handler([Cld], cld);
    t.handler([Std], std);
    t.handler([Salc], salc);
}
