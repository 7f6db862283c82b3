//! Work that is due between two instructions, and the activity state that it leads to.

use bitflags::bitflags;

use crate::processor::cpu::Cpu;
use crate::processor::platform::Signals;
use crate::state::rflags;

bitflags! {
    /// Reasons to leave the fast path between two blocks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PendingWork: u32 {
        /// RFLAGS.TF: trap after each instruction.
        const TRAP = 1 << 8;
        /// STI, MOV SS or POP SS: hold interrupts for one instruction.
        const SHADOW = 1 << 9;
        /// A debug exception is pending (`pending_db`).
        const DEBUG = 1 << 10;
        /// A breakpoint or watchpoint is enabled.
        const BREAKPOINT = 1 << 11;
        /// HLT.
        const HALTED = 1 << 12;
        /// Decoded code was invalidated by a store that is not an instruction's own.
        const INVALIDATE = 1 << 13;
        /// Shutdown after a triple fault.
        const SHUTDOWN = 1 << 14;
        /// The machine may have changed: deadlines, DMA.
        const BUS = 1 << 15;
        /// RFLAGS.RF: no instruction breakpoint for one instruction.
        const RESUME = 1 << 16;
        /// MOV SS or POP SS: no debug trap after it, and no instruction breakpoint on the next
        /// instruction.
        const HOLD_TRAP = 1 << 17;
        /// SYSCALL or INT n has cleared TF: no single-step trap after it.
        const NO_STEP = 1 << 18;
        /// An interrupt or NMI has been accepted and has to be delivered (`accepted`).
        const ACCEPTED = 1 << 19;
        /// Other processors and devices may have changed code, and the processor has to notice (SDM
        /// Vol. 3A 8.1.3).
        const SERIALIZE = 1 << 20;
        /// The counters have to be brought up to date: CPL has changed, or they are to be frozen.
        const EVENTS = 1 << 21;
        /// The processor seems to wait for another processor, which should run.
        const SPINS = 1 << 22;
        /// The processor waits for a start-up IPI.
        const WAIT_FOR_SIPI = 1 << 23;
    }
}

impl Cpu {
    /// Whether work is due before the next block.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.icount >= self.limit
            || self.signals.get() & self.signal_mask != 0
            || !self.pending_work.is_empty()
    }

    /// Has the run loop return after this block: an access to a device may have changed deadlines
    /// or guest memory.
    pub(crate) fn after_bus(&mut self) {
        self.pending_work |= PendingWork::BUS;
    }

    /// Executes the serializing part of an instruction (SDM Vol. 3A 8.3): code that other processors
    /// have changed becomes visible after it. The only processor of a machine sees all changes at
    /// once.
    #[inline]
    pub(crate) fn serialize(&mut self) {
        if self.topology.count > 1 {
            self.pending_work |= PendingWork::SERIALIZE;
        }
    }

    /// Executes PAUSE. If the processor spins, the run loop returns, so that others can run.
    pub(crate) fn pause(&mut self) {
        if self.topology.count > 1 && self.spin.pause(self.icount) {
            self.pending_work |= PendingWork::SPINS;
        }
    }

    /// Whether a triple fault has shut the processor down.
    pub fn has_shut_down(&self) -> bool {
        self.pending_work.contains(PendingWork::SHUTDOWN)
    }

    /// Whether the processor waits for a start-up IPI.
    pub fn waits_for_startup(&self) -> bool {
        self.pending_work.contains(PendingWork::WAIT_FOR_SIPI)
    }

    /// Whether the processor is halted or waits for a start-up IPI, and no signal that ends this is
    /// raised.
    pub fn asleep(&self) -> bool {
        let wakes = if self.waits_for_startup() {
            Signals::KICK | Signals::INIT
        } else if self.pending_work.contains(PendingWork::HALTED) {
            self.signal_mask & !Signals::DMA
        } else {
            return false;
        };
        self.signals.get() & wakes == 0
    }

    /// Whether maskable interrupts are enabled (RFLAGS.IF).
    pub fn interrupts_on(&self) -> bool {
        self.eflags & rflags::IF != 0
    }
}
