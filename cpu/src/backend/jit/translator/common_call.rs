//! The call of Rust's code that the cold paths of a block share.

use crate::backend::blocks::BlockHandle;
use crate::backend::jit::assembler::{Assembler, Label};
use crate::backend::jit::calls::part::{InsnStart, Part};
use crate::backend::jit::registers::map::{POINTER, SCRATCH};

/// Code at the end of a block that calls [`execute`](crate::backend::jit::calls::execute::execute)
/// for this block, with the instructions that [`SCRATCH`] selects.
#[derive(Debug)]
pub(crate) struct CommonCall {
    label: Label,
    is_used: bool,
}

impl CommonCall {
    /// Returns a call that is not written yet.
    pub(crate) fn new(a: &mut Assembler) -> Self {
        Self {
            label: a.label(),
            is_used: false,
        }
    }

    /// Calls `execute` for `count` instructions from `first` on.
    pub(crate) fn call(&mut self, a: &mut Assembler, first: InsnStart, count: u8) {
        a.mov_imm(SCRATCH, Part::of(first, count).0.into());
        a.call(self.label);
        self.is_used = true;
    }

    /// Writes the code, if there is a call. `routine` is the routine that calls `execute`.
    pub(crate) fn write(self, a: &mut Assembler, routine: u64, rip: u64, block: BlockHandle) {
        if !self.is_used {
            return;
        }
        let constants = a.label();
        a.bind(self.label);
        // LEA POINTER, [constants]
        a.memory_at(true, &[0x8D], POINTER, constants);
        a.jump_address(routine);
        a.bind(constants);
        let BlockHandle { id, generation } = block;
        a.constants(&[rip, u64::from(id), generation]);
    }
}
