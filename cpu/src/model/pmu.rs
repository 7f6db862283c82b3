//! The performance counters of a model (SDM Vol. 3B 18.2).

use vbts_bts::Microarchitecture;

use super::Model;
use crate::state::PmuState;
use crate::state::pmu::{fixed_ctrl, global};

/// The counters that CPUID leaf 0AH enumerates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    /// Programmable counters.
    pub general: usize,
    /// Fixed-function counters.
    pub fixed: usize,
    /// Values of a counter.
    pub mask: u64,
    /// What IA32_FIXED_CTR_CTRL can hold.
    pub fixed_ctrl: u64,
    /// A bit for each counter, as in the global registers.
    pub global: u64,
    /// Event C4H with the unit mask 01H is BR_INST_RETIRED.CONDITIONAL.
    pub conditional_branches: bool,
}

impl Counters {
    pub fn of(model: &Model) -> Self {
        let leaf = model.cpuid(0xA, 0);
        let field = |register: u32, at: u32| register >> at & 0xFF;
        let general = (field(leaf.eax, 8) as usize).min(PmuState::GENERAL);
        let fixed = ((leaf.edx & 0x1F) as usize).min(PmuState::FIXED);
        let one = fixed_ctrl::RINGS | fixed_ctrl::PMI;
        Self {
            general,
            fixed,
            mask: (1 << field(leaf.eax, 16).min(63)) - 1,
            fixed_ctrl: (0..fixed).map(|n| one << (fixed_ctrl::WIDTH * n)).sum(),
            // The Core microarchitecture counts predictions there (Vol. 3B chapter 19).
            conditional_branches: !matches!(model.microarchitecture, Microarchitecture::Core2),
            global: ((1 << general) - 1) | (((1 << fixed) - 1) << global::FIXED),
        }
    }
}

impl PmuState {
    /// After RESET: the programmable counters are enabled globally (Vol. 3B 18.2.2.2).
    pub(crate) fn after_reset(model: &Model) -> Self {
        Self {
            global_ctrl: (1 << Counters::of(model).general) - 1,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    fn counters(name: &str) -> Counters {
        Counters::of(model(name).unwrap())
    }

    #[test]
    fn the_default_model_has_two_and_three_counters_of_40_bits() {
        let counters = counters("core2");
        assert_eq!((counters.general, counters.fixed), (2, 3));
        assert_eq!(counters.mask, (1 << 40) - 1);
        assert_eq!(counters.fixed_ctrl, 0xBBB);
        assert_eq!(counters.global, 0x7_0000_0003);
    }

    #[test]
    fn nehalem_has_four_and_three_counters_of_48_bits() {
        let counters = counters("nehalem");
        assert_eq!((counters.general, counters.fixed), (4, 3));
        assert_eq!(counters.mask, (1 << 48) - 1);
        assert_eq!(counters.global, 0x7_0000_000F);
    }
}
