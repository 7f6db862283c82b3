//! The driver's side of virtio-mmio, for tests.

use vm_memory::{Bytes, GuestAddress};

use super::mmio::{MmioTransport, VirtioTransport};
use super::{Budget, VirtioDevice};
use crate::bus::BusDevice;
use crate::irqchip::{IrqChip, IrqLine};
use crate::{Effects, GuestRam, Shared, shared};

pub(super) const RAM_SIZE: usize = 8 << 20;
const RINGS: u64 = 0x1000;
const RING_STRIDE: u64 = 0x3000;
const BUFFERS: u64 = 0x10_0000;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;

#[derive(Default, Clone)]
struct Ring {
    size: u16,
    avail: u16,
    used: u16,
    next_descriptor: u16,
}

/// A device, its RAM, and a driver for it.
pub(super) struct Driver<D> {
    pub device: MmioTransport<D>,
    pub ram: GuestRam,
    pub chip: Shared<IrqChip>,
    budget: Budget,
    rings: Vec<Ring>,
    next_buffer: u64,
}

/// A chain that was made available: its head, and the address of its writable buffer.
pub(super) struct Request {
    pub head: u16,
    pub reply: GuestAddress,
}

impl<D: VirtioDevice> Driver<D> {
    pub(super) fn new(device: D) -> Self {
        Self::within(device, Budget::default())
    }

    /// A driver for a device that shares `budget` with others.
    pub(super) fn within(device: D, budget: Budget) -> Self {
        let ram = GuestRam::from_ranges(&[(GuestAddress(0), RAM_SIZE)]).unwrap();
        let chip = shared(IrqChip::new(1, false));
        let line = IrqLine::new(chip.clone(), 5);
        Self {
            device: MmioTransport::new(device, ram.clone(), line, &budget).unwrap(),
            ram,
            chip,
            budget,
            rings: Vec::new(),
            next_buffer: BUFFERS,
        }
    }

    /// Saves the device and restores it to `device`, which takes its place.
    pub(super) fn replace(&mut self, device: D) {
        let state = self.device.state().unwrap();
        let encoded = postcard::to_allocvec(&state).unwrap();
        let state = postcard::from_bytes(&encoded).unwrap();
        let line = IrqLine::new(self.chip.clone(), 5);
        self.device = MmioTransport::new(device, self.ram.clone(), line, &self.budget).unwrap();
        self.device.restore(&state).unwrap();
        assert_eq!(self.device.state().unwrap(), state);
    }

