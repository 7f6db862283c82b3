//! Operations: instructions in the form that the interpreter executes.

use crate::backend::interpreter::dispatch::{Run, called};
use crate::exec::table::Handler;
use crate::insn::Insn;

/// One operation: usually a whole instruction.
///
/// An instruction whose address has a form that `Cpu::ea` does not compute becomes several: those
/// before the last compute the address into [`reg::TMP`](crate::insn::reg::TMP). All carry the same
/// offset, length and ordinal.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// Its code, see [`crate::backend::interpreter::dispatch`].
    pub run: Run,
    /// Executes it where the code alone cannot.
    pub body: Handler,
    /// The instruction.
    pub insn: Insn,
    /// A direct branch, or the end of a block: the block to which it led before, if any.
    pub link: u32,
}

// `ci/suite threaded` knows the size.
const _: () = assert!(size_of::<Op>() == 48);

impl Op {
    /// [`Op::link`] of a branch that leads to different places.
    pub const INDIRECT: u32 = u32::MAX;
    /// [`Op::link`] of a branch that has not been taken yet.
    pub const UNLINKED: u32 = u32::MAX - 1;

    /// Whether it is no instruction, but the end of a block.
    pub(crate) fn ends_block(&self) -> bool {
        self.insn.len == 0
    }

    /// An operation whose code calls `body`.
    pub fn called(body: Handler, insn: Insn) -> Self {
        Self {
            run: called,
            body,
            insn,
            link: Self::UNLINKED,
        }
    }
}
