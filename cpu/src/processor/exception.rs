//! Exceptions: the event for a fault, and the double fault if an event cannot be delivered (SDM
//! Vol. 3A 6.15, interrupt 8).

use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::interrupt::{Event, Source};
use crate::processor::pending_work::ArchEvents;
use crate::state::{PendingEvent, vector};

/// The classes of SDM Vol. 3A table 6-4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

fn class(event: &Event) -> Class {
    if event.source != Source::Exception {
        return Class::Benign;
    }
    match event.vector {
        vector::DE | vector::TS | vector::NP | vector::SS | vector::GP => Class::Contributory,
        vector::PF => Class::PageFault,
        vector::DF => Class::DoubleFault,
        _ => Class::Benign,
    }
}

impl Cpu {
    /// Delivers the exception for the fault of the instruction at RIP. `stack`: its memory operand
    /// was relative to SS.
    pub(crate) fn raise_fault(&mut self, stack: bool) {
        // The fault replaces a trap of the instruction, such as that of a data breakpoint.
        self.drop_debug_trap();
        match self.fault_event(stack) {
            Some(event) => self.raise(event),
            None => self.pending_work.insert(ArchEvents::SHUTDOWN),
        }
    }

    /// The exception for `self.fault`. `None`: there is none, and the processor shuts down.
    fn fault_event(&mut self, stack: bool) -> Option<Event> {
        let (vector, error) = match self.fault {
            Fault::Exception { vector, error } => (vector, error),
            Fault::Page { la, error } => {
                self.sys.cr2 = la;
                (vector::PF, Some(error))
            }
            Fault::NonCanonical if stack => (vector::SS, Some(0)),
            // The result of a fetch from a device depends on the platform. #GP is precise. A
            // machine check would be imprecise, and fatal while CR4.MCE is clear.
            Fault::NonCanonical | Fault::Unexecutable => (vector::GP, Some(0)),
            // The run loop handles a code write and an access to a device itself.
            Fault::None | Fault::CodeWrite { .. } | Fault::Device => return None,
        };
        Some(self.exception_event(vector, error))
    }

    /// An exception at RIP, other than a debug trap.
    fn exception_event(&self, vector: u8, error: Option<u32>) -> Event {
        Event {
            vector,
            error,
            source: Source::Exception,
            // Faults push RF so that an instruction breakpoint does not hit twice; #DF is an abort
            // (SDM Vol. 3B 17.3.1.1).
            resume: vector != vector::DF,
            return_ip: self.rip,
            from: self.rip,
        }
    }

    /// Delivers an exception at RIP.
    pub(crate) fn raise_exception(&mut self, vector: u8, error: Option<u32>) {
        self.raise(self.exception_event(vector, error));
    }

    /// Delivers an event or, if that fails, does what follows (SDM Vol. 3A table 6-5).
    ///
    /// An event can follow another without end and without an instruction between them: while #AC
    /// is delivered on an unaligned stack, #AC is raised, which is benign and handled serially. A
    /// watchpoint or an instruction breakpoint in the handler of #DB, and an interrupt that is
    /// asserted again at once, do the same. A processor does this until a reset (CVE-2015-5307,
    /// CVE-2015-8104). Here each event takes a tick, and only a double fault follows within this
    /// function, once: an exception that is handled serially becomes pending, and the run loop
    /// looks at its limit and at its signals before each event.
    pub(crate) fn raise(&mut self, event: Event) {
        // Time also advances in a guest that executes no instruction.
        self.icount += 1;
        self.pmu.idle += 1;
        let Some(second) = self.try_to_deliver(&event) else {
            return;
        };
        match (class(&event), class(&second)) {
            (Class::DoubleFault, Class::Contributory | Class::PageFault) => {
                self.pending_work.insert(ArchEvents::SHUTDOWN);
            }
            (Class::Contributory, Class::Contributory)
            | (Class::PageFault, Class::Contributory | Class::PageFault) => {
                self.raise_exception(vector::DF, Some(0));
            }
            _ => self.accept_exception(second.vector, second.error),
        }
    }

    /// Delivers an event. Returns the exception that its delivery raises, if it does. A fault of
    /// the new task behind a task gate counts as one of the delivery.
    fn try_to_deliver(&mut self, event: &Event) -> Option<Event> {
        if self.deliver(event) == Ok(Ok(())) {
            return None;
        }
        let second = self.fault_event(false);
        if second.is_none() {
            self.pending_work.insert(ArchEvents::SHUTDOWN);
        }
        second
    }

    /// Whether an exception is pending that the delivery of another event has raised.
    pub fn has_accepted_exception(&self) -> bool {
        matches!(self.accepted, Some(PendingEvent::Exception { .. }))
    }

    /// Makes an exception pending that is delivered before the next instruction. It replaces a
    /// debug trap of the new task behind a task gate.
    fn accept_exception(&mut self, vector: u8, error: Option<u32>) {
        self.drop_debug_trap();
        self.accepted = Some(PendingEvent::Exception { vector, error });
        self.pending_work.insert(ArchEvents::ACCEPTED);
    }
}
