//! Work that is due between two instructions: architectural events, and requests to the VMM.

use bitflags::{Flags, bitflags};

use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::platform::Signals;
use crate::state::rflags;

bitflags! {
    /// Architectural conditions that need work at each instruction boundary while they last.
    /// Instructions and the delivery of events set them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ArchEvents: u16 {
        /// RFLAGS.TF: a single-step trap follows each instruction (SDM Vol. 3B 17.3.1.4).
        const TRAP = 1 << 0;
        /// RFLAGS.RF: the next instruction has no instruction breakpoint (17.3.1.1).
        const RESUME = 1 << 1;
        /// The instruction was STI, MOV SS or POP SS: interrupts are held for one instruction (SDM
        /// Vol. 3A 6.8.3).
        const SHADOW = 1 << 2;
        /// The instruction was MOV SS or POP SS: no debug trap follows it, and the next instruction
        /// has no instruction breakpoint (6.8.3).
        const HOLD_TRAP = 1 << 3;
        /// SYSCALL or INT n has cleared TF: no single-step trap follows it.
        const NO_STEP = 1 << 4;
        /// A debug trap is pending, see [`Cpu`]'s `pending_db`.
        const DEBUG = 1 << 5;
        /// DR7 enables a breakpoint or watchpoint.
        const BREAKPOINT = 1 << 6;
        /// An event has been accepted and not yet delivered, see [`Cpu`]'s `accepted`.
        const ACCEPTED = 1 << 7;
        /// The performance counters have to be brought up to date: CPL has changed, or they are to
        /// be frozen.
        const COUNTERS = 1 << 8;
        /// The processor executes HLT.
        const HALTED = 1 << 9;
        /// A triple fault has shut the processor down.
        const SHUTDOWN = 1 << 10;
        /// The processor waits for a start-up IPI.
        const WAIT_FOR_SIPI = 1 << 11;
    }

    /// Requests of the processor to the run loop and the VMM. Each is served once. No guest can
    /// observe them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct VmmRequests: u16 {
        /// Invalidate the decoded code in [`Cpu`]'s `invalid_pages`: a store that belongs to no
        /// instruction has changed it.
        const INVALIDATE_CODE = 1 << 0;
        /// Compare decoded code with memory before it is used again: the instruction was a
        /// serializing one (SDM Vol. 3A 8.1.3), and other processors may have changed code
        /// untracked.
        const REVALIDATE_CODE = 1 << 1;
        /// Return to the VMM: an access to a device may have changed deadlines or guest memory.
        const BUS = 1 << 2;
        /// Return to the VMM: the processor seems to wait for another processor, which should run.
        const SPINNING = 1 << 3;
        /// Return to the VMM before the next instruction: a probe asks for it.
        const STOP = 1 << 4;
    }
}

/// One of the two halves of [`PendingWork`].
pub(crate) trait Half: Flags<Bits = u16> {
    /// Position of the half.
    const SHIFT: u32;

    /// The flags at their position.
    #[inline(always)]
    fn word(&self) -> u32 {
        u32::from(self.bits()) << Self::SHIFT
    }
}

impl Half for ArchEvents {
    const SHIFT: u32 = 0;
}

impl Half for VmmRequests {
    const SHIFT: u32 = 16;
}

/// Reasons to leave the fast path between two blocks: [`ArchEvents`] and [`VmmRequests`] in one
/// word, so that one comparison tests for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub(crate) struct PendingWork(u32);

impl PendingWork {
    /// Whether no work is due.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The architectural events.
    #[inline(always)]
    pub(crate) fn events(self) -> ArchEvents {
        ArchEvents::from_bits_retain((self.0 >> ArchEvents::SHIFT) as u16)
    }

    /// Whether all of `flags` are set.
    #[inline(always)]
    pub(crate) fn contains(self, flags: impl Half) -> bool {
        self.0 & flags.word() == flags.word()
    }

    /// Whether one of `flags` is set.
    #[inline(always)]
    pub(crate) fn intersects(self, flags: impl Half) -> bool {
        self.0 & flags.word() != 0
    }

