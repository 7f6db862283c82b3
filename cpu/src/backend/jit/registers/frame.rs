//! Values that native code keeps on the host's stack.

use std::mem::offset_of;

use crate::backend::blocks::Blocks;
use crate::backend::jit::assembler::Mem;
use crate::backend::jit::registers::map::FRAME;
use crate::processor::jump_keys::JumpKeys;
use crate::processor::last_branches::BranchClass;

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

/// A branch that native code records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedBranch {
    /// Address of the branch instruction.
    pub from: u64,
    pub to: Target,
    pub class: BranchClass,
}

/// The branches that the native code of a processor records, by their numbers. Native code passes a
/// number to Rust's code if a branch finds no open window.
#[derive(Debug, Default)]
pub(crate) struct RecordedBranches(pub Vec<RecordedBranch>);

/// The frame of native code.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Frame<'a> {
    /// Instructions that may still retire before the run loop takes over, from the start of the
    /// current block. The run loop takes over at the first end of a block where none is left.
    pub budget: i64,
    /// A linear address.
    pub address: u64,
    /// The arithmetic flags, where they are not in the host's: OF in bit 0, and in the second byte
    /// what LAHF loads.
    pub flags: u64,
    /// Instructions retired when the budget is used up.
    pub limit: u64,
    /// The code was made for a processor that records branches: 1, else 0.
    pub recording: u64,
    /// Address of the table of jumps for such code.
    pub jumps: u64,
    /// The keys that were valid when native code was entered.
    pub keys: JumpKeys,
    /// MXCSR for Rust's code.
    pub host_mxcsr: u64,
    /// The target of an indirect branch: RIP, where native code leaves after it. The host forwards
    /// what was stored on its stack sooner than what was stored elsewhere.
    pub target: u64,
    /// The blocks whose code it is, which stay while native code runs.
    pub blocks: &'a Blocks,
    /// The branches that native code records.
    pub branches: &'a RecordedBranches,
}

pub(crate) const FRAME_BUDGET: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, budget) as i32);
pub(crate) const FRAME_ADDRESS: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, address) as i32);
pub(crate) const FRAME_FLAGS: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, flags) as i32);
pub(crate) const FRAME_LIMIT: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, limit) as i32);
pub(crate) const FRAME_HOST_MXCSR: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, host_mxcsr) as i32);
pub(crate) const FRAME_JUMPS: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, jumps) as i32);
pub(crate) const FRAME_TARGET: Mem = Mem::at(FRAME, offset_of!(Frame<'_>, target) as i32);
/// Size of the frame on the stack, which keeps the stack's alignment.
pub(crate) const FRAME_SIZE: i32 = 96;
const _: () = assert!(size_of::<Frame<'_>>() <= FRAME_SIZE as usize && FRAME_SIZE % 16 == 0);
