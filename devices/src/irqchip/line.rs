//! The wire from a device to the interrupt controllers.

use std::fmt;

use super::IrqChip;
use crate::Effects;
use crate::bus::{Shared, lock};

/// A device's wire into the interrupt controllers.
pub struct IrqLine {
    chip: Shared<IrqChip>,
    gsi: u32,
    /// Follows from the state of the device.
    level: bool,
}

impl IrqLine {
    /// A wire to `gsi`, not asserted.
    pub fn new(chip: Shared<IrqChip>, gsi: u32) -> Self {
        Self {
            chip,
            gsi,
            level: false,
        }
    }

    /// Drives the wire to `level`.
    pub fn set(&mut self, level: bool) -> Effects {
        if level == self.level {
            return Effects::empty();
        }
        self.level = level;
        lock(&self.chip).set_irq(self.gsi, level);
        Effects::INTERRUPTS
    }

    /// Sets the level that follows from a restored state of the device. The interrupt controllers
    /// detect no edge: an edge that they have detected is part of their own state.
    pub(crate) fn restore(&mut self, level: bool) {
        self.level = level;
        lock(&self.chip).restore_line(self.gsi, level);
    }

    /// Asserts and deasserts the wire: one edge.
    pub fn pulse(&mut self) -> Effects {
        self.set(true) | self.set(false)
    }
}

impl fmt::Debug for IrqLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IrqLine")
            .field("gsi", &self.gsi)
            .field("level", &self.level)
            .finish()
    }
}
