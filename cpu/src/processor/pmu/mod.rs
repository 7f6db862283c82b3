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
//!   branch instructions. A conditional one is Jcc, LOOPcc or JrCXZ, taken or not.
//! * An instruction, a part of a repeated instruction, and an exception each take one core cycle.
//!   No two instructions retire in one cycle, so a counter mask (CMASK) of 2 is never reached.
//! * A reference cycle is a tick of the time-stamp counter while the processor is not halted. In
//!   virtual time a core cycle is one.
//! * This processor has no caches and no branch prediction, as CPUID.0AH:EBX reports. A counter of
//!   their misses, of an event that is not architectural, or with edge detection (E) does not
//!   advance.
//! * A WRMSR that configures counters counts as they were configured before it.

mod event;
mod registers;

use crate::decode::MAX_BLOCK;
use crate::insn::BranchKind;
use crate::model::{Counters, Model};
use crate::processor::clock::{Clock, HostClock};
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::state::PmuState;
use crate::state::pmu::{evtsel, fixed_ctrl, global};

use event::{Rate, Totals};

/// CPL 0, and the other levels, as IA32_PERFEVTSELx (OS is the bit after USR) and
/// IA32_FIXED_CTR_CTRL select them.
const OS: u8 = 1 << 0;
const USR: u8 = 1 << 1;

