//! Split virtqueues as the devices use them.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::budget::Budget;
use super::state::QueueState;
use crate::state::check;
use crate::{GuestRam, StateError};

/// Most descriptors of one chain that a device reads.
const MAX_SEGMENTS: usize = 1024;
/// Most bytes of one chain, readable and writable together. Several descriptors can name the same
/// memory, so the size of RAM is not a bound.
const MAX_CHAIN_BYTES: u64 = 4 << 20;

const VRING_AVAIL_F_NO_INTERRUPT: u16 = 1;

const DEVICE: &str = "a virtqueue";

/// Why a queue is unusable until the driver resets the device.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The rings or a buffer are not in RAM, or the available index is more than a ring ahead.
    #[error("Virtqueue is broken")]
    Queue(#[from] virtio_queue::Error),
    /// A buffer is not in RAM.
    #[error("Virtqueue buffer is not in RAM")]
    Buffer(#[from] vm_memory::GuestMemoryError),
    /// A chain is longer than any driver needs.
    #[error("Virtqueue chain has more than {MAX_CHAIN_BYTES} bytes")]
    ChainTooLong,
}

/// One queue, and the effects of serving it.
#[derive(Debug)]
pub struct VirtQueue {
    queue: Queue,
    /// A chain was completed for which the driver has enabled the interrupt.
    interrupt: bool,
    /// A chain was taken or completed: guest memory may have been written.
    served: bool,
    /// Chains that may still be taken before the next [`Self::grant_budget`].
    chains: u16,
    /// Bytes that they may have.
    budget: Budget,
    /// The device has asked for a chain when the budget was used up. It goes on with the next one.
    throttled: bool,
}

impl VirtQueue {
    /// A queue of at most `max_size` entries, which shares `budget` with others.
    pub(super) fn new(max_size: u16, budget: Budget) -> Result<Self, QueueError> {
        Ok(Self {
            queue: Queue::new(max_size)?,
            interrupt: false,
            served: false,
            chains: max_size,
            budget,
            throttled: false,
        })
    }

    pub(super) fn inner(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn inner_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// The state between two calls of the device: only positions and places are kept then.
    pub(super) fn state(&self) -> QueueState {
        let queue = self.queue.state();
        QueueState {
            size: queue.size,
            ready: queue.ready,
            descriptor_table: queue.desc_table,
            available_ring: queue.avail_ring,
            used_ring: queue.used_ring,
            next_available: queue.next_avail,
            next_used: queue.next_used,
            chains: self.chains,
            throttled: self.throttled,
        }
    }

    /// A queue of the same maximum size in `state`.
    pub(super) fn restored(&self, state: &QueueState, ram: &GuestRam) -> Result<Self, StateError> {
        let refuse = |reason: &str| StateError::restore(DEVICE, reason);
        let queue = Queue::try_from(virtio_queue::QueueState {
            max_size: self.queue.max_size(),
            size: state.size,
            ready: state.ready,
            desc_table: state.descriptor_table,
            avail_ring: state.available_ring,
            used_ring: state.used_ring,
            next_avail: state.next_available,
            next_used: state.next_used,
            event_idx_enabled: false,
        });
        let queue = queue.map_err(|error| refuse(&error.to_string()))?;
        if state.ready && !queue.is_valid(ram) {
            return Err(refuse("a part of it is not in guest memory"));
        }
        Ok(Self {
            queue,
            interrupt: false,
            served: false,
            chains: state.chains.min(self.queue.max_size()),
            budget: self.budget.clone(),
            throttled: state.throttled,
        })
    }

    /// Allows as many chains as the longest ring has entries. Returns whether the device has to go
    /// on with what the last budget, of chains or of bytes, did not allow.
    ///
    /// A driver that places its rings over each other or over its buffers could make the device
    /// itself add to them without end, and one that makes the same long chain available many times,
    /// or notifies the device with each instruction of a block, could occupy the processor beyond
    /// the time limit.
    pub(super) fn grant_budget(&mut self) -> bool {
        self.chains = self.queue.max_size();
        std::mem::take(&mut self.throttled)
    }

    /// Whether the device waits for the next budget.
    pub(super) fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// Whether an interrupt has become due since the last call.
    pub(super) fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.interrupt)
    }

    /// Whether a chain was taken or completed since the last call.
    pub(super) fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.served)
    }

    pub(super) fn reset(&mut self) {
        self.queue.reset();
        self.interrupt = false;
        // The budget stays: resets do not earn one.
        self.throttled = false;
    }

    /// Takes the next chain that the driver has made available.
    pub fn pop(&mut self, ram: &GuestRam) -> Result<Option<Chain>, QueueError> {
        if !self.queue.ready() {
            return Ok(None);
        }
        if self.chains == 0 || self.budget.is_used_up() {
            self.throttled = true;
            return Ok(None);
        }
        let Some(descriptors) = self.queue.iter(ram)?.next() else {
            return Ok(None);
        };
        self.chains -= 1;
        self.served = true;
        let mut chain = Chain {
            head: descriptors.head_index(),
            readable: vec![],
            writable: vec![],
        };
        let mut bytes = 0;
        for d in descriptors.take(MAX_SEGMENTS) {
            bytes += u64::from(d.len());
            if bytes > MAX_CHAIN_BYTES {
                return Err(QueueError::ChainTooLong);
            }
            let list = if d.is_write_only() {
                &mut chain.writable
            } else {
                &mut chain.readable
            };
            list.push(Segment {
                address: d.addr().0,
                len: d.len(),
            });
        }
        self.budget.take(bytes);
        Ok(Some(chain))
    }

    /// Returns a chain to the driver, with `written` bytes in its writable part.
    pub fn complete(
        &mut self,
        ram: &GuestRam,
        chain: &Chain,
        written: usize,
    ) -> Result<(), QueueError> {
        self.served = true;
        self.queue
            .add_used(ram, chain.head, u32::try_from(written).unwrap_or(u32::MAX))?;
        let flags = ram.load::<u16>(GuestAddress(self.queue.avail_ring()), Ordering::Acquire)?;
        if u16::from_le(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0 {
            self.interrupt = true;
        }
        Ok(())
    }

    /// Serves every chain that the driver has made available. `serve` returns how many bytes it has
    /// written to the chain.
    ///
    /// # Errors
    /// The driver has broken the queue, or `serve` fails.
    pub fn serve(
        &mut self,
        ram: &GuestRam,
        mut serve: impl FnMut(&Chain) -> Result<usize, QueueError>,
    ) -> Result<(), QueueError> {
        while let Some(chain) = self.pop(ram)? {
            let written = serve(&chain)?;
            self.complete(ram, &chain, written)?;
        }
        Ok(())
    }
}

