//! The ways to reset a PC: keyboard controller, reset control register, fast reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bus::ByteDevice;
use crate::state::check_bits;
use crate::{Effects, StateError};

/// The reset line of the machine. Clones share the line.
#[derive(Debug, Clone, Default)]
pub struct ResetLine(Arc<AtomicBool>);

impl ResetLine {
    /// A line that is not asserted.
    pub fn new() -> Self {
        Self::default()
    }

    /// True once the guest has requested a reset.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether a reset has been requested, as a saved state has it.
    pub fn restore(&self, requested: bool) {
        self.0.store(requested, Ordering::Relaxed);
    }

    fn request(&self) -> Effects {
        self.0.store(true, Ordering::Relaxed);
        Effects::HOST
    }
}

/// Port 0x64 of an 8042 that has only its reset line: no keyboard, no mouse.
#[derive(Debug)]
pub struct I8042 {
    reset: ResetLine,
}

impl I8042 {
    /// Command 0xFE: pulse output bit 0, which is the processor's reset.
    const PULSE_RESET: u8 = 0xFE;
    /// Bit 0: the output buffer is always full, so that Linux's driver finds no controller. Bit 1:
    /// the input buffer is empty, so that Linux's reboot does not wait before it sends the command.
    const STATUS: u8 = 0xFD;

    /// The port; a reset command asserts `reset`.
    pub fn new(reset: ResetLine) -> Self {
        Self { reset }
    }
}

impl ByteDevice for I8042 {
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (Self::STATUS, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, _offset: u64, value: u8) -> Effects {
        if value == Self::PULSE_RESET {
            self.reset.request()
        } else {
            Effects::empty()
        }
    }
}

/// The value that resets the machine when it is written to [`ResetControl`].
pub const FULL_RESET_VALUE: u8 = ResetControl::SYSTEM_RESET | ResetControl::RESET_CPU;

/// Port 0xCF9, the reset control register of Intel chip sets.
#[derive(Debug)]
pub struct ResetControl {
    reset: ResetLine,
    value: u8,
}

impl ResetControl {
    const SYSTEM_RESET: u8 = 1 << 1;
    const RESET_CPU: u8 = 1 << 2;
    const FULL_RESET: u8 = 1 << 3;
    const STORED: u8 = Self::SYSTEM_RESET | Self::RESET_CPU | Self::FULL_RESET;

    /// The register; a rising RST_CPU bit asserts `reset`.
    pub fn new(reset: ResetLine) -> Self {
        Self { reset, value: 0 }
    }

    /// The state of the register.
    pub fn state(&self) -> u8 {
        self.value
    }

    /// Puts the register into `state`.
    ///
    /// # Errors
    /// The register never has such a value.
    pub fn restore(&mut self, state: u8) -> Result<(), StateError> {
        check_bits("port 0xCF9", "the value", state, Self::STORED.into())?;
        self.value = state;
        Ok(())
    }
}

impl ByteDevice for ResetControl {
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (self.value, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, _offset: u64, value: u8) -> Effects {
        let rises = value & !self.value & Self::RESET_CPU != 0;
        self.value = value & Self::STORED;
        if rises {
            self.reset.request()
        } else {
            Effects::empty()
        }
    }
}

/// Port 0x92, system control port A: fast reset; the A20 gate is always open.
#[derive(Debug)]
pub struct SystemControlPortA {
    reset: ResetLine,
    value: u8,
}

impl SystemControlPortA {
    const FAST_RESET: u8 = 1 << 0;
    const A20: u8 = 1 << 1;
    const STORED: u8 = Self::FAST_RESET | Self::A20;

    /// The port; a rising bit 0 asserts `reset`.
    pub fn new(reset: ResetLine) -> Self {
        Self { reset, value: 0 }
    }

    /// The state of the port.
    pub fn state(&self) -> u8 {
        self.value
    }

    /// Puts the port into `state`.
    ///
    /// # Errors
    /// The port never has such a value.
    pub fn restore(&mut self, state: u8) -> Result<(), StateError> {
        check_bits("port 0x92", "the value", state, Self::STORED.into())?;
        self.value = state;
        Ok(())
    }
}

impl ByteDevice for SystemControlPortA {
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (self.value | Self::A20, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, _offset: u64, value: u8) -> Effects {
        let rises = value & !self.value & Self::FAST_RESET != 0;
        self.value = value & Self::STORED;
        if rises {
            self.reset.request()
        } else {
            Effects::empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_resets() {
        let (a, b, c) = (ResetLine::new(), ResetLine::new(), ResetLine::new());
        let mut keyboard = I8042::new(a.clone());
        keyboard.write_byte(0, 0, 0xD1);
        assert!(!a.requested());
        assert_eq!(keyboard.read_byte(0, 0).0 & 3, 1);
        keyboard.write_byte(0, 0, 0xFE);
        assert!(a.requested());

        let mut control = ResetControl::new(b.clone());
        control.write_byte(0, 0, 0x02);
        assert!(!b.requested());
        assert_eq!(control.read_byte(0, 0).0, 2);
        assert_eq!(control.write_byte(0, 0, 0x06), Effects::HOST);
        assert!(b.requested());

        let mut port92 = SystemControlPortA::new(c.clone());
        port92.write_byte(0, 0, 0x02);
        assert_eq!(port92.read_byte(0, 0).0, 2);
        assert!(!c.requested());
        port92.write_byte(0, 0, 0x03);
        assert!(c.requested());
    }

    #[test]
    fn only_a_rising_bit_of_a_restored_register_resets() {
        let reset = ResetLine::new();
        let mut control = ResetControl::new(reset.clone());
        control.restore(6).unwrap();
        control.write_byte(0, 0, 6);
        assert!(!reset.requested());
        assert!(control.restore(1).is_err());
        let mut port92 = SystemControlPortA::new(reset.clone());
        port92.restore(1).unwrap();
        port92.write_byte(0, 0, 1);
        assert!(!reset.requested());
        assert!(port92.restore(4).is_err());
        reset.restore(true);
        assert!(reset.requested());
    }
}
