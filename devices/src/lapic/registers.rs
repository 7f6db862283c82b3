//! The register page of the local APIC (SDM Vol. 3A 10.4.1) and the local vector table (10.5.1).

use super::timer::Mode;
use super::{Action, LocalApic};

/// Version 0x14 with six LVT entries (the largest index is 5), without EOI-broadcast suppression.
const VERSION: u32 = 0x0005_0014;

/// Register offsets (SDM Vol. 3A table 10-1).
pub(super) mod reg {
    pub(crate) const ID: u64 = 0x020;
    pub(crate) const VERSION: u64 = 0x030;
    pub(crate) const TPR: u64 = 0x080;
    pub(crate) const APR: u64 = 0x090;
    pub(crate) const PPR: u64 = 0x0A0;
    pub(crate) const EOI: u64 = 0x0B0;
    pub(crate) const LDR: u64 = 0x0D0;
    pub(crate) const DFR: u64 = 0x0E0;
    pub(crate) const SVR: u64 = 0x0F0;
    pub(crate) const ISR: u64 = 0x100;
    pub(crate) const TMR: u64 = 0x180;
    pub(crate) const IRR: u64 = 0x200;
    pub(crate) const ESR: u64 = 0x280;
    pub(crate) const ICR_LOW: u64 = 0x300;
    pub(crate) const ICR_HIGH: u64 = 0x310;
    pub(crate) const LVT_TIMER: u64 = 0x320;
    pub(crate) const LVT_ERROR: u64 = 0x370;
    pub(crate) const INITIAL_COUNT: u64 = 0x380;
    pub(crate) const CURRENT_COUNT: u64 = 0x390;
    pub(crate) const DIVIDE_CONFIGURATION: u64 = 0x3E0;
}

pub(super) const SVR_ENABLE: u32 = 1 << 8;
pub(super) const LVT_MASKED: u32 = 1 << 16;
pub(super) const LVT_TIMER_PERIODIC: u32 = 1 << 17;
pub(super) const LVT_TIMER_TSC_DEADLINE: u32 = 1 << 18;
pub(super) const LVT_TRIGGER_LEVEL: u32 = 1 << 15;

pub(super) const ESR_SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
pub(super) const ESR_RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
pub(super) const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;

/// Bits of the registers that software can write.
pub(super) const LDR_WRITABLE: u32 = 0xFF00_0000;
pub(super) const DFR_FIXED: u32 = 0x0FFF_FFFF;
pub(super) const SVR_WRITABLE: u32 = 0x3FF;
pub(super) const ICR_LOW_WRITABLE: u32 = 0x000C_CFFF;
pub(super) const ICR_HIGH_WRITABLE: u32 = 0xFF00_0000;

/// The entries of the local vector table, in the order of their registers from 0x320.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lvt {
    Timer,
    Thermal,
    PerformanceCounter,
    Lint0,
    Lint1,
    Error,
}

impl Lvt {
    pub(super) const ALL: [Self; 6] = [
        Self::Timer,
        Self::Thermal,
        Self::PerformanceCounter,
        Self::Lint0,
        Self::Lint1,
        Self::Error,
    ];

    /// The bits that software can write (SDM Vol. 3A figure 10-8).
    pub(super) fn writable(self, tsc_deadline: bool) -> u32 {
        match self {
            Self::Timer if tsc_deadline => 0x0007_00FF,
            Self::Timer => 0x0003_00FF,
            Self::Thermal | Self::PerformanceCounter => 0x0001_07FF,
            Self::Lint0 | Self::Lint1 => 0x0001_A7FF,
            Self::Error => 0x0001_00FF,
        }
    }
}

/// The mode of the timer that bits 18:17 of its LVT entry select.
pub(super) fn timer_mode(lvt: u32) -> Mode {
    match lvt & (LVT_TIMER_TSC_DEADLINE | LVT_TIMER_PERIODIC) {
        LVT_TIMER_PERIODIC => Mode::Periodic,
        LVT_TIMER_TSC_DEADLINE => Mode::TscDeadline,
        _ => Mode::OneShot,
    }
}

