//! The interrupt controllers of the machine, wired together: an 8259A pair, an I/O APIC, and one
//! local APIC for each processor.

mod line;
mod ports;

pub use line::IrqLine;
pub use ports::{IoApicWindow, PicPorts};

use serde::{Deserialize, Serialize};

use crate::bus::read_le32;
use crate::ioapic::{IoApic, IoApicState};
use crate::lapic::{
    Action, DeliveryMode, Destination, LapicState, LocalApic, Message, StartupEvent,
};
use crate::pic::{DualPic, PicPort, PicState};
use crate::{Effects, StateError};

/// State of the interrupt controllers. The levels of their inputs follow from the states of the
/// devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqChipState {
    pic: PicState,
    ioapic: IoApicState,
    /// By number of the processor.
    lapics: Vec<LapicState>,
}

/// The interrupt controllers. `cpu` counts processors from 0; it is also the local APIC ID.
///
/// After every call that takes `&mut self`, [`intr_pending`](Self::intr_pending) and
/// [`nmi_pending`](Self::nmi_pending) may have changed for any processor.
#[derive(Debug)]
pub struct IrqChip {
    pic: DualPic,
    ioapic: IoApic,
    lapics: Vec<LocalApic>,
    /// The level of the 8259A's INT output, which is LINT0 of processor 0.
    intr: bool,
}

impl IrqChip {
    /// Controllers for `cpus` processors (at least one) in the state of "virtual wire mode", which
    /// a BIOS leaves behind. `tsc_deadline` is CPUID.1:ECX.TSC_DEADLINE\[24\].
    pub fn new(cpus: u8, tsc_deadline: bool) -> Self {
        let mut lapics: Vec<_> = (0..cpus.max(1))
            .map(|id| LocalApic::new(id, id == 0, tsc_deadline))
            .collect();
        if let Some(bsp) = lapics.first_mut() {
            bsp.set_virtual_wire_mode();
        }
        Self {
            pic: DualPic::new(),
            ioapic: IoApic::new(),
            lapics,
            intr: false,
        }
    }

    /// The state of all controllers.
    pub fn state(&self) -> IrqChipState {
        IrqChipState {
            pic: self.pic.state(),
            ioapic: self.ioapic.state(),
            lapics: self.lapics.iter().map(LocalApic::state).collect(),
        }
    }

    /// Puts all controllers into `state`. Their inputs keep the levels that they have: each device
    /// sets its own when its state is restored.
    ///
    /// # Errors
    /// The controllers never have such a state, or it is that of a machine with another number of
    /// processors. The controllers may then be in a mixed state.
    pub fn restore(&mut self, state: &IrqChipState) -> Result<(), StateError> {
        let (saved, present) = (state.lapics.len(), self.lapics.len());
        if saved != present {
            return Err(StateError::restore(
                "the interrupt controllers",
                format!("it has {saved} local APICs, and the machine has {present}"),
            ));
        }
        self.pic.restore(&state.pic)?;
        self.ioapic.restore(&state.ioapic)?;
        for (lapic, state) in self.lapics.iter_mut().zip(&state.lapics) {
            lapic.restore(state)?;
        }
        self.intr = self.pic.intr();
        Ok(())
    }

    /// Sets the level of an input without detecting an edge.
    fn restore_line(&mut self, gsi: u32, level: bool) {
        if let Ok(input @ 0..16) = u8::try_from(gsi) {
            self.pic.restore_line(input, level);
        }
        self.ioapic.restore_line(gsi, level);
    }

    /// Drives an interrupt line: pin `gsi` of the I/O APIC and, below 16, the 8259A input of that
    /// number.
    pub fn set_irq(&mut self, gsi: u32, level: bool) {
        if let Ok(input @ 0..16) = u8::try_from(gsi) {
            self.pic.set_line(input, level);
            self.update_intr();
        }
        self.ioapic.set_line(gsi, level);
        self.service_ioapic();
    }

    /// Whether software has unmasked pin `gsi` of the I/O APIC.
    pub fn is_unmasked(&self, gsi: u32) -> bool {
        self.ioapic.is_unmasked(gsi)
    }

