//! The virtio-mmio registers and the rings and buffers in memory, for each device.
#![no_main]

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_devices::disk::Disk;
use vbts_devices::irqchip::{IrqChip, IrqLine};
use vbts_devices::ninep::Access;
use vbts_devices::tap::Tap;
use vbts_devices::virtio::block::Block;
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::entropy::{Entropy, Source};
use vbts_devices::virtio::fs9p::Fs9p;
use vbts_devices::virtio::mmio::{MmioTransport, VirtioTransport};
use vbts_devices::virtio::net::{MacAddress, Net};
use vbts_devices::virtio::{Budget, VirtioDevice};
use vbts_devices::{BusDevice, GuestRam, OutputBuffer, lock, shared};
use vbts_fuzz::canary;
use vbts_fuzz::edit::edit;
use vbts_fuzz::input::Input;
use vbts_fuzz::tree::Tree;
use vbts_testkit::Ram;

/// Size of memory: 16 bits are an address.
const SIZE: usize = 1 << 16;
/// Where a well-behaved driver has its rings, a page for each queue, and its buffers above them.
const RING_STRIDE: u32 = 0x1000;
const AVAILABLE: u32 = 0x800;
const USED: u32 = 0xA00;
const BUFFERS: u16 = 0x8000;

const OPERATIONS: usize = 200;

static MEMORY: LazyLock<(Ram, GuestRam)> = LazyLock::new(|| {
    let ram = Ram::new(SIZE);
    let view = ram.for_devices();
    (ram, view)
});
static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);

/// Bytes of the disk. The guest must not reach what follows them in the file.
const DISK: usize = 1 << 15;
/// A file in memory that is the disk.
static FILE: LazyLock<OwnedFd> = LazyLock::new(|| {
    rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC).expect("a file")
});

/// The disk, all of whose bytes are the same, writable or not.
fn disk(writable: bool) -> Disk {
    rustix::fs::ftruncate(&*FILE, DISK as u64).expect("a file");
    rustix::io::pwrite(&*FILE, &[0xD1; DISK], 0).expect("a file");
    let path = PathBuf::from(format!("/proc/self/fd/{}", FILE.as_raw_fd()));
    Disk::open(&path, writable).expect("a disk")
}

/// The disk has the size that it had and, if it is not `writable`, the contents.
fn assert_disk_is_whole(writable: bool) {
    let mut contents = vec![0; DISK + 1];
    let size = rustix::io::pread(&*FILE, &mut contents, 0).expect("a file");
    assert_eq!(size, DISK);
    assert!(writable || contents[..DISK].iter().all(|b| *b == 0xD1));
}

/// The driver's side.
struct Driver<'a, D> {
    device: &'a mut MmioTransport<D>,
    ram: &'a Ram,
    /// Index of the available ring of each queue.
    available: [u16; 8],
}

