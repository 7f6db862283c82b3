//! The I/O APIC: an Intel 82093AA with 24 pins and the EOI register of its successors (version
//! 0x20).

use serde::{Deserialize, Serialize};

use crate::StateError;
use crate::lapic::{DeliveryMode, Destination, Message};
use crate::state::check_bits;

/// Guest-physical address of the register window.
pub const IOAPIC_BASE: u64 = 0xFEC0_0000;
/// Length of the register window in bytes.
pub const IOAPIC_LEN: u64 = 0x1000;
/// Number of input pins; a GSI is the number of its pin.
pub const IOAPIC_PINS: u32 = 24;

/// A bit for each pin.
const PINS: u32 = (1 << IOAPIC_PINS) - 1;

const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOIR: u64 = 0x40;

const INDEX_ID: u8 = 0x00;
const INDEX_VERSION: u8 = 0x01;
const INDEX_ARBITRATION: u8 = 0x02;
const INDEX_REDIRECTION: u8 = 0x10;

const VERSION: u32 = (IOAPIC_PINS - 1) << 16 | 0x20;

const REDIRECTION_LOGICAL: u64 = 1 << 11;
const REDIRECTION_REMOTE_IRR: u64 = 1 << 14;
const REDIRECTION_LEVEL: u64 = 1 << 15;
const REDIRECTION_MASKED: u64 = 1 << 16;
/// Everything except the delivery status (bit 12), the remote IRR (bit 14) and the reserved bits.
const REDIRECTION_WRITABLE: u64 = 0xFF00_0000_0001_AFFF;

const DEVICE: &str = "the I/O APIC";

/// State of the I/O APIC. The levels of its pins follow from the states of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicState {
    index: u8,
    id: u8,
    redirection: [u64; IOAPIC_PINS as usize],
    /// Edges that no local APIC has accepted yet, a bit for each pin.
    edges: u32,
}

/// The I/O APIC.
#[derive(Debug)]
pub struct IoApic {
    state: IoApicState,
    /// The pins that are asserted, a bit for each.
    lines: u32,
}

impl IoApic {
    /// After reset: every pin masked.
    pub fn new() -> Self {
        Self {
            state: IoApicState {
                index: 0,
                id: 0,
                redirection: [REDIRECTION_MASKED; IOAPIC_PINS as usize],
                edges: 0,
            },
            lines: 0,
        }
    }

    /// The state of the I/O APIC.
    pub fn state(&self) -> IoApicState {
        self.state.clone()
    }

    /// Puts the I/O APIC into `state`. Its pins keep the levels that they have.
    ///
    /// # Errors
    /// The I/O APIC never has such a state.
    pub fn restore(&mut self, state: &IoApicState) -> Result<(), StateError> {
        check_bits(DEVICE, "ID", state.id, 0xF)?;
        check_bits(DEVICE, "pending edges", state.edges, PINS.into())?;
        for entry in state.redirection {
            let mask = REDIRECTION_WRITABLE | REDIRECTION_REMOTE_IRR;
            check_bits(DEVICE, "redirection entry", entry, mask)?;
        }
        self.state = state.clone();
        Ok(())
    }

    /// Sets the level of a pin without detecting an edge.
    pub(crate) fn restore_line(&mut self, pin: u32, level: bool) {
        let bit = 1u32.checked_shl(pin).unwrap_or(0) & PINS;
        if level {
            self.lines |= bit
        } else {
            self.lines &= !bit
        }
    }

