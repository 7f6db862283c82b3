use super::*;
use crate::memory::{Size, allocate};
use vbts_cpu::{Platform, Startup};
use vbts_devices::OutputBuffer;
use vm_memory::{Bytes, GuestAddress};

fn board_of(processors: usize) -> (Board, Shared<OutputBuffer>) {
    let output = shared(OutputBuffer::new(1024));
    let memory = allocate(Size(16 << 20)).unwrap();
    let signals = (0..processors).map(|_| Arc::default()).collect();
    let board = Board::new(memory, signals, true, 0, Box::new(output.clone())).unwrap();
    (board, output)
}

/// The platform of a board with one processor.
fn platform() -> (VcpuPlatform, Shared<OutputBuffer>) {
    let (board, output) = board_of(1);
    (VcpuPlatform::new(Arc::new(board), 0), output)
}

#[test]
fn ports_reach_their_devices() {
    let (platform, output) = platform();
    let board = platform.board();
    platform.pio_write(0, 0x3F8, b"A");
    assert_eq!(lock(&output).take(), b"A");
    assert_eq!(board.exit_status(), None);
    platform.pio_write(0, 0xF4, &7u32.to_le_bytes());
    assert_eq!(board.exit_status(), Some(7));
    assert!(!board.reset_requested());
    platform.pio_write(0, 0x64, &[0xFE]);
    assert!(board.reset_requested());
    let mut float = [0; 2];
    platform.pio_read(0, 0x1234, &mut float);
    assert_eq!(float, [0xFF, 0xFF]);
}

#[test]
fn a_local_apic_timer_raises_intr_at_its_deadline() {
    let (platform, _) = platform();
    let board = platform.board();
    let lapic =
        |offset, value: u32| platform.mmio_write(0, layout::LAPIC + offset, &value.to_le_bytes());
    lapic(0xF0, 0x1FF);
    lapic(0x320, 0x40);
    lapic(0x3E0, 0xB);
    lapic(0x380, 1000);
    assert_eq!(board.next_deadline(), Some(1000));
    board.tick(999);
    assert_eq!(platform.signals().get() & Signals::INTR, 0);
    board.tick(1000);
    assert_eq!(platform.signals().get() & Signals::INTR, Signals::INTR);
    assert_eq!(platform.acknowledge_interrupt(1000), Some(0x40));
    assert_eq!(platform.signals().get() & Signals::INTR, 0);
}

#[test]
fn deadlines_beyond_the_maximum_are_ignored() {
    let (platform, _) = platform();
    let board = platform.board();
    let lapic =
        |offset, value: u32| platform.mmio_write(0, layout::LAPIC + offset, &value.to_le_bytes());
    lapic(0xF0, 0x1FF);
    lapic(0x320, 0x4_0040);
    platform.apic_wrmsr(0, 0x6E0, MAX_DEADLINE - 1);
    assert_eq!(board.next_deadline(), Some(MAX_DEADLINE - 1));
    platform.apic_wrmsr(0, 0x6E0, u64::MAX);
    assert_eq!(board.next_deadline(), None);
}

#[test]
fn there_is_room_for_so_many_devices() {
    let (mut board, _) = board_of(1);
    for _ in VIRTIO_GSI {
        board
            .add_share("t", Path::new("/"), Access::ReadOnly)
            .unwrap();
    }
    let error = board
        .add_share("t", Path::new("/"), Access::ReadOnly)
        .unwrap_err();
    assert!(error.to_string().contains("10 virtio devices"), "{error}");
}

#[test]
fn devices_report_their_effects() {
    let (platform, _) = platform();
    let board = platform.board();
    platform.pio_write(0, 0x20, &[0x0B]);
    platform.pio_read(0, 0x3FD, &mut [0]);
    assert!(!board.take_host_work(), "nothing for the host");
    platform.pio_write(0, 0x3F8, b"A");
    assert!(board.take_host_work() && !board.take_host_work());
    board.apply(Effects::DMA);
    assert_eq!(platform.signals().get(), Signals::DMA);
}

/// A virtqueue of an entropy device, whose driver makes the same page available again and again:
/// descriptors, available ring, used ring, page.
const QUEUE: [u64; 4] = [0x1000, 0x2000, 0x3000, 0x4000];

