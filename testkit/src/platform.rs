//! The machine around a processor under test. Its only device raises interrupts when a program
//! asks for them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vbts_cpu::{Platform, Signals};

/// A port. A write to it raises the interrupt of the vector that is written.
pub const INTERRUPT_PORT: i32 = 0x80;
/// A port that raises an NMI.
pub const NMI_PORT: i32 = 0x81;
/// A port that keeps the bytes that are written: Bochs and QEMU print them.
pub const REPORT_PORT: i32 = 0xE9;
/// An MSR that cannot be read, and raises an interrupt when a program tries to.
pub const INTERRUPTING_MSR: u32 = 0x8FF;
/// The vector of that interrupt.
pub const INTERRUPTING_VECTOR: u8 = 0x60;

/// IA32_APIC_BASE.
const APIC_BASE: u32 = 0x1B;
/// IA32_TSC_DEADLINE.
const TSC_DEADLINE: u32 = 0x6E0;
/// The local APIC is on, at its usual address, on the bootstrap processor.
const APIC_BASE_AT_RESET: u64 = 0xFEE0_0900;

/// What a read returns that leads to no RAM and to no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenBus {
    /// All ones, as on a PC.
    #[default]
    Ones,
    /// A byte that depends on time and address, for programs that should see many values.
    Varying,
}

/// The platform of a small machine.
#[derive(Debug)]
pub struct TestPlatform {
    /// The lines into the processor.
    pub signals: Arc<Signals>,
    /// What reads without a device return.
    pub open_bus: OpenBus,
    vectors: Mutex<VecDeque<u8>>,
    nmi: AtomicBool,
    reported: Mutex<Vec<u8>>,
    /// How many performance-monitoring interrupts there were.
    pub performance_interrupts: AtomicU64,
    /// A performance-monitoring interrupt is an NMI, as LVTPC may have it.
    pub interrupt_is_nmi: AtomicBool,
    /// CR8.
    pub cr8: AtomicU64,
    /// IA32_APIC_BASE.
    pub apic_base: AtomicU64,
    /// IA32_TSC_DEADLINE.
    pub deadline: AtomicU64,
}

impl Default for TestPlatform {
    fn default() -> Self {
        Self {
            signals: Arc::default(),
            open_bus: OpenBus::default(),
            vectors: Mutex::default(),
            nmi: AtomicBool::default(),
            reported: Mutex::default(),
            performance_interrupts: AtomicU64::default(),
            interrupt_is_nmi: AtomicBool::default(),
            cr8: AtomicU64::default(),
            apic_base: AtomicU64::new(APIC_BASE_AT_RESET),
            deadline: AtomicU64::default(),
        }
    }
}

impl TestPlatform {
    /// Makes it as new.
    pub fn reset(&self) {
        let new = Self::default();
        self.signals.lower(u32::MAX);
        self.vectors.lock().unwrap().clear();
        self.reported.lock().unwrap().clear();
        for (flag, value) in [
            (&self.nmi, new.nmi),
            (&self.interrupt_is_nmi, new.interrupt_is_nmi),
        ] {
            flag.store(value.into_inner(), Ordering::Relaxed);
        }
        for (number, value) in [
            (&self.performance_interrupts, new.performance_interrupts),
            (&self.cr8, new.cr8),
            (&self.apic_base, new.apic_base),
            (&self.deadline, new.deadline),
        ] {
            number.store(value.into_inner(), Ordering::Relaxed);
        }
    }

    /// Raises an interrupt.
    pub fn interrupt(&self, vector: u8) {
        self.vectors.lock().unwrap().push_back(vector);
        self.signals.raise(Signals::INTR);
    }

    /// The bytes that were written to [`REPORT_PORT`].
    pub fn reported(&self) -> Vec<u8> {
        self.reported.lock().unwrap().clone()
    }

    /// Raises an NMI.
    pub fn nmi(&self) {
        self.nmi.store(true, Ordering::Relaxed);
        self.signals.raise(Signals::NMI);
    }

    fn read(&self, now: u64, at: u64, data: &mut [u8]) {
        data.fill(match self.open_bus {
            OpenBus::Ones => 0xFF,
            OpenBus::Varying => (now ^ at) as u8,
        });
    }
}

impl Platform for TestPlatform {
    fn mmio_read(&self, now: u64, gpa: u64, data: &mut [u8]) {
        self.read(now, gpa, data);
    }
    fn mmio_write(&self, _: u64, _: u64, _: &[u8]) {}
    fn pio_read(&self, now: u64, port: u16, data: &mut [u8]) {
        self.read(now, port.into(), data);
    }
    fn pio_write(&self, _: u64, port: u16, data: &[u8]) {
        match i32::from(port) {
            INTERRUPT_PORT => self.interrupt(data[0]),
            NMI_PORT => self.nmi(),
            REPORT_PORT => self.reported.lock().unwrap().extend_from_slice(data),
            _ => {}
        }
    }
    fn acknowledge_interrupt(&self, _: u64) -> Option<u8> {
        let mut vectors = self.vectors.lock().unwrap();
        let vector = vectors.pop_front();
        self.signals.set(Signals::INTR, !vectors.is_empty());
        vector
    }
    fn take_nmi(&self) -> bool {
        self.signals.lower(Signals::NMI);
        self.nmi.swap(false, Ordering::Relaxed)
    }
    fn give_back_nmi(&self) {
        self.nmi();
    }
    fn performance_interrupt(&self, _: u64) {
        self.performance_interrupts.fetch_add(1, Ordering::Relaxed);
        if self.interrupt_is_nmi.load(Ordering::Relaxed) {
            self.nmi();
        }
    }
    fn cr8(&self) -> u64 {
        self.cr8.load(Ordering::Relaxed)
    }
    fn set_cr8(&self, _: u64, value: u64) {
        self.cr8.store(value, Ordering::Relaxed);
    }
    fn apic_rdmsr(&self, _: u64, msr: u32) -> Option<u64> {
        match msr {
            APIC_BASE => Some(self.apic_base.load(Ordering::Relaxed)),
            TSC_DEADLINE => Some(self.deadline.load(Ordering::Relaxed)),
            INTERRUPTING_MSR => {
                self.interrupt(INTERRUPTING_VECTOR);
                None
            }
            _ => None,
        }
    }
    fn apic_wrmsr(&self, _: u64, msr: u32, value: u64) -> Option<()> {
        match msr {
            APIC_BASE => self.apic_base.store(value, Ordering::Relaxed),
            TSC_DEADLINE => self.deadline.store(value, Ordering::Relaxed),
            _ => return None,
        }
        Some(())
    }
}
