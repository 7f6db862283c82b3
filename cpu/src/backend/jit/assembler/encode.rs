//! Moves, arithmetic and shifts of 32 and 64 bits, by their encoding (SDM Vol. 2A, chapter 2).

use crate::backend::jit::assembler::register::{Ext, Mem, RAX, RBP, RSP, Reg, RegField};
use crate::backend::jit::assembler::{Assembler, Label};

/// The prefixes of a memory operand in the reservation: the override of GS, and an address of 32
/// bits.
const RESERVED: [u8; 2] = [0x65, 0x67];

/// Instructions of two operands by their opcode for `r, r/m`.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Op {
    Add = 0x03,
    Or = 0x0B,
    Sub = 0x2B,
    Cmp = 0x3B,
    Load = 0x8B,
    Lea = 0x8D,
}

/// Instructions with an immediate, by their extension of opcodes 80, 81 and 83.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Imm {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// Shifts, by their extension of opcodes C0 and C1.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Shift {
    Left = 4,
    Right = 5,
    ArithmeticRight = 7,
}

impl Assembler {
    /// REX, unless it would have no effect.
    pub(super) fn rex(&mut self, wide: bool, reg: u8, index: u8, base: u8) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | (base >> 3);
        if rex != 0x40 {
            self.code.push(rex);
        }
    }

    /// REX, opcode, ModRM, SIB and displacement.
    pub(crate) fn memory(&mut self, wide: bool, opcode: &[u8], reg: impl RegField, m: &Mem) {
        if m.reserved {
            self.code.extend_from_slice(&RESERVED);
        }
        let reg = reg.field();
        let (index, factor) = m.index.unwrap_or((RSP, 1));
        let base = m.base.unwrap_or(RBP);
        self.rex(wide, reg, index.number(), m.base.unwrap_or(RAX).number());
        self.code.extend_from_slice(opcode);
        // RBP and R13 as a base always have a displacement.
        let mode = match m.base {
            None => 0,
            Some(b) if m.disp == 0 && b.low() != RBP.number() => 0,
            Some(_) if i8::try_from(m.disp).is_ok() => 1,
            Some(_) => 2,
        };
        let sib = m.index.is_some() || m.base.is_none() || base.low() == RSP.number();
        let rm = if sib { RSP.number() } else { base.low() };
        self.code.push(mode << 6 | (reg & 7) << 3 | rm);
        if sib {
            let scale = factor.trailing_zeros() as u8;
            self.code.push(scale << 6 | index.low() << 3 | base.low());
        }
        match (mode, m.base) {
            (1, _) => self.code.push(m.disp as u8),
            (2, _) | (_, None) => self.code.extend_from_slice(&m.disp.to_le_bytes()),
            _ => {}
        }
    }

    /// REX, opcode and ModRM of two registers.
    pub(crate) fn registers(&mut self, wide: bool, opcode: &[u8], reg: impl RegField, rm: Reg) {
        let reg = reg.field();
        self.rex(wide, reg, 0, rm.number());
        self.code.extend_from_slice(opcode);
        self.code.push(0xC0 | (reg & 7) << 3 | rm.low());
    }

    /// `op to, [m]` with 64 bits.
    pub(crate) fn op_mem(&mut self, op: Op, to: Reg, m: &Mem) {
        self.memory(true, &[op as u8], to, m);
    }

    /// `op to, [m]` with 32 bits.
    pub(crate) fn op_mem32(&mut self, op: Op, to: Reg, m: &Mem) {
        self.memory(false, &[op as u8], to, m);
    }

    /// `op to, from` with 64 bits.
    pub(crate) fn op(&mut self, op: Op, to: Reg, from: Reg) {
        self.registers(true, &[op as u8], to, from);
    }

    /// `mov to, from` with 64 bits, unless they are the same register.
    pub(crate) fn mov(&mut self, to: Reg, from: Reg) {
        if to != from {
            self.op(Op::Load, to, from);
        }
    }

    /// `mov to, from` with 32 bits.
    pub(crate) fn mov32(&mut self, to: Reg, from: Reg) {
        self.registers(false, &[Op::Load as u8], to, from);
    }

    /// Loads 64 bits.
    pub(crate) fn load(&mut self, to: Reg, m: &Mem) {
        self.op_mem(Op::Load, to, m);
    }

    /// The address of a memory operand, without the base of GS.
    pub(crate) fn lea(&mut self, to: Reg, m: &Mem) {
        let reserved = false;
        self.op_mem(Op::Lea, to, &Mem { reserved, ..*m });
    }

    /// The lowest 32 bits of the address of a memory operand, without the base of GS.
    pub(crate) fn lea32(&mut self, to: Reg, m: &Mem) {
        let reserved = false;
        self.op_mem32(Op::Lea, to, &Mem { reserved, ..*m });
    }

    /// Stores 64 bits.
    pub(crate) fn store(&mut self, m: &Mem, from: Reg) {
        self.memory(true, &[0x89], from, m);
    }

    /// An instruction whose memory operand is at a label.
    pub(crate) fn memory_at(&mut self, wide: bool, op: &[u8], reg: impl RegField, at: Label) {
        let reg = reg.field();
        self.rex(wide, reg, 0, 0);
        self.code.extend_from_slice(op);
        self.code.push((reg & 7) << 3 | 5);
        self.fixup(at);
    }

    /// Stores the lowest 16 bits.
    pub(crate) fn store16(&mut self, m: &Mem, from: Reg) {
        self.code.push(0x66);
        self.memory(false, &[0x89], from, m);
    }

    /// Loads 16 bits, zero-extended.
    pub(crate) fn load16(&mut self, to: Reg, m: &Mem) {
        self.memory(false, &[0x0F, 0xB7], to, m);
    }

    /// Stores a sign-extended immediate of 64 bits.
    pub(crate) fn store_imm(&mut self, m: &Mem, value: i32) {
        self.memory(true, &[0xC7], Ext(0), m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `op to, value` with 64 or 32 bits.
    pub(crate) fn imm(&mut self, wide: bool, op: Imm, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(short) => {
                self.registers(wide, &[0x83], Ext(op as u8), to);
                self.code.push(short as u8);
            }
            Err(_) => {
                // The accumulator has a form without ModRM.
                match (to, wide) {
                    (RAX, true) => self.code.extend_from_slice(&[0x48, (op as u8) << 3 | 5]),
                    (RAX, false) => self.code.push((op as u8) << 3 | 5),
                    _ => self.registers(wide, &[0x81], Ext(op as u8), to),
                }
                self.code.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// `op qword [m], value`.
    pub(crate) fn imm_mem(&mut self, op: Imm, m: &Mem, value: i32) {
        match i8::try_from(value) {
            Ok(short) => {
                self.memory(true, &[0x83], Ext(op as u8), m);
                self.code.push(short as u8);
            }
            Err(_) => {
                self.memory(true, &[0x81], Ext(op as u8), m);
                self.code.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// `op dword [m], value`.
    pub(crate) fn imm_mem32(&mut self, op: Imm, m: &Mem, value: u32) {
        self.memory(false, &[0x81], Ext(op as u8), m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `op byte [m], value`.
    pub(crate) fn imm_mem8(&mut self, op: Imm, m: &Mem, value: u8) {
        self.memory(false, &[0x80], Ext(op as u8), m);
        self.code.push(value);
    }

    /// `mov byte [m], value`.
    pub(crate) fn store_imm8(&mut self, m: &Mem, value: u8) {
        self.memory(false, &[0xC6], Ext(0), m);
        self.code.push(value);
    }

    /// `inc dword [m]`.
    pub(crate) fn increment_mem32(&mut self, m: &Mem) {
        self.memory(false, &[0xFF], Ext(0), m);
    }

    /// `mov to, value`, in the shortest form.
    pub(crate) fn mov_imm(&mut self, to: Reg, value: u64) {
        if let Ok(short) = u32::try_from(value) {
            self.rex(false, 0, 0, to.number());
            self.code.push(0xB8 | to.low());
            self.code.extend_from_slice(&short.to_le_bytes());
        } else if let Ok(short) = i32::try_from(value as i64) {
            self.registers(true, &[0xC7], Ext(0), to);
            self.code.extend_from_slice(&short.to_le_bytes());
        } else {
            self.rex(true, 0, 0, to.number());
            self.code.push(0xB8 | to.low());
            self.code.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// `cmp a, b` with 64 or 32 bits.
    pub(crate) fn compare(&mut self, wide: bool, a: Reg, b: Reg) {
        self.registers(wide, &[Op::Cmp as u8], a, b);
    }

    /// An instruction of opcode F7 with 64 or 32 bits: MUL, IMUL, DIV or IDIV.
    pub(crate) fn unary(&mut self, wide: bool, extension: Ext, r: Reg) {
        self.registers(wide, &[0xF7], extension, r);
    }

    /// `test dword [m], value`.
    pub(crate) fn test_mem32(&mut self, m: &Mem, value: u32) {
        self.memory(false, &[0xF7], Ext(0), m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `test r, r` with 64 or 32 bits.
    pub(crate) fn test(&mut self, wide: bool, r: Reg) {
        self.registers(wide, &[0x85], r, r);
    }

    /// Shifts 64 or 32 bits by `n`.
    pub(crate) fn shift(&mut self, shift: Shift, wide: bool, to: Reg, n: u8) {
        self.registers(wide, &[0xC1], Ext(shift as u8), to);
        self.code.push(n);
    }

    /// `btc to, n` with 64 bits.
    pub(crate) fn flip_bit(&mut self, to: Reg, n: u8) {
        self.registers(true, &[0x0F, 0xBA], Ext(7), to);
        self.code.push(n);
    }

    /// `cmovCC to, from` with 64 bits.
    pub(crate) fn mov_if(&mut self, condition: u8, to: Reg, from: Reg) {
        self.registers(true, &[0x0F, 0x40 | condition], to, from);
    }

    /// `cmovCC to, [m]` with 64 bits.
    pub(crate) fn load_if(&mut self, condition: u8, to: Reg, m: &Mem) {
        self.memory(true, &[0x0F, 0x40 | condition], to, m);
    }
}
