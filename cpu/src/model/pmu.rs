//! The performance counters of a model, and the events that they count (SDM Vol. 3B chapters 18
//! and 19).

use vbts_bts::Microarchitecture;

use super::Model;
use crate::state::pmu::{branch, fixed_ctrl, global};
use crate::state::{NetBurstPmu, PmuState};

/// What occurs on this processor and can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Instructions,
    /// Branch instructions of the types that have a bit here.
    Branches(u8),
    Cycles,
    Reference,
}

/// The bits of types of branch instructions.
pub(crate) const fn branches(types: &[usize]) -> u8 {
    let (mut bits, mut i) = (0, 0);
    while i < types.len() {
        bits |= 1 << types[i];
        i += 1;
    }
    bits
}

impl Event {
    pub(crate) const ALL_BRANCHES: Self = Self::Branches((1 << branch::TYPES) - 1);
    pub(crate) const CONDITIONAL_BRANCHES: Self =
        Self::Branches(branches(&[branch::NOT_TAKEN, branch::TAKEN]));
    pub(crate) const TAKEN_BRANCHES: Self =
        Self::Branches((1 << branch::TYPES) - 1 - branches(&[branch::NOT_TAKEN]));

    /// Both of two events of one register. They are of one kind.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Branches(a), Self::Branches(b)) => Self::Branches(a | b),
            _ => self,
        }
    }
}

/// The events and unit masks of an event select register.
pub(crate) type Events = &'static [(u64, Event)];

/// The architectural events (table 18-1).
const ARCHITECTURAL: [(u64, Event); 4] = [
    (0x003C, Event::Cycles),
    (0x013C, Event::Reference),
    (0x00C0, Event::Instructions),
    (0x00C4, Event::ALL_BRANCHES),
];

/// Those of later processors, which have BR_INST_RETIRED.CONDITIONAL (chapter 19). The Core
/// microarchitecture counts predictions there.
const NEHALEM: [(u64, Event); 5] = {
    let [cycles, reference, instructions, all] = ARCHITECTURAL;
    let conditional = (0x01C4, Event::CONDITIONAL_BRANCHES);
    [cycles, reference, instructions, all, conditional]
};

/// Those of the P6 family: CPU_CLK_UNHALTED, INST_RETIRED, BR_INST_RETIRED, BR_TAKEN_RETIRED.
const P6: [(u64, Event); 4] = [
    (0x0079, Event::Cycles),
    (0x00C0, Event::Instructions),
    (0x00C4, Event::ALL_BRANCHES),
    (0x00C9, Event::TAKEN_BRANCHES),
];

/// The registers that control the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registers {
    /// Version 2 of architectural performance monitoring (18.2.2).
    Architectural,
    /// The P6 family: PerfEvtSel0 enables both counters.
    P6,
    /// NetBurst (18.15).
    NetBurst {
        /// A model with Intel 64.
        later: bool,
    },
}

/// The counters of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    pub registers: Registers,
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
    /// What IA32_PERFEVTSELx selects.
    pub events: Events,
}

/// Values of a counter before architectural performance monitoring: 40 bits.
const BITS_40: u64 = (1 << 40) - 1;

impl Counters {
    const P6: Self = Self {
        registers: Registers::P6,
        general: 2,
        fixed: 0,
        mask: BITS_40,
        fixed_ctrl: 0,
        global: 0,
        events: &P6,
    };

    const fn netburst(later: bool) -> Self {
        Self {
            registers: Registers::NetBurst { later },
            general: NetBurstPmu::COUNTERS,
            events: &[],
            ..Self::P6
        }
    }

    pub(crate) fn of(model: &Model) -> Self {
        let events: Events = match model.microarchitecture {
            Microarchitecture::PentiumM => return Self::P6,
            Microarchitecture::NetBurst => return Self::netburst(false),
            Microarchitecture::NetBurst64 => return Self::netburst(true),
            Microarchitecture::Core2 => &ARCHITECTURAL,
            Microarchitecture::Nehalem => &NEHALEM,
        };
        let leaf = model.cpuid(0xA, 0);
        let field = |register: u32, at: u32| register >> at & 0xFF;
        let general = (field(leaf.eax, 8) as usize).min(PmuState::GENERAL);
        let fixed = ((leaf.edx & 0x1F) as usize).min(PmuState::FIXED);
        let one = fixed_ctrl::RINGS | fixed_ctrl::PMI;
        Self {
            registers: Registers::Architectural,
            general,
            fixed,
            mask: (1 << field(leaf.eax, 16).min(63)) - 1,
            fixed_ctrl: (0..fixed).map(|n| one << (fixed_ctrl::WIDTH * n)).sum(),
            global: ((1 << general) - 1) | (((1 << fixed) - 1) << global::FIXED),
            events,
        }
    }
}

impl PmuState {
    /// After RESET: the programmable counters are enabled globally (Vol. 3B 18.2.2.2).
    pub(crate) fn after_reset(model: &Model) -> Self {
        Self {
            global_ctrl: Counters::of(model).global & ((1 << global::FIXED) - 1),
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

    #[test]
    fn the_processors_before_have_counters_of_40_bits_and_no_global_registers() {
        for (name, general, registers) in [
            ("pentium-m", 2, Registers::P6),
            ("pentium4", 18, Registers::NetBurst { later: false }),
            ("pentium4-64", 18, Registers::NetBurst { later: true }),
        ] {
            let counters = counters(name);
            assert_eq!(counters.registers, registers);
            assert_eq!((counters.general, counters.fixed), (general, 0), "{name}");
            assert_eq!(counters.mask, (1 << 40) - 1);
            assert_eq!(
                PmuState::after_reset(model(name).unwrap()),
                PmuState::default()
            );
        }
    }
}
