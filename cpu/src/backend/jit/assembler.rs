//! Writes the host's instructions around those of the guest: a few forms, by their encoding (SDM
//! Vol. 2A, chapter 2). The guest's own instructions go through iced-x86's encoder.

use iced_x86::{Encoder, IcedError, Instruction};
use vbts_verifier::Part;

/// A general register of the host, by its number.
pub(super) type Reg = u8;

pub(super) const RAX: Reg = 0;
pub(super) const RCX: Reg = 1;
pub(super) const RDX: Reg = 2;
pub(super) const RBX: Reg = 3;
pub(super) const RSP: Reg = 4;
pub(super) const RBP: Reg = 5;
pub(super) const RSI: Reg = 6;
pub(super) const RDI: Reg = 7;
pub(super) const R8: Reg = 8;
pub(super) const R9: Reg = 9;
pub(super) const R10: Reg = 10;
pub(super) const R11: Reg = 11;
pub(super) const R12: Reg = 12;
pub(super) const R13: Reg = 13;
pub(super) const R14: Reg = 14;
pub(super) const R15: Reg = 15;
/// A vector register of the host.
pub(super) const XMM0: Reg = 0;

/// A memory operand of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mem {
    pub base: Option<Reg>,
    /// Register and factor.
    pub index: Option<(Reg, u8)>,
    pub disp: i32,
    /// Whether the operand lies in the [`Reservation`](crate::mmu::reservation::Reservation), where
    /// the lowest 32 bits of the address are the offset from the base of GS.
    pub reserved: bool,
}

impl Mem {
    /// `[base + disp]`.
    pub(super) const fn at(base: Reg, disp: i32) -> Self {
        Self {
            base: Some(base),
            index: None,
            disp,
            reserved: false,
        }
    }

    /// `[base + disp]` in the reservation.
    pub(super) const fn reserved(base: Reg, disp: i32) -> Self {
        Self {
            reserved: true,
            ..Self::at(base, disp)
        }
    }
}

/// The prefixes of a memory operand in the reservation: the override of GS, and an address of 32
/// bits.
const RESERVED: [u8; 2] = [0x65, 0x67];

/// Instructions of two operands by their opcode for `r, r/m`.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Op {
    Add = 0x03,
    Sub = 0x2B,
    Cmp = 0x3B,
    Load = 0x8B,
    Lea = 0x8D,
}

/// Instructions with an immediate, by their extension of opcodes 81 and 83.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Imm {
    Add = 0,
    And = 4,
    Sub = 5,
    Cmp = 7,
}

/// Conditions as Jcc encodes them.
pub(super) mod cond {
    pub(crate) const B: u8 = 2;
    pub(crate) const AE: u8 = 3;
    pub(crate) const E: u8 = 4;
    pub(crate) const NE: u8 = 5;
    pub(crate) const BE: u8 = 6;
    pub(crate) const A: u8 = 7;
    pub(crate) const LE: u8 = 14;
    pub(crate) const G: u8 = 15;
}

/// A place in the code that jumps lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// Where code is executed: what runs often, and what runs rarely. They are apart, so that what runs
/// often is dense.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
    /// Address of the first byte of each.
    pub often: u64,
    pub rarely: u64,
}

/// Code that begins at known addresses.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    places: Places,
    /// Length of what runs often, when all of it has been written.
    split: usize,
    code: Vec<u8>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Displacements of 32 bits to be filled in: where they are, and the label.
    fixups: Vec<(usize, Label)>,
    /// Offset and length of each sequence of constants.
    constants: Vec<(usize, usize)>,
}

impl Assembler {
    /// Begins with code at `places`, and keeps the memory of the code before.
    pub(super) fn begin(&mut self, places: Places) {
        (self.places, self.split) = (places, usize::MAX);
        self.code.clear();
        self.labels.clear();
        self.fixups.clear();
        self.constants.clear();
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.code.len()
    }

    /// What follows runs rarely.
    pub(super) fn split(&mut self) {
        self.split = self.code.len();
    }

    /// Where the byte at `offset` is executed.
    fn address(&self, offset: usize) -> u64 {
        match offset.checked_sub(self.split) {
            None => self.places.often + offset as u64,
            Some(offset) => self.places.rarely + offset as u64,
        }
    }

