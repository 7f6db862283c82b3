//! What the model x86-64-v3 has beyond those before it, where it is no computation that the host's
//! processor can be compared with.

use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, UD};
use vbts_cpu::state::{ArchState, cr0, cr4, gpr};
use vbts_cpu::{Model, model};

use crate::common::{Guest, KERNEL};

fn v3() -> &'static Model {
    model("x86-64-v3").unwrap()
}

#[test]
fn rdtscp_returns_tsc_aux() {
    const TSC_AUX: u32 = 0xC000_0103;
    let mut g = Guest::of(v3());
    let end = g.assemble(KERNEL, |a| {
        a.mov(ecx, TSC_AUX)?;
        a.mov(eax, 0x1234_5678)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
        a.rdtsc()?;
        a.mov(esi, eax)?;
        a.rdtscp()?;
        a.hlt()
    });
    g.run_to(end);
    let r = &g.soft.cpu.gpr;
    assert_eq!(r[gpr::RCX], 0x1234_5678);
    assert!(r[gpr::RAX] > r[gpr::RSI]);
    assert_eq!(g.soft.cpu.state().msr.tsc_aux, 0x1234_5678);
    // It has 32 bits.
    let mut g = Guest::of(v3());
    g.assemble(KERNEL, |a| a.wrmsr());
    g.update(|s| {
        s.gpr[gpr::RCX] = TSC_AUX.into();
        s.gpr[gpr::RDX] = 1;
    });
    g.run_to_exception(GP, Some(0));
}

#[test]
fn rdtscp_can_be_reserved_to_the_kernel() {
    let mut g = Guest::of(v3());
    g.start_user(|a| a.rdtscp());
    g.update(|s| s.sys.cr4 |= cr4::TSD);
    g.run_to_exception(GP, Some(0));
}

#[test]
fn bit_scans_with_f3_count_zeros() {
    let mut g = Guest::of(v3());
    let end = g.assemble(KERNEL, |a| {
        a.xor(ecx, ecx)?;
        a.mov(eax, 5)?;
        a.tzcnt(eax, ecx)?;
        a.lzcnt(edx, ecx)?;
        a.hlt()
    });
    g.run_to(end);
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[gpr::RAX], r[gpr::RDX]), (32, 32));
}

#[test]
fn vex_is_undefined_with_other_prefixes_and_without_protected_mode() {
    // ANDN EAX, EBX, ECX: with LOCK, 66, F2, F3 and REX before it, and with VEX.L.
    let andn = [0xC4, 0xE2, 0x60, 0xF2, 0xC1];
    for prefix in [0xF0, 0x66, 0xF2, 0xF3, 0x48] {
        let mut g = Guest::of(v3());
        g.write_bytes(KERNEL, &[&[prefix], &andn[..]].concat());
        assert_eq!(g.run_to_exception(UD, None).rip, KERNEL, "{prefix:#x}");
    }
    let mut g = Guest::of(v3());
    g.write_bytes(KERNEL, &[0xC4, 0xE2, 0x64, 0xF2, 0xC1]);
    g.run_to_exception(UD, None);

    // In 16-bit code of real-address mode it is undefined, of protected mode not.
    const CODE: u64 = 0x8000;
    const UD_HANDLER: u64 = 0x500;
    let end = CODE + andn.len() as u64 + 1;
    for (mode, expected) in [(0, UD_HANDLER + 1), (cr0::PE, end)] {
        let mut g = Guest::of(v3());
        g.clear();
        g.write_bytes(CODE, &[&andn[..], &[0xF4]].concat());
        // The vector of #UD, and its handler.
        g.write_bytes(4 * u64::from(UD), &(UD_HANDLER as u32).to_le_bytes());
        g.write_bytes(UD_HANDLER, &[0xF4]);
        let mut state = ArchState::after_reset(v3());
        state.start_up(8);
        state.gpr[gpr::RSP] = 0x7000;
        state.sys.cr0 |= mode;
        g.soft.cpu.load_state(&state);
        g.run();
        let base = g.soft.cpu.state().seg[1].base;
        assert_eq!(base + g.soft.cpu.rip, expected, "CR0 {mode:#x}");
    }
}
