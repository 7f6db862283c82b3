//! The ways to reset a PC: keyboard controller, reset control register, fast reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Effects;
use crate::bus::ByteDevice;

/// The reset line of the machine. Clones are the same line.
#[derive(Debug, Clone, Default)]
pub struct ResetLine(Arc<AtomicBool>);

impl ResetLine {
    /// A line that is not asserted.
    pub fn new() -> Self {
        Self::default()
    }

    /// True once the guest has asked for a reset.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn request(&self) -> Effects {
        self.0.store(true, Ordering::Relaxed);
        Effects::HOST
    }
}

/// Port 0x64 of an 8042 that has nothing but its reset line: no keyboard, no mouse.
#[derive(Debug)]
pub struct I8042 {
    reset: ResetLine,
}

impl I8042 {
    /// Command 0xFE: pulse output bit 0, which is the processor's reset.
    const PULSE_RESET: u8 = 0xFE;
    /// Output buffer full for ever, so that Linux's driver finds no controller; input buffer (bit
    /// 1) empty, so that its reboot does not wait before it sends the command.
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

/// What resets everything when it is written to [`ResetControl`].
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

    /// The register; a rising RST_CPU bit asserts `reset`.
    pub fn new(reset: ResetLine) -> Self {
        Self { reset, value: 0 }
    }
}

impl ByteDevice for ResetControl {
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (self.value, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, _offset: u64, value: u8) -> Effects {
        let rises = value & !self.value & Self::RESET_CPU != 0;
        self.value = value & (Self::SYSTEM_RESET | Self::RESET_CPU | Self::FULL_RESET);
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

    /// The port; a rising bit 0 asserts `reset`.
    pub fn new(reset: ResetLine) -> Self {
        Self { reset, value: 0 }
    }
}

impl ByteDevice for SystemControlPortA {
    fn read_byte(&mut self, _now: u64, _offset: u64) -> (u8, Effects) {
        (self.value | Self::A20, Effects::empty())
    }

    fn write_byte(&mut self, _now: u64, _offset: u64, value: u8) -> Effects {
        let rises = value & !self.value & Self::FAST_RESET != 0;
        self.value = value & (Self::FAST_RESET | Self::A20);
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
}
