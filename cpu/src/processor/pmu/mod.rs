//! Performance monitoring: counters of instructions, branch instructions and clock cycles. Their
//! registers are those of version 2 of architectural performance monitoring (SDM Vol. 3B 18.2.1,
//! 18.2.2), of the P6 family (chapter 18), or of NetBurst (18.15).
//!
//! No event is counted by itself. The run loop knows how many instructions have retired. A counter
//! is brought up to date when it is read, and at the first instruction boundary after a change of
//! privilege. Only branches have a run loop of their own, which runs while a counter counts them.
//! An overflow that interrupts is a deadline, as the end of a run is: no block runs that would pass
//! it.
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
//!   their misses, of an event that is not in the tables of [`model`](crate::model), or with edge
//!   detection (E) does not advance.
//! * A WRMSR that configures counters counts as they were configured before it.

mod branches;
mod event;
mod netburst;
mod registers;

use crate::decode::MAX_BLOCK;
use crate::model::pmu::{Event, Registers};
use crate::model::{Counters, Model};
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::state::netburst_pmu::cccr;
use crate::state::pmu::{evtsel, fixed_ctrl, global};
use crate::state::{NetBurstPmu, PmuRegister, PmuState};

use branches::Counts;
pub(crate) use branches::{add_branches, add_taken, branch_bits};
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
    /// The counter.
    register: PmuRegister,
    rate: Rate,
    /// The privilege levels at which it counts: [`OS`] and [`USR`].
    rings: u8,
    /// An overflow interrupts.
    interrupts: bool,
    /// An overflow starts another counter.
    starts: bool,
    /// Each event is an overflow.
    forced: bool,
}

/// Counters of any model.
const COUNTERS: usize = NetBurstPmu::COUNTERS;
const _: () = assert!(COUNTERS >= PmuState::GENERAL + PmuState::FIXED);

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
    /// A counter of NetBurst interrupts until software clears its OVF.
    pub asserts_interrupt: bool,
    /// No counter overflows with an immediate effect before [`Cpu::icount`] has reached this.
    pub due: u64,
    /// Branch instructions retired before the current block, as far as they were counted.
    pub branches: Counts,
    /// The branches of the current block, while branches are counted: see [`branch_bits`].
    pub block: u64,
    /// Cycles in which no instruction retired.
    pub idle: u64,
}

impl Pmu {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            counters: Counters::of(model),
            counting: [None; COUNTERS],
            active: false,
            branches_count: false,
            freezes: false,
            last: Totals::default(),
            ring: OS,
            asserts_interrupt: false,
            due: u64::MAX,
            branches: Counts::default(),
            block: 0,
            idle: 0,
        }
    }
}

impl PmuState {
    /// A counter.
    fn counter(&mut self, register: PmuRegister) -> Option<&mut u64> {
        match register {
            PmuRegister::Pmc(n) => self.pmc.get_mut(n),
            PmuRegister::FixedCtr(n) => self.fixed_ctr.get_mut(n),
            PmuRegister::Counter(n) => self.netburst.counter.get_mut(n),
            _ => None,
        }
    }

    /// Notes an overflow.
    fn overflow(&mut self, counters: &Counters, register: PmuRegister) {
        let bit = match register {
            PmuRegister::Pmc(n) => n,
            PmuRegister::FixedCtr(n) => global::FIXED + n,
            PmuRegister::Counter(n) => {
                if let Some(control) = self.netburst.cccr.get_mut(n) {
                    *control |= cccr::OVF;
                }
                return;
            }
            _ => return,
        };
        self.global_status |= 1 << bit & counters.global;
    }

    /// Whether a counter with this number is enabled by what enables several.
    fn is_enabled(&self, counters: &Counters, bit: usize) -> bool {
        match counters.registers {
            Registers::P6 => self.evtsel[0] & evtsel::EN != 0,
            _ => self.global_ctrl >> bit & 1 != 0,
        }
    }

    /// What programmable counter `n` counts, apart from what enables several counters.
    fn programmed(&self, counters: &Counters, n: usize) -> Option<Counting> {
        let select = *self.evtsel.get(n)?;
        let [usr, os] = [0, 1].map(|n| select >> (evtsel::RINGS + n) & 1 != 0);
        let counting = Counting {
            register: PmuRegister::Pmc(n),
            rate: Rate::selected(counters, select)?,
            rings: if os { OS } else { 0 } | if usr { USR } else { 0 },
            interrupts: select & evtsel::INT != 0,
            starts: false,
            forced: false,
        };
        let on = counters.registers == Registers::P6 || select & evtsel::EN != 0;
        (on && counting.rings != 0).then_some(counting)
    }

    /// What fixed counter `n` counts, apart from what enables several counters.
    fn fixed(&self, n: usize) -> Option<Counting> {
        let control = self.fixed_ctr_ctrl >> (fixed_ctrl::WIDTH * n);
        let counting = Counting {
            register: PmuRegister::FixedCtr(n),
            rate: *Rate::OF_FIXED.get(n)?,
            rings: (control & fixed_ctrl::RINGS) as u8,
            interrupts: control & fixed_ctrl::PMI != 0,
            starts: false,
            forced: false,
        };
        (counting.rings != 0).then_some(counting)
    }

    /// The counters that count.
    fn counting(&self, counters: &Counters) -> [Option<Counting>; COUNTERS] {
        let mut all = [None; COUNTERS];
        let general = 0..counters.general;
        if let Registers::NetBurst { later } = counters.registers {
            for (slot, n) in all.iter_mut().zip(general) {
                *slot = self.netburst.counting(n, later);
            }
            return all;
        }
        let general = general
            .filter(|n| self.is_enabled(counters, *n))
            .filter_map(|n| self.programmed(counters, n));
        let fixed = (0..counters.fixed)
            .filter(|n| self.is_enabled(counters, global::FIXED + n))
            .filter_map(|n| self.fixed(n));
        for (slot, counting) in all.iter_mut().zip(general.chain(fixed)) {
            *slot = Some(counting);
        }
        all
    }