    /// Passes the 8259A's INT output on to LINT0 of the bootstrap processor.
    fn update_intr(&mut self) {
        let level = self.pic.intr();
        if level
            && !self.intr
            && let Some(bsp) = self.lapics.first_mut()
        {
            bsp.lint0_edge();
        }
        self.intr = level;
    }

    fn service_ioapic(&mut self) {
        let mut from = 0;
        while let Some((pin, message)) = self.ioapic.next_message(from) {
            if self.deliver(None, message) {
                self.ioapic.delivered(pin);
            }
            from = pin + 1;
        }
    }

    /// Delivers a message from processor `sender`, or from the I/O APIC if that is `None`. Returns
    /// `false` if no local APIC accepts it.
    fn deliver(&mut self, sender: Option<usize>, message: Message) -> bool {
        let addressed = |(cpu, lapic): (usize, &LocalApic)| match message.destination {
            Destination::Oneself => Some(cpu) == sender,
            Destination::Others => Some(cpu) != sender,
            destination => lapic.matches(destination),
        };
        if message.mode == DeliveryMode::LowestPriority {
            let chosen = self
                .lapics
                .iter()
                .enumerate()
                .filter(|(cpu, lapic)| addressed((*cpu, *lapic)))
                .min_by_key(|(cpu, lapic)| (lapic.arbitration_priority(), *cpu))
                .map(|(cpu, _)| cpu);
            return chosen
                .and_then(|cpu| self.lapics.get_mut(cpu))
                .is_some_and(|l| l.accept(message.mode, message.vector, message.level));
        }
        let mut taken = false;
        for (cpu, lapic) in self.lapics.iter_mut().enumerate() {
            if addressed((cpu, &*lapic)) {
                taken |= lapic.accept(message.mode, message.vector, message.level);
            }
        }
        taken
    }

    fn lapic(&self, cpu: usize) -> Option<&LocalApic> {
        self.lapics.get(cpu)
    }

    fn lapic_mut(&mut self, cpu: usize) -> Option<&mut LocalApic> {
        self.lapics.get_mut(cpu)
    }

    /// Where `cpu` sees its local APIC's register page; `None` while IA32_APIC_BASE disables it.
    pub fn lapic_base(&self, cpu: usize) -> Option<u64> {
        self.lapic(cpu)?.base()
    }

    /// Reads `data.len()` bytes at `offset` in the local APIC page of `cpu`. Registers are the
    /// first four bytes of every sixteen.
    pub fn lapic_read(&mut self, cpu: usize, now: u64, offset: u64, data: &mut [u8]) -> Effects {
        let value = self
            .lapic_mut(cpu)
            .map_or(0, |l| l.read(now, offset & !0xF));
        read_le32(value, offset & 0xF, data);
        // The timer may have expired, and a register that does not exist is an error interrupt.
        Effects::INTERRUPTS
    }

    /// Writes to the local APIC page of `cpu`. Only aligned 32-bit writes have an effect (SDM Vol.
    /// 3A 10.4.1).
    pub fn lapic_write(&mut self, cpu: usize, now: u64, offset: u64, data: &[u8]) -> Effects {
        let Ok(value) = <[u8; 4]>::try_from(data) else {
            return Effects::empty();
        };
        if offset & 0xF != 0 {
            return Effects::empty();
        }
        let action = self
            .lapic_mut(cpu)
            .and_then(|l| l.write(now, offset, u32::from_le_bytes(value)));
        match action {
            Some(Action::Ipi(message)) => {
                self.deliver(Some(cpu), message);
            }
            Some(Action::EoiBroadcast(vector)) => self.ioapic.eoi(vector),
            None => {}
        }
        // An EOI, or an APIC that was just enabled, may let a waiting interrupt through.
        self.service_ioapic();
        Effects::INTERRUPTS
    }

    /// Reads an MSR of the local APIC of `cpu`; `None` means #GP.
    pub fn rdmsr(&mut self, cpu: usize, now: u64, msr: u32) -> Option<u64> {
        self.lapic_mut(cpu)?.rdmsr(now, msr)
    }

