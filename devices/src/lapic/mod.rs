//! The local APIC in xAPIC mode (SDM Vol. 3A chapter 10, "Advanced Programmable Interrupt
//! Controller").
//!
//! Section numbers are those of the editions up to 2022; later ones call the chapter 11.

mod message;
mod timer;

pub use message::{Action, DeliveryMode, Destination, Message, StartupEvent};
use timer::{Mode, Timer};

/// Where the register page is after reset (SDM Vol. 3A 10.4.1).
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

/// Version 0x14 with six LVT entries (the largest index is 5), without EOI-broadcast suppression.
const VERSION: u32 = 0x0005_0014;

/// Register offsets (SDM Vol. 3A table 10-1).
mod reg {
    pub const ID: u64 = 0x020;
    pub const VERSION: u64 = 0x030;
    pub const TPR: u64 = 0x080;
    pub const APR: u64 = 0x090;
    pub const PPR: u64 = 0x0A0;
    pub const EOI: u64 = 0x0B0;
    pub const LDR: u64 = 0x0D0;
    pub const DFR: u64 = 0x0E0;
    pub const SVR: u64 = 0x0F0;
    pub const ISR: u64 = 0x100;
    pub const TMR: u64 = 0x180;
    pub const IRR: u64 = 0x200;
    pub const ESR: u64 = 0x280;
    pub const ICR_LOW: u64 = 0x300;
    pub const ICR_HIGH: u64 = 0x310;
    pub const LVT_TIMER: u64 = 0x320;
    pub const LVT_ERROR: u64 = 0x370;
    pub const INITIAL_COUNT: u64 = 0x380;
    pub const CURRENT_COUNT: u64 = 0x390;
    pub const DIVIDE_CONFIGURATION: u64 = 0x3E0;
}

const SVR_ENABLE: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;
const LVT_TIMER_PERIODIC: u32 = 1 << 17;
const LVT_TIMER_TSC_DEADLINE: u32 = 1 << 18;
const LVT_TRIGGER_LEVEL: u32 = 1 << 15;

const ESR_SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
const ESR_RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;

/// The entries of the local vector table, in the order of their registers from 0x320.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lvt {
    Timer,
    Thermal,
    PerformanceCounter,
    Lint0,
    Lint1,
    Error,
}

impl Lvt {
    const ALL: [Self; 6] = [
        Self::Timer,
        Self::Thermal,
        Self::PerformanceCounter,
        Self::Lint0,
        Self::Lint1,
        Self::Error,
    ];

    /// The bits that software can write (SDM Vol. 3A figure 10-8).
    fn writable(self, tsc_deadline: bool) -> u32 {
        match self {
            Self::Timer if tsc_deadline => 0x0007_00FF,
            Self::Timer => 0x0003_00FF,
            Self::Thermal | Self::PerformanceCounter => 0x0001_07FF,
            Self::Lint0 | Self::Lint1 => 0x0001_A7FF,
            Self::Error => 0x0001_00FF,
        }
    }
}

/// A 256-bit register: ISR, TMR or IRR.
#[derive(Debug, Default)]
struct Vectors([u64; 4]);

impl Vectors {
    fn set(&mut self, vector: u8, value: bool) {
        let (word, bit) = (usize::from(vector >> 6), 1 << (vector & 63));
        if value {
            self.0[word] |= bit
        } else {
            self.0[word] &= !bit
        }
    }

    fn get(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 6)] >> (vector & 63) & 1 != 0
    }

    /// The highest vector that is set, which is the one with the highest priority.
    fn highest(&self) -> Option<u8> {
        (0u8..4).rev().find_map(|word| {
            let bits = self.0[usize::from(word)];
            (bits != 0).then(|| word * 64 + (63 - bits.leading_zeros() as u8))
        })
    }

    /// The 32 bits of the register at `offset` from the first one of the eight.
    fn register(&self, offset: u64) -> u32 {
        let index = (offset >> 4 & 7) as usize;
        (self.0[index / 2] >> (index % 2 * 32)) as u32
    }
}

/// The local APIC of one processor.
#[derive(Debug)]
pub struct LocalApic {
    id: u8,
    apic_base: u64,
    tsc_deadline: bool,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    svr: u32,
    icr: u64,
    lvt: [u32; 6],
    isr: Vectors,
    tmr: Vectors,
    irr: Vectors,
    /// Errors since software last wrote the ESR, and what it reads there.
    errors: u32,
    esr: u32,
    timer: Timer,
    nmi: bool,
    init: bool,
    startup: Option<u8>,
}