fn ring(cpl: u8) -> u8 {
    if cpl == 0 { OS } else { USR }
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

/// Counters of any model.
const COUNTERS: usize = PmuState::GENERAL + PmuState::FIXED;

/// The counters' state that is derived from the registers ([`PmuState`]), and the totals.
#[derive(Debug)]
pub(crate) struct Pmu {
    counters: Counters,
    counting: [Option<Counting>; COUNTERS],
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
    /// The conditional ones of these.
    pub conditional: u64,
    /// The branches of the current block, while branches are counted: see [`branch_bits`].
    pub block: u64,
    /// Cycles in which no instruction retired.
    pub idle: u64,
}

impl Pmu {
    pub fn new(model: &Model) -> Self {
        Self {
            counters: Counters::of(model),
            counting: [None; COUNTERS],
            active: false,
            branches_count: false,
            freezes: false,
            last: Totals::default(),
            ring: OS,
            due: u64::MAX,
            branches: 0,
            conditional: 0,
            block: 0,
            idle: 0,
        }
    }
}

/// The branches of a block have a bit for each instruction. This one says that the last branch is
/// not conditional: only such a branch, and only the last instruction, is another kind.
const LAST_IS_UNCONDITIONAL: u64 = 1 << 63;

/// The bits of the instruction with this ordinal, the last of its block so far.
pub(crate) fn branch_bits(kind: BranchKind, ordinal: u8) -> u64 {
    match kind {
        BranchKind::Conditional => 1 << ordinal,
        _ if kind.is_branch() => 1 << ordinal | LAST_IS_UNCONDITIONAL,
        _ => 0,
    }
}

/// The bits of the conditional branches.
#[inline]
pub(crate) fn conditional_branches(branches: u64) -> u64 {
    if branches & LAST_IS_UNCONDITIONAL == 0 {
        return branches;
    }
    let all = branches & !LAST_IS_UNCONDITIONAL;
    let last = LAST_IS_UNCONDITIONAL.checked_shr(all.leading_zeros());
    all & !last.unwrap_or(0)
}

/// How many branches are among the first `n` instructions of a block.
#[inline]
pub(crate) fn branches_before(branches: u64, n: u64) -> u64 {
    const { assert!(MAX_BLOCK <= 48) };
    (branches & ((1 << n) - 1)).count_ones().into()
}

impl PmuState {
    /// The counter that has this bit in the global registers.
    fn counter(&mut self, bit: usize) -> Option<&mut u64> {
        match bit.checked_sub(global::FIXED) {
            None => self.pmc.get_mut(bit),
            Some(n) => self.fixed_ctr.get_mut(n),
        }
    }

    /// What the counter with this bit in the global registers counts; `None` if it is disabled.
    fn counting(&self, counters: &Counters, bit: usize) -> Option<Counting> {
        let counting = match bit.checked_sub(global::FIXED) {
            None => {
                let select = *self.evtsel.get(bit)?;
                let [usr, os] = [0, 1].map(|n| select >> (evtsel::RINGS + n) & 1 != 0);
                Counting {
                    bit,
                    rate: Rate::selected(counters, select)?,
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
            && (bit >= global::FIXED || self.evtsel.get(bit)? & evtsel::EN != 0);
        (on && counting.rings != 0).then_some(counting)
    }

    /// Whether a counter is enabled, apart from IA32_PERF_GLOBAL_CTRL.
    pub(crate) fn any_enabled(&self) -> bool {
        self.fixed_ctr_ctrl != 0 || self.evtsel.iter().any(|e| e & evtsel::EN != 0)
    }
}

impl Cpu {
    fn totals(&self, ahead: u8) -> Totals {
        let cycles = self.icount + u64::from(ahead);
        Totals {
            instructions: cycles.wrapping_sub(self.pmu.idle),
            branches: self.pmu.branches + branches_before(self.pmu.block, ahead.into()),
            conditional: self.pmu.conditional
                + branches_before(conditional_branches(self.pmu.block), ahead.into()),
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
        let mask = self.pmu.counters.mask;
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
        let Counters { general, fixed, .. } = self.pmu.counters;
        let bits = (0..general).chain(global::FIXED..global::FIXED + fixed);
        self.pmu.counting = [None; COUNTERS];
        let counting = bits.filter_map(|bit| pmu.counting(&self.pmu.counters, bit));
        for (slot, c) in self.pmu.counting.iter_mut().zip(counting) {
            *slot = Some(c);
        }
        let counting = || self.pmu.counting.iter().flatten();
        let of_branches = |c: &Counting| {
            use Rate::{Branches, BranchlessCycles, ConditionalBranches};
            matches!(c.rate, Branches | ConditionalBranches | BranchlessCycles)
        };
        self.pmu.active = counting().next().is_some();
        self.pmu.branches_count = counting().any(of_branches);
        self.update_due();
    }

    /// Continues with counter registers that were loaded.
    pub(crate) fn load_counters(&mut self) {
        let counters = self.pmu.counters;
        let pmu = &mut self.msr.pmu;
        for counter in pmu.pmc.iter_mut().chain(&mut pmu.fixed_ctr) {
            *counter &= counters.mask;
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
                let left = self.pmu.counters.mask - *counter + 1;
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
        if self.recorder.freeze_on_pmi() {
            self.pmu.freezes = true;
            self.pending_work.insert(ArchEvents::COUNTERS);
        }
        self.platform.performance_interrupt(self.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_of_a_part_of_a_block() {
        assert_eq!(branches_before(0b1011, 0), 0);
        assert_eq!(branches_before(0b1011, 1), 1);
        assert_eq!(branches_before(0b1011, 3), 2);
        assert_eq!(branches_before(1 << 47, MAX_BLOCK.into()), 1);
    }

    #[test]
    fn only_the_last_branch_of_a_block_is_of_another_kind() {
        let conditional = branch_bits(BranchKind::Conditional, 2);
        assert_eq!(conditional_branches(conditional), 1 << 2);
        let call = conditional | branch_bits(BranchKind::NearCall, 5);
        assert_eq!(branches_before(call, 6), 2);
        assert_eq!(conditional_branches(call), 1 << 2);
        let none = conditional | branch_bits(BranchKind::Exception, 5);
        assert_eq!(conditional_branches(none), 1 << 2);
        assert_eq!(conditional_branches(branch_bits(BranchKind::Far, 0)), 0);
    }
}