    /// Sets `flags`.
    #[inline(always)]
    pub(crate) fn insert(&mut self, flags: impl Half) {
        self.0 |= flags.word();
    }

    /// Clears `flags`.
    #[inline(always)]
    pub(crate) fn remove(&mut self, flags: impl Half) {
        self.0 &= !flags.word();
    }

    /// Sets or clears `flags`.
    #[inline(always)]
    pub(crate) fn set(&mut self, flags: impl Half, value: bool) {
        if value {
            self.insert(flags);
        } else {
            self.remove(flags);
        }
    }

    /// Clears `flags`, and returns whether all of them were set.
    #[inline(always)]
    pub(crate) fn take(&mut self, flags: impl Half) -> bool {
        let before = *self;
        self.0 &= !flags.word();
        before.0 & flags.word() == flags.word()
    }
}

impl Cpu {
    /// Whether work is due before the next block.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.icount >= self.limit || self.is_signaled() || !self.pending_work.is_empty()
    }

    /// Whether a signal is raised that can be taken.
    #[inline(always)]
    pub(crate) fn is_signaled(&self) -> bool {
        self.signals.get() & self.signal_mask != 0
    }

    /// Has the run loop return after this block: an access to a device may have changed deadlines
    /// or guest memory.
    pub(crate) fn after_bus(&mut self) {
        self.pending_work.insert(VmmRequests::BUS);
        // The local APIC may accept now the interrupt that it has masked before.
        if self.pmu.asserts_interrupt {
            self.performance_interrupt(0);
        }
    }

    /// Executes the serializing part of an instruction (SDM Vol. 3A 8.3): other processors see all
    /// stores before it, and code that they have changed becomes visible after it. The only
    /// processor of a machine observes all changes at once, and one of several on virtual time at
    /// the start of its turn. On the host's time others may have changed code untracked.
    #[inline]
    pub(crate) fn serialize(&mut self) {
        if self.topology.count > 1 {
            self.drain_store_buffer();
            if matches!(self.clock, Clock::Host(_)) {
                self.pending_work.insert(VmmRequests::REVALIDATE_CODE);
            }
        }
    }

    /// Executes PAUSE, `ahead` instructions into the current block. Returns whether the processor
    /// spins: the block ends there, and the run loop returns, so that others can run.
    pub(crate) fn pause(&mut self, ahead: u8) -> bool {
        let spins = self.topology.count > 1 && self.spin.pause(self.icount + u64::from(ahead));
        if spins {
            self.pending_work.insert(VmmRequests::SPINNING);
        }
        spins
    }

    /// Whether a triple fault has shut the processor down.
    pub fn has_shut_down(&self) -> bool {
        self.pending_work.contains(ArchEvents::SHUTDOWN)
    }

    /// Whether the processor waits for a start-up IPI.
    pub fn waits_for_startup(&self) -> bool {
        self.pending_work.contains(ArchEvents::WAIT_FOR_SIPI)
    }

    /// Whether the processor is halted or waits for a start-up IPI, and no signal that ends this is
    /// raised.
    pub fn is_idle(&self) -> bool {
        let wakes = if self.waits_for_startup() {
            Signals::KICK | Signals::INIT
        } else if self.pending_work.contains(ArchEvents::HALTED) {
            self.signal_mask & !Signals::DMA
        } else {
            return false;
        };
        self.signals.get() & wakes == 0
    }

    /// Whether maskable interrupts are enabled (RFLAGS.IF).
    pub fn interrupts_enabled(&self) -> bool {
        self.eflags & rflags::IF != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_requests_do_not_overlap() {
        let mut work = PendingWork::default();
        work.insert(ArchEvents::all());
        assert!(!work.intersects(VmmRequests::all()));
        work.insert(VmmRequests::BUS);
        work.remove(ArchEvents::all());
        assert!(!work.is_empty() && work.events().is_empty());
        assert!(work.take(VmmRequests::BUS));
        assert!(work.is_empty() && !work.take(VmmRequests::BUS));
    }
}