impl LocalApic {
    /// A local APIC after power-up. `tsc_deadline` is CPUID.1:ECX.TSC_DEADLINE\[24\].
    pub fn new(id: u8, bsp: bool, tsc_deadline: bool) -> Self {
        Self {
            id,
            apic_base: LAPIC_BASE | APIC_BASE_ENABLE | if bsp { APIC_BASE_BSP } else { 0 },
            tsc_deadline,
            tpr: 0,
            ldr: 0,
            dfr: 0xFFFF_FFFF,
            svr: 0xFF,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            isr: Vectors::default(),
            tmr: Vectors::default(),
            irr: Vectors::default(),
            errors: 0,
            esr: 0,
            timer: Timer::new(),
            nmi: false,
            init: false,
            startup: None,
        }
    }

    /// The state after INIT: everything but the ID and IA32_APIC_BASE (SDM Vol. 3A 10.4.7.3).
    fn reset(&mut self) {
        *self = Self {
            apic_base: self.apic_base,
            nmi: self.nmi,
            init: self.init,
            startup: self.startup,
            ..Self::new(self.id, false, self.tsc_deadline)
        };
    }

    /// The registers as a BIOS leaves them for an operating system that knows no APIC: enabled, the
    /// 8259A on LINT0, NMI on LINT1 ("virtual wire mode", MultiProcessor Specification 3.6.2.2).
    pub fn set_virtual_wire_mode(&mut self) {
        self.svr |= SVR_ENABLE;
        *self.lvt_mut(Lvt::Lint0) = 0x700;
        *self.lvt_mut(Lvt::Lint1) = 0x400;
    }

    /// The address of the register page, or `None` while IA32_APIC_BASE disables the APIC.
    pub fn base(&self) -> Option<u64> {
        self.globally_enabled()
            .then_some(self.apic_base & APIC_BASE_ADDRESS)
    }

    fn globally_enabled(&self) -> bool {
        self.apic_base & APIC_BASE_ENABLE != 0
    }

    fn software_enabled(&self) -> bool {
        self.globally_enabled() && self.svr & SVR_ENABLE != 0
    }

    fn lvt(&self, entry: Lvt) -> u32 {
        self.lvt[entry as usize]
    }

    fn lvt_mut(&mut self, entry: Lvt) -> &mut u32 {
        &mut self.lvt[entry as usize]
    }

    /// Reads the register at `offset` in the page.
    pub fn read(&mut self, now: u64, offset: u64) -> u32 {
        self.tick(now);
        match offset {
            reg::ID => u32::from(self.id) << 24,
            reg::VERSION => VERSION,
            reg::TPR => u32::from(self.tpr),
            reg::APR => u32::from(self.arbitration_priority()),
            reg::PPR => u32::from(self.ppr()),
            reg::EOI => 0,
            reg::LDR => self.ldr,
            reg::DFR => self.dfr,
            reg::SVR => self.svr,
            reg::ISR..0x180 => self.isr.register(offset),
            reg::TMR..0x200 => self.tmr.register(offset),
            reg::IRR..0x280 => self.irr.register(offset),
            reg::ESR => self.esr,
            reg::ICR_LOW => self.icr as u32,
            reg::ICR_HIGH => (self.icr >> 32) as u32,
            reg::LVT_TIMER..=reg::LVT_ERROR => self.lvt[((offset - reg::LVT_TIMER) >> 4) as usize],
            reg::INITIAL_COUNT => self.timer.initial_count(),
            reg::CURRENT_COUNT => self.timer.current_count(now),
            reg::DIVIDE_CONFIGURATION => self.timer.divide_configuration(),
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
            reg::TPR => self.tpr = value as u8,
            reg::EOI => return self.eoi(),
            reg::LDR => self.ldr = value & 0xFF00_0000,
            reg::DFR => self.dfr = value | 0x0FFF_FFFF,
            reg::SVR => {
                self.svr = value & 0x3FF;
                if !self.software_enabled() {
                    self.lvt.iter_mut().for_each(|e| *e |= LVT_MASKED);
                }
            }
            reg::ESR => {
                self.esr = self.errors;
                self.errors = 0;
            }
            reg::ICR_LOW => {
                self.icr = self.icr & !0xFFFF_FFFF | u64::from(value & 0x000C_CFFF);
                return self.send_ipi();
            }
            reg::ICR_HIGH => {
                self.icr = self.icr & 0xFFFF_FFFF | u64::from(value & 0xFF00_0000) << 32;
            }
            reg::LVT_TIMER..=reg::LVT_ERROR if offset & 0xF == 0 => {
                self.write_lvt(Lvt::ALL[((offset - reg::LVT_TIMER) >> 4) as usize], value);
            }
            reg::INITIAL_COUNT => self.timer.set_initial_count(now, value),
            reg::DIVIDE_CONFIGURATION => self.timer.set_divide_configuration(now, value),
            // Read-only registers: the write is dropped.
            reg::ID | reg::VERSION | reg::APR | reg::PPR | reg::CURRENT_COUNT | reg::ISR..0x280 => {
            }
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
            self.timer.set_mode(
                match value & (LVT_TIMER_TSC_DEADLINE | LVT_TIMER_PERIODIC) {
                    LVT_TIMER_PERIODIC => Mode::Periodic,
                    LVT_TIMER_TSC_DEADLINE => Mode::TscDeadline,
                    _ => Mode::OneShot,
                },
            );
        }
        *self.lvt_mut(entry) = value;
    }