impl<D> Driver<'_, D>
where
    D: VirtioDevice,
    MmioTransport<D>: BusDevice,
{
    fn get(&mut self, offset: u64) -> u32 {
        let mut value = [0; 4];
        self.device.read(0, offset, &mut value);
        u32::from_le_bytes(value)
    }

    fn set(&mut self, offset: u64, value: u32) {
        self.device.write(0, offset, &value.to_le_bytes());
    }

    /// Brings the device up as the specification says.
    fn start(&mut self) {
        for status in [0, 1, 3] {
            self.set(0x070, status);
        }
        for part in 0..2 {
            self.set(0x014, part);
            self.set(0x024, part);
            let features = self.get(0x010);
            self.set(0x020, features);
        }
        self.set(0x070, 0xB);
        for queue in 0..self.available.len() as u32 {
            self.set(0x030, queue);
            let size = self.get(0x034);
            if size == 0 {
                break;
            }
            let rings = queue * RING_STRIDE;
            for (offset, value) in [
                (0x038, size),
                (0x080, rings),
                (0x090, rings + AVAILABLE),
                (0x0A0, rings + USED),
                (0x044, 1),
            ] {
                self.set(offset, value);
            }
            self.ram.write((rings + AVAILABLE).into(), &[0; 4]);
            self.available[queue as usize] = 0;
        }
        self.set(0x070, 0xF);
    }

    /// Writes descriptors from the first one on, makes that one available, and notifies.
    fn submit(&mut self, queue: usize, descriptors: &[(u16, u16, u8, u8)]) {
        let rings = queue as u64 * u64::from(RING_STRIDE);
        for (i, &(address, len, flags, next)) in descriptors.iter().enumerate() {
            let mut d = [0; 16];
            d[..2].copy_from_slice(&address.to_le_bytes());
            d[8..10].copy_from_slice(&len.to_le_bytes());
            d[12] = flags;
            d[14] = next;
            self.ram.write(rings + i as u64 * 16, &d);
        }
        let Some(index) = self.available.get_mut(queue) else {
            return;
        };
        *index = index.wrapping_add(1);
        let index = *index;
        self.ram
            .write(rings + u64::from(AVAILABLE) + 2, &index.to_le_bytes());
        self.set(0x050, queue as u32);
    }

    fn run(&mut self, input: &mut Input<'_>, mut host: impl FnMut(&mut MmioTransport<D>, &[u8])) {
        for _ in 0..OPERATIONS {
            if input.is_empty() {
                break;
            }
            let operation = input.u8();
            match operation % 8 {
                // The state of the device is saved, edited and restored.
                0 if operation & 0x80 != 0 => {
                    let Ok(state) = self.device.state() else {
                        continue;
                    };
                    let mut bytes = postcard::to_allocvec(&state).expect("a state");
                    let (len, edits) = (bytes.len(), input.u8());
                    edit(&mut bytes, len, &mut Input::new(input.bytes(edits.into())));
                    if let Ok(state) = postcard::from_bytes(&bytes) {
                        // After an error a device has some other state.
                        let _ = self.device.restore(&state);
                    }
                }
                0 => {
                    let (offset, value) = (u64::from(input.u8()) * 4, input.u32());
                    self.set(offset, value);
                }
                1 => {
                    let offset = input.u16().into();
                    let mut data = vec![0; 1 + usize::from(operation >> 5)];
                    self.device.read(0, offset, &mut data);
                    self.device.write(0, offset, &data);
                }
                2 => input.fill(self.ram),
                3 => self.start(),
                4 | 5 => {
                    let mut descriptor = || (input.u16(), input.u16(), input.u8(), input.u8());
                    let chain: Vec<_> = (0..=operation >> 6).map(|_| descriptor()).collect();
                    self.submit(usize::from(operation >> 3 & 7), &chain);
                }
                // A request with an answer, in good order.
                6 => {
                    let len = input.u8();
                    let request = input.bytes(len.into());
                    self.ram.write(BUFFERS.into(), request);
                    let chain = [
                        (BUFFERS, request.len() as u16, 1, 1),
                        (BUFFERS + 0x1000, 0x4000, 2, 0),
                    ];
                    self.submit(usize::from(operation >> 3 & 7), &chain);
                }
                _ => {
                    let len = input.u8();
                    host(self.device, input.bytes(len.into()));
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (ram, memory) = &*MEMORY;
    ram.clear();
    let mut input = Input::new(data);
    let irq = IrqLine::new(shared(IrqChip::new(1, false)), 5);
    let available = [0; 8];
    let budget = Budget::default();
    let kind = input.u8();
    if kind.is_multiple_of(4) {
        let output = shared(OutputBuffer::new(64));
        let ports = vec![
            ConsolePort::named("port", Box::new(output.clone())),
            ConsolePort::console(Box::new(output.clone())),
        ];
        let mut device = MmioTransport::new(Console::new(ports), memory.clone(), irq, &budget)
            .expect("good queues");
        let device = &mut device;
        let mut driver = Driver {
            device,
            ram,
            available,
        };
        driver.run(&mut input, |device, bytes| {
            let port = bytes.len() % 3;
            device.push_input(port, bytes);
            lock(&output).take();
            budget.renew();
            device.poll();
        });
    } else if kind % 4 == 2 {
        let writable = kind & 0x10 == 0;
        let device = Block::new(disk(writable), "disk");
        let mut device =
            MmioTransport::new(device, memory.clone(), irq, &budget).expect("good queues");
        let device = &mut device;
        Driver {
            device,
            ram,
            available,
        }
        .run(&mut input, |device, _| {
            budget.renew();
            device.poll();
        });
        assert_disk_is_whole(writable);
    } else if kind % 4 == 3 && kind & 0x20 != 0 {
        let (ours, theirs) = UnixDatagram::pair().expect("sockets");
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).expect("a socket");
        }
        let device = Net::new(Tap::from_fd(ours.into()), MacAddress::of_name("tap"));
        let mut device =
            MmioTransport::new(device, memory.clone(), irq, &budget).expect("good queues");
        let device = &mut device;
        let mut frame = [0; 1 << 16];
        Driver {
            device,
            ram,
            available,
        }
        .run(&mut input, |device, bytes| {
            // The host sends frames of any length.
            frame[..bytes.len()].copy_from_slice(bytes);
            let len = bytes.first().map_or(0, |n| usize::from(*n) * 8);
            let _ = theirs.send(&frame[..len]);
            budget.renew();
            device.poll();
            while let Ok(n) = theirs.recv(&mut frame) {
                assert!((14..=1518).contains(&n), "a frame of {n} bytes");
            }
            assert!(!device.is_broken() || !device.awaits_frames());
        });
    } else if kind % 4 == 3 {
        let device = Entropy::new(Source::Fixed(kind.into()));
        let mut device =
            MmioTransport::new(device, memory.clone(), irq, &budget).expect("good queues");
        let device = &mut device;
        Driver {
            device,
            ram,
            available,
        }
        .run(&mut input, |device, _| {
            budget.renew();
            device.poll();
        });
    } else {
        let device = Fs9p::new("tag", &TREE.share(), Access::ReadOnly).expect("the share is there");
        let mut device =
            MmioTransport::new(device, memory.clone(), irq, &budget).expect("good queues");
        let device = &mut device;
        Driver {
            device,
            ram,
            available,
        }
        .run(&mut input, |device, _| {
            budget.renew();
            device.poll();
        });
        canary::assert_hidden(&ram.read(0, SIZE));
        TREE.assert_unchanged();
    }
});
