//! Near branches, and the stack.

use iced_x86::{Code, IcedError, OpKind};

use crate::backend::jit::assembler::Label;
use crate::backend::jit::assembler::{Imm, Mem, R14, RAX, cond};
use crate::backend::jit::form::{Guest, Operand};
use crate::backend::jit::layout::{FRAME_TARGET, GUEST_RSP, HOST};
use crate::backend::jit::translate::{Item, Source, Transfer, Translator};
use crate::insn::Insn;
use crate::mmu::access::Access;
use crate::processor::last_branches::BranchClass;
use crate::state::gpr;

pub(super) const RSP: Guest = gpr::RSP as Guest;
const RBP: Guest = gpr::RBP as Guest;
/// Size of a slot of the stack.
pub(super) const SLOT: i64 = 8;

impl Translator<'_> {
    /// Translates a near branch. Returns whether it ends the block always, or `None` if it is none
    /// or has no template.
    pub(super) fn branch(&mut self, item: &Item) -> Result<Option<bool>, IcedError> {
        let i = &item.decoded;
        let transfer = Transfer {
            from: Some(Source {
                address: self.address(&item.insn),
                class: BranchClass::of(&item.insn),
            }),
            retired: item.insn.ordinal + 1,
        };
        if i.op0_kind() == OpKind::NearBranch64 {
            let target = self.context.rip.wrapping_add(item.insn.imm);
            if !Self::is_good(target) {
                return Ok(None);
            }
            if i.is_jcc_short_or_near() {
                // iced-x86 numbers the conditions as the opcode does, after `None`.
                let condition = (i.condition_code() as u8).wrapping_sub(1);
                self.restore_flags(i.rflags_read());
                self.jump_conditionally(transfer, condition, target);
                return Ok(Some(false));
            }
            match i.code() {
                Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => {}
                Code::Call_rel32_64 => self.push_return(item),
                _ => return Ok(None),
            }
            self.jump(transfer, target);
            return Ok(Some(true));
        }
        match i.code() {
            Code::Jmp_rm64 | Code::Call_rm64 => {
                if !self.load_target(item) {
                    return Ok(None);
                }
                if i.code() == Code::Call_rm64 {
                    self.push_return(item);
                }
            }
            Code::Retnq | Code::Retnq_imm16 => {
                let missed = self.missed(item);
                let m = self.probe(&Operand::at(RSP, 0, 8), Access::Read, missed);
                self.asm.load(R14, &m);
                self.check_target(missed);
                let drop = SLOT + (item.insn.imm & 0xFFFF) as i64;
                self.move_stack(drop);
            }
            _ => return Ok(None),
        }
        self.jump_indirect(transfer);
        Ok(Some(true))
    }

    /// A label where the instruction is executed by `exec`, and does not return here.
    fn missed(&mut self, item: &Item) -> Label {
        let (at, back) = self.miss(item);
        // `exec` ends the block: nothing goes on there.
        self.asm.bind(back);
        at
    }

    /// Puts the target of an indirect branch into the frame. Returns whether there is a template.
    fn load_target(&mut self, item: &Item) -> bool {
        let i = &item.decoded;
        if i.op0_kind() == OpKind::Register {
            let missed = self.missed(item);
            self.read(R14, i.op0_register().number() as Guest);
            self.check_target(missed);
            return true;
        }
        let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
            return false;
        };
        let missed = self.missed(item);
        let m = self.probe(&operand, Access::Read, missed);
        self.asm.load(R14, &m);
        self.check_target(missed);
        true
    }

    /// Puts the target in R14 into the frame; goes to `bad` if it is not canonical. Overwrites RAX.
    fn check_target(&mut self, bad: Label) {
        let a = &mut self.asm;
        a.mov(RAX, R14);
        a.sar(true, RAX, 47);
        a.imm(true, Imm::Add, RAX, 1);
        a.imm(true, Imm::Cmp, RAX, 1);
        a.jump_if(cond::A, bad);
        a.store(&FRAME_TARGET, R14);
    }

    /// Pushes the return address of a call.
    fn push_return(&mut self, item: &Item) {
        let missed = self.missed(item);
        let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
        let address = self.next_address(&item.insn);
        match i32::try_from(address as i64) {
            Ok(short) => self.asm.store_imm(&m, short),
            Err(_) => {
                self.asm.mov_imm(RAX, address);
                self.asm.store(&m, RAX);
            }
        }
        self.move_stack(-SLOT);
    }

    /// Moves the stack pointer. Keeps the host's flags.
    pub(super) fn move_stack(&mut self, by: i64) {
        self.asm.lea(GUEST_RSP, &Mem::at(GUEST_RSP, by as i32));
    }

    /// Translates PUSH, POP and LEAVE. Returns whether there is a template.
    pub(super) fn stack(&mut self, item: &Item) -> bool {
        let i = &item.decoded;
        let register = || i.op0_register().number() as Guest;
        match i.code() {
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 => {
                let (missed, back) = self.miss(item);
                let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
                if i.code() != Code::Push_r64 {
                    self.asm.store_imm(&m, item.insn.imm as i32);
                } else if let Some(host) = HOST[usize::from(register())] {
                    self.asm.store(&m, host);
                } else {
                    self.read(RAX, register());
                    self.asm.store(&m, RAX);
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
                match HOST[usize::from(register())] {
                    Some(host) => self.asm.load(host, &m),
                    None => {
                        self.asm.load(RAX, &m);
                        self.write(register(), RAX);
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
                self.asm.load(RAX, &m);
                let Some(frame) = HOST[usize::from(RBP)] else {
                    return false;
                };
                self.asm.lea(GUEST_RSP, &Mem::at(frame, SLOT as i32));
                self.asm.mov(frame, RAX);
                self.asm.bind(back);
            }
            _ => return false,
        }
        true
    }

    /// Copies a quadword of memory. Overwrites RAX, R14 and the host's flags.
    fn copy(&mut self, from: &Operand, to: &Operand, missed: Label) {
        let m = self.probe(from, Access::Read, missed);
        self.asm.load(RAX, &m);
        // To find the other operand takes RAX.
        self.asm.store(&FRAME_TARGET, RAX);
        let m = self.probe(to, Access::Write, missed);
        self.asm.load(RAX, &FRAME_TARGET);
        self.asm.store(&m, RAX);
    }

    /// A label where the instruction is executed by `exec`, and one, to be bound, where it goes on.
    pub(super) fn miss(&mut self, item: &Item) -> (Label, Label) {
        self.save_flags();
        let (at, back) = (self.asm.label(), self.asm.label());
        self.on_miss(at, back, item.start);
        (at, back)
    }
}