    fn send_ipi(&mut self) -> Option<Action> {
        let low = self.icr as u32;
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
        let to = (self.icr >> 56) as u8;
        let destination = match low >> 18 & 3 {
            0 if low & 1 << 11 == 0 => Destination::Physical(to),
            0 => Destination::Logical(to),
            1 => Destination::Oneself,
            2 => Destination::All,
            _ => Destination::Others,
        };
        // IPIs are edge-triggered whatever the trigger-mode bit says, but for INIT de-assert.
        Some(Action::Ipi(Message {
            destination,
            mode,
            vector,
            level: false,
        }))
    }

    fn eoi(&mut self) -> Option<Action> {
        let vector = self.isr.highest()?;
        self.isr.set(vector, false);
        self.tmr.get(vector).then_some(Action::EoiBroadcast(vector))
    }

    fn error(&mut self, bit: u32) {
        let known = self.errors & bit != 0;
        self.errors |= bit;
        if !known {
            self.deliver_local(Lvt::Error);
        }
    }

    /// True if a message to `destination` (physical or logical) is for this APIC (SDM Vol. 3A
    /// 10.6.2).
    pub(crate) fn matches(&self, destination: Destination) -> bool {
        match destination {
            Destination::Physical(id) => id == 0xFF || id == self.id,
            Destination::Logical(0xFF) => true,
            Destination::Logical(mda) => {
                let id = (self.ldr >> 24) as u8;
                match self.dfr >> 28 {
                    0xF => id & mda != 0,
                    0x0 => id >> 4 == mda >> 4 && id & mda & 0xF != 0,
                    _ => false,
                }
            }
            Destination::Oneself | Destination::All | Destination::Others => true,
        }
    }

