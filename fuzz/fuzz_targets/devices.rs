//! The whole board: any access to any port or register, while time passes in steps of any size.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use vbts_cpu::Platform;
use vbts_devices::ninep::Access;
use vbts_devices::virtio::console::ConsolePort;
use vbts_devices::{GuestRam, OutputBuffer, lock, shared};
use vbts_fuzz::canary;
use vbts_fuzz::input::Input;
use vbts_fuzz::tree::Tree;
use vbts_testkit::Ram;
use vbts_vmm::board::{Board, MAX_DEADLINE, VcpuPlatform};
use vbts_vmm::layout::{COM1, IOAPIC, LAPIC, VIRTIO_BASE};

const SIZE: usize = 1 << 16;
const OPERATIONS: usize = 300;
/// Bytes of output that are kept; the target never reads them.
const OUTPUT_LIMIT: usize = 1 << 12;

const PORTS: [u16; 24] = [
    0x20,
    0x21,
    0xA0,
    0xA1,
    0x4D0,
    0x4D1,
    0x40,
    0x41,
    0x42,
    0x43,
    0x61,
    0x64,
    0x70,
    0x71,
    0x92,
    0xCF9,
    0xF4,
    COM1,
    COM1 + 1,
    COM1 + 2,
    COM1 + 3,
    COM1 + 4,
    COM1 + 5,
    COM1 + 7,
];
const APIC_MSRS: [u32; 4] = [0x1B, 0x6E0, 0x80B, 0x830];

static MEMORY: LazyLock<(Ram, GuestRam)> = LazyLock::new(|| {
    let ram = Ram::new(SIZE);
    let view = ram.for_devices();
    (ram, view)
});
static TREE: LazyLock<Tree> = LazyLock::new(Tree::new);

fn port(input: &mut Input<'_>, raw: bool) -> u16 {
    if raw {
        input.u16()
    } else {
        input.choose(&PORTS)
    }
}

fn address(input: &mut Input<'_>) -> u64 {
    let (page, offset) = (input.u8(), u64::from(input.u8()));
    match page % 8 {
        0..=2 => LAPIC + offset * 4 % 0x400,
        3 => LAPIC + offset * 0x10,
        4 => IOAPIC + offset % 0x20,
        5 => VIRTIO_BASE + offset * 4,
        6 => VIRTIO_BASE + 0x1000 + offset * 4,
        _ => input.u64(),
    }
}

fuzz_target!(|data: &[u8]| {
    let (ram, memory) = &*MEMORY;
    ram.clear();
    let mut input = Input::new(data);
    let output = shared(OutputBuffer::new(OUTPUT_LIMIT));
    let sink = || Box::new(output.clone());
    let mut board = Board::new(
        memory.clone(),
        vec![Arc::default()],
        true,
        1_700_000_000,
        sink(),
    )
    .expect("a board");
    let console = board.add_console(vec![ConsolePort::named("port", sink())]);
    let console = console.expect("a console");
    let share = board.add_share("tag", &TREE.share(), Access::ReadOnly);
    share.expect("the share is there");
    let platform = VcpuPlatform::new(Arc::new(board), 0);
    let board = platform.board();

    let mut now = 0u64;
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let operation = input.u8();
        let size = 1usize << (operation >> 4 & 3);
        match operation % 16 {
            0..=2 => {
                let port = port(&mut input, operation & 0x80 != 0);
                let value = input.u32().to_le_bytes();
                platform.pio_write(now, port, &value[..size.min(4)]);
            }
            3 | 4 => {
                let mut value = [0; 4];
                let port = port(&mut input, operation & 0x80 != 0);
                platform.pio_read(now, port, &mut value[..size.min(4)]);
            }
            5..=7 => {
                let address = address(&mut input);
                let value = input.u64().to_le_bytes();
                // Registers are 32 bits wide: mostly access them so.
                let size = if operation & 0x80 == 0 { 4 } else { size };
                platform.mmio_write(now, address, &value[..size]);
            }
            8 => {
                let mut value = [0; 8];
                let size = if operation & 0x80 == 0 { 4 } else { size };
                platform.mmio_read(now, address(&mut input), &mut value[..size]);
            }
            // Time passes: a bit, or until the next deadline, as when the processor sleeps.
            9 => {
                let step = u64::from(input.u8()) << ((operation >> 4) * 4);
                now = now.saturating_add(step).min(MAX_DEADLINE - 1);
            }
            10 | 11 => now = board.next_deadline().unwrap_or(now).max(now),
            12 => {
                let taken = platform.acknowledge_interrupt(now);
                if taken.is_some() && operation & 0x80 == 0 {
                    // End of interrupt.
                    platform.mmio_write(now, LAPIC + 0xB0, &[0; 4]);
                }
                platform.take_nmi();
            }
            13 => {
                let msr = input.choose(&APIC_MSRS);
                let value = input.u64();
                platform.apic_wrmsr(now, msr, value);
                platform.apic_rdmsr(now, msr);
                platform.set_cr8(now, value & 15);
                assert_eq!(platform.cr8() & !15, 0);
            }
            14 => {
                let len = input.u8();
                board.push_serial_input(input.bytes(len.into()));
                lock(&console).push_input(0, &[len; 3]);
                platform.performance_interrupt(now);
            }
            _ => input.fill(ram),
        }
        board.tick(now);
        // A deadline that is not in the future would keep the processor from running for ever.
        if let Some(deadline) = board.next_deadline() {
            assert!(deadline > now, "a deadline at {deadline} after tick({now})");
        }
    }
    canary::assert_hidden(&ram.read(0, SIZE));
    TREE.assert_unchanged();
});
