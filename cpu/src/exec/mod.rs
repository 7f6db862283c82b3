//! The instructions, a file a family.
//!
//! Each family has a `lower`, which looks at a decoded instruction and selects the handler.

use iced_x86::{Instruction, OpKind};

use crate::backend::interpreter::dispatch::Threaded;
use crate::insn::{Exec, Insn};
use crate::processor::cpu::Cpu;

pub(crate) mod address;
mod alu;
mod atomic;
mod bits;
pub(crate) mod branch;
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

/// How a handler for an operand size in bytes is executed, its last generic parameter: by
/// `threaded` or `memory` of [`crate::backend::interpreter::dispatch`] if one comes first, else as an instance that is
/// called.
macro_rules! by_size {
    ($way:ident, $size:expr, $f:ident $(:: < $($g:ty),+ >)?) => {
        match $size {
            1 => $crate::backend::interpreter::dispatch::$way!($f, $($($g,)+)? u8),
            2 => $crate::backend::interpreter::dispatch::$way!($f, $($($g,)+)? u16),
            4 => $crate::backend::interpreter::dispatch::$way!($f, $($($g,)+)? u32),
            _ => $crate::backend::interpreter::dispatch::$way!($f, $($($g,)+)? u64),
        }
    };
    ($size:expr, $f:ident $(:: < $($g:ty),+ >)?) => {
        $crate::exec::by_size!(handler, $size, $f $(:: < $($g),+ >)?)
    };
}
pub(crate) use by_size;

/// The same for a condition: the low four bits of Jcc, SETcc and CMOVcc opcodes, its first generic
/// parameter.
macro_rules! by_condition {
    ($way:ident, $cc:expr, $f:ident $(, $t:ty)?) => {
        match $cc {
            0 => $crate::backend::interpreter::dispatch::$way!($f, 0 $(, $t)?),
            1 => $crate::backend::interpreter::dispatch::$way!($f, 1 $(, $t)?),
            2 => $crate::backend::interpreter::dispatch::$way!($f, 2 $(, $t)?),
            3 => $crate::backend::interpreter::dispatch::$way!($f, 3 $(, $t)?),
            4 => $crate::backend::interpreter::dispatch::$way!($f, 4 $(, $t)?),
            5 => $crate::backend::interpreter::dispatch::$way!($f, 5 $(, $t)?),
            6 => $crate::backend::interpreter::dispatch::$way!($f, 6 $(, $t)?),
            7 => $crate::backend::interpreter::dispatch::$way!($f, 7 $(, $t)?),
            8 => $crate::backend::interpreter::dispatch::$way!($f, 8 $(, $t)?),
            9 => $crate::backend::interpreter::dispatch::$way!($f, 9 $(, $t)?),
            10 => $crate::backend::interpreter::dispatch::$way!($f, 10 $(, $t)?),
            11 => $crate::backend::interpreter::dispatch::$way!($f, 11 $(, $t)?),
            12 => $crate::backend::interpreter::dispatch::$way!($f, 12 $(, $t)?),
            13 => $crate::backend::interpreter::dispatch::$way!($f, 13 $(, $t)?),
            14 => $crate::backend::interpreter::dispatch::$way!($f, 14 $(, $t)?),
            _ => $crate::backend::interpreter::dispatch::$way!($f, 15 $(, $t)?),
        }
    };
}
pub(crate) use by_condition;

/// Executes one instruction.
pub type Handler = fn(&mut Cpu, &Insn) -> Exec;

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

/// Selects how a family's frequent instructions are executed; `None` for others.
type Frequent = fn(&Instruction, &Insn) -> Option<Threaded>;

const FREQUENT: &[Frequent] = &[
    data::threaded,
    alu::threaded,
    branch::threaded,
    stack::threaded,
    shift::threaded,
    muldiv::threaded,
];

/// Selects the handler of a family's instructions; `None` for those of other families.
type Lower = fn(&Instruction, &Insn) -> Option<Handler>;

const FAMILIES: &[Lower] = &[
    data::lower,
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

/// Finds out how an instruction is executed; `None` if it is not implemented.
pub(crate) fn lower(i: &Instruction, insn: &Insn) -> Option<Threaded> {
    if let Some(found) = FREQUENT.iter().find_map(|f| f(i, insn)) {
        return Some(found);
    }
    let body = FAMILIES.iter().find_map(|f| f(i, insn))?;
    Some(Threaded::called(body))
}

/// What an instruction does before its memory operand's segment is looked at: outside 64-bit mode
/// the address operation does that.
pub(crate) fn before_address(i: &Instruction) -> Option<Handler> {
    stack::before_address(i).or_else(|| x87::before_address(i))
}

/// Not an instruction of this processor.
pub(crate) fn undefined(cpu: &mut Cpu, _: &Insn) -> Exec {
    Err(cpu.ud())
}

/// An instruction of more than 15 bytes.
pub(crate) fn too_long(cpu: &mut Cpu, _: &Insn) -> Exec {
    Err(cpu.gp(0))
}
