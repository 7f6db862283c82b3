//! What an access to a device has caused outside the device.

use bitflags::bitflags;

bitflags! {
    /// What an access, a timer or host input has caused, for the machine to act on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Effects: u8 {
        /// An interrupt line changed: the outputs of the interrupt controllers have to be passed on
        /// to the processors.
        const INTERRUPTS = 1 << 0;
        /// Guest memory was written: processors have to invalidate what they have cached of it. A
        /// [`DmaObserver`](crate::DmaObserver) reports the pages.
        const DMA = 1 << 1;
        /// The host has work: there is output, room for input, or a request to end the run.
        const HOST = 1 << 2;
    }
}