    /// Reads the 32-bit register at `offset` in the window.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            IOREGSEL => u32::from(self.state.index),
            IOWIN => match self.state.index {
                INDEX_ID | INDEX_ARBITRATION => u32::from(self.state.id) << 24,
                INDEX_VERSION => VERSION,
                _ => self.selected().map_or(0, |(pin, high)| {
                    let entry = self.state.redirection[pin];
                    if high {
                        (entry >> 32) as u32
                    } else {
                        entry as u32
                    }
                }),
            },
            _ => 0,
        }
    }

    /// Writes the 32-bit register at `offset` in the window.
    pub fn write(&mut self, offset: u64, value: u32) {
        match offset {
            IOREGSEL => self.state.index = value as u8,
            IOWIN if self.state.index == INDEX_ID => self.state.id = (value >> 24) as u8 & 0xF,
            IOWIN => self.write_redirection(value),
            EOIR => self.eoi(value as u8),
            _ => {}
        }
    }

    /// The redirection entry that the index register selects, and whether its high half.
    fn selected(&self) -> Option<(usize, bool)> {
        let n = self.state.index.checked_sub(INDEX_REDIRECTION)?;
        let pin = usize::from(n / 2);
        (pin < self.state.redirection.len()).then_some((pin, n % 2 == 1))
    }

    fn write_redirection(&mut self, value: u32) {
        let Some((pin, high)) = self.selected() else {
            return;
        };
        let old = self.state.redirection[pin];
        let mut entry = if high {
            old & 0xFFFF_FFFF | u64::from(value) << 32
        } else {
            old & !0xFFFF_FFFF | u64::from(value)
        };
        entry = entry & REDIRECTION_WRITABLE | old & REDIRECTION_REMOTE_IRR;
        if entry & REDIRECTION_LEVEL == 0 {
            // Changing a pin to edge-triggered is how software clears a stuck remote IRR.
            entry &= !REDIRECTION_REMOTE_IRR;
        }
        self.state.redirection[pin] = entry;
    }

    /// Drives an input line. `level` is true for asserted, regardless of the polarity bit: the
    /// machine's devices signal activity, not voltage.
    pub fn set_line(&mut self, pin: u32, level: bool) {
        let Some(&entry) = self.state.redirection.get(pin as usize) else {
            return;
        };
        let bit = 1 << pin;
        let rising = level && self.lines & bit == 0;
        self.restore_line(pin, level);
        // An edge on a masked pin is neither delivered nor held pending (82093AA, "Interrupt
        // Mask").
        if rising && entry & (REDIRECTION_LEVEL | REDIRECTION_MASKED) == 0 {
            self.state.edges |= bit;
        }
    }

    /// Whether software has unmasked `pin`.
    pub fn is_unmasked(&self, pin: u32) -> bool {
        self.state
            .redirection
            .get(pin as usize)
            .is_some_and(|entry| entry & REDIRECTION_MASKED == 0)
    }

    /// The next pin, from `from` upwards, that has an interrupt to deliver, and its message.
    pub(crate) fn next_message(&self, from: u32) -> Option<(u32, Message)> {
        let mut candidates =
            (self.lines | self.state.edges) & u32::MAX.checked_shl(from).unwrap_or(0);
        while candidates != 0 {
            let pin = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let entry = self.state.redirection[pin as usize];
            let wants = if entry & REDIRECTION_LEVEL != 0 {
                self.lines & 1 << pin != 0 && entry & REDIRECTION_REMOTE_IRR == 0
            } else {
                self.state.edges & 1 << pin != 0
            };
            if !wants || entry & REDIRECTION_MASKED != 0 {
                continue;
            }
            let Some(mode) = DeliveryMode::from_bits(entry as u32) else {
                continue;
            };
            let id = (entry >> 56) as u8;
            let destination = if entry & REDIRECTION_LOGICAL != 0 {
                Destination::Logical(id)
            } else {
                Destination::Physical(id)
            };
            let level = entry & REDIRECTION_LEVEL != 0;
            return Some((
                pin,
                Message {
                    destination,
                    mode,
                    vector: entry as u8,
                    level,
                },
            ));
        }
        None
    }

    /// Records that a local APIC has accepted the message of `pin`.
    pub(crate) fn delivered(&mut self, pin: u32) {
        self.state.edges &= !(1 << pin);
        if let Some(entry) = self.state.redirection.get_mut(pin as usize)
            && *entry & REDIRECTION_LEVEL != 0
        {
            *entry |= REDIRECTION_REMOTE_IRR;
        }
    }

    /// The interrupt with this vector has been served: its pins may interrupt again.
    pub fn eoi(&mut self, vector: u8) {
        for entry in &mut self.state.redirection {
            if *entry as u8 == vector {
                *entry &= !REDIRECTION_REMOTE_IRR;
            }
        }
    }
}

impl Default for IoApic {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