    /// Where the next byte is executed.
    fn end(&self) -> u64 {
        self.address(self.code.len())
    }

    /// Resolves all jumps, and returns the code: what runs often, and what runs rarely.
    pub(super) fn finish(&mut self) -> [Part<'_>; 2] {
        for (at, label) in &self.fixups {
            let target = self.labels[label.0].unwrap_or_default();
            let next = self.address(*at).wrapping_add(4);
            let displacement = self.address(target).wrapping_sub(next) as i32;
            self.code[*at..*at + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        let split = self.split.min(self.code.len());
        let first = self.constants.partition_point(|(at, _)| *at < split);
        for (at, _) in &mut self.constants[first..] {
            *at -= split;
        }
        let (often, rarely) = self.code.split_at(split);
        let (constants, rare_constants) = self.constants.split_at(first);
        [
            Part {
                address: self.places.often,
                code: often,
                constants,
            },
            Part {
                address: self.places.rarely,
                code: rarely,
                constants: rare_constants,
            },
        ]
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts the label here.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// A label here.
    pub(super) fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Quadwords that instructions read.
    pub(super) fn constants(&mut self, values: &[u64]) {
        let len = size_of_val(values);
        self.constants.push((self.code.len(), len));
        for value in values {
            self.bytes(&value.to_le_bytes());
        }
    }

    /// Encodes an instruction of iced-x86's that does not repeat, without REP prefixes, which it
    /// ignores.
    ///
    /// # Errors
    /// It has no encoding.
    pub(super) fn instruction(
        &mut self,
        encoder: &mut Encoder,
        i: &Instruction,
    ) -> Result<(), IcedError> {
        let rip = self.end();
        let mut i = *i;
        i.set_has_rep_prefix(false);
        i.set_has_repne_prefix(false);
        encoder.set_buffer(std::mem::take(&mut self.code));
        let result = encoder.encode(&i, rip);
        self.code = encoder.take_buffer();
        result.map(|_| ())
    }

    /// REX, opcode, ModRM, SIB and displacement.
    pub(super) fn memory(&mut self, wide: bool, opcode: &[u8], reg: u8, m: &Mem) {
        if m.reserved {
            self.code.extend_from_slice(&RESERVED);
        }
        let (index, factor) = m.index.unwrap_or((RSP, 1));
        let base = m.base.unwrap_or(RBP);
        let rex = 0x40
            | u8::from(wide) << 3
            | (reg >> 3) << 2
            | (index >> 3) << 1
            | (m.base.unwrap_or(0) >> 3);
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.code.extend_from_slice(opcode);
        // RBP and R13 as a base always have a displacement.
        let mode = match m.base {
            None => 0,
            Some(b) if m.disp == 0 && b & 7 != RBP => 0,
            Some(_) if i8::try_from(m.disp).is_ok() => 1,
            Some(_) => 2,
        };
        let sib = m.index.is_some() || m.base.is_none() || base & 7 == RSP;
        let rm = if sib { RSP } else { base & 7 };
        self.code.push(mode << 6 | (reg & 7) << 3 | rm);
        if sib {
            let scale = factor.trailing_zeros() as u8;
            self.code.push(scale << 6 | (index & 7) << 3 | (base & 7));
        }
        match (mode, m.base) {
            (1, _) => self.code.push(m.disp as u8),
            (2, _) | (_, None) => self.code.extend_from_slice(&m.disp.to_le_bytes()),
            _ => {}
        }
    }

    /// REX, opcode and ModRM of two registers.
    pub(super) fn registers(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: Reg) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | (rm >> 3);
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.code.extend_from_slice(opcode);
        self.code.push(0xC0 | (reg & 7) << 3 | (rm & 7));
    }

    /// `op to, [m]` with 64 bits.
    pub(super) fn op_mem(&mut self, op: Op, to: Reg, m: &Mem) {
        self.memory(true, &[op as u8], to, m);
    }

    /// `op to, [m]` with 32 bits.
    pub(super) fn op_mem32(&mut self, op: Op, to: Reg, m: &Mem) {
        self.memory(false, &[op as u8], to, m);
    }

    /// `op to, from` with 64 bits.
    pub(super) fn op(&mut self, op: Op, to: Reg, from: Reg) {
        self.registers(true, &[op as u8], to, from);
    }

    pub(super) fn mov(&mut self, to: Reg, from: Reg) {
        if to != from {
            self.op(Op::Load, to, from);
        }
    }

    /// `mov to, from` with 32 bits.
    pub(super) fn mov32(&mut self, to: Reg, from: Reg) {
        self.registers(false, &[Op::Load as u8], to, from);
    }

    pub(super) fn load(&mut self, to: Reg, m: &Mem) {
        self.op_mem(Op::Load, to, m);
    }

    /// The address of a memory operand, without the base of GS.
    pub(super) fn lea(&mut self, to: Reg, m: &Mem) {
        let reserved = false;
        self.op_mem(Op::Lea, to, &Mem { reserved, ..*m });
    }

    /// As [`Self::lea`] with 32 bits.
    pub(super) fn lea32(&mut self, to: Reg, m: &Mem) {
        let reserved = false;
        self.op_mem32(Op::Lea, to, &Mem { reserved, ..*m });
    }

    pub(super) fn store(&mut self, m: &Mem, from: Reg) {
        self.memory(true, &[0x89], from, m);
    }

    /// An instruction whose memory operand is at a label. The opcode has its REX, if any.
    pub(super) fn memory_at(&mut self, opcode: &[u8], reg: u8, label: Label) {
        self.code.extend_from_slice(opcode);
        self.code.push((reg & 7) << 3 | 5);
        self.fixup(label);
    }

    /// Stores AX.
    pub(super) fn store_ax(&mut self, m: &Mem) {
        self.code.push(0x66);
        self.memory(false, &[0x89], RAX, m);
    }

    /// Loads a word into EAX, zero-extended.
    pub(super) fn load_ax(&mut self, m: &Mem) {
        self.memory(false, &[0x0F, 0xB7], RAX, m);
    }

    /// Stores a sign-extended immediate of 64 bits.
    pub(super) fn store_imm(&mut self, m: &Mem, value: i32) {
        self.memory(true, &[0xC7], 0, m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `op to, value` with 64 or 32 bits.
    pub(super) fn imm(&mut self, wide: bool, op: Imm, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(short) => {
                self.registers(wide, &[0x83], op as u8, to);
                self.code.push(short as u8);
            }
            Err(_) => {
                // The accumulator has a form without ModRM.
                match (to, wide) {
                    (RAX, true) => self.code.extend_from_slice(&[0x48, (op as u8) << 3 | 5]),
                    (RAX, false) => self.code.push((op as u8) << 3 | 5),
                    _ => self.registers(wide, &[0x81], op as u8, to),
                }
                self.code.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// `op qword [m], value`.
    pub(super) fn imm_mem(&mut self, op: Imm, m: &Mem, value: i32) {
        match i8::try_from(value) {
            Ok(short) => {
                self.memory(true, &[0x83], op as u8, m);
                self.code.push(short as u8);
            }
            Err(_) => {
                self.memory(true, &[0x81], op as u8, m);
                self.code.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// `mov to, value`, in the shortest form.
    pub(super) fn mov_imm(&mut self, to: Reg, value: u64) {
        if let Ok(short) = u32::try_from(value) {
            if to >= R8 {
                self.code.push(0x41);
            }
            self.code.push(0xB8 | (to & 7));
            self.code.extend_from_slice(&short.to_le_bytes());
        } else if let Ok(short) = i32::try_from(value as i64) {
            self.registers(true, &[0xC7], 0, to);
            self.code.extend_from_slice(&short.to_le_bytes());
        } else {
            self.code.push(0x48 | (to >> 3));
            self.code.push(0xB8 | (to & 7));
            self.code.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// `cmp a, b` with 64 or 32 bits.
    pub(super) fn compare(&mut self, wide: bool, a: Reg, b: Reg) {
        self.registers(wide, &[Op::Cmp as u8], a, b);
    }

    /// An instruction of opcode F7 with 64 or 32 bits: MUL, IMUL, DIV or IDIV.
    pub(super) fn unary(&mut self, wide: bool, extension: u8, r: Reg) {
        self.registers(wide, &[0xF7], extension, r);
    }

    /// `test dword [m], value`.
    pub(super) fn test_mem32(&mut self, m: &Mem, value: u32) {
        self.memory(false, &[0xF7], 0, m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `test r, r` with 64 or 32 bits.
    pub(super) fn test(&mut self, wide: bool, r: Reg) {
        self.registers(wide, &[0x85], r, r);
    }

    /// Shift to the left, of 64 or 32 bits.
    pub(super) fn shl(&mut self, wide: bool, to: Reg, n: u8) {
        self.registers(wide, &[0xC1], 4, to);
        self.code.push(n);
    }

    /// Logical shift to the right, of 64 or 32 bits.
    pub(super) fn shr(&mut self, wide: bool, to: Reg, n: u8) {
        self.registers(wide, &[0xC1], 5, to);
        self.code.push(n);
    }

    /// Arithmetic shift to the right, of 64 or 32 bits.
    pub(super) fn sar(&mut self, wide: bool, to: Reg, n: u8) {
        self.registers(wide, &[0xC1], 7, to);
        self.code.push(n);
    }

    pub(super) fn push(&mut self, r: Reg) {
        if r >= R8 {
            self.code.push(0x41);
        }
        self.code.push(0x50 | (r & 7));
    }

    pub(super) fn pop(&mut self, r: Reg) {
        if r >= R8 {
            self.code.push(0x41);
        }
        self.code.push(0x58 | (r & 7));
    }

    /// UD2, behind a call that does not return.
    pub(super) fn undefined(&mut self) {
        self.code.extend_from_slice(&[0x0F, 0x0B]);
    }

    pub(super) fn ret(&mut self) {
        self.code.push(0xC3);
    }

    /// `jmp to`.
    pub(super) fn jump_to(&mut self, to: Reg) {
        self.registers(false, &[0xFF], 4, to);
    }

    /// `jmp [m]`.
    pub(super) fn jump_mem(&mut self, m: &Mem) {
        self.memory(false, &[0xFF], 4, m);
    }

    /// `call to`.
    pub(super) fn call_register(&mut self, to: Reg) {
        self.registers(false, &[0xFF], 2, to);
    }

    fn fixup(&mut self, label: Label) {
        self.fixups.push((self.code.len(), label));
        self.code.extend_from_slice(&[0; 4]);
    }

    pub(super) fn jump(&mut self, label: Label) {
        self.code.push(0xE9);
        self.fixup(label);
    }

    pub(super) fn call(&mut self, label: Label) {
        self.code.push(0xE8);
        self.fixup(label);
    }

    pub(super) fn jump_if(&mut self, condition: u8, label: Label) {
        self.code.extend_from_slice(&[0x0F, 0x80 | condition]);
        self.fixup(label);
    }

    fn displacement(&mut self, target: u64) {
        let next = self.end() + 4;
        let displacement = target.wrapping_sub(next) as i32;
        self.code.extend_from_slice(&displacement.to_le_bytes());
    }

    /// Jumps to an address.
    pub(super) fn jump_address(&mut self, target: u64) {
        self.code.push(0xE9);
        self.displacement(target);
    }

    /// Calls code at an address.
    pub(super) fn call_address(&mut self, target: u64) {
        self.code.push(0xE8);
        self.displacement(target);
    }

    /// `mov to, [address]`, relative to RIP.
    pub(super) fn load_address(&mut self, to: Reg, address: u64) {
        self.relative(&[0x8B], to, address);
    }

    /// `lea to, [address]`, relative to RIP.
    pub(super) fn lea_address(&mut self, to: Reg, address: u64) {
        self.relative(&[0x8D], to, address);
    }

    fn relative(&mut self, opcode: &[u8], to: Reg, address: u64) {
        self.code.push(0x48 | (to >> 3) << 2);
        self.code.extend_from_slice(opcode);
        self.code.push((to & 7) << 3 | 5);
        self.displacement(address);
    }
}
