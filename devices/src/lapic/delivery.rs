//! Delivery of interrupts: acceptance, priorities, acknowledgement (SDM Vol. 3A 10.5.1, 10.6,
//! 10.8).

use super::registers::{
    ESR_RECEIVE_ILLEGAL_VECTOR, ESR_SEND_ILLEGAL_VECTOR, LVT_MASKED, LVT_TRIGGER_LEVEL, Lvt,
};
use super::{Action, DeliveryMode, Destination, LocalApic, Message};

impl LocalApic {
    pub(super) fn send_ipi(&mut self) -> Option<Action> {
        let low = self.state.icr as u32;
        let mode = DeliveryMode::from_bits(low)?;
        let vector = low as u8;
        let (assert, level_triggered) = (low & 1 << 14 != 0, low & LVT_TRIGGER_LEVEL != 0);
        match mode {
            // INIT level de-assert is not supported since the Pentium 4 (SDM Vol. 3A 10.6.1).
            DeliveryMode::Init if level_triggered && !assert => return None,
            DeliveryMode::Fixed | DeliveryMode::LowestPriority if vector < 16 => {
                self.error(ESR_SEND_ILLEGAL_VECTOR);
                return None;
            }
            // An 8259A interrupt cannot be sent as an IPI.
            DeliveryMode::ExtInt | DeliveryMode::Smi => return None,
            _ => {}
        }
        let to = (self.state.icr >> 56) as u8;
        let destination = match low >> 18 & 3 {
            0 if low & 1 << 11 == 0 => Destination::Physical(to),
            0 => Destination::Logical(to),
            1 => Destination::Oneself,
            2 => Destination::All,
            _ => Destination::Others,
        };
        // IPIs are edge-triggered regardless of the trigger-mode bit, except INIT de-assert.
        Some(Action::Ipi(Message {
            destination,
            mode,
            vector,
            level: false,
        }))
    }

    pub(super) fn eoi(&mut self) -> Option<Action> {
        let vector = self.state.isr.highest()?;
        self.state.isr.set(vector, false);
        self.state
            .tmr
            .get(vector)
            .then_some(Action::EoiBroadcast(vector))
    }

    pub(super) fn error(&mut self, bit: u32) {
        let known = self.state.errors & bit != 0;
        self.state.errors |= bit;
        if !known {
            self.deliver_local(Lvt::Error);
        }
    }

    /// True if a message to `destination` (physical or logical) is for this APIC (SDM Vol. 3A
    /// 10.6.2).
    pub(crate) fn matches(&self, destination: Destination) -> bool {
        match destination {
            Destination::Physical(id) => id == 0xFF || id == self.state.id,
            Destination::Logical(0xFF) => true,
            Destination::Logical(mda) => {
                let id = (self.state.ldr >> 24) as u8;
                match self.state.dfr >> 28 {
                    0xF => id & mda != 0,
                    0x0 => id >> 4 == mda >> 4 && id & mda & 0xF != 0,
                    _ => false,
                }
            }
            Destination::Oneself | Destination::All | Destination::Others => true,
        }
    }

    /// Accepts an interrupt message. Returns `false` if this APIC cannot accept it now.
    pub(crate) fn accept(&mut self, mode: DeliveryMode, vector: u8, level: bool) -> bool {
        if !self.globally_enabled() {
            return false;
        }
        match mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                if !self.software_enabled() {
                    return false;
                }
                if vector < 16 {
                    // Reported to software, and treated as delivered (SDM Vol. 3A 10.5.3).
                    self.error(ESR_RECEIVE_ILLEGAL_VECTOR);
                    return true;
                }
                self.state.irr.set(vector, true);
                self.state.tmr.set(vector, level);
            }
            DeliveryMode::Nmi => self.state.nmi = true,
            DeliveryMode::Init => {
                self.reset();
                self.state.init = true;
                self.state.startup = None;
            }
            DeliveryMode::StartUp => self.state.startup = Some(vector),
            // There is no SMM, and only LINT0 is wired to the 8259A.
            DeliveryMode::Smi | DeliveryMode::ExtInt => return false,
        }
        true
    }

    /// Delivers the interrupt of an LVT entry. Returns `false` if the entry is masked.
    pub(super) fn deliver_local(&mut self, entry: Lvt) -> bool {
        let lvt = self.lvt(entry);
        if lvt & LVT_MASKED != 0 {
            return false;
        }
        let mode = match entry {
            Lvt::Timer | Lvt::Error => DeliveryMode::Fixed,
            _ => DeliveryMode::from_bits(lvt).unwrap_or(DeliveryMode::Smi),
        };
        if entry == Lvt::Error && lvt & 0xFF < 16 {
            // The report of this error would cause the same error again.
            self.state.errors |= ESR_RECEIVE_ILLEGAL_VECTOR;
            return true;
        }
        self.accept(mode, lvt as u8, false);
        true
    }

    /// The performance-monitoring interrupt. Delivery masks the LVT entry (SDM Vol. 3A 10.5.1).
    pub fn pmi(&mut self) {
        if self.deliver_local(Lvt::PerformanceCounter) {
            *self.lvt_mut(Lvt::PerformanceCounter) |= LVT_MASKED;
        }
    }

    /// True if LINT0 passes the 8259A's INTR to the processor: as ExtINT, or because the APIC is
    /// disabled and the pin is INTR (SDM Vol. 3A 10.4.3).
    pub(crate) fn takes_extint(&self) -> bool {
        !self.globally_enabled() || self.lvt(Lvt::Lint0) & (LVT_MASKED | 0x700) == 0x700
    }

    /// An edge on LINT0 when it is not programmed as ExtINT.
    pub(crate) fn lint0_edge(&mut self) {
        if self.globally_enabled() && !self.takes_extint() {
            self.deliver_local(Lvt::Lint0);
        }
    }

    /// Processor-priority register (SDM Vol. 3A 10.8.3.1).
    pub(super) fn ppr(&self) -> u8 {
        let in_service = self.state.isr.highest().unwrap_or(0);
        if self.state.tpr >> 4 >= in_service >> 4 {
            self.state.tpr
        } else {
            in_service & 0xF0
        }
    }

    /// Arbitration-priority register, by which lowest-priority delivery chooses (SDM Vol. 3A
    /// 10.6.2.4).
    pub(crate) fn arbitration_priority(&self) -> u8 {
        let requested = self.state.irr.highest().unwrap_or(0) >> 4;
        let in_service = self.state.isr.highest().unwrap_or(0) >> 4;
        let task = self.state.tpr >> 4;
        if task >= requested && task > in_service {
            self.state.tpr
        } else {
            task.max(in_service).max(requested) << 4
        }
    }

    /// The vector that [`ack`](Self::ack) would return now.
    pub fn pending_vector(&self) -> Option<u8> {
        if !self.software_enabled() {
            return None;
        }
        self.state
            .irr
            .highest()
            .filter(|v| v >> 4 > self.ppr() >> 4)
    }

    /// The interrupt-acknowledge cycle: moves the pending vector from IRR to ISR.
    pub fn ack(&mut self) -> Option<u8> {
        let vector = self.pending_vector()?;
        self.state.irr.set(vector, false);
        self.state.isr.set(vector, true);
        Some(vector)
    }
}
