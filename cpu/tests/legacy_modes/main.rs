//! Real-address mode, protected mode, and the ways between them and IA-32e mode.
//!
//! The programs are those that `tests/legacy_modes` runs on QEMU and Bochs too.

#![allow(clippy::unwrap_used, reason = "only tests are here")]

#[path = "../common/mod.rs"]
mod common;
mod programs;

use common::Guest;
use programs::image::ROM;
use vbts_cpu::{CpuState, Exit};

/// What a program has reported, and whether it ended in shutdown.
fn run(rom: &[u8]) -> (Vec<u32>, bool) {
    let mut guest = Guest::new();
    guest.clear();
    guest.write_bytes(0x10_0000 - ROM as u64, rom);
    let model = vbts_cpu::model("core2").unwrap();
    let mut state = CpuState::after_reset(model);
    // There is no RAM below 4 GBytes: the first instruction jumps to its copy in base memory.
    state.sys.seg[1].base = 0xF_0000;
    guest.soft.cpu.load_state(&state);
    let exit = guest.run();
    let bytes = guest.platform.reported();
    assert!(bytes.len().is_multiple_of(4), "{bytes:x?}");
    let words = bytes.chunks_exact(4);
    let words = words.map(|w| w.iter().rfold(0, |n, b| n << 8 | u32::from(*b)));
    (words.collect(), exit == Exit::Shutdown)
}

#[test]
fn programs_report_what_the_manual_says() {
    let mut bad = 0;
    for (name, image) in programs::all() {
        let (words, shutdown) = run(&image.rom);
        if (&words, shutdown) != (&image.expected, image.shutdown) {
            bad += 1;
            eprintln!(
                "{name}:\n  expected {:x?} {}\n  reported {words:x?} {shutdown}",
                image.expected, image.shutdown
            );
        }
    }
    assert_eq!(bad, 0, "programs are wrong");
}
