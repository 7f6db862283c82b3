//! What each instruction does, a file for each family of the manual.
//!
//! [`table`] maps the operation of a decoded instruction to the code that executes it.

use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

pub(crate) mod address;
pub(crate) mod alu;
mod atomic;
mod bits;
mod bmi;
pub(crate) mod branch;
mod conditional;
mod control;
mod data;
mod far;
mod far_return;
mod flags;
mod fsgsbase;
mod fxsave;
mod interrupt;
mod io;
mod muldiv;
pub(crate) mod native;
mod nop;
mod random;
mod segreg;
mod shift;
mod simd;
mod stack;
mod string;
mod syscall;
mod system;
pub(crate) mod table;
mod unary;
mod x87;
mod xsave;

pub(crate) use simd::{HOST_MXCSR, MXCSR_MASKS};
use table::{Backend, Table};

/// The table of all instructions, with the code of backend `B`.
pub(crate) fn instructions<B: Backend>() -> Table<B> {
    let mut table = Table::new();
    let t = &mut table;
    data::rows(t);
    conditional::rows(t);
    nop::rows(t);
    flags::rows(t);
    alu::rows(t);
    unary::rows(t);
    branch::rows(t);
    stack::rows(t);
    shift::rows(t);
    string::rows(t);
    atomic::rows(t);
    bits::rows(t);
    bmi::rows(t);
    muldiv::rows(t);
    io::rows(t);
    segreg::rows(t);
    fsgsbase::rows(t);
    far::rows(t);
    far_return::rows(t);
    interrupt::rows(t);
    syscall::rows(t);
    control::rows(t);
    system::rows(t);
    random::rows(t);
    simd::rows(t);
    x87::rows(t);
    fxsave::rows(t);
    xsave::rows(t);
    table
}

/// Executes what is not an instruction of this processor.
pub(crate) fn undefined(cpu: &mut Cpu, _: &Insn) -> Exec {
    Err(cpu.ud())
}

/// Raises #UD where VEX is no prefix: in real-address mode and virtual-8086 mode (SDM Vol. 2A
/// 2.3.1). An operation of its own before the instruction.
pub(crate) fn require_protected_mode(cpu: &mut Cpu, _: &Insn) -> Exec {
    if cpu.uses_descriptors() {
        Ok(Flow::Next)
    } else {
        Err(cpu.ud())
    }
}

/// Executes an instruction of more than 15 bytes.
pub(crate) fn too_long(cpu: &mut Cpu, _: &Insn) -> Exec {
    Err(cpu.gp(0))
}