/// A board with an entropy device, which is running.
fn board_with_entropy() -> VcpuPlatform {
    use vm_memory::{Bytes, GuestAddress};
    let (mut board, _) = board_of(1);
    board.add_entropy(Source::Fixed(1)).unwrap();
    let platform = VcpuPlatform::new(Arc::new(board), 0);
    let memory = &platform.board().memory;
    let [descriptors, available, used, page] = QUEUE;
    memory.write_obj(page, GuestAddress(descriptors)).unwrap();
    // 16 bytes, which the device writes.
    let flags = 2u64 << 32 | 16;
    memory
        .write_obj(flags, GuestAddress(descriptors + 8))
        .unwrap();
    // All entries of the ring name it, and are available.
    memory
        .write_obj(16u16, GuestAddress(available + 2))
        .unwrap();
    set_up_queue(&platform, 0, 16, [descriptors, available, used]);
    platform
}

/// Lets a driver set up queue 0 of a device, whose parts are at these addresses: descriptors,
/// available ring, used ring. The device is running then.
fn set_up_queue(platform: &VcpuPlatform, device: u64, entries: u16, parts: [u64; 3]) {
    let [descriptors, available, used] = parts.map(|part| part as u32);
    for (register, value) in [
        (0x070, 3),
        (0x024, 1),
        (0x020, 1),
        (0x070, 0xB),
        (0x038, entries.into()),
        (0x080, descriptors),
        (0x090, available),
        (0x0A0, used),
        (0x044, 1),
        (0x070, 0xF),
    ] {
        write_virtio(platform, device, register, value);
    }
}

fn write_virtio(platform: &VcpuPlatform, device: u64, register: u64, value: u32) {
    let at = VIRTIO_BASE + device * VIRTIO_STRIDE + register;
    platform.mmio_write(0, at, &value.to_le_bytes());
}

#[test]
fn a_virtio_device_works_within_a_budget_until_the_run_loop_returns() {
    use vm_memory::{Bytes, GuestAddress};
    let platform = board_with_entropy();
    let board = platform.board();
    let [_, available, used, _] = QUEUE;
    let index = |at: u64| board.memory.read_obj::<u16>(GuestAddress(at + 2)).unwrap();
    let make_available = |n: u16| {
        let at = GuestAddress(available + 2);
        board.memory.write_obj(n, at).unwrap();
    };
    assert_eq!(index(used), 16, "served when the driver was ready");
    // Notifications of one block.
    make_available(32);
    (0..48).for_each(|_| write_virtio(&platform, 0, 0x050, 0));
    assert_eq!(index(used), 16);
    // Each return of the run loop lets the device go on, without a notification.
    board.tick(0);
    assert_eq!(index(used), 32);
    make_available(48);
    board.tick(0);
    assert_eq!(index(used), 48);
    // It has done all, and waits for a notification.
    board.tick(0);
    make_available(56);
    board.tick(0);
    assert_eq!(index(used), 48);
    write_virtio(&platform, 0, 0x050, 0);
    assert_eq!(index(used), 56);
    // It goes on after a restore, too.
    make_available(72);
    write_virtio(&platform, 0, 0x050, 0);
    assert_eq!(index(used), 64);
    let state = board.state().unwrap();
    board.restore(&state).unwrap();
    board.tick(0);
    assert_eq!(index(used), 72);
}

#[test]
fn a_processor_starts_another() {
    let (board, _) = board_of(2);
    let board = Arc::new(board);
    let [first, second] = [0, 1].map(|cpu| VcpuPlatform::new(board.clone(), cpu));
    let icr = |high: u32, low: u32| {
        first.mmio_write(0, layout::LAPIC + 0x310, &high.to_le_bytes());
        first.mmio_write(0, layout::LAPIC + 0x300, &low.to_le_bytes());
    };
    icr(1 << 24, 0x4500);
    assert_eq!(second.signals().get(), Signals::INIT);
    assert_eq!(second.take_startup(), Some(Startup::Init));
    icr(1 << 24, 0x4608);
    assert_eq!(second.take_startup(), Some(Startup::StartUp(8)));
    assert_eq!(second.signals().get(), 0);
    assert_eq!(first.signals().get(), 0);
}

