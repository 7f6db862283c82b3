//! The I/O APIC: an Intel 82093AA with 24 pins and the EOI register of its successors (version
//! 0x20).

use crate::lapic::{DeliveryMode, Destination, Message};

/// Where the registers are.
pub const IOAPIC_BASE: u64 = 0xFEC0_0000;
/// Length of the register window in bytes.
pub const IOAPIC_LEN: u64 = 0x1000;
/// Number of input pins; a GSI is the number of its pin.
pub const IOAPIC_PINS: u32 = 24;

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
/// Everything but the delivery status (bit 12), the remote IRR (bit 14) and the reserved bits.
const REDIRECTION_WRITABLE: u64 = 0xFF00_0000_0001_AFFF;

/// The I/O APIC.
#[derive(Debug)]
pub struct IoApic {
    index: u8,
    id: u8,
    redirection: [u64; IOAPIC_PINS as usize],
    /// Which input lines are asserted.
    lines: u32,
    /// Edges that no local APIC has taken yet.
    edges: u32,
}

impl IoApic {
    /// After reset: every pin masked.
    pub fn new() -> Self {
        Self {
            index: 0,
            id: 0,
            redirection: [REDIRECTION_MASKED; IOAPIC_PINS as usize],
            lines: 0,
            edges: 0,
        }
    }

    /// Reads the 32-bit register at `offset` in the window.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            IOREGSEL => u32::from(self.index),
            IOWIN => match self.index {
                INDEX_ID | INDEX_ARBITRATION => u32::from(self.id) << 24,
                INDEX_VERSION => VERSION,
                _ => self.selected().map_or(0, |(pin, high)| {
                    let entry = self.redirection[pin];
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
            IOREGSEL => self.index = value as u8,
            IOWIN if self.index == INDEX_ID => self.id = (value >> 24) as u8 & 0xF,
            IOWIN => self.write_redirection(value),
            EOIR => self.eoi(value as u8),
            _ => {}
        }
    }

    /// The redirection entry that the index register selects, and whether its high half.
    fn selected(&self) -> Option<(usize, bool)> {
        let n = self.index.checked_sub(INDEX_REDIRECTION)?;
        let pin = usize::from(n / 2);
        (pin < self.redirection.len()).then_some((pin, n % 2 == 1))
    }

    fn write_redirection(&mut self, value: u32) {
        let Some((pin, high)) = self.selected() else {
            return;
        };
        let old = self.redirection[pin];
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
        self.redirection[pin] = entry;
    }

    /// Drives an input line. `level` is true for asserted, whatever the polarity bit says: the
    /// machine's devices signal activity, not voltage.
    pub fn set_line(&mut self, pin: u32, level: bool) {
        let Some(entry) = self.redirection.get(pin as usize) else {
            return;
        };
        let bit = 1 << pin;
        let rising = level && self.lines & bit == 0;
        if level {
            self.lines |= bit
        } else {
            self.lines &= !bit
        }
        // An edge on a masked pin is neither delivered nor held pending (82093AA, "Interrupt
        // Mask").
        if rising && entry & (REDIRECTION_LEVEL | REDIRECTION_MASKED) == 0 {
            self.edges |= bit;
        }
    }

    /// Whether software has unmasked `pin`.
    pub fn is_unmasked(&self, pin: u32) -> bool {
        self.redirection
            .get(pin as usize)
            .is_some_and(|entry| entry & REDIRECTION_MASKED == 0)
    }

    /// The next pin, from `from` upwards, that has an interrupt to deliver, and its message.
    pub(crate) fn next_message(&self, from: u32) -> Option<(u32, Message)> {
        let mut candidates = (self.lines | self.edges) & u32::MAX.checked_shl(from).unwrap_or(0);
        while candidates != 0 {
            let pin = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let entry = self.redirection[pin as usize];
            let wants = if entry & REDIRECTION_LEVEL != 0 {
                self.lines & 1 << pin != 0 && entry & REDIRECTION_REMOTE_IRR == 0
            } else {
                self.edges & 1 << pin != 0
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

    /// Notes that a local APIC took the message of `pin`.
    pub(crate) fn delivered(&mut self, pin: u32) {
        self.edges &= !(1 << pin);
        if let Some(entry) = self.redirection.get_mut(pin as usize)
            && *entry & REDIRECTION_LEVEL != 0
        {
            *entry |= REDIRECTION_REMOTE_IRR;
        }
    }

    /// The interrupt with this vector has been served: its pins may interrupt again.
    pub fn eoi(&mut self, vector: u8) {
        for entry in &mut self.redirection {
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
