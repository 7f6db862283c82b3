//! The work of all virtio devices of a machine until the run loop of a processor returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most bytes of all chains that the devices take before the run loop of the processor has looked
/// at its limit and at signals again: what the time limit may have to wait for.
pub(super) const MAX_BYTES_AT_ONCE: u64 = 128 << 20;

/// Bytes that the chains of all devices that share it may still have. The last chain may have more.
#[derive(Debug, Clone)]
pub struct Budget(Arc<AtomicU64>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(MAX_BYTES_AT_ONCE)))
    }
}

impl Budget {
    /// Allows the same number of bytes again. The machine does so each time a processor's run loop
    /// has returned.
    pub fn renew(&self) {
        self.0.store(MAX_BYTES_AT_ONCE, Ordering::Relaxed);
    }

    /// The bytes that are left.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Allows `left` bytes, or as many as [`Self::renew`] does if they are more.
    pub fn restore(&self, left: u64) {
        self.0.store(left.min(MAX_BYTES_AT_ONCE), Ordering::Relaxed);
    }

    /// Returns whether devices have to wait until the budget is renewed.
    pub(super) fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    /// Accounts for a chain of `bytes`.
    pub(super) fn take(&self, bytes: u64) {
        let order = Ordering::Relaxed;
        // It always returns a value.
        let _ = (self.0).fetch_update(order, order, |left| Some(left.saturating_sub(bytes)));
    }
}
