//! Virtio devices behind the virtio-mmio transport (OASIS Virtual I/O Device 1.2).

pub mod block;
pub mod console;
pub mod entropy;
pub mod fs9p;
pub mod mmio;
pub mod net;
pub mod queue;
#[cfg(test)]
mod testing;

use crate::GuestRam;
use queue::{QueueError, VirtQueue};

/// What a device is, apart from its transport.
///
/// Devices finish what the driver asked for inside [`process`](Self::process); there is nothing
/// asynchronous.
pub trait VirtioDevice: Send {
    /// Device type (section 5).
    fn device_id(&self) -> u32;
    /// Device-specific feature bits.
    fn features(&self) -> u64;
    /// The largest size of each queue; a power of two.
    fn queue_sizes(&self) -> &[u16];
    /// The device-specific configuration space; read-only for the driver.
    fn config(&self) -> &[u8];
    /// Serves what the driver has made available on any queue, as far as it is possible now.
    ///
    /// # Errors
    /// A queue is unusable; the transport then asks the driver to reset the device.
    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError>;
    /// The driver is ready, and has taken `features` of those that were offered.
    fn start(&mut self, _features: u64) {}
    /// Forgets everything that the driver set up.
    fn reset(&mut self);
}
