//! Address-range dispatch for port I/O and memory-mapped I/O.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::Effects;

/// A device that decodes a range of addresses.
///
/// `now` is the virtual time in nanoseconds; `offset` counts bytes from the start of the range.
pub trait BusDevice: Send {
    /// Fills `data` (1 to 8 bytes, all inside the range) from `offset`. Returns the effects.
    fn read(&mut self, now: u64, offset: u64, data: &mut [u8]) -> Effects;
    /// Stores `data` (1 to 8 bytes, all inside the range) at `offset`. Returns the effects.
    fn write(&mut self, now: u64, offset: u64, data: &[u8]) -> Effects;
}

/// A device whose registers are one byte wide: the bus splits wider accesses, as an ISA bridge
/// does.
pub trait ByteDevice: Send {
    /// Reads the register at `offset`. Returns its value and the effects.
    fn read_byte(&mut self, now: u64, offset: u64) -> (u8, Effects);
    /// Writes the register at `offset`. Returns the effects.
    fn write_byte(&mut self, now: u64, offset: u64, value: u8) -> Effects;
}

impl<T: ByteDevice> BusDevice for T {
    fn read(&mut self, now: u64, offset: u64, data: &mut [u8]) -> Effects {
        let mut effects = Effects::empty();
        for (at, byte) in (offset..).zip(data) {
            let (value, caused) = self.read_byte(now, at);
            *byte = value;
            effects |= caused;
        }
        effects
    }

    fn write(&mut self, now: u64, offset: u64, data: &[u8]) -> Effects {
        let bytes = (offset..).zip(data);
        bytes.fold(Effects::empty(), |effects, (at, byte)| {
            effects | self.write_byte(now, at, *byte)
        })
    }
}

/// A device on a bus. Its owner keeps a clone to reach its host side.
pub type Shared<T> = Arc<Mutex<T>>;

/// Wraps a device so that it can be put on a [`Bus`].
pub fn shared<T>(device: T) -> Shared<T> {
    Arc::new(Mutex::new(device))
}

/// Locks a device. Ignores poison: a panic in another thread does not invalidate the registers.
pub fn lock<T: ?Sized>(device: &Mutex<T>) -> MutexGuard<'_, T> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a device cannot be put on a bus.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BusError {
    /// The range is empty or extends beyond the end of the address space.
    #[error("Bus range {base:#x}+{len:#x} is empty or wraps around")]
    BadRange {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Another device decodes a part of the range.
    #[error("Bus range {base:#x}+{len:#x} overlaps the device at {other:#x}")]
    Overlap {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
        /// First address of the other device.
        other: u64,
    },
}

struct Slot {
    base: u64,
    len: u64,
    device: Arc<Mutex<dyn BusDevice>>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..={:#x}", self.base, self.base + (self.len - 1))
    }
}

/// Devices by address. Bytes that no device decodes read as ones and ignore writes.
#[derive(Debug, Default)]
pub struct Bus {
    /// Sorted by base, disjoint.
    slots: Vec<Slot>,
}

impl Bus {
    /// A bus without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `len` bytes of address space from `base` to `device`.
    ///
    /// # Errors
    /// The range is empty, wraps around, or overlaps a device that is there already.
    pub fn insert(
        &mut self,
        base: u64,
        len: u64,
        device: Arc<Mutex<dyn BusDevice>>,
    ) -> Result<(), BusError> {
        let last = len
            .checked_sub(1)
            .and_then(|l| base.checked_add(l))
            .ok_or(BusError::BadRange { base, len })?;
        let at = self.slots.partition_point(|s| s.base < base);
        let before = at.checked_sub(1).and_then(|i| self.slots.get(i));
        let clash = before
            .filter(|s| base - s.base < s.len)
            .or_else(|| self.slots.get(at).filter(|s| s.base <= last));
        if let Some(other) = clash {
            return Err(BusError::Overlap {
                base,
                len,
                other: other.base,
            });
        }
        self.slots.insert(at, Slot { base, len, device });
        Ok(())
    }

    /// The device that decodes `addr`, the offset in its range, and the number of bytes from there
    /// to the end of the range.
    fn find(&self, addr: u64) -> Option<(&Slot, u64, u64)> {
        let at = self
            .slots
            .partition_point(|s| s.base <= addr)
            .checked_sub(1)?;
        let slot = self.slots.get(at)?;
        let offset = addr - slot.base;
        (offset < slot.len).then(|| (slot, offset, slot.len - offset))
    }

