//! Jumps, calls and the stack, and operands at known addresses.

use crate::backend::jit::assembler::register::{Ext, Mem, Reg};
use crate::backend::jit::assembler::{Assembler, Label};

/// Conditions as Jcc, SETcc and CMOVcc encode them.
pub(crate) mod cond {
    pub(crate) const O: u8 = 0;
    pub(crate) const B: u8 = 2;
    pub(crate) const AE: u8 = 3;
    pub(crate) const E: u8 = 4;
    pub(crate) const NE: u8 = 5;
    pub(crate) const BE: u8 = 6;
    pub(crate) const A: u8 = 7;
    pub(crate) const LE: u8 = 14;
    pub(crate) const G: u8 = 15;
}

impl Assembler {
    /// `push r`.
    pub(crate) fn push(&mut self, r: Reg) {
        self.rex(false, 0, 0, r.number());
        self.code.push(0x50 | r.low());
    }

    /// `pop r`.
    pub(crate) fn pop(&mut self, r: Reg) {
        self.rex(false, 0, 0, r.number());
        self.code.push(0x58 | r.low());
    }

    /// UD2, behind a call that does not return.
    pub(crate) fn undefined(&mut self) {
        self.code.extend_from_slice(&[0x0F, 0x0B]);
    }

    /// `ret`.
    pub(crate) fn ret(&mut self) {
        self.code.push(0xC3);
    }

    /// `jmp to`.
    pub(crate) fn jump_to(&mut self, to: Reg) {
        self.registers(false, &[0xFF], Ext(4), to);
    }

    /// `jmp [m]`.
    pub(crate) fn jump_mem(&mut self, m: &Mem) {
        self.memory(false, &[0xFF], Ext(4), m);
    }

    /// `call to`.
    pub(crate) fn call_register(&mut self, to: Reg) {
        self.registers(false, &[0xFF], Ext(2), to);
    }

    /// `jmp label`.
    pub(crate) fn jump(&mut self, label: Label) {
        self.code.push(0xE9);
        self.fixup(label);
    }

    /// `call label`.
    pub(crate) fn call(&mut self, label: Label) {
        self.code.push(0xE8);
        self.fixup(label);
    }

    /// `jCC label`.
    pub(crate) fn jump_if(&mut self, condition: u8, label: Label) {
        self.code.extend_from_slice(&[0x0F, 0x80 | condition]);
        self.fixup(label);
    }

    /// `jCC address`.
    pub(crate) fn jump_if_address(&mut self, condition: u8, target: u64) {
        self.bytes(&[0x0F, 0x80 | condition]);
        self.displacement(target);
    }

    /// Jumps to an address.
    pub(crate) fn jump_address(&mut self, target: u64) {
        self.code.push(0xE9);
        self.displacement(target);
    }

    /// Calls code at an address.
    pub(crate) fn call_address(&mut self, target: u64) {
        self.code.push(0xE8);
        self.displacement(target);
    }

    /// `mov to, [address]`, relative to RIP.
    pub(crate) fn load_address(&mut self, to: Reg, address: u64) {
        self.relative(&[0x8B], to, address);
    }

    /// `lea to, [address]`, relative to RIP.
    pub(crate) fn lea_address(&mut self, to: Reg, address: u64) {
        self.relative(&[0x8D], to, address);
    }

    fn relative(&mut self, opcode: &[u8], to: Reg, address: u64) {
        self.rex(true, to.number(), 0, 0);
        self.code.extend_from_slice(opcode);
        self.code.push(to.low() << 3 | 5);
        self.displacement(address);
    }
}
