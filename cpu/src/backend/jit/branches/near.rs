//! Templates of near branches.

use iced_x86::{Code, IcedError, OpKind};

use crate::backend::jit::assembler::{Imm, Label, Shift, cond};
use crate::backend::jit::calls::part::Part;
use crate::backend::jit::flags::FlagsLocation;
use crate::backend::jit::forms::operand::{Operand, RSP, SLOT};
use crate::backend::jit::registers::frame::FRAME_TARGET;
use crate::backend::jit::registers::map::{Guest, POINTER, SCRATCH};
use crate::backend::jit::translator::cold::{Source, Transfer};
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::{Access, canonical};
use crate::processor::last_branches::BranchClass;

impl Translator<'_> {
    /// Translates a near branch. Returns whether the block always ends there, or `None` if the
    /// instruction is no near branch or has no template.
    pub(crate) fn branch(&mut self, item: &Item) -> Result<Option<bool>, IcedError> {
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
            if !canonical(target) {
                return Ok(None);
            }
            if i.is_jcc_short_or_near() {
                // iced-x86 numbers the conditions as the opcode does, after `None`.
                let condition = (i.condition_code() as u8).wrapping_sub(1);
                self.flags.restore(self.asm, i.rflags_read());
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
                self.asm.load(POINTER, &m);
                self.check_target(missed);
                let drop = SLOT + (item.insn.imm & 0xFFFF) as i64;
                self.move_stack(drop);
            }
            _ => return Ok(None),
        }
        self.jump_indirect(transfer);
        Ok(Some(true))
    }

    /// Returns a label where `exec` executes the instruction, which ends the block.
    fn missed(&mut self, item: &Item) -> Label {
        let (at, back) = self.miss(item);
        // Nothing continues there.
        self.asm.bind(back);
        at
    }

    /// Stores the target of an indirect branch in the frame. Returns whether there is a template.
    fn load_target(&mut self, item: &Item) -> bool {
        let i = &item.decoded;
        if i.op0_kind() == OpKind::Register {
            let missed = self.missed(item);
            self.read(POINTER, i.op0_register().number() as Guest);
            self.check_target(missed);
            return true;
        }
        let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
            return false;
        };
        let missed = self.missed(item);
        let m = self.probe(&operand, Access::Read, missed);
        self.asm.load(POINTER, &m);
        self.check_target(missed);
        true
    }

    /// Stores the target in POINTER in the frame. Jumps to `bad` if it is not canonical. Clobbers
    /// SCRATCH.
    fn check_target(&mut self, bad: Label) {
        let a = &mut self.asm;
        a.mov(SCRATCH, POINTER);
        a.shift(Shift::ArithmeticRight, true, SCRATCH, 47);
        a.imm(true, Imm::Add, SCRATCH, 1);
        a.imm(true, Imm::Cmp, SCRATCH, 1);
        a.jump_if(cond::A, bad);
        a.store(&FRAME_TARGET, POINTER);
    }

    /// Pushes the return address of a call.
    fn push_return(&mut self, item: &Item) {
        self.flags.save(self.asm);
        let (missed, back) = (self.asm.label(), self.asm.label());
        self.on_miss_of(missed, back, item.start, Part::CALL, FlagsLocation::Saved);
        let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
        let address = self.next_address(&item.insn);
        match i32::try_from(address as i64) {
            Ok(short) => self.asm.store_imm(&m, short),
            Err(_) => {
                self.asm.mov_imm(SCRATCH, address);
                self.asm.store(&m, SCRATCH);
            }
        }
        self.move_stack(-SLOT);
        self.asm.bind(back);
    }
}
