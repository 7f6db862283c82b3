//! Virtio devices behind the virtio-mmio transport (OASIS Virtual I/O Device 1.2).

pub mod block;
mod budget;
pub mod console;
pub mod entropy;
pub mod fs9p;
pub mod mmio;
pub mod net;
pub mod queue;
mod state;
#[cfg(test)]
mod testing;

pub use budget::Budget;
pub use state::{DeviceState, VirtioState};

use crate::{GuestRam, StateError};
use queue::{QueueError, VirtQueue};

/// A device apart from its transport.
///
/// A device completes the driver's requests inside [`process`](Self::process). There are no
/// asynchronous operations.
pub trait VirtioDevice: Send {
    /// Device type (section 5).
    fn device_id(&self) -> u32;
    /// Device-specific feature bits.
    fn features(&self) -> u64;
    /// The largest size of each queue; a power of two.
    fn queue_sizes(&self) -> &[u16];
    /// The device-specific configuration space; read-only for the driver.
    fn config(&self) -> &[u8];
    /// The driver accesses the device at the virtual time `now`, in ns.
    fn advance_to(&mut self, _now: u64) {}
    /// Serves the chains that the driver has made available on any queue, as far as possible now.
    ///
    /// # Errors
    /// A queue is unusable. The transport then sets DEVICE_NEEDS_RESET.
    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError>;
    /// The driver is ready, and has accepted `features` of those that were offered. Also called
    /// when a running device is restored: what `start` derives from the features is not part of the
    /// state.
    fn start(&mut self, _features: u64) {}
    /// Returns to the state before the driver set up the device.
    fn reset(&mut self);
    /// The state of the device apart from its transport.
    ///
    /// # Errors
    /// The device holds something that a state cannot contain.
    fn state(&self) -> Result<DeviceState, StateError> {
        Ok(DeviceState::Stateless)
    }
    /// Puts the device into `state`.
    ///
    /// # Errors
    /// The device never has such a state.
    fn restore(&mut self, state: &DeviceState) -> Result<(), StateError> {
        match state {
            DeviceState::Stateless => Ok(()),
            other => Err(other.mismatch("a virtio device")),
        }
    }
}
