//! Moves and arithmetic of bytes, and instructions with implicit operands, by their encoding (SDM
//! Vol. 2A, chapter 2).

use crate::backend::jit::assembler::Assembler;
use crate::backend::jit::assembler::encode::{Imm, Shift};
use crate::backend::jit::assembler::register::{Byte, Ext, Mem, Reg, RegField};

/// Instructions of two bytes by their opcode for `r/m8, r8`.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum ByteOp {
    Or = 0x08,
    Xor = 0x30,
    Exchange = 0x86,
    Mov = 0x88,
}

impl Assembler {
    /// `op to, from`.
    pub(crate) fn byte_op(&mut self, op: ByteOp, to: Byte, from: Byte) {
        let is_extended = |b: Byte| b.field() >= 8;
        debug_assert!(
            ![to, from].contains(&Byte::AH) || ![to, from].into_iter().any(is_extended),
            "REX has no AH"
        );
        self.registers(false, &[op as u8], from, to.encoded());
    }

    /// `op to, value`.
    pub(crate) fn byte_imm(&mut self, op: Imm, to: Byte, value: u8) {
        match to {
            Byte::AL => self.code.push((op as u8) << 3 | 4),
            _ => self.registers(false, &[0x80], Ext(op as u8), to.encoded()),
        }
        self.code.push(value);
    }

    /// Shifts a byte by `n`.
    pub(crate) fn byte_shift(&mut self, shift: Shift, to: Byte, n: u8) {
        self.registers(false, &[0xC0], Ext(shift as u8), to.encoded());
        self.code.push(n);
    }

    /// `mov al, value`.
    pub(crate) fn mov_al_imm(&mut self, value: u8) {
        self.code.extend_from_slice(&[0xB0, value]);
    }

    /// `test r, mask`.
    pub(crate) fn byte_test(&mut self, r: Byte, mask: u8) {
        match r {
            Byte::AL => self.code.push(0xA8),
            _ => self.registers(false, &[0xF6], Ext(0), r.encoded()),
        }
        self.code.push(mask);
    }

    /// `setCC to`.
    pub(crate) fn set_if(&mut self, condition: u8, to: Byte) {
        self.registers(false, &[0x0F, 0x90 | condition], Ext(0), to.encoded());
    }

    /// `setCC byte [m]`.
    pub(crate) fn store_if(&mut self, condition: u8, m: &Mem) {
        self.memory(false, &[0x0F, 0x90 | condition], Ext(0), m);
    }

    /// `or byte [m], from`.
    pub(crate) fn byte_or_mem(&mut self, m: &Mem, from: Byte) {
        self.memory(false, &[ByteOp::Or as u8], from, m);
    }

    /// Zero-extends a byte to 64 bits.
    pub(crate) fn zero_extend_byte(&mut self, to: Reg, from: Byte) {
        self.registers(false, &[0x0F, 0xB6], to, from.encoded());
    }

    // Implicit operands

    /// LAHF: loads SF, ZF, AF, PF and CF into AH.
    pub(crate) fn lahf(&mut self) {
        self.bytes(&[0x9F]);
    }

    /// SAHF: the inverse of [`Self::lahf`].
    pub(crate) fn sahf(&mut self) {
        self.bytes(&[0x9E]);
    }

    /// CDQ or CQO: fills EDX or RDX with the sign of EAX or RAX.
    pub(crate) fn sign_to_rdx(&mut self, wide: bool) {
        self.bytes(if wide { &[0x48, 0x99] } else { &[0x99] });
    }

    /// CDQE: sign-extends EAX to RAX.
    pub(crate) fn sign_extend_eax(&mut self) {
        self.bytes(&[0x48, 0x98]);
    }
}
