//! SSE instructions as themselves. A guest's XMM register is in the host's register of that number
//! from its first use in a block on, and in [`Cpu`](crate::processor::cpu::Cpu) always.

use iced_x86::{IcedError, Instruction, OpAccess};

use crate::backend::jit::assembler::{Assembler, Imm, Label, Mem, Op, R14, RAX, cond};
use crate::backend::jit::flags::{Fix, Place};
use crate::backend::jit::form::Operand;
use crate::backend::jit::layout::{CR0, CR4, FRAME_HOST_MXCSR, MXCSR, xmm};
use crate::backend::jit::stub::Stub;
use crate::backend::jit::template::{Borrowed, set_memory};
use crate::backend::jit::translate::{Item, Translator};
use crate::backend::jit::vector_form::{self, Vector};
use crate::exec::MXCSR_MASKS;
use crate::insn::Insn;
use crate::mmu::access::Access;
use crate::state::{cr0, cr4};

/// What is known at a place in a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Vectors {
    /// The XMM registers that have the guest's values: a bit each.
    loaded: u16,
    /// The system has SSE on.
    on: bool,
    /// MXCSR is the guest's, which masks every exception.
    mxcsr: bool,
}

impl Translator<'_> {
    /// Translates an SSE instruction. Returns whether there is a template.
    pub(super) fn vector(&mut self, item: &Item) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        let Some(vector) = vector_form::of(&i) else {
            return Ok(false);
        };
        i.set_code(vector.code);
        let memory = item.insn.prefix & Insn::MEM != 0;
        let operand = if memory {
            match Operand::of(&item.decoded, &item.insn, self.context.rip) {
                Some(operand) => Some(operand),
                None => return Ok(false),
            }
        } else {
            None
        };
        let access = self.access(&i);
        let mut borrowed = Borrowed::new(if memory { &[RAX] } else { &[R14, RAX] });
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        self.turn_on(item, vector.uses_mxcsr);
        let mut back = None;
        if let Some(operand) = operand {
            let (missed, label) = (self.asm.label(), self.asm.label());
            self.vector_memory(&mut i, &operand, access, vector, missed);
            back = Some((missed, label));
        }
        self.load_borrowed(&borrowed);
        let (reads, writes) = self.xmm_operands(&i);
        self.load_vectors(reads & !self.vectors.loaded);
        self.asm.instruction(self.encoder, &i)?;
        for n in registers(writes) {
            store_xmm(&mut self.asm, n);
        }
        self.vectors.loaded |= reads | writes;
        self.store_borrowed(&borrowed);
        if vector.writes_flags {
            self.place = Place::Host(Fix::None);
        }
        if let Some((missed, back)) = back {
            self.on_miss(missed, back, item.op);
            self.asm.bind(back);
        }
        Ok(true)
    }

    /// Leaves the block to the interpreter unless SSE is on and, for an instruction that uses
    /// MXCSR, every exception is masked.
    fn turn_on(&mut self, item: &Item, uses_mxcsr: bool) {
        let load = uses_mxcsr && !self.vectors.mxcsr;
        if self.vectors.on && !load {
            return;
        }
        self.save_flags();
        let at = self.asm.label();
        if !self.vectors.on {
            self.asm.test_mem32(&CR0, (cr0::EM | cr0::TS) as u32);
            self.asm.jump_if(cond::NE, at);
            self.asm.test_mem32(&CR4, cr4::OSFXSR as u32);
            self.asm.jump_if(cond::E, at);
        }
        if load {
            self.asm.op_mem32(Op::Load, RAX, &MXCSR);
            self.asm.imm(false, Imm::And, RAX, MXCSR_MASKS as i32);
            self.asm.imm(false, Imm::Cmp, RAX, MXCSR_MASKS as i32);
            self.asm.jump_if(cond::NE, at);
            load_mxcsr(&mut self.asm, &MXCSR);
        }
        self.stubs.push(Stub::Finish { at, op: item.op });
        self.vectors.on = true;
        self.vectors.mxcsr |= load;
    }

    /// Finds the memory operand. An operand that has to be aligned and is not takes the way of one
    /// that is not in the TLB.
    fn vector_memory(
        &mut self,
        i: &mut Instruction,
        operand: &Operand,
        access: Access,
        vector: Vector,
        missed: Label,
    ) {
        self.save_flags();
        let m = self.probe(operand, access, missed);
        if operand.size == 16 && !vector.unaligned {
            self.asm.lea(RAX, &m);
            // TEST AL, 15
            self.asm.bytes(&[0xA8, 15]);
            self.asm.jump_if(cond::NE, missed);
        }
        set_memory(i, &m);
    }

    /// The XMM registers that an instruction reads or changes in part, and those that it writes.
    fn xmm_operands(&mut self, i: &Instruction) -> (u16, u16) {
        let (mut reads, mut writes) = (0, 0);
        for used in self.info.info(i).used_registers() {
            let Some(n) = vector_form::number(used.register()) else {
                continue;
            };
            let (read, written) = match used.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write => (false, true),
                _ => (true, true),
            };
            reads |= u16::from(read) << n;
            writes |= u16::from(written) << n;
        }
        (reads, writes)
    }

    fn load_vectors(&mut self, mask: u16) {
        for n in registers(mask) {
            load_xmm(&mut self.asm, n);
        }
    }

    /// Brings MXCSR back to the host's value, before anything but an instruction of the block.
    pub(super) fn unload_mxcsr(&mut self) {
        if self.vectors.mxcsr {
            store_mxcsr(&mut self.asm, &MXCSR);
            load_mxcsr(&mut self.asm, &FRAME_HOST_MXCSR);
            self.vectors.mxcsr = false;
        }
    }

    /// Restores the XMM registers and MXCSR as in `vectors`, after Rust's code has run.
    pub(super) fn reload_vectors(&mut self, vectors: Vectors) {
        self.load_vectors(vectors.loaded);
        if vectors.mxcsr {
            load_mxcsr(&mut self.asm, &MXCSR);
        }
        self.vectors = vectors;
    }
}

/// The numbers of the registers in `mask`.
fn registers(mask: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |n| mask >> n & 1 != 0)
}

fn load_xmm(a: &mut Assembler, n: u8) {
    // MOVAPS
    a.memory(false, &[0x0F, 0x28], n, &xmm(n));
}

fn store_xmm(a: &mut Assembler, n: u8) {
    // MOVAPS
    a.memory(false, &[0x0F, 0x29], n, &xmm(n));
}

fn load_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], 2, m);
}

fn store_mxcsr(a: &mut Assembler, m: &Mem) {
    a.memory(false, &[0x0F, 0xAE], 3, m);
}
