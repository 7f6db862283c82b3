//! Codes with which native code returns: why it ended, in the bits of [`KIND`].

/// The bits of the kind of exit.
pub(crate) const KIND: u32 = 0x7F;
/// The budget is used up, at the end of a block: the run loop has to take over.
pub(crate) const BUDGET: u32 = 0x80;
/// The bits above these have the number of an edge, or of native code.
pub(crate) const NUMBER_SHIFT: u32 = 8;
/// Exclusive upper bound on these numbers.
pub(crate) const NUMBERS: usize = 1 << (u32::BITS - NUMBER_SHIFT);

/// A direct jump that is not linked: the edge with the number. Its target is RIP.
pub(crate) const EDGE: u32 = 2;
/// The jump to the native code with the number is not valid any more. RIP is that of its block.
pub(crate) const STALE: u32 = 3;
/// The target of an indirect jump is not in the table.
pub(crate) const INDIRECT: u32 = 4;
/// An instruction ended its block.
pub(crate) const ENDED: u64 = 5;
/// An instruction did not complete.
pub(crate) const FAULT: u64 = 6;
/// As [`FAULT`], and its memory operand was relative to SS.
pub(crate) const STACK_FAULT: u64 = 7;
/// Before an instruction without a template.
pub(crate) const PARTIAL: u32 = 8;
/// Before an instruction that native code was to have executed, of a block that has been
/// removed.
pub(crate) const REMOVED: u64 = 9;
/// A branch ended its block, and the frame has the target. The routine that has called Rust's code
/// jumps there instead of leaving native code, if the table of jumps has it.
pub(crate) const BRANCH: u64 = 10;
