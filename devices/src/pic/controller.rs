//! One 8259A interrupt controller.

use serde::{Deserialize, Serialize};

use super::DEVICE;
use crate::StateError;
use crate::state::{check, check_bits};

/// The initialization command word expected next, or OCW1 if the controller is initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Expect {
    Ocw1,
    Icw2,
    Icw3,
    Icw4,
}

/// What a read of the command port returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum ReadSelect {
    Irr,
    Isr,
    Poll,
}

/// State of one controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ControllerState {
    pub(super) irr: u8,
    pub(super) isr: u8,
    pub(super) imr: u8,
    /// Edge/level control: a set bit makes that input level-triggered.
    pub(super) elcr: u8,
    pub(super) vector_base: u8,
    expect: Expect,
    needs_icw4: bool,
    single: bool,
    /// The input with the lowest priority; the one after it has the highest.
    pub(super) lowest: u8,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_mask: bool,
    special_fully_nested: bool,
    read_select: ReadSelect,
}

impl ControllerState {
    fn new() -> Self {
        Self {
            irr: 0,
            isr: 0,
            // A BIOS leaves every input masked; the pair must not interrupt before it has vectors.
            imr: 0xFF,
            elcr: 0,
            vector_base: 0,
            expect: Expect::Ocw1,
            needs_icw4: false,
            single: false,
            lowest: 7,
            auto_eoi: false,
            rotate_on_auto_eoi: false,
            special_mask: false,
            special_fully_nested: false,
            read_select: ReadSelect::Irr,
        }
    }

    /// Refuses a state that a controller with this edge sense never has.
    pub(super) fn check(&self, elcr_writable: u8) -> Result<(), StateError> {
        check_bits(DEVICE, "ELCR", self.elcr, elcr_writable.into())?;
        check_bits(DEVICE, "vector base", self.vector_base, 0xF8)?;
        check(DEVICE, "lowest priority", self.lowest, self.lowest < 8)
    }
}

#[derive(Debug)]
pub(super) struct Controller {
    pub(super) state: ControllerState,
    /// Levels of the inputs, which follow from the states of the devices.
    lines: u8,
    pub(super) elcr_writable: u8,
}

impl Controller {
    pub(super) fn new(elcr_writable: u8) -> Self {
        Self {
            state: ControllerState::new(),
            lines: 0,
            elcr_writable,
        }
    }

    /// Sets the level of an input without detecting an edge.
    pub(super) fn restore_line(&mut self, input: u8, level: bool) {
        let bit = 1 << input;
        if level {
            self.lines |= bit
        } else {
            self.lines &= !bit
        }
    }

    pub(super) fn set_line(&mut self, input: u8, level: bool) {
        let bit = 1 << input;
        let rising = level && self.lines & bit == 0;
        self.restore_line(input, level);
        if self.state.elcr & bit != 0 {
            self.state.irr = self.state.irr & !bit | self.lines & bit;
        } else if rising {
            self.state.irr |= bit;
        }
    }

    /// The inputs from the highest priority to the lowest.
    fn by_priority(&self) -> impl Iterator<Item = u8> + use<> {
        let first = self.state.lowest + 1;
        (0..8).map(move |i| (first + i) & 7)
    }

    /// The request that INT announces: the highest unmasked one above everything in service.
    pub(super) fn request(&self) -> Option<u8> {
        let pending = self.state.irr & !self.state.imr;
        let in_service = if self.state.special_mask {
            self.state.isr & !self.state.imr
        } else {
            self.state.isr
        };
        for input in self.by_priority() {
            let bit = 1 << input;
            let cascade = self.state.special_fully_nested && input == 2;
            if pending & bit != 0 && (in_service & bit == 0 || cascade) {
                return Some(input);
            }
            if in_service & bit != 0 {
                return None;
            }
        }
        None
    }

    pub(super) fn acknowledge(&mut self, input: u8) {
        let bit = 1 << input;
        if self.state.auto_eoi {
            if self.state.rotate_on_auto_eoi {
                self.state.lowest = input;
            }
        } else {
            self.state.isr |= bit;
        }
        if self.state.elcr & bit == 0 {
            self.state.irr &= !bit;
        }
    }

    pub(super) fn vector(&self, input: u8) -> u8 {
        self.state.vector_base | input
    }

    pub(super) fn write_command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            // ICW1 clears the mask, the edge sense and the modes.
            self.state = ControllerState {
                irr: self.lines & self.state.elcr,
                imr: 0,
                elcr: self.state.elcr,
                vector_base: self.state.vector_base,
                expect: Expect::Icw2,
                needs_icw4: value & 1 != 0,
                single: value & 2 != 0,
                ..ControllerState::new()
            };
        } else if value & 8 != 0 {
            // OCW3
            match value & 3 {
                2 => self.state.read_select = ReadSelect::Irr,
                3 => self.state.read_select = ReadSelect::Isr,
                _ => {}
            }
            if value & 4 != 0 {
                self.state.read_select = ReadSelect::Poll;
            }
            match value >> 5 & 3 {
                2 => self.state.special_mask = false,
                3 => self.state.special_mask = true,
                _ => {}
            }
        } else {
            self.write_ocw2(value);
        }
    }

    fn write_ocw2(&mut self, value: u8) {
        let level = value & 7;
        match value >> 5 {
            0 => self.state.rotate_on_auto_eoi = false,
            4 => self.state.rotate_on_auto_eoi = true,
            // Non-specific EOI, also with rotation.
            1 | 5 => {
                let top = self
                    .by_priority()
                    .find(|input| self.state.isr & 1 << input != 0);
                if let Some(input) = top {
                    self.state.isr &= !(1 << input);
                    if value & 0x80 != 0 {
                        self.state.lowest = input;
                    }
                }
            }
            // Specific EOI, also with rotation.
            3 | 7 => {
                self.state.isr &= !(1 << level);
                if value & 0x80 != 0 {
                    self.state.lowest = level;
                }
            }
            6 => self.state.lowest = level,
            _ => {}
        }
    }

    pub(super) fn write_data(&mut self, value: u8) {
        let after_icw3 = if self.state.needs_icw4 {
            Expect::Icw4
        } else {
            Expect::Ocw1
        };
        match self.state.expect {
            Expect::Ocw1 => self.state.imr = value,
            Expect::Icw2 => {
                self.state.vector_base = value & 0xF8;
                self.state.expect = if self.state.single {
                    after_icw3
                } else {
                    Expect::Icw3
                };
            }
            // The cascade is wired, not programmed.
            Expect::Icw3 => self.state.expect = after_icw3,
            Expect::Icw4 => {
                self.state.auto_eoi = value & 2 != 0;
                self.state.special_fully_nested = value & 0x10 != 0;
                self.state.expect = Expect::Ocw1;
            }
        }
    }

    pub(super) fn read_command(&mut self) -> u8 {
        match self.state.read_select {
            ReadSelect::Irr => self.state.irr,
            ReadSelect::Isr => self.state.isr,
            ReadSelect::Poll => {
                self.state.read_select = ReadSelect::Irr;
                match self.request() {
                    Some(input) => {
                        self.acknowledge(input);
                        0x80 | input
                    }
                    None => 0,
                }
            }
        }
    }
}
