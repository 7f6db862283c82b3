//! Ends of a block: jumps to other blocks, and exits to the run loop.

use crate::backend::jit::assembler::{Imm, Mem, Op, cond};
use crate::backend::jit::calls::exit;
use crate::backend::jit::calls::jump_table::{JUMP_CODE, JUMP_MASK};
use crate::backend::jit::code::new_code::Link;
use crate::backend::jit::registers::frame::{FRAME_BUDGET, FRAME_TARGET, Target};
use crate::backend::jit::registers::map::{POINTER, SCRATCH};
use crate::backend::jit::registers::processor::{KEY_ANY, KEY_GLOBAL};
use crate::backend::jit::translator::cold::{ColdPath, Transfer};
use crate::backend::jit::translator::{Context, Item, Translator};

impl Translator<'_> {
    /// Emits the check of the key, with which a block begins: native code leaves if jumps to the
    /// block are not valid any more.
    pub(crate) fn check_key(&mut self) {
        let Context {
            key,
            global,
            numbers,
            ..
        } = self.context;
        self.asm.load_address(SCRATCH, key);
        let now = if global { KEY_GLOBAL } else { KEY_ANY };
        self.asm.op_mem(Op::Cmp, SCRATCH, &now);
        let at = self.asm.label();
        self.asm.jump_if(cond::NE, at);
        self.cold.push(ColdPath::Exit {
            at,
            code: exit::STALE | numbers.code << exit::NUMBER_SHIFT,
            routine: self.context.routines.exit,
        });
    }

    /// Ends the block before an instruction, which has no template: the run loop continues there.
    pub(crate) fn leave(&mut self, item: &Item) {
        self.flags.save(self.asm);
        self.vectors.unload(self.asm);
        self.vectors.assert_unloaded();
        let retired = item.insn.ordinal;
        self.asm.imm_mem(Imm::Sub, &FRAME_BUDGET, retired.into());
        let at = self.asm.label();
        self.asm.jump(at);
        self.cold.push(ColdPath::Leave {
            at,
            rip: self.address(&item.insn),
            code: exit::PARTIAL,
        });
    }

    /// Ends the block with a conditional branch to `target`, taken if the host's flags, which are
    /// the guest's, meet `condition`.
    pub(crate) fn jump_conditionally(&mut self, branch: Transfer, condition: u8, target: u64) {
        let at = self.asm.label();
        self.asm.jump_if(condition, at);
        self.cold.push(ColdPath::Taken {
            at,
            branch,
            target,
            flags: self.flags.location(),
            vectors: self.vectors,
        });
    }

    /// Ends the block with a jump to `target`.
    pub(crate) fn jump(&mut self, transfer: Transfer, target: u64) {
        self.flags.save(self.asm);
        self.vectors.unload(self.asm);
        let addresses = transfer
            .from
            .and_then(|from| self.record(from, Target::Direct(target)));
        self.retire(transfer);
        let at = self.asm.label();
        self.asm.jump_if(cond::LE, at);
        let edge = self.context.numbers.edge + self.links.len() as u32;
        self.asm.jump(at);
        self.links.push(Link {
            at: self.asm.len() - 4,
            target,
        });
        self.write_addresses(addresses);
        self.cold.push(ColdPath::Exit {
            at,
            code: exit::EDGE | edge << exit::NUMBER_SHIFT,
            routine: self.context.routines.exit_at_end,
        });
    }

    /// Ends the block with a jump to the target in the frame.
    pub(crate) fn jump_indirect(&mut self, transfer: Transfer) {
        self.flags.save(self.asm);
        self.vectors.unload(self.asm);
        let addresses = transfer
            .from
            .and_then(|from| self.record(from, Target::Indirect));
        self.retire(transfer);
        let Context {
            jumps, routines, ..
        } = self.context;
        let a = &mut self.asm;
        a.jump_if_address(cond::LE, routines.exit_indirect);
        a.op_mem32(Op::Load, SCRATCH, &FRAME_TARGET);
        a.imm(false, Imm::And, SCRATCH, JUMP_MASK as i32);
        a.lea_address(POINTER, jumps);
        let entry = Mem {
            index: Some((SCRATCH, 8)),
            ..Mem::at(POINTER, 0)
        };
        a.lea(POINTER, &entry);
        a.load(SCRATCH, &FRAME_TARGET);
        a.op_mem(Op::Cmp, SCRATCH, &Mem::at(POINTER, 0));
        a.jump_if_address(cond::NE, routines.exit_indirect);
        a.jump_mem(&Mem::at(POINTER, JUMP_CODE as i32));
        self.write_addresses(addresses);
    }

    /// Counts the instructions of the block. The host's condition LE then tells that the run loop
    /// has to take over.
    fn retire(&mut self, transfer: Transfer) {
        self.vectors.assert_unloaded();
        self.asm
            .imm_mem(Imm::Sub, &FRAME_BUDGET, transfer.retired.into());
    }
}
