//! Architectural performance monitoring, version 2 (SDM Vol. 3B 18.2.1, 18.2.2): counters of
//! instructions, branch instructions and clock cycles.
//!
//! No event is counted by itself. The run loop knows how many instructions have retired. A counter
//! is brought up to date when it is read, and at the first instruction boundary after a change of
//! privilege. Only branches have a run loop of their own, which runs while a counter counts them.
//! An overflow that interrupts is a deadline: blocks run as long as they cannot reach it, and then
//! single instructions.
//!
//! What is counted:
//!
//! * An instruction counts at the privilege level at which it began. One that faults does not
//!   count, and a repeated string instruction counts once, when it is complete.
//! * A branch instruction transfers control, near or far, taken or not. Software interrupts are
//!   branch instructions.
//! * An instruction, a part of a repeated instruction, and an exception each take one core cycle.
//!   No two instructions retire in one cycle, so a counter mask (CMASK) of 2 is never reached.
//! * A reference cycle is a tick of the time-stamp counter while the processor is not halted. In
//!   virtual time a core cycle is one.
//! * This processor has no caches and no branch prediction, as CPUID.0AH:EBX reports. A counter of
//!   their misses, of an event that is not architectural, or with edge detection (E) does not
//!   advance.
//! * A WRMSR that configures counters counts as they were configured before it.

use vbts_bts::DebugCtl;

use crate::decode::MAX_BLOCK;
use crate::model::Model;
use crate::processor::clock::{Clock, HostClock};
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::state::{PmuRegister, PmuState};

/// IA32_PERFEVTSELx (18.2.1.1). PC, pin control, has no effect. Version 2 has no AnyThread.
mod evtsel {
    pub const EVENT: u64 = 0xFFFF;
    pub const RINGS: u32 = 16;
    pub const EDGE: u64 = 1 << 18;
    pub const INT: u64 = 1 << 20;
    pub const EN: u64 = 1 << 22;
    pub const INV: u64 = 1 << 23;
    pub const CMASK: u32 = 24;
}

/// Bits of IA32_PERFEVTSELx that can be written.
pub(crate) const EVTSEL_WRITABLE: u64 = 0xFFDF_FFFF;

/// IA32_FIXED_CTR_CTRL (18.2.2.1): four bits a counter, of which version 2 has no third.
mod fixed_ctrl {
    pub const WIDTH: usize = 4;
    pub const RINGS: u64 = 3;
    pub const PMI: u64 = 1 << 3;
}

/// First bit of the fixed counters in the global registers.
const FIXED: usize = 32;
/// IA32_PERF_GLOBAL_OVF_CTRL: the DS buffer's bit, and that of a changed condition.
const OVF_OTHERS: u64 = 3 << 62;

/// CPL 0, and the other levels, as IA32_PERFEVTSELx (OS is the bit after USR) and
/// IA32_FIXED_CTR_CTRL select them.
const OS: u8 = 1 << 0;
const USR: u8 = 1 << 1;

fn ring(cpl: u8) -> u8 {
    if cpl == 0 { OS } else { USR }
}

/// The events that advance a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    Instructions,
    Branches,
    Cycles,
    Reference,
    /// Cycles in which no instruction retires.
    IdleCycles,
    /// Cycles in which no branch instruction retires.
    BranchlessCycles,
}

impl Rate {
    /// The fixed counters (Vol. 3B table 18-2).
    const OF_FIXED: [Self; 3] = [Self::Instructions, Self::Cycles, Self::Reference];

