//! What the counters count, and how often it has occurred.

use crate::model::Counters;
use crate::model::pmu::Event;
use crate::processor::pmu::branches::Counts;
use crate::state::pmu::evtsel;

/// What advances a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    /// Each event.
    Each(Event),
    /// Cycles in which no instruction retires.
    IdleCycles,
    /// Cycles in which no branch instruction of these types retires.
    BranchlessCycles(u8),
}

impl Rate {
    pub(super) const CYCLES: Self = Self::Each(Event::Cycles);

    /// The fixed counters (Vol. 3B table 18-2).
    pub(super) const OF_FIXED: [Self; 3] = [
        Self::Each(Event::Instructions),
        Self::CYCLES,
        Self::Each(Event::Reference),
    ];

    /// The cycles in which at least `mask` of these events occur, or if `inverted` those in which
    /// fewer occur; with a mask of 0 each event.
    pub(super) fn compared(event: Event, mask: u64, inverted: bool) -> Option<Self> {
        match (mask, inverted, event) {
            (0, _, _) => Some(Self::Each(event)),
            (1, false, Event::Reference) => Some(Self::CYCLES),
            (1, false, _) => Some(Self::Each(event)),
            (1, true, Event::Instructions) => Some(Self::IdleCycles),
            (1, true, Event::Branches(types)) => Some(Self::BranchlessCycles(types)),
            (1, true, _) | (_, false, _) => None,
            (_, true, _) => Some(Self::CYCLES),
        }
    }

    /// The event that IA32_PERFEVTSELx selects (18.2.1.2, table 18-1; chapter 19), or `None` for an
    /// event that never occurs here.
    pub(super) fn selected(counters: &Counters, select: u64) -> Option<Self> {
        let code = select & evtsel::EVENT;
        let (_, event) = counters.events.iter().find(|(known, _)| *known == code)?;
        if select & evtsel::EDGE != 0 {
            return None;
        }
        let inverted = select & evtsel::INV != 0;
        Self::compared(*event, select >> evtsel::CMASK, inverted)
    }

    /// Whether it depends on which branches retire.
    pub(super) fn is_of_branches(self) -> bool {
        matches!(
            self,
            Self::Each(Event::Branches(_)) | Self::BranchlessCycles(_)
        )
    }
}

/// The events since the processor was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub instructions: u64,
    pub branches: Counts,
    pub cycles: u64,
    pub reference: u64,
}

impl Totals {
    pub(super) fn since(self, before: Self) -> Self {
        let mut branches = self.branches;
        for (count, before) in branches.iter_mut().zip(before.branches) {
            *count = count.wrapping_sub(before);
        }
        Self {
            instructions: self.instructions.wrapping_sub(before.instructions),
            branches,
            cycles: self.cycles.wrapping_sub(before.cycles),
            reference: self.reference.wrapping_sub(before.reference),
        }
    }

    /// The branches of the types that have a bit in `types`.
    fn branches(&self, types: u8) -> u64 {
        let counts = self.branches.iter().enumerate();
        let counts = counts.filter(|(n, _)| types >> n & 1 != 0);
        counts.fold(0, |sum, (_, count)| sum.wrapping_add(*count))
    }

    pub(super) fn at(&self, rate: Rate) -> u64 {
        match rate {
            Rate::Each(Event::Instructions) => self.instructions,
            Rate::Each(Event::Branches(types)) => self.branches(types),
            Rate::Each(Event::Cycles) => self.cycles,
            Rate::Each(Event::Reference) => self.reference,
            Rate::IdleCycles => self.cycles.wrapping_sub(self.instructions),
            Rate::BranchlessCycles(types) => self.cycles.wrapping_sub(self.branches(types)),
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
            (0x3C, Some(Rate::CYCLES)),
            (0x13C, Some(Rate::Each(Event::Reference))),
            (0xC0, Some(Rate::Each(Event::Instructions))),
            (0xC4, Some(Rate::Each(Event::ALL_BRANCHES))),
            (0x1C4, None),
            (0xC5, None),
            (0x412E, None),
            (0, None),
            (0xC0 | evtsel::EDGE, None),
            // INV means nothing without a mask.
            (0xC0 | evtsel::INV, Some(Rate::Each(Event::Instructions))),
            (0xC4 | CMASK, Some(Rate::Each(Event::ALL_BRANCHES))),
            (0xC4 | (2 * CMASK), None),
            (0xC0 | CMASK | evtsel::INV, Some(Rate::IdleCycles)),
            (
                0xC4 | CMASK | evtsel::INV,
                Some(Rate::BranchlessCycles(0x7F)),
            ),
            (0x3C | CMASK | evtsel::INV, None),
            // As perf selects cycles on Core 2: those in which fewer than 16 instructions retire.
            (0xC0 | (16 * CMASK) | evtsel::INV, Some(Rate::CYCLES)),
        ];
        for (select, expected) in cases {
            let core2 = Counters::of(model("core2").unwrap());
            assert_eq!(Rate::selected(&core2, select), expected, "{select:#x}");
        }
        let later = Counters::of(model("nehalem").unwrap());
        assert_eq!(
            Rate::selected(&later, 0x1C4),
            Some(Rate::Each(Event::CONDITIONAL_BRANCHES))
        );
        assert_eq!(Rate::selected(&later, 0x2C4), None);
        let p6 = Counters::of(model("pentium-m").unwrap());
        for (select, expected) in [
            (0x79, Some(Rate::CYCLES)),
            (0xC0, Some(Rate::Each(Event::Instructions))),
            (0xC4, Some(Rate::Each(Event::ALL_BRANCHES))),
            (0xC9, Some(Rate::Each(Event::TAKEN_BRANCHES))),
            (0x3C, None),
            // As perf's driver selects nothing.
            (0x2E, None),
        ] {
            assert_eq!(Rate::selected(&p6, select), expected, "{select:#x}");
        }
    }
}
