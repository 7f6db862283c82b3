//! Model-specific registers: reserved bits, reset values, what a write changes.

use std::sync::atomic::Ordering;

use iced_x86::code_asm::*;

use crate::common::{DATA, Guest, KERNEL};
use vbts_cpu::state::vector::{GP, PF};
use vbts_cpu::state::{Activity, efer, gpr};

/// Writes an MSR and reads it back at CPL 0; `None` if either raises #GP(0).
fn write_and_read(g: &mut Guest, msr: u32, value: u64) -> Option<u64> {
    let end = g.assemble(KERNEL, |a| {
        a.wrmsr()?;
        a.rdmsr()?;
        a.hlt()
    });
    run_msr(g, msr, value, end)
}

fn read(g: &mut Guest, msr: u32) -> Option<u64> {
    let end = g.assemble(KERNEL, |a| {
        a.rdmsr()?;
        a.hlt()
    });
    run_msr(g, msr, 0, end)
}

fn run_msr(g: &mut Guest, msr: u32, value: u64, end: u64) -> Option<u64> {
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
        s.gpr[gpr::RCX] = msr.into();
        s.gpr[gpr::RAX] = value & 0xFFFF_FFFF;
        s.gpr[gpr::RDX] = value >> 32;
    });
    g.run();
    let r = &g.soft.cpu.gpr;
    if g.soft.cpu.rip == end {
        return Some(r[gpr::RDX] << 32 | r[gpr::RAX]);
    }
    assert_eq!(g.soft.cpu.rip, crate::common::handler(GP) + 1);
    assert_eq!(g.read(r[gpr::RSP]), 0);
    None
}

#[test]
fn msrs_hold_what_is_written_as_far_as_their_bits_exist() {
    const HOLE: u64 = 1 << 47;
    const TOP: u64 = 0xFFFF_8000_0000_0000;
    // MSR, value written, value read back.
    let cases = [
        (0x1234, 0, None),
        (0x17, 0, None),
        (0x1B, 0xFF_FEE0_0900, Some(0xFF_FEE0_0900)),
        (0x1B, 1 << 40 | 0xFEE0_0900, None),
        (0x8B, 0, Some(0xBC << 32)),
        // Counters take 32 bits and extend the sign to 40.
        (0xC1, 0xFFFF, Some(0xFFFF)),
        (0xC2, 0x8000_0000, Some(0xFF_8000_0000)),
        // Those with a fixed function take all 40.
        (0x309, 0x8000_0000, Some(0x8000_0000)),
        (0x30A, 0xFF_8000_0001, Some(0xFF_8000_0001)),
        (0x30B, 1 << 40, None),
        (0xFE, 0x508, None),
        (0x174, 0x10, Some(0x10)),
        (0x175, TOP, Some(TOP)),
        (0x175, HOLE, None),
        (0x186, 0x0053_00C4, Some(0x0053_00C4)),
        (0x186, 1 << 21, None),
        // There are two, and three with a fixed function.
        (0xC3, 0, None),
        (0x188, 0, None),
        (0x30C, 0, None),
        (0x186, 1 << 32, None),
        (0x1A0, 0, Some(0x1080)),
        (0x1A0, 1 << 11, Some(0x1080)),
        (0x1A0, 1 << 22, Some(0x40_1080)),
        (0x1A0, 1 << 34 | 1 << 23, Some(0x4_0080_1080)),
        (0x1A0, 1 << 2, None),
        // MONITOR is missing.
        (0x1A0, 1 << 18, None),
        (0x1D9, 0x3C0, Some(0x3C0)),
        (0x1D9, 1 << 14, Some(1 << 14)),
        (0x1D9, 1 << 2, None),
        (0x200, 0xC000_0006, Some(0xC000_0006)),
        (0x200, 0xC000_0002, None),
        (0x201, 0xFF_C000_0800, Some(0xFF_C000_0800)),
        (0x201, 1 << 40, None),
        (0x250, 0x0606_0606_0606_0606, Some(0x0606_0606_0606_0606)),
        (0x26F, 0x0600_0000_0000_0003, None),
        (0x277, 0x0007_0106_0007_0106, Some(0x0007_0106_0007_0106)),
        (0x277, 2, None),
        (0x2FF, 0xC06, Some(0xC06)),
        (0x38D, 0xBBB, Some(0xBBB)),
        (0x38D, 4, None),
        (0x38E, 0, None),
        (0x38F, 0x7_0000_0003, Some(0x7_0000_0003)),
        (0x38F, 4, None),
        (0x390, 0xC000_0007_0000_0003, Some(0)),
        (0x600, TOP, Some(TOP)),
        (0x600, HOLE, None),
        (0xC000_0080, 0xD01, Some(0xD01)),
        (0xC000_0080, 0x101, Some(0x501)),
        (0xC000_0080, 0, None),
        (0xC000_0080, 0x8501, None),
        (0xC000_0081, u64::MAX, Some(u64::MAX)),
        (0xC000_0082, HOLE, None),
        (0xC000_0084, 1 << 32, None),
        (0xC000_0100, TOP, Some(TOP)),
        (0xC000_0101, HOLE, None),
        // TSC_AUX comes with RDTSCP.
        (0xC000_0103, 0, None),
    ];
    for (msr, value, expected) in cases {
        assert_eq!(
            write_and_read(&mut Guest::new(), msr, value),
            expected,
            "{msr:#x} {value:#x}"
        );
    }
}

