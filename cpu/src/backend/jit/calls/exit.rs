//! Codes with which native code returns, in the low byte: why it ended.

/// The run loop has to take over at RIP: the budget is used up.
pub(crate) const BUDGET: u32 = 1;
/// A direct jump that is not linked, whose number is in the upper bits.
pub(crate) const EDGE: u32 = 2;
pub(crate) const EDGE_SHIFT: u32 = 8;
/// The jump to RIP is not valid any more.
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
