//! Code behind that of a block: branches that are taken, and what is reached rarely.

use crate::backend::blocks::BlockHandle;
use crate::backend::jit::assembler::{Label, R14, RAX};
use crate::backend::jit::calls::{InsnStart, Part};
use crate::backend::jit::flags::{self, Place};
use crate::backend::jit::layout::{FRAME_BRANCH_CLASS, FRAME_TARGET};
use crate::backend::jit::translate::{Source, Transfer, Translator};
use crate::backend::jit::vector::Vectors;

/// Code behind that of the block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stub {
    /// Executes `count` instructions from `first` on by `exec`. The flags are at `before` first.
    /// Goes on at `back` with the flags at `after`, and XMM registers and MXCSR as in `vectors`.
    Execute {
        at: Label,
        back: Label,
        first: InsnStart,
        count: u8,
        before: Place,
        after: Place,
        vectors: Vectors,
    },
    /// Executes the instruction and the rest of the block by `exec`. The flags are saved there, and
    /// XMM registers and MXCSR are as in `vectors`.
    Finish {
        at: Label,
        first: InsnStart,
        vectors: Vectors,
    },
    /// A conditional branch that is taken.
    Taken {
        at: Label,
        branch: Transfer,
        target: u64,
        place: Place,
        vectors: Vectors,
    },
    /// Records a branch anywhere.
    Record {
        at: Label,
        back: Label,
        from: Source,
        target: Target,
    },
    /// Leaves native code by this routine, with this RIP, or with the target in the frame.
    Exit {
        at: Label,
        rip: Option<u64>,
        code: u32,
        routine: u64,
    },
}

/// Where a branch leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Direct(u64),
    /// The frame has the target.
    Indirect,
}

impl Target {
    /// The target, if it is known when the block is translated.
    pub(super) fn known(self) -> Option<u64> {
        match self {
            Self::Direct(to) => Some(to),
            Self::Indirect => None,
        }
    }
}

impl Translator<'_> {
    /// Writes what is behind the block: first the branches that are taken, which add other stubs.
    pub(super) fn write_stubs(&mut self) {
        for is_rare in [false, true] {
            if is_rare {
                self.asm.split();
            }
            let mut next = 0;
            while let Some(&stub) = self.stubs.get(next) {
                if matches!(stub, Stub::Taken { .. }) != is_rare {
                    self.write_stub(stub);
                }
                next += 1;
            }
        }
        self.write_common_call();
    }

    fn write_stub(&mut self, stub: Stub) {
        match stub {
            Stub::Execute {
                at,
                back,
                first,
                count,
                before,
                after,
                vectors,
            } => {
                self.asm.bind(at);
                (self.place, self.vectors) = (before, vectors);
                self.save_flags();
                self.unload_vectors();
                self.call(first, count);
                if matches!(after, Place::Host(_)) {
                    flags::restore(self.asm);
                }
                self.reload_vectors(vectors);
                self.asm.jump(back);
            }
            Stub::Finish { at, first, vectors } => {
                self.asm.bind(at);
                self.vectors = vectors;
                self.unload_vectors();
                self.call(first, Part::REST);
                self.asm.undefined();
            }
            Stub::Taken {
                at,
                branch,
                target,
                place,
                vectors,
            } => {
                self.asm.bind(at);
                (self.place, self.vectors) = (place, vectors);
                self.jump(branch, target);
            }
            Stub::Record {
                at,
                back,
                from,
                target,
            } => {
                self.asm.bind(at);
                match target {
                    Target::Direct(to) => self.asm.mov_imm(R14, to),
                    Target::Indirect => self.asm.load(R14, &FRAME_TARGET),
                }
                let class = from.class.0 as i32;
                self.asm.store_imm(&FRAME_BRANCH_CLASS, class);
                self.asm.mov_imm(RAX, from.address);
                self.asm.call_address(self.context.routines.record);
                self.asm.jump(back);
            }
            Stub::Exit {
                at,
                rip,
                code,
                routine,
            } => {
                self.asm.bind(at);
                match rip {
                    Some(rip) => self.asm.mov_imm(R14, rip),
                    None => self.asm.load(R14, &FRAME_TARGET),
                }
                self.asm.mov_imm(RAX, code.into());
                self.asm.jump_address(routine);
            }
        }
    }

    /// Writes what calls of [`execute`](super::calls::execute) have in common.
    fn write_common_call(&mut self) {
        if !self.calls {
            return;
        }
        let block = self.asm.label();
        self.asm.bind(self.execute);
        // LEA R14, [block]
        self.asm.memory_at(&[0x4C, 0x8D], R14, block);
        self.asm.jump_address(self.context.routines.execute);
        self.asm.bind(block);
        let BlockHandle { id, generation } = self.context.block;
        self.asm
            .constants(&[self.context.rip, u64::from(id), generation]);
    }
}