    /// Takes an interrupt message. False if this APIC cannot take it now.
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
                    // Reported to software and otherwise taken as delivered (SDM Vol. 3A 10.5.3).
                    self.error(ESR_RECEIVE_ILLEGAL_VECTOR);
                    return true;
                }
                self.irr.set(vector, true);
                self.tmr.set(vector, level);
            }
            DeliveryMode::Nmi => self.nmi = true,
            DeliveryMode::Init => {
                self.reset();
                self.init = true;
                self.startup = None;
            }
            DeliveryMode::StartUp => self.startup = Some(vector),
            // No SMM; and nothing but LINT0 is wired to the 8259A.
            DeliveryMode::Smi | DeliveryMode::ExtInt => return false,
        }
        true
    }

    /// Delivers what an unmasked LVT entry says. False if it is masked.
    fn deliver_local(&mut self, entry: Lvt) -> bool {
        let lvt = self.lvt(entry);
        if lvt & LVT_MASKED != 0 {
            return false;
        }
        let mode = match entry {
            Lvt::Timer | Lvt::Error => DeliveryMode::Fixed,
            _ => DeliveryMode::from_bits(lvt).unwrap_or(DeliveryMode::Smi),
        };
        if entry == Lvt::Error && lvt & 0xFF < 16 {
            // Reporting this one would need itself.
            self.errors |= ESR_RECEIVE_ILLEGAL_VECTOR;
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
    fn ppr(&self) -> u8 {
        let in_service = self.isr.highest().unwrap_or(0);
        if self.tpr >> 4 >= in_service >> 4 {
            self.tpr
        } else {
            in_service & 0xF0
        }
    }

    /// Arbitration-priority register, by which lowest-priority delivery chooses (SDM Vol. 3A
    /// 10.6.2.4).
    pub(crate) fn arbitration_priority(&self) -> u8 {
        let requested = self.irr.highest().unwrap_or(0) >> 4;
        let in_service = self.isr.highest().unwrap_or(0) >> 4;
        let task = self.tpr >> 4;
        if task >= requested && task > in_service {
            self.tpr
        } else {
            task.max(in_service).max(requested) << 4
        }
    }

    /// The vector that the processor would get from [`ack`](Self::ack) now.
    pub fn pending_vector(&self) -> Option<u8> {
        if !self.software_enabled() {
            return None;
        }
        self.irr.highest().filter(|v| v >> 4 > self.ppr() >> 4)
    }

    /// The interrupt-acknowledge cycle: moves the pending vector from IRR to ISR.
    pub fn ack(&mut self) -> Option<u8> {
        let vector = self.pending_vector()?;
        self.irr.set(vector, false);
        self.isr.set(vector, true);
        Some(vector)
    }

    /// True if an NMI waits for the processor.
    pub fn nmi_pending(&self) -> bool {
        self.nmi
    }

    /// Hands the pending NMI, if any, to the processor.
    pub fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.nmi)
    }

    /// An NMI that was taken has not been delivered.
    pub fn give_back_nmi(&mut self) {
        self.nmi = true;
    }

    /// True if an INIT or start-up event waits for the processor.
    pub fn startup_pending(&self) -> bool {
        self.init || self.startup.is_some()
    }

    /// Hands the next INIT or start-up event to the processor.
    pub fn take_startup_event(&mut self) -> Option<StartupEvent> {
        if std::mem::take(&mut self.init) {
            return Some(StartupEvent::Init);
        }
        self.startup.take().map(StartupEvent::StartUp)
    }

    /// CR8: the task-priority class.
    pub fn cr8(&self) -> u64 {
        u64::from(self.tpr >> 4)
    }

    /// Writes CR8; only bits 3:0 of `value` count.
    pub fn set_cr8(&mut self, value: u64) {
        self.tpr = (value as u8) << 4;
    }

    /// Reads IA32_APIC_BASE or IA32_TSC_DEADLINE; `None` for MSRs that this APIC does not have.
    pub fn rdmsr(&mut self, now: u64, msr: u32) -> Option<u64> {
        self.tick(now);
        match msr {
            IA32_APIC_BASE => Some(self.apic_base),
            IA32_TSC_DEADLINE if self.tsc_deadline => Some(self.timer.tsc_deadline()),
            _ => None,
        }
    }

    /// Writes IA32_APIC_BASE or IA32_TSC_DEADLINE; `None` if there is no such MSR, or for reserved
    /// bits.
    pub fn wrmsr(&mut self, now: u64, msr: u32, value: u64) -> Option<()> {
        self.tick(now);
        match msr {
            IA32_APIC_BASE => {
                if value & !(APIC_BASE_ADDRESS | APIC_BASE_ENABLE | APIC_BASE_BSP) != 0 {
                    return None;
                }
                let bsp = self.apic_base & APIC_BASE_BSP;
                self.apic_base = value & !APIC_BASE_BSP | bsp;
                if !self.globally_enabled() {
                    self.reset();
                }
            }
            IA32_TSC_DEADLINE if self.tsc_deadline => {
                self.timer.set_tsc_deadline(value);
                self.tick(now);
            }
            _ => return None,
        }
        Some(())
    }

    /// When [`tick`](Self::tick) has to be called next, in ns: the next timer interrupt.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timer
            .expiry()
            .filter(|_| self.lvt(Lvt::Timer) & LVT_MASKED == 0)
    }

    /// Brings the timer up to `now`.
    pub fn tick(&mut self, now: u64) {
        if self.timer.expired(now) {
            self.deliver_local(Lvt::Timer);
        }
    }
}

#[cfg(test)]
mod tests;