    /// The event that IA32_PERFEVTSELx selects (18.2.1.2, table 18-1), or `None` for an event that
    /// never occurs here.
    fn selected(select: u64) -> Option<Self> {
        let event = match select & evtsel::EVENT {
            0x003C => Self::Cycles,
            0x013C => Self::Reference,
            0x00C0 => Self::Instructions,
            0x00C4 => Self::Branches,
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
struct Totals {
    instructions: u64,
    branches: u64,
    cycles: u64,
    reference: u64,
}

impl Totals {
    fn since(self, before: Self) -> Self {
        Self {
            instructions: self.instructions.wrapping_sub(before.instructions),
            branches: self.branches.wrapping_sub(before.branches),
            cycles: self.cycles.wrapping_sub(before.cycles),
            reference: self.reference.wrapping_sub(before.reference),
        }
    }

    fn at(self, rate: Rate) -> u64 {
        match rate {
            Rate::Instructions => self.instructions,
            Rate::Branches => self.branches,
            Rate::Cycles => self.cycles,
            Rate::Reference => self.reference,
            Rate::IdleCycles => self.cycles.wrapping_sub(self.instructions),
            Rate::BranchlessCycles => self.cycles.wrapping_sub(self.branches),
        }
    }
}

/// An enabled counter.
#[derive(Debug, Clone, Copy)]
struct Counting {
    /// Its bit in the global registers.
    bit: usize,
    rate: Rate,
    /// The privilege levels at which it counts: [`OS`] and [`USR`].
    rings: u8,
    /// An overflow interrupts.
    interrupts: bool,
}

const GENERAL_MAX: usize = PmuState::GENERAL;
const FIXED_MAX: usize = PmuState::FIXED;

/// The counters that CPUID leaf 0AH enumerates.
#[derive(Debug, Clone, Copy)]
struct Shape {
    general: usize,
    fixed: usize,
    /// Values of a counter.
    mask: u64,
    /// What IA32_FIXED_CTR_CTRL can hold.
    fixed_ctrl: u64,
    /// A bit for each counter.
    global: u64,
}

impl Shape {
    fn of(model: &Model) -> Self {
        let leaf = model.cpuid(0xA, 0);
        let field = |register: u32, at: u32| register >> at & 0xFF;
        let general = (field(leaf.eax, 8) as usize).min(GENERAL_MAX);
        let fixed = ((leaf.edx & 0x1F) as usize).min(FIXED_MAX);
        let one = fixed_ctrl::RINGS | fixed_ctrl::PMI;
        Self {
            general,
            fixed,
            mask: (1 << field(leaf.eax, 16).min(63)) - 1,
            fixed_ctrl: (0..fixed).map(|n| one << (fixed_ctrl::WIDTH * n)).sum(),
            global: ((1 << general) - 1) | (((1 << fixed) - 1) << FIXED),
        }
    }
}

/// The counters' state that is derived from the registers ([`PmuState`]), and the totals.
#[derive(Debug)]
pub(crate) struct Pmu {
    shape: Shape,
    counting: [Option<Counting>; GENERAL_MAX + FIXED_MAX],
    /// A counter counts.
    active: bool,
    /// A counter counts branches.
    pub branches_count: bool,
    /// A performance-monitoring interrupt is to stop all counters at the next boundary.
    freezes: bool,
    /// The totals when the counters were last brought up to date.
    last: Totals,
    /// Privilege level of the instructions that have not been counted yet: [`OS`] or [`USR`].
    ring: u8,
    /// No counter that interrupts overflows before [`Cpu::icount`] has reached this.
    pub due: u64,
    /// Branch instructions retired before the current block, as far as they were counted.
    pub branches: u64,
    /// The branches of the current block by their ordinal, while branches are counted.
    pub block: u64,
    /// Cycles in which no instruction retired.
    pub idle: u64,
}

impl Pmu {
    pub fn new(model: &Model) -> Self {
        Self {
            shape: Shape::of(model),
            counting: [None; GENERAL_MAX + FIXED_MAX],
            active: false,
            branches_count: false,
            freezes: false,
            last: Totals::default(),
            ring: OS,
            due: u64::MAX,
            branches: 0,
            block: 0,
            idle: 0,
        }
    }
}

/// The first `n` instructions of a block, of the bits in `branches`.
#[inline]
pub(crate) fn branches_before(branches: u64, n: u64) -> u64 {
    const { assert!(MAX_BLOCK <= 48) };
    (branches & ((1 << n) - 1)).count_ones().into()
}

impl PmuState {
    /// After RESET: the programmable counters are enabled globally (Vol. 3B 18.2.2.2).
    pub(crate) fn after_reset(model: &Model) -> Self {
        Self {
            global_ctrl: (1 << Shape::of(model).general) - 1,
            ..Self::default()
        }
    }

    /// The counter that has this bit in the global registers.
    fn counter(&mut self, bit: usize) -> Option<&mut u64> {
        match bit.checked_sub(FIXED) {
            None => self.pmc.get_mut(bit),
            Some(n) => self.fixed_ctr.get_mut(n),
        }
    }

    /// What the counter with this bit in the global registers counts; `None` if it is disabled.
    fn counting(&self, bit: usize) -> Option<Counting> {
        let counting = match bit.checked_sub(FIXED) {
            None => {
                let select = *self.evtsel.get(bit)?;
                let [usr, os] = [0, 1].map(|n| select >> (evtsel::RINGS + n) & 1 != 0);
                Counting {
                    bit,
                    rate: Rate::selected(select)?,
                    rings: if os { OS } else { 0 } | if usr { USR } else { 0 },
                    interrupts: select & evtsel::INT != 0,
                }
            }
            Some(n) => {
                let control = self.fixed_ctr_ctrl >> (fixed_ctrl::WIDTH * n);
                Counting {
                    bit,
                    rate: *Rate::OF_FIXED.get(n)?,
                    rings: (control & fixed_ctrl::RINGS) as u8,
                    interrupts: control & fixed_ctrl::PMI != 0,
                }
            }
        };
        let on = self.global_ctrl >> bit & 1 != 0
            && (bit >= FIXED || self.evtsel.get(bit)? & evtsel::EN != 0);
        (on && counting.rings != 0).then_some(counting)
    }

    /// Whether a counter is enabled, apart from IA32_PERF_GLOBAL_CTRL.
    pub(crate) fn any_enabled(&self) -> bool {
        self.fixed_ctr_ctrl != 0 || self.evtsel.iter().any(|e| e & evtsel::EN != 0)
    }
}

impl Cpu {
    /// Whether the model has the register.
    fn has_pmu_register(&self, register: PmuRegister) -> bool {
        let shape = &self.pmu.shape;
        match register {
            PmuRegister::EvtSel(n) | PmuRegister::Pmc(n) => n < shape.general,
            PmuRegister::FixedCtr(n) => n < shape.fixed,
            _ => true,
        }
    }

    /// Reads a register, `ahead` instructions into the current block. `None`: #GP(0).
    pub(crate) fn read_pmu(&mut self, ahead: u8, register: PmuRegister) -> Option<u64> {
        if !self.has_pmu_register(register) {
            return None;
        }
        if self.pmu.active {
            self.count_events(ahead);
        }
        let pmu = &self.msr.pmu;
        Some(match register {
            PmuRegister::EvtSel(n) => *pmu.evtsel.get(n)?,
            PmuRegister::Pmc(n) => *pmu.pmc.get(n)?,
            PmuRegister::FixedCtr(n) => *pmu.fixed_ctr.get(n)?,
            PmuRegister::FixedCtrCtrl => pmu.fixed_ctr_ctrl,
            PmuRegister::GlobalStatus => pmu.global_status,
            PmuRegister::GlobalCtrl => pmu.global_ctrl,
            PmuRegister::GlobalOvfCtrl => 0,
        })
    }

    /// Writes a register by a WRMSR that has so many instructions `ahead` of it in the current
    /// block. `None`: #GP(0).
    pub(crate) fn write_pmu(&mut self, ahead: u8, register: PmuRegister, value: u64) -> Option<()> {
        let Shape {
            mask,
            fixed_ctrl,
            global,
            ..
        } = self.pmu.shape;
        let writable = match register {
            PmuRegister::EvtSel(_) => EVTSEL_WRITABLE,
            // Writes of a counter take the low 32 bits, and extend their sign (18.2.1.1).
            PmuRegister::Pmc(_) | PmuRegister::FixedCtr(_) => u64::MAX,
            PmuRegister::FixedCtrCtrl => fixed_ctrl,
            PmuRegister::GlobalStatus => return None,
            PmuRegister::GlobalCtrl => global,
            PmuRegister::GlobalOvfCtrl => global | OVF_OTHERS,
        };
        if value & !writable != 0 || !self.has_pmu_register(register) {
            return None;
        }
        self.count_events(ahead + 1);
        let extended = value as u32 as i32 as u64 & mask;
        let pmu = &mut self.msr.pmu;
        match register {
            PmuRegister::EvtSel(n) => *pmu.evtsel.get_mut(n)? = value,
            PmuRegister::Pmc(n) => *pmu.pmc.get_mut(n)? = extended,
            PmuRegister::FixedCtr(n) => *pmu.fixed_ctr.get_mut(n)? = extended,
            PmuRegister::FixedCtrCtrl => pmu.fixed_ctr_ctrl = value,
            PmuRegister::GlobalStatus => {}
            PmuRegister::GlobalCtrl => pmu.global_ctrl = value,
            PmuRegister::GlobalOvfCtrl => pmu.global_status &= !value,
        }
        self.configure_counters();
        // The loop that runs, and the accelerator, depend on what counts.
        self.after_bus();
        Some(())
    }

    /// RDPMC, `ahead` instructions into the current block: a programmable counter, or with bit 30 a
    /// fixed one (Vol. 2B). `None` if there is no such counter.
    pub(crate) fn performance_counter(&mut self, ahead: u8, index: u32) -> Option<u64> {
        const FIXED_COUNTERS: u32 = 1 << 30;
        let register = match index.checked_sub(FIXED_COUNTERS) {
            None => PmuRegister::Pmc(index as usize),
            Some(n) => PmuRegister::FixedCtr(n as usize),
        };
        self.read_pmu(ahead, register)
    }

    /// Whether a counter is enabled. It ignores IA32_PERF_GLOBAL_CTRL, with which system software
    /// stops all counters for short times. Only the software CPU counts events.
    pub fn uses_counters(&self) -> bool {
        self.msr.pmu.any_enabled()
    }

    fn totals(&self, ahead: u8) -> Totals {
        let cycles = self.icount + u64::from(ahead);
        Totals {
            instructions: cycles.wrapping_sub(self.pmu.idle),
            branches: self.pmu.branches + branches_before(self.pmu.block, ahead.into()),
            cycles,
            reference: match self.clock {
                Clock::Instructions => cycles,
                Clock::Host(_) => HostClock::tsc(),
            },
        }
    }

    /// Brings the counters up to date, `ahead` instructions into the current block.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_events(&mut self, ahead: u8) {
        self.pending_work.remove(ArchEvents::COUNTERS);
        let now = self.totals(ahead);
        let passed = now.since(std::mem::replace(&mut self.pmu.last, now));
        let mask = self.pmu.shape.mask;
        let mut interrupt = false;
        for c in self.pmu.counting.into_iter().flatten() {
            if c.rings & self.pmu.ring == 0 {
                continue;
            }
            let Some(counter) = self.msr.pmu.counter(c.bit) else {
                continue;
            };
            let sum = *counter + (passed.at(c.rate) & mask);
            *counter = sum & mask;
            if sum > mask {
                self.msr.pmu.global_status |= 1 << c.bit;
                interrupt |= c.interrupts;
            }
        }
        self.pmu.ring = ring(self.cpl);
        if interrupt {
            self.performance_interrupt();
        }
        if std::mem::take(&mut self.pmu.freezes) {
            self.pending_work.remove(ArchEvents::COUNTERS);
            self.msr.pmu.global_ctrl = 0;
            self.configure_counters();
        } else {
            self.update_due();
        }
    }

    /// Updates what depends on the enabled counters. The counters are up to date.
    fn configure_counters(&mut self) {
        let pmu = &self.msr.pmu;
        let Shape { general, fixed, .. } = self.pmu.shape;
        let bits = (0..general).chain(FIXED..FIXED + fixed);
        self.pmu.counting = [None; GENERAL_MAX + FIXED_MAX];
        let counting = bits.filter_map(|bit| pmu.counting(bit));
        for (slot, c) in self.pmu.counting.iter_mut().zip(counting) {
            *slot = Some(c);
        }
        let counting = || self.pmu.counting.iter().flatten();
        let of_branches = |c: &Counting| matches!(c.rate, Rate::Branches | Rate::BranchlessCycles);
        self.pmu.active = counting().next().is_some();
        self.pmu.branches_count = counting().any(of_branches);
        self.update_due();
    }

    /// Continues with counter registers that were loaded.
    pub(crate) fn load_counters(&mut self) {
        let shape = self.pmu.shape;
        let pmu = &mut self.msr.pmu;
        for counter in pmu.pmc.iter_mut().chain(&mut pmu.fixed_ctr) {
            *counter &= shape.mask;
        }
        self.pmu.freezes = false;
        self.pmu.last = self.totals(0);
        self.pmu.ring = ring(self.cpl);
        self.configure_counters();
    }

    /// Computes when the first overflow that interrupts can come. Each event takes at least one
    /// instruction, except for ticks of the host's clock, which are read when the run loop returns.
    fn update_due(&mut self) {
        let host = matches!(self.clock, Clock::Host(_));
        let mut due = u64::MAX;
        for c in self.pmu.counting.into_iter().flatten() {
            let ticks = host && c.rate == Rate::Reference;
            if !c.interrupts || c.rings & self.pmu.ring == 0 || ticks {
                continue;
            }
            if let Some(counter) = self.msr.pmu.counter(c.bit) {
                let left = self.pmu.shape.mask - *counter + 1;
                due = due.min(self.pmu.last.cycles.saturating_add(left));
            }
        }
        self.pmu.due = due;
        self.update_limit();
    }

    /// Lets blocks run as long as they reach neither the end of the run nor an overflow.
    fn update_limit(&mut self) {
        let blocks = self.pmu.due.saturating_sub(u64::from(MAX_BLOCK) - 1);
        self.limit = self.run_limit.min(blocks);
    }

    /// Prepares a run, which ends when `limit` instructions have retired.
    pub(crate) fn enter_run(&mut self, limit: u64) {
        self.run_limit = limit;
        // The time between two runs is not counted.
        if self.pmu.active {
            self.pmu.last.reference = self.totals(0).reference;
        }
        // Only the loop that counts branches tells which block it runs.
        self.pmu.block = 0;
        self.update_limit();
    }

    /// Updates the counters when the run loop returns.
    pub(crate) fn leave_run(&mut self) {
        if self.pmu.active || self.pending_work.contains(ArchEvents::COUNTERS) {
            self.count_events(0);
        }
    }

    /// Has the instructions so far counted at the next boundary, since CPL may have changed.
    #[inline]
    pub(crate) fn update_counted_ring(&mut self) {
        if self.pmu.active && ring(self.cpl) != self.pmu.ring {
            self.pending_work.insert(ArchEvents::COUNTERS);
        }
    }

    /// Signals a performance-monitoring interrupt of a counter or of the Branch Trace Store, and
    /// freezes what DEBUGCTL selects (Vol. 3B 17.4.7). The counters continue to the end of the
    /// instruction.
    pub(crate) fn performance_interrupt(&mut self) {
        let debugctl = DebugCtl::from_bits_retain(self.recorder.debugctl());
        if debugctl.contains(DebugCtl::FREEZE_LBRS_ON_PMI) {
            let running = debugctl.difference(DebugCtl::LBR).bits();
            // No bit was added: it is accepted.
            let _ = self.recorder.set_debugctl(running);
        }
        if debugctl.contains(DebugCtl::FREEZE_PERFMON_ON_PMI) {
            self.pmu.freezes = true;
            self.pending_work.insert(ArchEvents::COUNTERS);
        }
        self.platform.performance_interrupt(self.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn the_default_model_has_two_and_three_counters_of_40_bits() {
        let shape = Shape::of(model("core2").unwrap());
        assert_eq!((shape.general, shape.fixed), (2, 3));
        assert_eq!(shape.mask, (1 << 40) - 1);
        assert_eq!(shape.fixed_ctrl, 0xBBB);
        assert_eq!(shape.global, 0x7_0000_0003);
    }

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
            assert_eq!(Rate::selected(select), expected, "{select:#x}");
        }
    }

    #[test]
    fn branches_of_a_part_of_a_block() {
        assert_eq!(branches_before(0b1011, 0), 0);
        assert_eq!(branches_before(0b1011, 1), 1);
        assert_eq!(branches_before(0b1011, 3), 2);
        assert_eq!(branches_before(1 << 47, MAX_BLOCK.into()), 1);
    }
}
