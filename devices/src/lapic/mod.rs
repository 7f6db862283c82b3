//! The local APIC in xAPIC mode (SDM Vol. 3A chapter 10, "Advanced Programmable Interrupt
//! Controller").
//!
//! Section numbers are those of the editions up to 2022; later ones call the chapter 11.

mod delivery;
mod message;
mod registers;
mod state;
mod timer;
mod vectors;

pub use message::{Action, DeliveryMode, Destination, Message, StartupEvent};
pub use state::LapicState;

use crate::StateError;
use registers::{LVT_MASKED, Lvt, SVR_ENABLE, timer_mode};
use timer::Timer;

/// Guest-physical address of the register page after reset (SDM Vol. 3A 10.4.1).
pub const LAPIC_BASE: u64 = 0xFEE0_0000;
/// Length of the register page in bytes.
pub const LAPIC_LEN: u64 = 0x1000;

/// MSR that holds the base address and the global enable bit.
pub const IA32_APIC_BASE: u32 = 0x1B;
/// MSR that arms the timer in TSC-deadline mode.
pub const IA32_TSC_DEADLINE: u32 = 0x6E0;

const APIC_BASE_BSP: u64 = 1 << 8;
const APIC_BASE_ENABLE: u64 = 1 << 11;
const APIC_BASE_ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const APIC_BASE_BITS: u64 = APIC_BASE_BSP | APIC_BASE_ENABLE | APIC_BASE_ADDRESS;

/// The local APIC of one processor.
#[derive(Debug)]
pub struct LocalApic {
    /// The ID after power-up.
    initial_id: u8,
    tsc_deadline: bool,
    state: LapicState,
}

impl LocalApic {
    /// A local APIC after power-up. `tsc_deadline` is CPUID.1:ECX.TSC_DEADLINE\[24\].
    pub fn new(id: u8, bsp: bool, tsc_deadline: bool) -> Self {
        let bsp = if bsp { APIC_BASE_BSP } else { 0 };
        Self {
            initial_id: id,
            tsc_deadline,
            state: LapicState::new(id, LAPIC_BASE | APIC_BASE_ENABLE | bsp),
        }
    }

    /// The state of the local APIC.
    pub fn state(&self) -> LapicState {
        self.state.clone()
    }

    /// Puts the local APIC into `state`.
    ///
    /// # Errors
    /// This local APIC never has such a state.
    pub fn restore(&mut self, state: &LapicState) -> Result<(), StateError> {
        let bsp = self.state.apic_base & APIC_BASE_BSP;
        state.check(bsp, self.tsc_deadline)?;
        self.state = state.clone();
        Ok(())
    }

    /// Resets everything except the ID and IA32_APIC_BASE, as INIT does (SDM Vol. 3A 10.4.7.3).
    /// Events that wait for the processor stay.
    fn reset(&mut self) {
        self.state = LapicState {
            nmi: self.state.nmi,
            init: self.state.init,
            startup: self.state.startup,
            ..LapicState::new(self.state.id, self.state.apic_base)
        };
    }

    /// The timer in the mode that its LVT entry selects.
    fn timer(&mut self) -> Timer<'_> {
        let mode = timer_mode(self.lvt(Lvt::Timer));
        Timer::new(mode, &mut self.state.timer)
    }

    /// Sets the registers as a BIOS does for an operating system without APIC support: enabled, the
    /// 8259A on LINT0, NMI on LINT1 ("virtual wire mode", MultiProcessor Specification 3.6.2.2).
    pub fn set_virtual_wire_mode(&mut self) {
        self.state.svr |= SVR_ENABLE;
        *self.lvt_mut(Lvt::Lint0) = 0x700;
        *self.lvt_mut(Lvt::Lint1) = 0x400;
    }

    /// The address of the register page, or `None` while IA32_APIC_BASE disables the APIC.
    pub fn base(&self) -> Option<u64> {
        self.globally_enabled()
            .then_some(self.state.apic_base & APIC_BASE_ADDRESS)
    }

    pub(super) fn globally_enabled(&self) -> bool {
        self.state.apic_base & APIC_BASE_ENABLE != 0
    }

    pub(super) fn software_enabled(&self) -> bool {
        self.globally_enabled() && self.state.svr & SVR_ENABLE != 0
    }

    /// True if an NMI waits for the processor.
    pub fn nmi_pending(&self) -> bool {
        self.state.nmi
    }

    /// Hands the pending NMI, if any, to the processor.
    pub fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.state.nmi)
    }

    /// Takes back an NMI that was handed to the processor and not delivered.
    pub fn give_back_nmi(&mut self) {
        self.state.nmi = true;
    }

    /// True if an INIT or start-up event waits for the processor.
    pub fn startup_pending(&self) -> bool {
        self.state.init || self.state.startup.is_some()
    }

    /// Hands the next INIT or start-up event to the processor.
    pub fn take_startup_event(&mut self) -> Option<StartupEvent> {
        if std::mem::take(&mut self.state.init) {
            return Some(StartupEvent::Init);
        }
        self.state.startup.take().map(StartupEvent::StartUp)
    }

    /// CR8: the task-priority class.
    pub fn cr8(&self) -> u64 {
        u64::from(self.state.tpr >> 4)
    }

    /// Writes CR8; only bits 3:0 of `value` count.
    pub fn set_cr8(&mut self, value: u64) {
        self.state.tpr = (value as u8) << 4;
    }

    /// Reads IA32_APIC_BASE or IA32_TSC_DEADLINE; `None` for MSRs that this APIC does not have.
    pub fn rdmsr(&mut self, now: u64, msr: u32) -> Option<u64> {
        self.tick(now);
        match msr {
            IA32_APIC_BASE => Some(self.state.apic_base),
            IA32_TSC_DEADLINE if self.tsc_deadline => Some(self.timer().tsc_deadline()),
            _ => None,
        }
    }

    /// Writes IA32_APIC_BASE or IA32_TSC_DEADLINE; `None` if there is no such MSR, or for reserved
    /// bits.
    pub fn wrmsr(&mut self, now: u64, msr: u32, value: u64) -> Option<()> {
        self.tick(now);
        match msr {
            IA32_APIC_BASE => {
                if value & !APIC_BASE_BITS != 0 {
                    return None;
                }
                let bsp = self.state.apic_base & APIC_BASE_BSP;
                self.state.apic_base = value & !APIC_BASE_BSP | bsp;
                if !self.globally_enabled() {
                    self.reset();
                    self.state.id = self.initial_id;
                }
            }
            IA32_TSC_DEADLINE if self.tsc_deadline => {
                self.timer().set_tsc_deadline(value);
                self.tick(now);
            }
            _ => return None,
        }
        Some(())
    }

    /// When [`tick`](Self::tick) has to be called next, in ns: the next timer interrupt.
    pub fn next_deadline(&self) -> Option<u64> {
        let expiry = self.state.timer.expiry();
        expiry.filter(|_| self.lvt(Lvt::Timer) & LVT_MASKED == 0)
    }

    /// Brings the timer up to `now`.
    pub fn tick(&mut self, now: u64) {
        if self.timer().expired(now) {
            self.deliver_local(Lvt::Timer);
        }
    }
}

#[cfg(test)]
mod tests;