/// A buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Segment {
    /// Guest-physical.
    address: u64,
    /// In bytes.
    len: u32,
}

/// A descriptor chain: buffers to read from, then buffers to write to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    head: u16,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

impl Chain {
    /// A chain of readable buffers of these lengths.
    #[cfg(test)]
    pub(super) fn of_lengths(lengths: Vec<u32>) -> Self {
        let segments = lengths.into_iter().map(|len| Segment { address: 0, len });
        Self {
            head: 0,
            readable: segments.collect(),
            writable: Vec::new(),
        }
    }

    /// Refuses a chain that [`VirtQueue::pop`] never returns.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let segments = || self.readable.iter().chain(&self.writable);
        let count = segments().count();
        check(DEVICE, "chain length", count as u64, count <= MAX_SEGMENTS)?;
        let bytes: u64 = segments().map(|segment| u64::from(segment.len)).sum();
        check(DEVICE, "chain size", bytes, bytes <= MAX_CHAIN_BYTES)
    }

    /// Bytes that the driver provides.
    pub fn readable_len(&self) -> usize {
        total(&self.readable)
    }

    /// Bytes that the device may write.
    pub fn writable_len(&self) -> usize {
        total(&self.writable)
    }

    /// Fills `data` from the readable bytes, starting at byte `offset` of them. Returns how many
    /// there were.
    pub fn read(
        &self,
        ram: &GuestRam,
        offset: usize,
        data: &mut [u8],
    ) -> Result<usize, QueueError> {
        let mut done = 0;
        for (address, len) in pieces(&self.readable, offset, data.len()) {
            ram.read_slice(&mut data[done..done + len], address)?;
            done += len;
        }
        Ok(done)
    }

    /// Stores `data` in the writable bytes, starting at byte `offset` of them. Returns how many
    /// bytes the chain had room for.
    pub fn write(&self, ram: &GuestRam, offset: usize, data: &[u8]) -> Result<usize, QueueError> {
        let mut done = 0;
        for (address, len) in pieces(&self.writable, offset, data.len()) {
            ram.write_slice(&data[done..done + len], address)?;
            done += len;
        }
        Ok(done)
    }
}

fn total(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}

/// The parts of `segments` that contain bytes `skip..skip + want`.
fn pieces(
    segments: &[Segment],
    mut skip: usize,
    mut want: usize,
) -> impl Iterator<Item = (GuestAddress, usize)> {
    segments.iter().filter_map(move |segment| {
        let len = segment.len as usize;
        let skipped = skip.min(len);
        skip -= skipped;
        let n = (len - skipped).min(want);
        want -= n;
        // An address that wraps around is not RAM either.
        let start = GuestAddress(segment.address.saturating_add(skipped as u64));
        (n > 0).then_some((start, n))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cut_segments() {
        let segments =
            [(100, 10), (200, 0), (300, 5)].map(|(address, len)| Segment { address, len });
        let cut = |skip, want| {
            pieces(&segments, skip, want)
                .map(|(a, n)| (a.0, n))
                .collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 4), [(100, 4)]);
        assert_eq!(cut(8, 4), [(108, 2), (300, 2)]);
        assert_eq!(cut(10, 99), [(300, 5)]);
        assert_eq!(cut(15, 1), []);
        assert_eq!(cut(usize::MAX, usize::MAX), []);
    }
}
