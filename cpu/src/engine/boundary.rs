//! The boundary between two instructions: architectural events in the manual's order of priority
//! (SDM Vol. 3A 6.9, table 6-2), and between them the requests to the run loop.

use crate::engine::{Exit, SoftCpu};
use crate::processor::pending_work::{ArchEvents, VmmRequests};
use crate::processor::platform::Signals;

/// The result of work at a boundary.
enum Outcome {
    /// The work is done, and more may be due at the same boundary.
    Done,
    /// The run loop returns.
    Exit(Exit),
}

impl SoftCpu {
    /// Does the first work that is due, or else runs instructions up to the limit at most.
    #[cold]
    #[inline(never)]
    pub(super) fn boundary(&mut self) -> Option<Exit> {
        self.update_counters();
        let outcome = self
            .shut_down()
            .or_else(|| self.update_code())
            .or_else(|| self.return_to_vmm())
            // Table 6-2, priority 3: external hardware interventions.
            .or_else(|| self.take_init())
            .or_else(|| self.wait_for_sipi())
            .or_else(|| self.observe_device_write())
            .or_else(|| self.end_run())
            .or_else(|| self.deliver_accepted())
            // Priority 4: traps on the previous instruction.
            .or_else(|| self.deliver_debug_trap())
            // Priority 5: non-maskable interrupts.
            .or_else(|| self.deliver_nmi())
            // Priority 6: maskable hardware interrupts.
            .or_else(|| self.deliver_interrupt())
            .or_else(|| self.halt());
        match outcome {
            Some(Outcome::Done) => None,
            Some(Outcome::Exit(exit)) => Some(exit),
            None => {
                if !self.run_up_to_limit() {
                    // Priorities 7 to 10: code breakpoints, and faults of the instruction.
                    self.run_instruction();
                }
                None
            }
        }
    }

    /// Whether all of `events` are pending.
    fn is_pending(&self, events: ArchEvents) -> bool {
        self.cpu.pending_work.contains(events)
    }

    /// Whether a signal is raised and not masked.
    fn is_signaled(&self, signal: u32) -> bool {
        self.cpu.signals.get() & self.cpu.signal_mask & signal != 0
    }

    // Architectural events

    /// A performance-monitoring interrupt comes after the instruction that overflows a counter.
    fn update_counters(&mut self) {
        if self.is_pending(ArchEvents::COUNTERS) || self.cpu.icount >= self.cpu.pmu.due {
            self.cpu.count_events(0);
        }
    }

    fn shut_down(&self) -> Option<Outcome> {
        self.is_pending(ArchEvents::SHUTDOWN)
            .then_some(Outcome::Exit(Exit::Shutdown))
    }

    /// The VMM takes the INIT or start-up IPI from the platform, and lowers the signal.
    fn take_init(&self) -> Option<Outcome> {
        self.is_signaled(Signals::INIT)
            .then_some(Outcome::Exit(Exit::Init))
    }

    /// A processor that waits for a start-up IPI takes no other event.
    fn wait_for_sipi(&self) -> Option<Outcome> {
        self.is_pending(ArchEvents::WAIT_FOR_SIPI)
            .then_some(Outcome::Exit(Exit::Halt {
                interrupts_off: true,
            }))
    }

    /// Delivers an event that this processor or another accelerator has accepted.
    fn deliver_accepted(&mut self) -> Option<Outcome> {
        self.is_pending(ArchEvents::ACCEPTED).then(|| {
            self.cpu.raise_accepted();
            Outcome::Done
        })
    }

    fn deliver_debug_trap(&mut self) -> Option<Outcome> {
        let due = self.is_pending(ArchEvents::DEBUG) && !self.is_pending(ArchEvents::HOLD_TRAP);
        due.then(|| {
            self.cpu.pending_work.remove(ArchEvents::DEBUG);
            self.cpu.raise_debug_trap();
            Outcome::Done
        })
    }

    fn deliver_nmi(&mut self) -> Option<Outcome> {
        let due = self.is_signaled(Signals::NMI) && !self.is_pending(ArchEvents::SHADOW);
        due.then(|| {
            self.cpu.pending_work.remove(ArchEvents::HALTED);
            if self.cpu.platform.take_nmi() {
                self.cpu.raise_nmi();
            }
            Outcome::Done
        })
    }

    fn deliver_interrupt(&mut self) -> Option<Outcome> {
        let due = self.is_signaled(Signals::INTR) && !self.is_pending(ArchEvents::SHADOW);
        due.then(|| {
            self.cpu.pending_work.remove(ArchEvents::HALTED);
            let now = self.cpu.now();
            if let Some(vector) = self.cpu.platform.acknowledge_interrupt(now) {
                self.cpu.raise_interrupt(vector);
            }
            Outcome::Done
        })
    }

    fn halt(&self) -> Option<Outcome> {
        let interrupts_off = !self.cpu.interrupts_enabled();
        self.is_pending(ArchEvents::HALTED)
            .then_some(Outcome::Exit(Exit::Halt { interrupts_off }))
    }

    // Requests to the run loop

    /// Invalidates decoded code that is stale, or may be.
    fn update_code(&mut self) -> Option<Outcome> {
        let work = &mut self.cpu.pending_work;
        if work.take(VmmRequests::INVALIDATE_CODE) {
            self.observe_code_changes();
            for gpa in std::mem::take(&mut self.cpu.invalid_pages) {
                self.invalidate_page(gpa);
            }
        } else if work.take(VmmRequests::REVALIDATE_CODE) {
            self.observe_code_changes();
            self.revalidate();
        } else {
            return None;
        }
        Some(Outcome::Done)
    }

    fn return_to_vmm(&mut self) -> Option<Outcome> {
        let work = &mut self.cpu.pending_work;
        let exit = if work.take(VmmRequests::STOP) {
            Exit::Stop
        } else if work.take(VmmRequests::BUS) {
            Exit::Bus
        } else if work.take(VmmRequests::SPINNING) {
            Exit::Pause
        } else if self.is_signaled(Signals::KICK) {
            self.cpu.signals.lower(Signals::KICK);
            Exit::Kick
        } else {
            return None;
        };
        Some(Outcome::Exit(exit))
    }

    /// The VMM has to invalidate the pages that a device has written before the interrupt that
    /// announces the write is delivered.
    fn observe_device_write(&mut self) -> Option<Outcome> {
        self.is_signaled(Signals::DMA).then(|| {
            self.cpu.signals.lower(Signals::DMA);
            Outcome::Exit(Exit::Bus)
        })
    }

    /// The run ends at its limit exactly: below it, instructions run alone where a block would pass
    /// it. It also ends before an event, since one can follow another without end (see
    /// `Cpu::raise`). A halted processor that nothing wakes reports that it is halted.
    fn end_run(&self) -> Option<Outcome> {
        let ends = self.cpu.icount >= self.cpu.run_limit && !self.cpu.is_idle();
        ends.then_some(Outcome::Exit(Exit::Deadline))
    }
}