    /// Whether a counter is enabled, apart from what enables several, or has overflowed and still
    /// interrupts.
    pub(crate) fn any_enabled(&self, counters: &Counters) -> bool {
        match counters.registers {
            Registers::Architectural => {
                self.fixed_ctr_ctrl != 0 || self.evtsel.iter().any(|e| e & evtsel::EN != 0)
            }
            // There is no other flag for each counter than the event.
            Registers::P6 => (0..counters.general).any(|n| self.programmed(counters, n).is_some()),
            Registers::NetBurst { .. } => {
                let enabled = |control: &u64| control & cccr::ENABLE != 0;
                self.netburst.cccr.iter().any(enabled) || self.netburst.asserts_interrupt()
            }
        }
    }
}

impl Cpu {
    fn totals(&self, ahead: u8) -> Totals {
        let cycles = self.icount + u64::from(ahead);
        let mut branches = self.pmu.branches;
        add_branches(&mut branches, self.pmu.block, ahead.into());
        Totals {
            instructions: cycles.wrapping_sub(self.pmu.idle),
            branches,
            cycles,
            reference: match self.clock {
                Clock::Instructions => cycles,
                Clock::Host(clock) => clock.tsc(),
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
        let counters = self.pmu.counters;
        let pmu = &mut self.msr.pmu;
        let (mut interrupt, mut starts) = (false, false);
        for c in self.pmu.counting.iter().flatten() {
            if c.rings & self.pmu.ring == 0 {
                continue;
            }
            let Some(counter) = pmu.counter(c.register) else {
                continue;
            };
            let events = passed.at(c.rate) & counters.mask;
            let sum = *counter + events;
            *counter = sum & counters.mask;
            if sum > counters.mask || c.forced && events != 0 {
                pmu.overflow(&counters, c.register);
                interrupt |= c.interrupts;
                starts |= c.starts;
            }
        }
        self.pmu.ring = ring(self.cpl);
        let stays = matches!(counters.registers, Registers::NetBurst { .. });
        self.pmu.asserts_interrupt |= interrupt && stays;
        if interrupt {
            self.performance_interrupt(ahead);
        }
        if std::mem::take(&mut self.pmu.freezes) {
            self.pending_work.remove(ArchEvents::COUNTERS);
            self.msr.pmu.global_ctrl = 0;
            self.configure_counters();
        } else if starts {
            self.configure_counters();
            // The loop that runs depends on what counts.
            self.after_bus();
        } else {
            self.update_due();
        }
    }

    /// Updates what depends on the enabled counters. The counters are up to date.
    fn configure_counters(&mut self) {
        let pmu = &self.msr.pmu;
        self.pmu.counting = pmu.counting(&self.pmu.counters);
        self.pmu.asserts_interrupt = pmu.netburst.asserts_interrupt();
        let counting = || self.pmu.counting.iter().flatten();
        self.pmu.active = counting().next().is_some();
        self.pmu.branches_count = counting().any(|c| c.rate.is_of_branches());
        self.update_due();
    }

    /// Continues with counter registers that were loaded.
    pub(crate) fn load_counters(&mut self) {
        let counters = self.pmu.counters;
        let pmu = &mut self.msr.pmu;
        let programmable = pmu.pmc.iter_mut().chain(&mut pmu.netburst.counter);
        for counter in programmable.chain(&mut pmu.fixed_ctr) {
            *counter &= counters.mask;
        }
        self.pmu.freezes = false;
        self.pmu.last = self.totals(0);
        self.pmu.ring = ring(self.cpl);
        self.configure_counters();
    }

    /// Computes when the first overflow can come that interrupts or starts a counter. Each event
    /// takes at least one instruction, except for ticks of the host's clock, which are read when
    /// the run loop returns.
    fn update_due(&mut self) {
        let host = matches!(self.clock, Clock::Host(_));
        let mut due = u64::MAX;
        for c in self.pmu.counting.iter().flatten() {
            let ticks = host && c.rate == Rate::Each(Event::Reference);
            if !(c.interrupts || c.starts) || c.rings & self.pmu.ring == 0 || ticks {
                continue;
            }
            if let Some(counter) = self.msr.pmu.counter(c.register) {
                let left = match c.forced {
                    true => 1,
                    false => self.pmu.counters.mask - *counter + 1,
                };
                due = due.min(self.pmu.last.cycles.saturating_add(left));
            }
        }
        self.pmu.due = due;
        self.update_limit();
    }

    /// Lets blocks run as long as none can pass the end of the run or an overflow.
    fn update_limit(&mut self) {
        let exact = self.run_limit.min(self.pmu.due);
        self.limit = exact.saturating_sub(u64::from(MAX_BLOCK) - 1);
    }

    /// Instructions that may retire before the end of the run or an overflow.
    pub(crate) fn left_to_limit(&self) -> u64 {
        let exact = self.run_limit.min(self.pmu.due);
        exact.saturating_sub(self.icount)
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
    /// instruction, which has so many `ahead` of it in the current block.
    pub(crate) fn performance_interrupt(&mut self, ahead: u8) {
        if self.recorder.freeze_on_pmi() {
            self.pmu.freezes = true;
            self.pending_work.insert(ArchEvents::COUNTERS);
        }
        let now = self.now() + u64::from(ahead);
        self.platform.performance_interrupt(now);
    }
}
