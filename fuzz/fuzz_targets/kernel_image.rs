//! Any file as a kernel: ELF and bzImage.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vbts_capture::machine::kernel::Kernel;
use vbts_devices::GuestRam;
use vbts_testkit::Ram;
use vbts_vmm::boot::params::FIXED_RNG_SEED;
use vbts_vmm::boot::{BootSource, load};
use vbts_vmm::layout;

const SIZE: usize = 2 << 20;

static MEMORY: LazyLock<(Ram, GuestRam)> = LazyLock::new(|| {
    let ram = Ram::new(SIZE);
    let view = ram.for_devices();
    (ram, view)
});

fuzz_target!(|image: &[u8]| {
    let (ram, memory) = &*MEMORY;
    // The loader must not write a PC's video memory, which lies between the tables in base memory
    // and the kernel.
    let hole = layout::BASE_MEMORY_END;
    ram.write(hole, &[0xA5; 4096]);
    let source = BootSource {
        kernel: image,
        initrd: Some(b"initrd"),
        cmdline: "console=ttyS0",
        processors: 1,
        level_gsis: &[5],
        rng_seed: FIXED_RNG_SEED,
    };
    match load(memory, &source) {
        Ok(state) => assert!((layout::EXTENDED_MEMORY..=SIZE as u64 + 0x200).contains(&state.rip)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // What a recording reads from it.
    if let Some(kernel) = Kernel::parse(image) {
        let _ = (kernel.task_probe(), kernel.symbol("start_kernel"));
    }
    assert!(ram.read(hole, 4096).iter().all(|b| *b == 0xA5));
});
