//! Code behind that of a block: branches that are taken, slow paths and exits.

use crate::backend::jit::assembler::Label;
use crate::backend::jit::calls::part::InsnStart;
use crate::backend::jit::flags::FlagsLocation;
use crate::backend::jit::forms::operand::Operand;
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

/// The second lookup of an operand, with the tag of a page with a watchpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedLookup {
    /// Start of the lookup.
    pub at: Label,
    /// The code behind the first lookup, for an operand beside the watched bytes.
    pub found: Label,
    /// The cold path of all other operands.
    pub missed: Label,
    pub operand: Operand,
    /// Offset in the TLB of the first entry for the kind of the access.
    pub table: i32,
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
    /// Records the branch with this number, which finds no open window.
    Record { at: Label, back: Label, number: u32 },
    /// Looks an operand up in a page with a watchpoint.
    Watched(WatchedLookup),
    /// Leaves native code by this routine with this code.
    Exit { at: Label, code: u32, routine: u64 },
    /// Leaves native code in the middle of a block, at this RIP.
    Leave { at: Label, rip: u64, code: u32 },
}
