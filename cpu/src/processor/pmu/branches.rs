//! Counts of branch instructions by type.

use crate::decode::MAX_BLOCK;
use crate::insn::{BranchKind, Insn};
use crate::state::pmu::branch;

/// The branches of a block have a bit for each instruction. Only the last instruction can be
/// another kind than a conditional branch. Its type is in the bits from here on, or 0.
const LAST: u32 = 56;
/// The bits of the instructions.
const INSTRUCTIONS: u64 = (1 << LAST) - 1;

/// The type of a branch instruction. Whether a conditional one is taken is not known yet.
fn branch_type(insn: &Insn) -> Option<usize> {
    let direct = insn.prefix & Insn::DIRECT != 0;
    Some(match insn.branch {
        BranchKind::Conditional => branch::NOT_TAKEN,
        BranchKind::NearCall if direct => branch::DIRECT_CALL,
        BranchKind::NearCall => branch::INDIRECT_CALL,
        BranchKind::NearReturn => branch::RETURN,
        BranchKind::NearJump if !direct => branch::INDIRECT_JUMP,
        kind if kind.is_branch() => branch::OTHER,
        _ => return None,
    })
}

/// The bits of an instruction, the last of its block so far.
pub(crate) fn branch_bits(insn: &Insn) -> u64 {
    const { assert!(branch::NOT_TAKEN == 0) };
    branch_type(insn).map_or(0, |kind| 1 << insn.ordinal | (kind as u64) << LAST)
}

/// Branch instructions by type.
pub(super) type Counts = [u64; branch::TYPES];

/// Adds the branches among the first `n` instructions of a block. None of them is taken, unless it
/// is unconditional.
#[inline]
pub(crate) fn add_branches(counts: &mut Counts, block: u64, n: u64) {
    const { assert!(MAX_BLOCK as u32 <= LAST) };
    let mut conditional = block & ((1 << n) - 1);
    if block >> LAST != 0 {
        // The highest bit is that of the last instruction.
        let last = (block & INSTRUCTIONS).checked_ilog2();
        let last = last.map_or(0, |n| 1 << n);
        if conditional & last != 0 {
            conditional ^= last;
            if let Some(count) = counts.get_mut((block >> LAST) as usize) {
                *count += 1;
            }
        }
    }
    counts[branch::NOT_TAKEN] += u64::from(conditional.count_ones());
}

/// Corrects the counts after a conditional branch that was taken has been added.
#[inline]
pub(crate) fn add_taken(counts: &mut Counts) {
    counts[branch::NOT_TAKEN] = counts[branch::NOT_TAKEN].wrapping_sub(1);
    counts[branch::TAKEN] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(branch: BranchKind, ordinal: u8, prefix: u16) -> Insn {
        Insn {
            branch,
            ordinal,
            prefix,
            ..Insn::INVALID
        }
    }

    fn before(block: u64, n: u64) -> Counts {
        let mut counts = Counts::default();
        add_branches(&mut counts, block, n);
        counts
    }

    #[test]
    fn branches_of_a_part_of_a_block() {
        let conditional = |ordinal| branch_bits(&insn(BranchKind::Conditional, ordinal, 0));
        let block = conditional(0) | conditional(1) | conditional(3);
        for (n, expected) in [(0, 0), (1, 1), (3, 2), (4, 3)] {
            assert_eq!(before(block, n), [expected, 0, 0, 0, 0, 0, 0], "{n}");
        }
        let last = u64::from(MAX_BLOCK) - 1;
        assert_eq!(before(conditional(last as u8), last), Counts::default());
        assert_eq!(
            before(conditional(last as u8), last + 1)[branch::NOT_TAKEN],
            1
        );
    }

    #[test]
    fn only_the_last_branch_of_a_block_is_of_another_type() {
        let conditional = branch_bits(&insn(BranchKind::Conditional, 2, Insn::DIRECT));
        for (kind, prefix, expected) in [
            (BranchKind::NearCall, Insn::DIRECT, branch::DIRECT_CALL),
            (BranchKind::NearCall, 0, branch::INDIRECT_CALL),
            (BranchKind::NearReturn, 0, branch::RETURN),
            (BranchKind::NearJump, 0, branch::INDIRECT_JUMP),
            (BranchKind::NearJump, Insn::DIRECT, branch::OTHER),
            (BranchKind::Far, 0, branch::OTHER),
            (BranchKind::SystemCall, 0, branch::OTHER),
            (BranchKind::InterruptReturn, 0, branch::OTHER),
        ] {
            let block = conditional | branch_bits(&insn(kind, 5, prefix));
            assert_eq!(before(block, 5), [1, 0, 0, 0, 0, 0, 0], "{kind:?}");
            let mut counts = [1, 0, 0, 0, 0, 0, 0];
            counts[expected] = 1;
            assert_eq!(before(block, 6), counts, "{kind:?}");
        }
        let none = conditional | branch_bits(&insn(BranchKind::Exception, 5, 0));
        assert_eq!(before(none, 6), [1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_branch_that_is_taken_is_not_counted_twice() {
        let mut counts = before(1 << 3, 4);
        add_taken(&mut counts);
        assert_eq!(counts, [0, 1, 0, 0, 0, 0, 0]);
    }
}
