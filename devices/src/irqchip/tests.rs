use super::*;
use crate::bus::{BusDevice, ByteDevice, lock, shared};

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
fn lint0_can_deliver_a_fixed_interrupt() {
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
fn lowest_priority_delivery_selects_the_lowest_task_priority() {
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
fn odd_lapic_writes_are_ignored_and_odd_reads_are_answered() {
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
fn the_windows_access_the_controllers() {
    let chip = shared(IrqChip::new(1, false));
    let mut io = IoApicWindow::new(chip.clone());
    io.write(0, 0, &1u32.to_le_bytes());
    let mut data = [0; 4];
    io.read(0, 0x10, &mut data);
    assert_eq!(u32::from_le_bytes(data), 0x0017_0020);
    let mut pic = PicPorts::slave(chip.clone());
    pic.write_byte(0, 1, 0x5A);
    assert_eq!(pic.read_byte(0, 1).0, 0x5A);
    PicPorts::master(chip.clone()).write_byte(0, 1, 0xEF);
    IrqLine::new(chip.clone(), 3).pulse();
    assert!(!lock(&chip).intr_pending(0), "masked");
    IrqLine::new(chip.clone(), 4).pulse();
    assert!(lock(&chip).intr_pending(0));
}

#[test]
fn restored_controllers_keep_the_levels_of_their_inputs() {
    let chip = shared(smp(1));
    redirect(&mut lock(&chip), 5, 0x8041, 0);
    lock(&chip).set_irq(5, true);
    let state = lock(&chip).state();

    let restored = shared(IrqChip::new(1, false));
    let mut line = IrqLine::new(restored.clone(), 5);
    line.restore(true);
    lock(&restored).restore(&state).unwrap();
    assert_eq!(lock(&restored).state(), state);
    assert_eq!(lock(&restored).acknowledge(0), Some(0x41));
    lapic(&mut lock(&restored), 0, 0xB0, 0);
    assert_eq!(lock(&restored).acknowledge(0), Some(0x41), "still asserted");
    assert_eq!(line.set(false), Effects::INTERRUPTS);
    lapic(&mut lock(&restored), 0, 0xB0, 0);
    assert_eq!(lock(&restored).acknowledge(0), None);
}

#[test]
fn the_number_of_processors_has_to_match() {
    let error = IrqChip::new(1, false).restore(&smp(2).state()).unwrap_err();
    assert!(error.to_string().contains("2 local APICs"), "{error}");
}