    /// Writes an MSR of the local APIC of `cpu`; `None` means #GP.
    pub fn wrmsr(&mut self, cpu: usize, now: u64, msr: u32, value: u64) -> Option<()> {
        self.lapic_mut(cpu)?.wrmsr(now, msr, value)?;
        self.service_ioapic();
        Some(())
    }

    /// CR8 of `cpu`.
    pub fn cr8(&self, cpu: usize) -> u64 {
        self.lapic(cpu).map_or(0, LocalApic::cr8)
    }

    /// Writes CR8 of `cpu`.
    pub fn set_cr8(&mut self, cpu: usize, value: u64) {
        if let Some(l) = self.lapic_mut(cpu) {
            l.set_cr8(value);
        }
    }

    /// A performance-monitoring interrupt on `cpu`, delivered as its LVTPC says.
    pub fn pmi(&mut self, cpu: usize) {
        if let Some(l) = self.lapic_mut(cpu) {
            l.pmi();
        }
    }

    /// True if the 8259A pair requests an interrupt of `cpu`. Its output is wired to processor 0
    /// only.
    fn extint_pending(&self, cpu: usize) -> bool {
        cpu == 0 && self.intr && self.lapic(cpu).is_some_and(LocalApic::takes_extint)
    }

    /// True if `cpu` would take a maskable interrupt now, IF permitting.
    pub fn intr_pending(&self, cpu: usize) -> bool {
        self.extint_pending(cpu)
            || self
                .lapic(cpu)
                .is_some_and(|l| l.pending_vector().is_some())
    }

    /// The interrupt-acknowledge cycle of `cpu`: the vector, or `None` if no interrupt is pending
    /// any more.
    pub fn acknowledge(&mut self, cpu: usize) -> Option<u8> {
        if self.extint_pending(cpu) {
            let vector = self.pic.acknowledge();
            self.update_intr();
            return Some(vector);
        }
        self.lapic_mut(cpu)?.ack()
    }

    /// True if an NMI waits for `cpu`.
    pub fn nmi_pending(&self, cpu: usize) -> bool {
        self.lapic(cpu).is_some_and(LocalApic::nmi_pending)
    }

    /// Hands the pending NMI, if any, to `cpu`.
    pub fn take_nmi(&mut self, cpu: usize) -> bool {
        self.lapic_mut(cpu).is_some_and(LocalApic::take_nmi)
    }

    /// Takes an NMI back that was taken and not delivered.
    pub fn give_back_nmi(&mut self, cpu: usize) {
        if let Some(lapic) = self.lapic_mut(cpu) {
            lapic.give_back_nmi();
        }
    }

    /// True if an INIT or start-up event waits for `cpu`.
    pub fn startup_pending(&self, cpu: usize) -> bool {
        self.lapic(cpu).is_some_and(LocalApic::startup_pending)
    }

    /// Hands the next INIT or start-up event to `cpu`.
    pub fn take_startup_event(&mut self, cpu: usize) -> Option<StartupEvent> {
        self.lapic_mut(cpu)?.take_startup_event()
    }

    /// When [`tick`](Self::tick) has to be called next, in ns.
    pub fn next_deadline(&self) -> Option<u64> {
        self.lapics
            .iter()
            .filter_map(LocalApic::next_deadline)
            .min()
    }

    /// Brings the local APIC timers up to `now`.
    pub fn tick(&mut self, now: u64) -> Effects {
        self.lapics.iter_mut().for_each(|l| l.tick(now));
        Effects::INTERRUPTS
    }

    fn pic_read(&mut self, port: PicPort) -> u8 {
        let value = self.pic.read(port);
        self.update_intr();
        value
    }

    fn pic_write(&mut self, port: PicPort, value: u8) {
        self.pic.write(port, value);
        self.update_intr();
    }

    fn ioapic_write(&mut self, offset: u64, value: u32) {
        self.ioapic.write(offset, value);
        self.service_ioapic();
    }
}

#[cfg(test)]
mod tests;