    pub(super) fn get(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.device.read(0, offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub(super) fn set(&mut self, offset: u64, value: u32) {
        self.device.write(0, offset, &value.to_le_bytes());
    }

    pub(super) fn avail_ring(queue: usize) -> u64 {
        RINGS + queue as u64 * RING_STRIDE + 0x1000
    }

    pub(super) fn used_ring(queue: usize) -> u64 {
        RINGS + queue as u64 * RING_STRIDE + 0x2000
    }

    pub(super) fn descriptors(queue: usize) -> u64 {
        RINGS + queue as u64 * RING_STRIDE
    }

    /// Negotiates every feature that is offered, up to FEATURES_OK.
    pub(super) fn negotiate(&mut self) {
        self.set(0x070, 0);
        self.set(0x070, 1);
        self.set(0x070, 3);
        for part in 0..2 {
            self.set(0x014, part);
            self.set(0x024, part);
            let features = self.get(0x010);
            self.set(0x020, features);
        }
        self.set(0x070, 0xB);
        assert_eq!(self.get(0x070), 0xB);
    }

    /// Brings the device up with all its queues.
    pub(super) fn start(&mut self) {
        self.negotiate();
        self.rings.clear();
        for queue in 0.. {
            self.set(0x030, queue);
            let size = self.get(0x034);
            if size == 0 {
                break;
            }
            let q = queue as usize;
            self.ram
                .write_slice(
                    &[0; RING_STRIDE as usize],
                    GuestAddress(Self::descriptors(q)),
                )
                .unwrap();
            self.set(0x038, size);
            self.set(0x080, Self::descriptors(q) as u32);
            self.set(0x090, Self::avail_ring(q) as u32);
            self.set(0x0A0, Self::used_ring(q) as u32);
            self.set(0x044, 1);
            assert_eq!(self.get(0x044), 1);
            self.rings.push(Ring {
                size: size as u16,
                ..Ring::default()
            });
        }
        self.set(0x030, 0);
        self.set(0x070, 0xF);
        assert_eq!(self.get(0x070), 0xF);
    }

    pub(super) fn write_descriptor(
        &self,
        queue: usize,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let at = GuestAddress(Self::descriptors(queue) + u64::from(index) * 16);
        self.ram.write_obj(address, at).unwrap();
        self.ram.write_obj(len, GuestAddress(at.0 + 8)).unwrap();
        self.ram.write_obj(flags, GuestAddress(at.0 + 12)).unwrap();
        self.ram.write_obj(next, GuestAddress(at.0 + 14)).unwrap();
    }

    /// Makes the chain that starts at `head` available.
    pub(super) fn make_available(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let at = Self::avail_ring(queue) + 4 + u64::from(ring.avail % ring.size) * 2;
        ring.avail = ring.avail.wrapping_add(1);
        self.ram.write_obj(head, GuestAddress(at)).unwrap();
        self.ram
            .write_obj(ring.avail, GuestAddress(Self::avail_ring(queue) + 2))
            .unwrap();
    }

    fn buffer(&mut self, len: usize) -> u64 {
        let len = (len as u64).next_multiple_of(16);
        if self.next_buffer + len > RAM_SIZE as u64 {
            self.next_buffer = BUFFERS;
        }
        let at = self.next_buffer;
        self.next_buffer += len;
        at
    }

    /// Makes a chain available with `out` for the device to read and `room` bytes for it to write.
    pub(super) fn submit(&mut self, queue: usize, out: &[u8], room: usize) -> Request {
        let (size, head) = (self.rings[queue].size, self.rings[queue].next_descriptor);
        let second = (head + 1) % size;
        self.rings[queue].next_descriptor = (head + 2) % size;
        let (from, to) = (self.buffer(out.len()), self.buffer(room));
        self.ram.write_slice(out, GuestAddress(from)).unwrap();
        match (out.len(), room) {
            (_, 0) => self.write_descriptor(queue, head, from, out.len() as u32, 0, 0),
            (0, _) => self.write_descriptor(queue, head, to, room as u32, WRITE, 0),
            _ => {
                self.write_descriptor(queue, head, from, out.len() as u32, NEXT, second);
                self.write_descriptor(queue, second, to, room as u32, WRITE, 0);
            }
        }
        self.make_available(queue, head);
        Request {
            head,
            reply: GuestAddress(to),
        }
    }

    /// The run loop has returned.
    pub(super) fn grant_budgets(&mut self) -> Effects {
        self.budget.renew();
        self.device.grant_budget(0)
    }

    /// Notifies the device by an instruction after which the run loop returns.
    pub(super) fn notify(&mut self, queue: usize) {
        self.notify_in_block(queue);
        self.grant_budgets();
    }

    /// Notifies the device by an instruction after which the same block goes on.
    pub(super) fn notify_in_block(&mut self, queue: usize) {
        self.set(0x050, queue as u32);
    }

    /// The next used entry: head and length.
    pub(super) fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let ring = &mut self.rings[queue];
        let index: u16 = self
            .ram
            .read_obj(GuestAddress(Self::used_ring(queue) + 2))
            .unwrap();
        if index == ring.used {
            return None;
        }
        let at = Self::used_ring(queue) + 4 + u64::from(ring.used % ring.size) * 8;
        ring.used = ring.used.wrapping_add(1);
        let head: u32 = self.ram.read_obj(GuestAddress(at)).unwrap();
        let len: u32 = self.ram.read_obj(GuestAddress(at + 4)).unwrap();
        Some((head as u16, len))
    }

    /// Submits `out`, checks that it is served at once, and returns the answer.
    pub(super) fn exchange(&mut self, queue: usize, out: &[u8], room: usize) -> Vec<u8> {
        let request = self.submit(queue, out, room);
        self.notify(queue);
        let (head, len) = self.used(queue).unwrap();
        assert_eq!(head, request.head);
        self.bytes(request.reply, len as usize)
    }

    pub(super) fn bytes(&self, at: GuestAddress, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read_slice(&mut bytes, at).unwrap();
        bytes
    }
}
