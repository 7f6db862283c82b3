//! The instructions, a file a family.
//!
//! Each family has a `lower`, which looks at a decoded instruction and selects the handler; [`Op`]'s operands have
//! been filled by then.

use iced_x86::{Instruction, OpKind};

use crate::cpu::Cpu;
use crate::op::{Exec, Handler, Op};

pub(crate) mod address;
mod alu;
mod atomic;
mod bits;
mod branch;
mod control;
mod data;
mod far;
mod fxsave;
mod io;
mod muldiv;
mod segreg;
mod shift;
mod simd;
mod stack;
mod string;
mod syscall;
mod system;
mod x87;

/// The instance of a handler for an operand size in bytes; the size is its last generic parameter.
macro_rules! by_size {
    ($size:expr, $f:ident $(:: < $($g:ty),+ >)?) => {
        match $size {
            1 => $f::<$($($g,)+)? u8> as $crate::op::Handler,
            2 => $f::<$($($g,)+)? u16>,
            4 => $f::<$($($g,)+)? u32>,
            _ => $f::<$($($g,)+)? u64>,
        }
    };
}
pub(crate) use by_size;

/// The instance of a handler for a condition: the low four bits of Jcc, SETcc and CMOVcc opcodes, its first
/// generic parameter.
macro_rules! by_condition {
    ($cc:expr, $f:ident $(, $t:ty)?) => {
        match $cc {
            0 => $f::<0 $(, $t)?> as $crate::op::Handler,
            1 => $f::<1 $(, $t)?>,
            2 => $f::<2 $(, $t)?>,
            3 => $f::<3 $(, $t)?>,
            4 => $f::<4 $(, $t)?>,
            5 => $f::<5 $(, $t)?>,
            6 => $f::<6 $(, $t)?>,
            7 => $f::<7 $(, $t)?>,
            8 => $f::<8 $(, $t)?>,
            9 => $f::<9 $(, $t)?>,
            10 => $f::<10 $(, $t)?>,
            11 => $f::<11 $(, $t)?>,
            12 => $f::<12 $(, $t)?>,
            13 => $f::<13 $(, $t)?>,
            14 => $f::<14 $(, $t)?>,
            _ => $f::<15 $(, $t)?>,
        }
    };
}
pub(crate) use by_condition;

/// Size in bytes of operand `n`.
pub(crate) fn operand_size(i: &Instruction, n: u32) -> usize {
    match i.op_kind(n) {
        OpKind::Register => i.op_register(n).size(),
        _ => i.memory_size().size(),
    }
}

/// The condition of Jcc, SETcc and CMOVcc as the opcode encodes it.
pub(crate) fn condition(i: &Instruction) -> u8 {
    // iced's condition codes are in opcode order, after `None`.
    (i.condition_code() as u8).wrapping_sub(1)
}

/// Selects the handler of a family's instructions; `None` for those of other families.
type Lower = fn(&Instruction, &mut Op) -> Option<Handler>;

const FAMILIES: &[Lower] = &[
    data::lower,
    alu::lower,
    branch::lower,
    stack::lower,
    shift::lower,
    string::lower,
    atomic::lower,
    bits::lower,
    muldiv::lower,
    io::lower,
    segreg::lower,
    far::lower,
    syscall::lower,
    control::lower,
    system::lower,
    simd::lower,
    x87::lower,
    fxsave::lower,
];

/// The handler of an instruction; `None` if it is not implemented.
pub(crate) fn lower(insn: &Instruction, op: &mut Op) -> Option<Handler> {
    FAMILIES.iter().find_map(|f| f(insn, op))
}

/// What an instruction does before its memory operand's segment is looked at: outside 64-bit mode the address operation does
/// that.
pub(crate) fn before_address(insn: &Instruction) -> Option<Handler> {
    stack::before_address(insn).or_else(|| x87::before_address(insn))
}

/// Not an instruction of this processor.
pub(crate) fn undefined(cpu: &mut Cpu, _: &Op) -> Exec {
    Err(cpu.ud())
}

/// An instruction of more than 15 bytes.
pub(crate) fn too_long(cpu: &mut Cpu, _: &Op) -> Exec {
    Err(cpu.gp(0))
}
