//! Ends of a block: jumps to other blocks, and exits to the run loop.

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, cond};
use crate::backend::jit::calls::exit;
use crate::backend::jit::code::jump_table::{JUMP_CODE, JUMP_MASK};
use crate::backend::jit::registers::frame::{FRAME_BUDGET, FRAME_TARGET};
use crate::backend::jit::registers::map::{POINTER, SCRATCH};
use crate::backend::jit::registers::processor::{KEY_ANY, KEY_GLOBAL};
use crate::backend::jit::translator::cold::{ColdPath, Target, Transfer};
use crate::backend::jit::translator::{Context, Item, Translator};

impl Translator<'_> {
    /// Emits the check of the key, with which a block begins: native code leaves if jumps to the
    /// block are not valid any more.
    pub(crate) fn check_key(&mut self) {
        let Context {
            rip, key, global, ..
        } = self.context;
        self.asm.load_address(SCRATCH, key);
        let now = if global { KEY_GLOBAL } else { KEY_ANY };
        self.asm.op_mem(Op::Cmp, SCRATCH, &now);
        let at = self.asm.label();
        self.asm.jump_if(cond::NE, at);
        self.cold.push(ColdPath::Exit {
            at,
            rip: Some(rip),
            code: exit::STALE,
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
        self.cold.push(ColdPath::Exit {
            at,
            rip: Some(self.address(&item.insn)),
            code: exit::PARTIAL,
            routine: self.context.routines.exit,
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
        let at = self.retire(transfer);
        let edge = self.context.first_edge + self.links.len() as u32;
        self.asm.jump(at);
        self.links.push(self.asm.len() - 4);
        self.write_addresses(addresses);
        self.cold.push(ColdPath::Exit {
            at,
            rip: Some(target),
            code: exit::EDGE | edge << exit::EDGE_SHIFT,
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
        let at = self.retire(transfer);
        let jumps = self.context.jumps;
        let a = &mut self.asm;
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
        a.jump_if(cond::NE, at);
        a.jump_mem(&Mem::at(POINTER, JUMP_CODE as i32));
        self.write_addresses(addresses);
        self.cold.push(ColdPath::Exit {
            at,
            rip: None,
            code: exit::INDIRECT,
            routine: self.context.routines.exit_at_end,
        });
    }

    /// Counts the instructions of the block. Returns a label, to be bound, where native code leaves
    /// if the run loop has to take over.
    fn retire(&mut self, transfer: Transfer) -> Label {
        self.vectors.assert_unloaded();
        self.asm
            .imm_mem(Imm::Sub, &FRAME_BUDGET, transfer.retired.into());
        let at = self.asm.label();
        self.asm.jump_if(cond::LE, at);
        at
    }
}
