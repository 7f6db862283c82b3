//! The effects of an access to a device on the rest of the machine.

use bitflags::bitflags;

bitflags! {
    /// Effects of an access, a timer or host input, for which the machine has to act.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Effects: u8 {
        /// An interrupt line changed: the machine has to set the processors' lines from the outputs
        /// of the interrupt controllers.
        const INTERRUPTS = 1 << 0;
        /// Guest memory was written: the processors have to invalidate their caches of it. A
        /// [`DmaObserver`](crate::DmaObserver) reports the pages.
        const DMA = 1 << 1;
        /// The host has work: there is output, room for input, or a request to end the run.
        const HOST = 1 << 2;
        /// A virtio device has used a part of its budget: the machine has to grant a new one
        /// ([`VirtioTransport::grant_budget`](crate::virtio::mmio::VirtioTransport::grant_budget)).
        const BUDGET = 1 << 3;
    }
}