impl LocalApic {
    pub(super) fn lvt(&self, entry: Lvt) -> u32 {
        self.state.lvt[entry as usize]
    }

    pub(super) fn lvt_mut(&mut self, entry: Lvt) -> &mut u32 {
        &mut self.state.lvt[entry as usize]
    }

    /// Reads the register at `offset` in the page.
    pub fn read(&mut self, now: u64, offset: u64) -> u32 {
        self.tick(now);
        match offset {
            reg::ID => u32::from(self.state.id) << 24,
            reg::VERSION => VERSION,
            reg::TPR => u32::from(self.state.tpr),
            reg::APR => u32::from(self.arbitration_priority()),
            reg::PPR => u32::from(self.ppr()),
            reg::EOI => 0,
            reg::LDR => self.state.ldr,
            reg::DFR => self.state.dfr,
            reg::SVR => self.state.svr,
            reg::ISR..0x180 => self.state.isr.register(offset),
            reg::TMR..0x200 => self.state.tmr.register(offset),
            reg::IRR..0x280 => self.state.irr.register(offset),
            reg::ESR => self.state.esr,
            reg::ICR_LOW => self.state.icr as u32,
            reg::ICR_HIGH => (self.state.icr >> 32) as u32,
            reg::LVT_TIMER..=reg::LVT_ERROR => {
                self.state.lvt[((offset - reg::LVT_TIMER) >> 4) as usize]
            }
            reg::INITIAL_COUNT => self.timer().initial_count(),
            reg::CURRENT_COUNT => self.timer().current_count(now),
            reg::DIVIDE_CONFIGURATION => self.timer().divide_configuration(),
            _ => {
                self.error(ESR_ILLEGAL_REGISTER);
                0
            }
        }
    }

    /// Writes the register at `offset` in the page.
    pub fn write(&mut self, now: u64, offset: u64, value: u32) -> Option<Action> {
        self.tick(now);
        match offset {
            // Read/write in SDM Vol. 3A table 10-1, though not on every processor (10.4.6).
            reg::ID => self.state.id = (value >> 24) as u8,
            reg::TPR => self.state.tpr = value as u8,
            reg::EOI => return self.eoi(),
            reg::LDR => self.state.ldr = value & 0xFF00_0000,
            reg::DFR => self.state.dfr = value | DFR_FIXED,
            reg::SVR => {
                self.state.svr = value & SVR_WRITABLE;
                if !self.software_enabled() {
                    self.state.lvt.iter_mut().for_each(|e| *e |= LVT_MASKED);
                }
            }
            reg::ESR => {
                self.state.esr = self.state.errors;
                self.state.errors = 0;
            }
            reg::ICR_LOW => {
                self.state.icr =
                    self.state.icr & !0xFFFF_FFFF | u64::from(value & ICR_LOW_WRITABLE);
                return self.send_ipi();
            }
            reg::ICR_HIGH => {
                self.state.icr =
                    self.state.icr & 0xFFFF_FFFF | u64::from(value & ICR_HIGH_WRITABLE) << 32;
            }
            reg::LVT_TIMER..=reg::LVT_ERROR if offset & 0xF == 0 => {
                self.write_lvt(Lvt::ALL[((offset - reg::LVT_TIMER) >> 4) as usize], value);
            }
            reg::INITIAL_COUNT => self.timer().set_initial_count(now, value),
            reg::DIVIDE_CONFIGURATION => self.timer().set_divide_configuration(now, value),
            // Read-only registers: the write is dropped.
            reg::VERSION | reg::APR | reg::PPR | reg::CURRENT_COUNT | reg::ISR..0x280 => {}
            _ => self.error(ESR_ILLEGAL_REGISTER),
        }
        None
    }

    fn write_lvt(&mut self, entry: Lvt, value: u32) {
        let mut value = value & entry.writable(self.tsc_deadline);
        if !self.software_enabled() {
            value |= LVT_MASKED;
        }
        if entry == Lvt::Timer {
            self.timer().set_mode(timer_mode(value));
        }
        *self.lvt_mut(entry) = value;
    }
}
