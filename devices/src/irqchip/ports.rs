//! The interrupt controllers as devices on the buses.

use super::IrqChip;
use crate::Effects;
use crate::bus::{BusDevice, ByteDevice, Shared, lock, read_le32};
use crate::pic::PicPort;

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
    fn read_byte(&mut self, _now: u64, offset: u64) -> (u8, Effects) {
        let value = lock(&self.chip).pic_read(self.ports[(offset & 1) as usize]);
        (value, Effects::INTERRUPTS)
    }

    fn write_byte(&mut self, _now: u64, offset: u64, value: u8) -> Effects {
        lock(&self.chip).pic_write(self.ports[(offset & 1) as usize], value);
        Effects::INTERRUPTS
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
    fn read(&mut self, _now: u64, offset: u64, data: &mut [u8]) -> Effects {
        let value = lock(&self.0).ioapic.read(offset & !0xF);
        read_le32(value, offset & 0xF, data);
        Effects::empty()
    }

    fn write(&mut self, _now: u64, offset: u64, data: &[u8]) -> Effects {
        if let Ok(value) = <[u8; 4]>::try_from(data) {
            lock(&self.0).ioapic_write(offset, u32::from_le_bytes(value));
        }
        Effects::INTERRUPTS
    }
}
