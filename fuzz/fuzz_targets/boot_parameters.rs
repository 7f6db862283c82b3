//! Command line, initrd, memory map, setup header, MP table and ACPI tables.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_devices::GuestRam;
use vbts_fuzz::input::Input;
use vbts_testkit::Ram;
use vbts_vmm::boot::params::{BootParams, FIXED_RNG_SEED, SETUP_HEADER};
use vbts_vmm::boot::{BootSource, acpi, cmdline, load, mptable};
use vbts_vmm::layout;

const SIZE: usize = 2 << 20;
const MAX_PROCESSORS: u8 = 32;

static MEMORY: LazyLock<(Ram, GuestRam)> = LazyLock::new(|| {
    let ram = Ram::new(SIZE);
    let view = ram.for_devices();
    (ram, view)
});

/// A bzImage of one page that is loaded at 1 MiB, with any setup header except the fields that the
/// loader needs.
fn image(header: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 1024 + 4096];
    let len = header.len().min(SETUP_HEADER.len());
    image[SETUP_HEADER.start..][..len].copy_from_slice(&header[..len]);
    for (at, bytes) in [
        (0x1F1, &[1][..]),
        (0x1F4, &0x100u32.to_le_bytes()),
        (0x1FE, &[0x55, 0xAA]),
        (0x202, b"HdrS"),
        (0x206, &[0x0F, 0x02]),
        (0x211, &[1]),
        (0x236, &[1, 0]),
        (0x258, &layout::EXTENDED_MEMORY.to_le_bytes()),
        (0x260, &0x1000u32.to_le_bytes()),
    ] {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    image
}

fuzz_target!(|data: &[u8]| {
    let (ram, memory) = &*MEMORY;
    let mut input = Input::new(data);
    let processors = 1 + input.u8() % MAX_PROCESSORS;
    let devices = usize::from(input.u8());
    let gsis = input.u8();
    let gsis = input.bytes(usize::from(gsis));
    let initrd = vec![7; usize::from(input.u16()) << (gsis.len() % 8)];
    let header = input.u8();
    let header = input.bytes(usize::from(header));
    let append = String::from_utf8_lossy(input.rest()).into_owned();

    let line =
        cmdline::build(devices, 1_000_000, &append).expect("the words that vbts adds always fit");
    let kernel = image(header);
    let source = BootSource {
        kernel: &kernel,
        initrd: (!initrd.is_empty()).then_some(&initrd),
        cmdline: &line,
        processors,
        level_gsis: gsis,
        rng_seed: FIXED_RNG_SEED,
    };
    ram.clear();
    match load(memory, &source) {
        Ok(_) => check(ram, &line, &initrd),
        Err(error) => assert!(!error.to_string().is_empty()),
    }

    let table = mptable::build(processors, gsis);
    assert!(table.len() as u64 <= layout::BASE_MEMORY_END - layout::MP_TABLE);
    let tables = acpi::build(processors, gsis);
    assert!(tables.len() as u64 <= layout::EXTENDED_MEMORY - layout::ACPI_TABLES);
    let mut params = BootParams::new(Some(header));
    params.set_memory_map(&[(0, layout::LOW_RAM_END), (layout::HIGH_RAM_START, 1 << 30)]);
    assert_eq!(params.as_bytes().len(), 4096);
});

/// Checks that memory holds what `load` was to pass to the kernel.
fn check(ram: &Ram, line: &str, initrd: &[u8]) {
    let word = |at: u64| {
        let bytes = ram.read(layout::BOOT_PARAMS + at, 4);
        u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    assert_eq!(ram.read(word(0x228), line.len()), line.as_bytes());
    assert_eq!(ram.read(word(0x228) + line.len() as u64, 1), [0]);
    assert_eq!(word(0x238), line.len() as u64);
    if !initrd.is_empty() {
        assert_eq!(word(0x21C), initrd.len() as u64);
        assert_eq!(ram.read(word(0x218), initrd.len()), initrd);
    }
    let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |s, b| s.wrapping_add(*b));
    let at = layout::MP_TABLE;
    let len = ram.read(at + 20, 2);
    let table = ram.read(at + 16, usize::from(u16::from_le_bytes([len[0], len[1]])));
    assert_eq!((sum(&ram.read(at, 16)), sum(&table)), (0, 0), "MP table");
    assert_eq!(word(0x070), layout::ACPI_TABLES);
    let rsdp = ram.read(word(0x070), 36);
    assert_eq!((&rsdp[..8], sum(&rsdp)), (&b"RSD PTR "[..], 0), "RSDP");
}
