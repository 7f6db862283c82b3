//! Port 0xF4, by which a guest ends the machine with a status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::Effects;
use crate::bus::BusDevice;

/// The guest has not ended the machine yet.
const NONE: u16 = u16::MAX;

/// The exit status of the machine. Clones share the status.
#[derive(Debug, Clone)]
pub struct ExitStatus(Arc<AtomicU16>);

impl ExitStatus {
    /// No status yet.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU16::new(NONE)))
    }

    /// Sets the status, as a saved state has it.
    pub fn restore(&self, status: Option<u8>) {
        self.0
            .store(status.map_or(NONE, u16::from), Ordering::Relaxed);
    }

    /// The status that the guest ended with, 0 to 255.
    pub fn get(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}

impl Default for ExitStatus {
    fn default() -> Self {
        Self::new()
    }
}

/// The port, four bytes wide. The first write wins; larger values end with 255.
#[derive(Debug)]
pub struct ExitPort(ExitStatus);

impl ExitPort {
    /// A port that stores into `status`.
    pub fn new(status: ExitStatus) -> Self {
        Self(status)
    }
}

impl BusDevice for ExitPort {
    fn read(&mut self, _now: u64, _offset: u64, data: &mut [u8]) -> Effects {
        data.fill(0xFF);
        Effects::empty()
    }

    fn write(&mut self, _now: u64, offset: u64, data: &[u8]) -> Effects {
        if offset != 0 {
            return Effects::empty();
        }
        let value = data.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let status = value.min(255) as u16;
        let _ = self
            .0
            .0
            .compare_exchange(NONE, status, Ordering::Relaxed, Ordering::Relaxed);
        Effects::HOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_write_is_the_status() {
        for (data, expected) in [
            (&[3u8][..], 3),
            (&[7, 0], 7),
            (&[255, 0, 0, 0], 255),
            (&[0, 1, 0, 0], 255),
            (&[0, 0, 0, 0], 0),
        ] {
            let status = ExitStatus::new();
            let mut port = ExitPort::new(status.clone());
            port.write(0, 2, &[9]);
            assert_eq!(status.get(), None);
            port.write(0, 0, data);
            port.write(0, 0, &[42]);
            assert_eq!(status.get(), Some(expected));
            for restored in [Some(255), None] {
                status.restore(restored);
                assert_eq!(status.get(), restored);
            }
        }
    }
}