#[test]
fn msrs_after_reset() {
    let mut g = Guest::new();
    assert_eq!(read(&mut g, 0x1A0), Some(0x1081));
    assert_eq!(read(&mut g, 0x277), Some(0x0007_0406_0007_0406));
    assert_eq!(read(&mut g, 0x2FF), Some(0x806));
    assert_eq!(read(&mut g, 0x10A).map(|v| v & 1), Some(1));
    assert_eq!(read(&mut g, 0x1B), Some(0xFEE0_0900));
    assert_eq!(read(&mut g, 0x802), None);
}

#[test]
fn a_kernel_finds_the_counters_that_it_looks_for() {
    // What Linux's check_hw_exists does with each of the counters.
    let mut g = Guest::new();
    for counter in 0..2 {
        assert_eq!(read(&mut g, 0x186 + counter).map(|v| v >> 22 & 1), Some(0));
        let value = read(&mut g, 0xC1 + counter).unwrap() ^ 0xFFFF;
        assert_eq!(write_and_read(&mut g, 0xC1 + counter, value), Some(value));
    }
}

#[test]
fn the_tsc_can_be_set_and_the_deadline_follows_it() {
    let mut g = Guest::new();
    assert_eq!(write_and_read(&mut g, 0x10, 1_000_000), Some(1_000_001));
    let now = g.soft.cpu.now();
    let tsc = g.soft.cpu.state().tsc;
    assert_eq!(write_and_read(&mut g, 0x6E0, tsc + 500), Some(tsc + 500));
    assert_eq!(g.platform.deadline.load(Ordering::Relaxed), now + 500);
    // A deadline in the past is due now, and zero disarms.
    let past = write_and_read(&mut g, 0x6E0, 1).unwrap();
    assert!(past >= tsc, "{past}");
    assert_eq!(write_and_read(&mut g, 0x6E0, 0), Some(0));
    assert_eq!(g.platform.deadline.load(Ordering::Relaxed), 0);
}

#[test]
fn a_segment_base_msr_moves_the_segment() {
    let mut g = Guest::kernel(|a| {
        a.wrmsr()?;
        a.mov(rax, qword_ptr(0).fs())?;
        a.hlt()
    });
    g.write(DATA, 0x5EED);
    g.update(|s| {
        s.gpr[gpr::RCX] = 0xC000_0100;
        s.gpr[gpr::RAX] = DATA;
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 0x5EED);
}

#[test]
fn execute_disable_can_be_disabled() {
    const XD_DISABLE: u64 = 1 << 34;
    let mut g = Guest::new();
    g.update(|s| s.sys.efer &= !efer::NXE);
    assert_eq!(
        write_and_read(&mut g, 0x1A0, XD_DISABLE),
        Some(XD_DISABLE | 0x1080)
    );
    let now = efer::SCE | efer::LME | efer::LMA;
    assert_eq!(write_and_read(&mut g, 0xC000_0080, now | efer::NXE), None);
    assert_eq!(write_and_read(&mut g, 0xC000_0080, now), Some(now));
    assert_eq!(write_and_read(&mut g, 0x1A0, 0), Some(0x1080));
    let with = now | efer::NXE;
    assert_eq!(write_and_read(&mut g, 0xC000_0080, with), Some(with));
}

#[test]
fn nxe_takes_effect_at_once() {
    // With NXE off, bit 63 of an entry is reserved.
    let mut g = Guest::kernel(|a| {
        a.mov(al, byte_ptr(DATA))?;
        a.rdmsr()?;
        a.and(eax, !(efer::NXE as u32) as i32)?;
        a.wrmsr()?;
        a.mov(al, byte_ptr(DATA))
    });
    g.page(DATA, 1 << 63 | 7);
    g.update(|s| s.gpr[gpr::RCX] = 0xC000_0080);
    g.run_to_exception(PF, Some(9));
}
