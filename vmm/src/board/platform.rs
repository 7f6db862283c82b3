//! The board as one processor accesses it.

use std::sync::{Arc, MutexGuard};

use vbts_cpu::{Platform, Signals, Startup};
use vbts_devices::irqchip::IrqChip;
use vbts_devices::lapic::StartupEvent;
use vbts_devices::lock;

use super::Board;

/// The board as one processor accesses it.
#[derive(Debug, Clone)]
pub struct VcpuPlatform {
    board: Arc<Board>,
    cpu: usize,
}

impl VcpuPlatform {
    /// The board as processor `cpu` accesses it.
    pub fn new(board: Arc<Board>, cpu: usize) -> Self {
        Self { board, cpu }
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The lines into the processor.
    pub fn signals(&self) -> Arc<Signals> {
        self.board
            .signals
            .get(self.cpu)
            .cloned()
            .unwrap_or_default()
    }

    fn chip(&self) -> MutexGuard<'_, IrqChip> {
        lock(&self.board.chip)
    }

    /// The offset in the local APIC's page, if `gpa` lies in it.
    fn lapic_offset(&self, gpa: u64) -> Option<u64> {
        let base = self.chip().lapic_base(self.cpu)?;
        Some(gpa.wrapping_sub(base)).filter(|offset| *offset < 0x1000)
    }
}

impl Platform for VcpuPlatform {
    fn mmio_read(&self, now: u64, gpa: u64, data: &mut [u8]) {
        let effects = match self.lapic_offset(gpa) {
            Some(offset) => self.chip().lapic_read(self.cpu, now, offset, data),
            None => self.board.mmio.read(now, gpa, data),
        };
        self.board.apply(effects);
    }

    fn mmio_write(&self, now: u64, gpa: u64, data: &[u8]) {
        let effects = match self.lapic_offset(gpa) {
            Some(offset) => self.chip().lapic_write(self.cpu, now, offset, data),
            None => self.board.mmio.write(now, gpa, data),
        };
        self.board.apply(effects);
    }

    fn pio_read(&self, now: u64, port: u16, data: &mut [u8]) {
        let effects = self.board.ports.read(now, port.into(), data);
        self.board.apply(effects);
    }

    fn pio_write(&self, now: u64, port: u16, data: &[u8]) {
        let effects = self.board.ports.write(now, port.into(), data);
        self.board.apply(effects);
    }

    fn acknowledge_interrupt(&self, _now: u64) -> Option<u8> {
        let vector = self.chip().acknowledge(self.cpu);
        self.board.update_signals();
        vector
    }

    fn take_nmi(&self) -> bool {
        let taken = self.chip().take_nmi(self.cpu);
        self.board.update_signals();
        taken
    }

    fn give_back_nmi(&self) {
        self.chip().give_back_nmi(self.cpu);
        self.board.update_signals();
    }

    fn take_startup(&self) -> Option<Startup> {
        let event = self.chip().take_startup_event(self.cpu);
        self.board.update_signals();
        event.map(|event| match event {
            StartupEvent::Init => Startup::Init,
            StartupEvent::StartUp(vector) => Startup::StartUp(vector),
        })
    }

    fn performance_interrupt(&self, _now: u64) {
        self.chip().pmi(self.cpu);
        self.board.update_signals();
    }

    fn cr8(&self) -> u64 {
        self.chip().cr8(self.cpu)
    }

    fn set_cr8(&self, _now: u64, value: u64) {
        self.chip().set_cr8(self.cpu, value);
        self.board.update_signals();
    }

    fn apic_rdmsr(&self, now: u64, msr: u32) -> Option<u64> {
        self.chip().rdmsr(self.cpu, now, msr)
    }

    fn apic_wrmsr(&self, now: u64, msr: u32, value: u64) -> Option<()> {
        let done = self.chip().wrmsr(self.cpu, now, msr, value);
        self.board.update_signals();
        done
    }
}
