//! The network device (Virtual I/O Device 1.2, section 5.1; Linux: `eth0` and on).
//!
//! Frames are whole and have their checksums. The device offers no offload of any kind, so the host
//! interprets nothing that the guest writes beside a frame.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::mmio::MmioTransport;
use super::queue::{Chain, QueueError, VirtQueue};
use super::{DeviceState, VirtioDevice};
use crate::state::check;
use crate::tap::Tap;
use crate::{GuestRam, StateError};

const DEVICE_ID: u32 = 1;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUE_SIZE: u16 = 128;

/// Feature bits (section 5.1.3).
mod feature {
    pub(super) const MTU: u64 = 1 << 3;
    pub(super) const MAC: u64 = 1 << 5;
}

/// `struct virtio_net_hdr` (section 5.1.6), which comes before each frame.
const HEADER: usize = 12;
/// Its field num_buffers: the number of chains that a frame takes (section 5.1.6.3.1).
const NUM_BUFFERS: usize = 10;

const MTU: u16 = 1500;
/// An Ethernet header with two addresses and a type. It may also contain a VLAN tag.
const SHORTEST_FRAME: usize = 14;
const LONGEST_FRAME: usize = SHORTEST_FRAME + 4 + MTU as usize;

/// An Ethernet address of one station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// A locally administered address that depends only on `name`.
    pub fn of_name(name: &str) -> Self {
        // FNV-1a.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        });
        let [a, b, c, d, e, ..] = hash.to_be_bytes();
        Self([0x02, a, b, c, d, e])
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut address = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut address {
            *byte = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or("write an address as 02:00:00:00:00:01")?;
        }
        if parts.next().is_some() {
            return Err("an address has six bytes".into());
        }
        if address[0] & 1 != 0 || address == [0; 6] {
            return Err("this is not the address of one station".into());
        }
        Ok(Self(address))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

const DEVICE: &str = "the network device";

/// State of a network device. Frames that wait in the host's kernel are not part of it: a restored
/// device may lose them, as an Ethernet may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    /// The frame from the host that the guest has not taken yet; empty if there is none.
    waiting: Vec<u8>,
}

/// A network device.
pub struct Net {
    tap: Tap,
    config: [u8; 12],
    /// A header, and the frame from the host. One more byte shows that a frame is too long.
    incoming: [u8; HEADER + LONGEST_FRAME + 1],
    /// A header, and the frame to the host.
    outgoing: [u8; HEADER + LONGEST_FRAME],
    /// Length of the frame in `incoming` that the guest has not taken yet, or 0.
    waiting: usize,
}

impl Net {
    /// A device with this address, whose other end is `tap`.
    pub fn new(tap: Tap, address: MacAddress) -> Self {
        let mut incoming = [0; HEADER + LONGEST_FRAME + 1];
        incoming[NUM_BUFFERS] = 1;
        Self {
            tap,
            config: config(address),
            incoming,
            outgoing: [0; HEADER + LONGEST_FRAME],
            waiting: 0,
        }
    }

    /// The host's end.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Whether there is a frame for the guest.
    fn fetch(&mut self) -> bool {
        // Frames that are too long or too short are dropped. The bound is the number of frames that
        // the guest could take at once.
        for _ in 0..QUEUE_SIZE {
            if self.waiting != 0 {
                return true;
            }
            let room = self.incoming.get_mut(HEADER..).unwrap_or_default();
            match self.tap.receive(room) {
                Some(n @ SHORTEST_FRAME..=LONGEST_FRAME) => self.waiting = n,
                Some(_) => {}
                None => return false,
            }
        }
        self.waiting != 0
    }

    fn receive(&mut self, queue: &mut VirtQueue, ram: &GuestRam) -> Result<(), QueueError> {
        while self.fetch() {
            let Some(chain) = queue.pop(ram)? else {
                return Ok(());
            };
            let len = HEADER + std::mem::take(&mut self.waiting);
            let frame = self.incoming.get(..len).unwrap_or_default();
            // A buffer has room for any frame (section 5.1.6.3.1). If it has not, this frame is
            // dropped.
            let written = if len <= chain.writable_len() {
                chain.write(ram, 0, frame)?
            } else {
                0
            };
            queue.complete(ram, &chain, written)?;
        }
        Ok(())
    }

    /// Sends the frame in `chain`, unless it has a length that no frame has.
    fn transmit(&mut self, chain: &Chain, ram: &GuestRam) -> Result<usize, QueueError> {
        let len = chain.readable_len();
        if (HEADER + SHORTEST_FRAME..=self.outgoing.len()).contains(&len) {
            let n = chain.read(ram, 0, &mut self.outgoing)?;
            self.tap
                .send(self.outgoing.get(HEADER..n).unwrap_or_default());
        }
        Ok(0)
    }
}

impl VirtioDevice for Net {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        feature::MAC | feature::MTU
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE; 2]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn process(&mut self, queues: &mut [VirtQueue], ram: &GuestRam) -> Result<(), QueueError> {
        if let Some(queue) = queues.get_mut(TRANSMIT) {
            queue.serve(ram, |chain| self.transmit(chain, ram))?;
        }
        match queues.get_mut(RECEIVE) {
            Some(queue) => self.receive(queue, ram),
            None => Ok(()),
        }
    }

    fn state(&self) -> Result<DeviceState, StateError> {
        let waiting = self.incoming.get(HEADER..HEADER + self.waiting);
        Ok(DeviceState::Net(NetState {
            waiting: waiting.unwrap_or_default().to_vec(),
        }))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), StateError> {
        let DeviceState::Net(NetState { waiting }) = state else {
            return Err(state.mismatch(DEVICE));
        };
        let len = waiting.len();
        let possible = len == 0 || (SHORTEST_FRAME..=LONGEST_FRAME).contains(&len);
        check(DEVICE, "the length of a frame", len as u64, possible)?;
        if let Some(frame) = self.incoming.get_mut(HEADER..HEADER + len) {
            frame.copy_from_slice(waiting);
        }
        self.waiting = len;
        Ok(())
    }

    fn reset(&mut self) {
        self.waiting = 0;
    }
}

impl MmioTransport<Net> {
    /// Whether [`poll`](Self::poll) would give the guest a frame from the host, if there is one.
    pub fn awaits_frames(&mut self) -> bool {
        self.is_running() && self.device_mut().waiting == 0 && !self.device_mut().tap.is_gone()
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("tap", &self.tap)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// `struct virtio_net_config` (section 5.1.4).
fn config(address: MacAddress) -> [u8; 12] {
    let mut config = [0; 12];
    let (mac, rest) = config.split_at_mut(6);
    mac.copy_from_slice(&address.0);
    // The MTU follows status and max_virtqueue_pairs, which belong to features that are not
    // offered.
    rest[4..].copy_from_slice(&MTU.to_le_bytes());
    config
}

#[cfg(test)]
mod tests;
