//! Exceptions: the event for a fault, and the double fault if an event cannot be delivered (SDM
//! Vol. 3A 6.15, interrupt 8).

use crate::processor::cpu::Cpu;
use crate::processor::fault::Fault;
use crate::processor::interrupt::{Event, Source};
use crate::processor::pending_work::ArchEvents;
use crate::state::vector;

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
        // An exception takes a tick, so that time advances in a guest that only faults.
        self.icount += 1;
        self.pmu.idle += 1;
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
            // The run loop handles a code write itself.
            Fault::None | Fault::CodeWrite { .. } => return None,
        };
        Some(Event {
            vector,
            error,
            source: Source::Exception,
            // Faults push RF so that an instruction breakpoint does not hit twice; #DF is an abort
            // (SDM Vol. 3B 17.3.1.1).
            resume: vector != vector::DF,
            return_ip: self.rip,
            from: self.rip,
        })
    }

    /// Delivers an event or, if that fails, the exception that follows (SDM Vol. 3A table 6-5).
    pub(crate) fn raise(&mut self, mut event: Event) {
        // A fault of the new task behind a task gate counts as one of the delivery.
        while self.deliver(&event) != Ok(Ok(())) {
            let Some(second) = self.fault_event(false) else {
                self.pending_work.insert(ArchEvents::SHUTDOWN);
                return;
            };
            event = match (class(&event), class(&second)) {
                (Class::DoubleFault, Class::Contributory | Class::PageFault) => {
                    self.pending_work.insert(ArchEvents::SHUTDOWN);
                    return;
                }
                (Class::Contributory, Class::Contributory)
                | (Class::PageFault, Class::Contributory | Class::PageFault) => Event {
                    vector: vector::DF,
                    error: Some(0),
                    resume: false,
                    ..second
                },
                _ => second,
            };
        }
    }
}
