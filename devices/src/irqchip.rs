//! The interrupt controllers of the machine, wired together: 8259A pair, I/O APIC, one local APIC a
//! processor.

use std::fmt;

use crate::bus::{BusDevice, ByteDevice, Shared, lock, read_le32};
use crate::ioapic::IoApic;
use crate::lapic::{Action, DeliveryMode, Destination, LocalApic, Message, StartupEvent};
use crate::pic::{DualPic, PicPort};

/// The interrupt controllers. `cpu` counts processors from 0; it is also the local APIC ID.
///
/// After every call that takes `&mut self`, [`intr_pending`](Self::intr_pending) and
/// [`nmi_pending`](Self::nmi_pending) may have changed for any processor.
#[derive(Debug)]
pub struct IrqChip {
    pic: DualPic,
    ioapic: IoApic,
    lapics: Vec<LocalApic>,
    /// The 8259A's INT output as LINT0 of processor 0 last saw it.
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

    /// Delivers a message from processor `sender`, or from the I/O APIC. False if nobody took it.
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
    pub fn lapic_read(&mut self, cpu: usize, now: u64, offset: u64, data: &mut [u8]) {
        let value = self
            .lapic_mut(cpu)
            .map_or(0, |l| l.read(now, offset & !0xF));
        read_le32(value, offset & 0xF, data);
    }