    /// Reads `data.len()` bytes at `addr`. Returns the effects.
    pub fn read(&self, now: u64, addr: u64, data: &mut [u8]) -> Effects {
        let mut effects = Effects::empty();
        let mut done = 0;
        while let Some(rest) = data.get_mut(done..).filter(|r| !r.is_empty()) {
            let hit = addr.checked_add(done as u64).and_then(|a| self.find(a));
            if let Some((slot, offset, room)) = hit {
                let n = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                effects |= lock(&slot.device).read(now, offset, &mut rest[..n]);
                done += n;
            } else {
                rest[0] = 0xFF;
                done += 1;
            }
        }
        effects
    }

    /// Writes `data` at `addr`. Returns the effects.
    pub fn write(&self, now: u64, addr: u64, data: &[u8]) -> Effects {
        let mut effects = Effects::empty();
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|r| !r.is_empty()) {
            let hit = addr.checked_add(done as u64).and_then(|a| self.find(a));
            if let Some((slot, offset, room)) = hit {
                let n = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                effects |= lock(&slot.device).write(now, offset, &rest[..n]);
                done += n;
            } else {
                done += 1;
            }
        }
        effects
    }
}

/// Reads from a little-endian 32-bit register of which `offset` (0 to 3) is the first byte wanted.
/// Bytes past the register read as zero.
pub(crate) fn read_le32(value: u32, offset: u64, data: &mut [u8]) {
    let bytes = value.to_le_bytes();
    for (at, byte) in (offset..).zip(data) {
        *byte = usize::try_from(at)
            .ok()
            .and_then(|i| bytes.get(i))
            .copied()
            .unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(Vec<(u64, Vec<u8>)>);

    impl BusDevice for Log {
        fn read(&mut self, _now: u64, offset: u64, data: &mut [u8]) -> Effects {
            for (i, b) in data.iter_mut().enumerate() {
                *b = offset as u8 + i as u8;
            }
            Effects::HOST
        }
        fn write(&mut self, _now: u64, offset: u64, data: &[u8]) -> Effects {
            self.0.push((offset, data.to_vec()));
            Effects::DMA
        }
    }

    struct Bytes([u8; 2]);
    impl ByteDevice for Bytes {
        fn read_byte(&mut self, _now: u64, offset: u64) -> (u8, Effects) {
            (self.0[offset as usize], Effects::empty())
        }
        fn write_byte(&mut self, _now: u64, offset: u64, value: u8) -> Effects {
            self.0[offset as usize] = value;
            Effects::INTERRUPTS
        }
    }

    #[test]
    fn unclaimed_addresses_float_high() {
        let bus = Bus::new();
        for size in [1, 2, 4, 8] {
            let mut data = vec![0; size];
            bus.read(0, u64::MAX - 1, &mut data);
            assert!(data.iter().all(|b| *b == 0xFF));
            bus.write(0, u64::MAX - 1, &data);
        }
    }

    #[test]
    fn accesses_split_at_range_ends() {
        let (a, b) = (shared(Log::default()), shared(Log::default()));
        let mut bus = Bus::new();
        bus.insert(0x20, 2, b.clone()).unwrap();
        bus.insert(0x10, 4, a.clone()).unwrap();
        let mut data = [0; 8];
        assert_eq!(bus.read(0, 0x12, &mut data[..4]), Effects::HOST);
        assert_eq!(data[..4], [2, 3, 0xFF, 0xFF]);
        bus.read(0, 0x1E, &mut data);
        assert_eq!(data, [0xFF, 0xFF, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(bus.write(0, 0x13, &[9, 8, 7, 6]), Effects::DMA);
        assert_eq!(lock(&a).0, [(3, vec![9])]);
        assert!(lock(&b).0.is_empty());
    }

    #[test]
    fn wide_accesses_to_byte_devices_are_split() {
        let d = shared(Bytes([0; 2]));
        let mut bus = Bus::new();
        bus.insert(0x40, 2, d.clone()).unwrap();
        let effects = bus.write(0, 0x40, &0x1234u16.to_le_bytes());
        assert_eq!(effects, Effects::INTERRUPTS);
        assert_eq!(lock(&d).0, [0x34, 0x12]);
    }

    #[test]
    fn overlaps_and_bad_ranges_are_refused() {
        let mut bus = Bus::new();
        let d = shared(Log::default());
        bus.insert(0x100, 0x10, d.clone()).unwrap();
        for (base, len) in [(0x100, 1), (0x10F, 1), (0xF0, 0x11), (0xF0, 0x100)] {
            assert_eq!(
                bus.insert(base, len, d.clone()),
                Err(BusError::Overlap {
                    base,
                    len,
                    other: 0x100
                })
            );
        }
        for (base, len) in [(5, 0), (u64::MAX, 2)] {
            assert_eq!(
                bus.insert(base, len, d.clone()),
                Err(BusError::BadRange { base, len })
            );
        }
        bus.insert(0x110, 1, d.clone()).unwrap();
        bus.insert(u64::MAX, 1, d).unwrap();
    }
}
