//! The events that the counters count, and how often each has occurred.

use crate::model::Counters;
use crate::state::pmu::evtsel;

/// The events that advance a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    Instructions,
    Branches,
    ConditionalBranches,
    Cycles,
    Reference,
    /// Cycles in which no instruction retires.
    IdleCycles,
    /// Cycles in which no branch instruction retires.
    BranchlessCycles,
}

impl Rate {
    /// The fixed counters (Vol. 3B table 18-2).
    pub const OF_FIXED: [Self; 3] = [Self::Instructions, Self::Cycles, Self::Reference];

    /// The event that IA32_PERFEVTSELx selects (18.2.1.2, table 18-1; chapter 19), or `None` for an
    /// event that never occurs here.
    pub fn selected(counters: &Counters, select: u64) -> Option<Self> {
        let event = match select & evtsel::EVENT {
            0x003C => Self::Cycles,
            0x013C => Self::Reference,
            0x00C0 => Self::Instructions,
            0x00C4 => Self::Branches,
            0x01C4 if counters.conditional_branches => Self::ConditionalBranches,
            _ => return None,
        };
        if select & evtsel::EDGE != 0 {
            return None;
        }
        // With a counter mask the counter counts the cycles in which at least that many events
        // occur; with INV, those in which fewer occur.
        match (select >> evtsel::CMASK, select & evtsel::INV != 0, event) {
            (0, _, _) => Some(event),
            (1, false, Self::Reference) => Some(Self::Cycles),
            (1, false, _) => Some(event),
            (1, true, Self::Instructions) => Some(Self::IdleCycles),
            (1, true, Self::Branches) => Some(Self::BranchlessCycles),
            (1, true, _) | (_, false, _) => None,
            (_, true, _) => Some(Self::Cycles),
        }
    }
}

/// The events since the processor was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub instructions: u64,
    pub branches: u64,
    pub conditional: u64,
    pub cycles: u64,
    pub reference: u64,
}

impl Totals {
    pub fn since(self, before: Self) -> Self {
        Self {
            instructions: self.instructions.wrapping_sub(before.instructions),
            branches: self.branches.wrapping_sub(before.branches),
            conditional: self.conditional.wrapping_sub(before.conditional),
            cycles: self.cycles.wrapping_sub(before.cycles),
            reference: self.reference.wrapping_sub(before.reference),
        }
    }

    pub fn at(self, rate: Rate) -> u64 {
        match rate {
            Rate::Instructions => self.instructions,
            Rate::Branches => self.branches,
            Rate::ConditionalBranches => self.conditional,
            Rate::Cycles => self.cycles,
            Rate::Reference => self.reference,
            Rate::IdleCycles => self.cycles.wrapping_sub(self.instructions),
            Rate::BranchlessCycles => self.cycles.wrapping_sub(self.branches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn what_is_selected() {
        const CMASK: u64 = 1 << evtsel::CMASK;
        let cases = [
            (0x3C, Some(Rate::Cycles)),
            (0x13C, Some(Rate::Reference)),
            (0xC0, Some(Rate::Instructions)),
            (0xC4, Some(Rate::Branches)),
            (0x1C4, None),
            (0xC5, None),
            (0x412E, None),
            (0, None),
            (0xC0 | evtsel::EDGE, None),
            // INV means nothing without a mask.
            (0xC0 | evtsel::INV, Some(Rate::Instructions)),
            (0xC4 | CMASK, Some(Rate::Branches)),
            (0xC4 | (2 * CMASK), None),
            (0xC0 | CMASK | evtsel::INV, Some(Rate::IdleCycles)),
            (0xC4 | CMASK | evtsel::INV, Some(Rate::BranchlessCycles)),
            (0x3C | CMASK | evtsel::INV, None),
            // As perf selects cycles on Core 2: those in which fewer than 16 instructions retire.
            (0xC0 | (16 * CMASK) | evtsel::INV, Some(Rate::Cycles)),
        ];
        for (select, expected) in cases {
            let core2 = Counters::of(model("core2").unwrap());
            assert_eq!(Rate::selected(&core2, select), expected, "{select:#x}");
        }
        let later = Counters::of(model("nehalem").unwrap());
        assert_eq!(
            Rate::selected(&later, 0x1C4),
            Some(Rate::ConditionalBranches)
        );
        assert_eq!(Rate::selected(&later, 0x2C4), None);
    }
}