    /// Writes to the local APIC page of `cpu`. Only aligned 32-bit writes have an effect (SDM Vol.
    /// 3A 10.4.1).
    pub fn lapic_write(&mut self, cpu: usize, now: u64, offset: u64, data: &[u8]) {
        let Ok(value) = <[u8; 4]>::try_from(data) else {
            return;
        };
        if offset & 0xF != 0 {
            return;
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

    /// True if the 8259A pair asks for `cpu`. Its output is wired to processor 0 alone.
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

    /// The interrupt-acknowledge cycle of `cpu`: the vector, or `None` if nothing is pending any
    /// more.
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
    pub fn tick(&mut self, now: u64) {
        self.lapics.iter_mut().for_each(|l| l.tick(now));
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

/// A device's wire into the interrupt controllers.
pub struct IrqLine {
    chip: Shared<IrqChip>,
    gsi: u32,
    level: bool,
}

impl IrqLine {
    /// A wire to `gsi`, not asserted.
    pub fn new(chip: Shared<IrqChip>, gsi: u32) -> Self {
        Self {
            chip,
            gsi,
            level: false,
        }
    }

    /// Drives the wire.
    pub fn set(&mut self, level: bool) {
        if level != self.level {
            self.level = level;
            lock(&self.chip).set_irq(self.gsi, level);
        }
    }

    /// Asserts and deasserts the wire: one edge.
    pub fn pulse(&mut self) {
        self.set(true);
        self.set(false);
    }
}

impl fmt::Debug for IrqLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IrqLine")
            .field("gsi", &self.gsi)
            .field("level", &self.level)
            .finish()
    }
}

/// The two ports of one 8259A (0x20 or 0xA0), or the ELCR pair (0x4D0), on the port bus.
#[derive(Debug)]
pub struct PicPorts {
    chip: Shared<IrqChip>,
    ports: [PicPort; 2],
}

impl PicPorts {
    /// Ports 0x20 and 0x21.
    pub fn master(chip: Shared<IrqChip>) -> Self {
        Self {
            chip,
            ports: [PicPort::MasterCommand, PicPort::MasterData],
        }
    }

    /// Ports 0xA0 and 0xA1.
    pub fn slave(chip: Shared<IrqChip>) -> Self {
        Self {
            chip,
            ports: [PicPort::SlaveCommand, PicPort::SlaveData],
        }
    }

    /// Ports 0x4D0 and 0x4D1.
    pub fn elcr(chip: Shared<IrqChip>) -> Self {
        Self {
            chip,
            ports: [PicPort::MasterElcr, PicPort::SlaveElcr],
        }
    }
}

impl ByteDevice for PicPorts {
    fn read_byte(&mut self, _now: u64, offset: u64) -> u8 {
        lock(&self.chip).pic_read(self.ports[(offset & 1) as usize])
    }

    fn write_byte(&mut self, _now: u64, offset: u64, value: u8) {
        lock(&self.chip).pic_write(self.ports[(offset & 1) as usize], value);
    }
}

/// The register window of the I/O APIC on the memory bus.
#[derive(Debug)]
pub struct IoApicWindow(Shared<IrqChip>);

impl IoApicWindow {
    /// The window of the I/O APIC in `chip`.
    pub fn new(chip: Shared<IrqChip>) -> Self {
        Self(chip)
    }
}

impl BusDevice for IoApicWindow {
    fn read(&mut self, _now: u64, offset: u64, data: &mut [u8]) {
        let value = lock(&self.0).ioapic.read(offset & !0xF);
        read_le32(value, offset & 0xF, data);
    }

    fn write(&mut self, _now: u64, offset: u64, data: &[u8]) {
        if let Ok(value) = <[u8; 4]>::try_from(data) {
            lock(&self.0).ioapic_write(offset, u32::from_le_bytes(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::shared;

    fn lapic(chip: &mut IrqChip, cpu: usize, offset: u64, value: u32) {
        chip.lapic_write(cpu, 0, offset, &value.to_le_bytes());
    }

    fn redirect(chip: &mut IrqChip, pin: u32, low: u32, high: u32) {
        for (index, value) in [(0x11 + pin * 2, high), (0x10 + pin * 2, low)] {
            chip.ioapic_write(0, index);
            chip.ioapic_write(0x10, value);
        }
    }

    fn smp(cpus: u8) -> IrqChip {
        let mut chip = IrqChip::new(cpus, false);
        (0..usize::from(cpus)).for_each(|cpu| lapic(&mut chip, cpu, 0xF0, 0x1FF));
        chip
    }

    #[test]
    fn the_8259a_reaches_the_processor_through_lint0() {
        let mut chip = IrqChip::new(2, false);
        for value in [0x30, 4, 1, 0] {
            if value == 0x30 {
                chip.pic_write(PicPort::MasterCommand, 0x11);
            }
            chip.pic_write(PicPort::MasterData, value);
        }
        chip.set_irq(0, true);
        assert!(chip.intr_pending(0));
        assert!(
            !chip.intr_pending(1),
            "wired to the bootstrap processor only"
        );
        lapic(&mut chip, 0, 0x350, 0x1_0700);
        assert!(!chip.intr_pending(0), "LINT0 masked");
        assert_eq!(chip.acknowledge(0), None);
        lapic(&mut chip, 0, 0x350, 0x700);
        assert_eq!(chip.acknowledge(0), Some(0x30));
        assert!(!chip.intr_pending(0));
    }

    #[test]
    fn lint0_as_a_fixed_interrupt() {
        // "Virtual wire IRQ", the first fallback of Linux's timer check.
        let mut chip = IrqChip::new(1, false);
        chip.pic_write(PicPort::MasterData, 0xFE);
        lapic(&mut chip, 0, 0x350, 0x33);
        chip.set_irq(0, true);
        chip.set_irq(0, false);
        assert_eq!(chip.acknowledge(0), Some(0x33));
    }

    #[test]
    fn a_level_interrupt_comes_back_after_eoi_until_deasserted() {
        let mut chip = smp(1);
        redirect(&mut chip, 5, 0x8041, 0);
        chip.set_irq(5, true);
        assert_eq!(chip.acknowledge(0), Some(0x41));
        assert!(!chip.intr_pending(0));
        lapic(&mut chip, 0, 0xB0, 0);
        assert_eq!(chip.acknowledge(0), Some(0x41));
        chip.set_irq(5, false);
        lapic(&mut chip, 0, 0xB0, 0);
        assert!(!chip.intr_pending(0));
    }

    #[test]
    fn an_interrupt_waits_for_its_local_apic_to_be_enabled() {
        let mut chip = smp(1);
        lapic(&mut chip, 0, 0xF0, 0xFF);
        redirect(&mut chip, 5, 0x8041, 0);
        chip.set_irq(5, true);
        assert!(!chip.intr_pending(0));
        lapic(&mut chip, 0, 0xF0, 0x1FF);
        assert_eq!(chip.acknowledge(0), Some(0x41));
    }

    #[test]
    fn ipis_reach_their_destinations() {
        let mut chip = smp(3);
        let pending = |chip: &IrqChip| (0..3).map(|c| chip.intr_pending(c)).collect::<Vec<_>>();
        let table = [
            (0x0100_0000, 0x40, [false, true, false]),
            (0, 0x4_0040, [true, false, false]),
            (0, 0x8_0040, [true, true, true]),
            (0, 0xC_0040, [false, true, true]),
            (0xFF00_0000, 0x40, [true, true, true]),
        ];
        for (high, low, expected) in table {
            lapic(&mut chip, 0, 0x310, high);
            lapic(&mut chip, 0, 0x300, low);
            assert_eq!(pending(&chip), expected, "{low:#x}");
            for cpu in 0..3 {
                if chip.acknowledge(cpu).is_some() {
                    lapic(&mut chip, cpu, 0xB0, 0);
                }
            }
        }
        lapic(&mut chip, 0, 0x300, 0xC_0400);
        assert_eq!(
            (0..3).map(|c| chip.take_nmi(c)).collect::<Vec<_>>(),
            [false, true, true]
        );
        lapic(&mut chip, 0, 0x310, 0x0200_0000);
        lapic(&mut chip, 0, 0x300, 0x4500);
        lapic(&mut chip, 0, 0x300, 0x0608);
        assert_eq!(chip.take_startup_event(2), Some(StartupEvent::Init));
        assert_eq!(chip.take_startup_event(2), Some(StartupEvent::StartUp(8)));
    }

    #[test]
    fn lowest_priority_picks_the_idlest() {
        let mut chip = smp(2);
        for cpu in 0..2 {
            lapic(&mut chip, cpu, 0xD0, 0x0100_0000 << cpu);
        }
        chip.set_cr8(0, 3);
        redirect(&mut chip, 4, 0x0944, 0x0300_0000);
        chip.set_irq(4, true);
        assert!(!chip.intr_pending(0));
        assert_eq!(chip.acknowledge(1), Some(0x44));
    }

    #[test]
    fn odd_sized_lapic_accesses() {
        let mut chip = IrqChip::new(1, false);
        chip.lapic_write(0, 0, 0x80, &[0x20]);
        chip.lapic_write(0, 0, 0x84, &[0x20, 0, 0, 0]);
        assert_eq!(chip.cr8(0), 0);
        let mut data = [0xEE; 8];
        chip.lapic_read(0, 0, 0x30, &mut data);
        assert_eq!(data, [0x14, 0, 5, 0, 0, 0, 0, 0]);
        chip.lapic_read(0, 0, 0x32, &mut data[..1]);
        assert_eq!(data[0], 5);
        chip.lapic_read(7, 0, 0x30, &mut data[..4]);
        assert_eq!(data[..4], [0; 4], "no such processor");
    }

    #[test]
    fn the_windows_reach_the_chip() {
        let chip = shared(IrqChip::new(1, false));
        let mut io = IoApicWindow::new(chip.clone());
        io.write(0, 0, &1u32.to_le_bytes());
        let mut data = [0; 4];
        io.read(0, 0x10, &mut data);
        assert_eq!(u32::from_le_bytes(data), 0x0017_0020);
        let mut pic = PicPorts::slave(chip.clone());
        pic.write_byte(0, 1, 0x5A);
        assert_eq!(pic.read_byte(0, 1), 0x5A);
        PicPorts::master(chip.clone()).write_byte(0, 1, 0xEF);
        IrqLine::new(chip.clone(), 3).pulse();
        assert!(!lock(&chip).intr_pending(0), "masked");
        IrqLine::new(chip.clone(), 4).pulse();
        assert!(lock(&chip).intr_pending(0));
    }
}