#[test]
fn a_restored_board_continues() {
    let (platform, _) = platform();
    let lapic =
        |offset, value: u32| platform.mmio_write(0, layout::LAPIC + offset, &value.to_le_bytes());
    lapic(0xF0, 0x1FF);
    lapic(0x320, 0x40);
    lapic(0x3E0, 0xB);
    lapic(0x380, 1000);
    platform.pio_write(0, 0xCF9, &[2]);
    platform.pio_write(0, 0x92, &[2]);
    platform.pio_write(0, 0x70, &[0x0A]);
    platform.board().tick(1000);
    let state = platform.board().state().unwrap();

    let (board, _) = board_of(1);
    let restored = VcpuPlatform::new(Arc::new(board), 0);
    restored.board().restore(&state).unwrap();
    assert_eq!(restored.board().state().unwrap(), state);
    assert_eq!(restored.signals().get(), Signals::INTR);
    assert_eq!(restored.acknowledge_interrupt(1000), Some(0x40));
    let mut status_a = [0];
    restored.pio_read(1000, 0x71, &mut status_a);
    assert_eq!(status_a, [0x26], "the selected register of the clock");
    assert!(!restored.board().reset_requested());
    restored.pio_write(0, 0xCF9, &[6]);
    assert!(restored.board().reset_requested());
}

#[test]
fn the_end_of_a_run_is_part_of_the_state() {
    let (platform, _) = platform();
    platform.pio_write(0, 0xF4, &[7]);
    platform.pio_write(0, 0x64, &[0xFE]);
    platform.pio_write(0, 0x600, &[5 << 2 | 1 << 5]);
    let (restored, _) = board_of(1);
    restored
        .restore(&platform.board().state().unwrap())
        .unwrap();
    assert_eq!(restored.exit_status(), Some(7));
    assert!(restored.reset_requested() && restored.is_off());
}

#[test]
fn a_state_needs_the_same_devices() {
    let (saved, _) = board_of(2);
    let (mut other, _) = board_of(2);
    other.add_entropy(Source::Fixed(1)).unwrap();
    let error = other.restore(&saved.state().unwrap()).unwrap_err();
    assert!(error.to_string().contains("virtio devices"), "{error}");
    let (one, _) = board_of(1);
    let error = one.restore(&saved.state().unwrap()).unwrap_err();
    assert!(error.to_string().contains("2 local APICs"), "{error}");
}

/// The used index of a queue whose device has as many requests of 4 MiB as its ring has entries.
fn requests(platform: &VcpuPlatform, memory: &GuestMemory, device: u64) -> GuestAddress {
    const ENTRIES: u16 = 128;
    const GET_ID: u32 = 8;
    let (place, request) = (0x1_0000 * (device + 1), 0x10_0000);
    let (available, used) = (place + 0x1000, place + 0x2000);
    let descriptor = |n: u64, address: u64, len: u32, flags: u16| {
        let bytes = [
            &address.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &1u16.to_le_bytes(),
        ];
        let at = GuestAddress(place + 16 * n);
        memory.write_slice(&bytes.concat(), at).unwrap();
    };
    descriptor(0, request, 16, 1);
    descriptor(1, 0x20_0000, (4 << 20) - 16, 2);
    memory.write_obj(GET_ID, GuestAddress(request)).unwrap();
    memory
        .write_obj(ENTRIES, GuestAddress(available + 2))
        .unwrap();
    set_up_queue(platform, device, ENTRIES, [place, available, used]);
    write_virtio(platform, device, 0x050, 0);
    GuestAddress(used + 2)
}

#[test]
fn devices_share_a_budget_until_the_run_loop_returns() {
    const DISKS: u64 = 3;
    // 128 MiB.
    const AT_ONCE: u16 = 32;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(512).unwrap();
    let (mut board, _) = board_of(1);
    for _ in 0..DISKS {
        let disk = Disk::open(file.path(), false).unwrap();
        board.add_disk(disk, "disk").unwrap();
    }
    let memory = board.memory.clone();
    let platform = VcpuPlatform::new(Arc::new(board), 0);
    let queues: Vec<_> = (0..DISKS)
        .map(|n| requests(&platform, &memory, n))
        .collect();
    let served = || {
        queues
            .iter()
            .map(|used| memory.read_obj::<u16>(*used).unwrap())
            .sum::<u16>()
    };
    for turn in 1..=3 {
        assert_eq!(served(), turn * AT_ONCE);
        platform.board().tick(turn.into());
    }
}
