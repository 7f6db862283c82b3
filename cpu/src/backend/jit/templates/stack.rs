//! Templates of PUSH, POP and LEAVE.

use iced_x86::Code;

use crate::backend::jit::assembler::{Label, Mem};
use crate::backend::jit::forms::operand::{Operand, RBP, RSP, SLOT};
use crate::backend::jit::registers::frame::FRAME_TARGET;
use crate::backend::jit::registers::map::{GUEST_RSP, Guest, SCRATCH, host};
use crate::backend::jit::translator::{Item, Translator};
use crate::insn::Insn;
use crate::mmu::access::Access;

impl Translator<'_> {
    /// Translates PUSH, POP and LEAVE. Returns whether there is a template.
    pub(crate) fn stack(&mut self, item: &Item) -> bool {
        let i = &item.decoded;
        let register = || i.op0_register().number() as Guest;
        match i.code() {
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 => {
                let (missed, back) = self.miss(item);
                let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
                if i.code() != Code::Push_r64 {
                    self.asm.store_imm(&m, item.insn.imm as i32);
                } else if let Some(host) = host(register()) {
                    self.asm.store(&m, host);
                } else {
                    self.read(SCRATCH, register());
                    self.asm.store(&m, SCRATCH);
                }
                self.move_stack(-SLOT);
                self.asm.bind(back);
            }
            Code::Push_rm64 if item.insn.prefix & Insn::MEM != 0 => {
                let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
                    return false;
                };
                let (missed, back) = self.miss(item);
                self.copy(&operand, &Operand::at(RSP, -SLOT, 8), missed);
                self.move_stack(-SLOT);
                self.asm.bind(back);
            }
            Code::Pop_r64 => {
                let (missed, back) = self.miss(item);
                let m = self.probe(&Operand::at(RSP, 0, 8), Access::Read, missed);
                match host(register()) {
                    Some(host) => self.asm.load(host, &m),
                    None => {
                        self.asm.load(SCRATCH, &m);
                        self.write(register(), SCRATCH);
                    }
                }
                if register() != RSP {
                    self.move_stack(SLOT);
                }
                self.asm.bind(back);
            }
            Code::Pop_rm64 if item.insn.prefix & Insn::MEM != 0 => {
                let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
                    return false;
                };
                let (missed, back) = self.miss(item);
                self.copy(&Operand::at(RSP, 0, 8), &operand, missed);
                self.move_stack(SLOT);
                self.asm.bind(back);
            }
            Code::Leaveq => {
                let (missed, back) = self.miss(item);
                let m = self.probe(&Operand::at(RBP, 0, 8), Access::Read, missed);
                self.asm.load(SCRATCH, &m);
                let Some(frame) = host(RBP) else {
                    return false;
                };
                self.asm.lea(GUEST_RSP, &Mem::at(frame, SLOT as i32));
                self.asm.mov(frame, SCRATCH);
                self.asm.bind(back);
            }
            _ => return false,
        }
        true
    }

    /// Copies a quadword of memory. Clobbers SCRATCH, POINTER and the host's flags.
    fn copy(&mut self, from: &Operand, to: &Operand, missed: Label) {
        let m = self.probe(from, Access::Read, missed);
        self.asm.load(SCRATCH, &m);
        // The lookup of the other operand clobbers SCRATCH.
        self.asm.store(&FRAME_TARGET, SCRATCH);
        let m = self.probe(to, Access::Write, missed);
        self.asm.load(SCRATCH, &FRAME_TARGET);
        self.asm.store(&m, SCRATCH);
    }
}
