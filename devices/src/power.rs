//! Switching the machine off: the sleep registers of a hardware-reduced ACPI machine (ACPI 6.5,
//! section 4.8.3.7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Effects;
use crate::bus::ByteDevice;

/// The sleep type that `\_S5` in the DSDT gives: soft off.
pub const SLEEP_TYPE_S5: u8 = 5;

/// Whether the guest has switched the machine off. Clones share the switch.
#[derive(Debug, Clone, Default)]
pub struct PowerSwitch(Arc<AtomicBool>);

impl PowerSwitch {
    /// A switch that is on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the machine is off, as a saved state has it.
    pub fn restore(&self, off: bool) {
        self.0.store(off, Ordering::Relaxed);
    }

    /// True once the guest has switched the machine off.
    pub fn is_off(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The sleep control register and the sleep status register, which follows it, a byte each.
#[derive(Debug)]
pub struct SleepRegisters(PowerSwitch);

impl SleepRegisters {
    const CONTROL: u64 = 0;
    const SLEEP_ENABLE: u8 = 1 << 5;
    const SLEEP_TYPE_SHIFT: u8 = 2;
    const SLEEP_TYPE_MASK: u8 = 0b111;

    /// The registers; going to S5 turns `switch` off. There are no other sleeping states.
    pub fn new(switch: PowerSwitch) -> Self {
        Self(switch)
    }
}

impl ByteDevice for SleepRegisters {
    /// Control reads as zero, and the machine has never slept: WAK_STS is clear.
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (0, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, offset: u64, value: u8) -> Effects {
        let sleep_type = value >> Self::SLEEP_TYPE_SHIFT & Self::SLEEP_TYPE_MASK;
        if offset == Self::CONTROL && value & Self::SLEEP_ENABLE != 0 && sleep_type == SLEEP_TYPE_S5
        {
            self.0.0.store(true, Ordering::Relaxed);
            return Effects::HOST;
        }
        Effects::empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_s5_switches_off() {
        let switch = PowerSwitch::new();
        let mut registers = SleepRegisters::new(switch.clone());
        for (offset, value) in [(0, 5 << 2), (0, 1 << 5), (0, 1 << 5 | 3 << 2), (1, 0xFF)] {
            registers.write_byte(0, offset, value);
            assert!(!switch.is_off(), "{offset}: {value:#x}");
        }
        registers.write_byte(0, 0, 1 << 5 | 5 << 2);
        assert!(switch.is_off());
        switch.restore(false);
        assert!(!switch.is_off());
        assert_eq!(
            [registers.read_byte(0, 0).0, registers.read_byte(0, 1).0],
            [0, 0]
        );
    }
}
