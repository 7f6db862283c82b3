//! Code behind that of a block: branches that are taken, slow paths and exits.

use crate::backend::jit::assembler::Label;
use crate::backend::jit::calls::part::InsnStart;
use crate::backend::jit::flags::FlagsLocation;
use crate::backend::jit::vectors::Vectors;
use crate::processor::last_branches::BranchClass;

/// A branch that is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub address: u64,
    pub class: BranchClass,
}

/// The end of a block at one of its instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    /// The branch, or `None` if the block ends without one.
    pub from: Option<Source>,
    /// Instructions retired in the block.
    pub retired: u8,
}

/// Target of a branch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Direct(u64),
    /// The frame has the target.
    Indirect,
}

impl Target {
    /// Returns the target, if it is known when the block is translated.
    pub(crate) fn known(self) -> Option<u64> {
        match self {
            Self::Direct(to) => Some(to),
            Self::Indirect => None,
        }
    }
}

/// Code behind that of the block, which begins at the label `at`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ColdPath {
    /// Executes `count` instructions from `first` on by `exec`. The flags are at `before` first.
    /// Continues at `back` with the flags at `after`, and XMM registers and MXCSR as in `vectors`.
    Execute {
        at: Label,
        back: Label,
        first: InsnStart,
        count: u8,
        before: FlagsLocation,
        after: FlagsLocation,
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
        flags: FlagsLocation,
        vectors: Vectors,
    },
    /// Records a branch that finds no open window.
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
