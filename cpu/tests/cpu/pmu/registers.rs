//! The unit's registers: reads, writes, the overflow status, and what each processor model has.

use std::sync::atomic::Ordering;

use iced_x86::code_asm::*;

use super::{
    ALL, BRANCHES, EN, IA32_FIXED_CTR_CTRL, IA32_FIXED_CTR0, IA32_PERF_GLOBAL_CTRL,
    IA32_PERF_GLOBAL_OVF_CTRL, IA32_PERF_GLOBAL_STATUS, IA32_PERFEVTSEL0, IA32_PMC0, INSTRUCTIONS,
    INT, MASK, ON, OS, Program, USR, before_overflow, count, counters, mixture, rounds, wrmsr,
};
use crate::common::{Guest, KERNEL};
use vbts_cpu::state::gpr::{RAX, RBX, RDX, RSI};
use vbts_cpu::state::vector::{GP, UD};
use vbts_cpu::state::{Activity, PmuState, cr4};

#[test]
fn counters_are_read_at_the_instruction_that_reads_them() {
    let mut g = Guest::kernel(|a| {
        let mut next = a.create_label();
        let mut end = a.create_label();
        a.xor(ecx, ecx)?;
        a.rdpmc()?;
        a.mov(ebx, eax)?;
        a.inc(ecx)?;
        a.rdpmc()?;
        a.mov(esi, eax)?;
        // Neither of these is taken.
        a.test(ecx, ecx)?;
        a.jz(next)?;
        a.set_label(&mut next)?;
        a.js(end)?;
        a.set_label(&mut end)?;
        a.rdpmc()?;
        a.sub(eax, esi)?;
        a.mov(esi, eax)?;
        a.mov(ecx, 1 << 30)?;
        a.rdpmc()?;
        a.sub(eax, ebx)?;
        a.hlt()
    });
    count(&mut g, ON | INSTRUCTIONS, ON | BRANCHES, 3);
    g.run();
    let r = &g.soft.cpu.gpr;
    assert_eq!(r[RBX], 1, "only XOR has retired before");
    assert_eq!(r[RSI], 2, "branches");
    assert_eq!(r[RAX], 13 - 1, "RDPMC before this one, to this one");
    // By RDMSR as well.
    let mut g = Guest::kernel(|a| {
        a.nop()?;
        a.nop()?;
        a.mov(ecx, IA32_FIXED_CTR0)?;
        a.rdmsr()?;
        a.hlt()
    });
    count(&mut g, 0, 0, 3);
    g.run();
    assert_eq!(g.soft.cpu.gpr[RAX], 3);
}

#[test]
fn user_code_reads_counters_if_cr4_allows_it() {
    let program: Program = |a| {
        a.xor(ecx, ecx)?;
        a.nop()?;
        a.rdpmc()?;
        a.ud2()
    };
    let mut g = Guest::user(program);
    count(&mut g, EN | USR | INSTRUCTIONS, 0, 0);
    g.update(|s| s.sys.cr4 |= cr4::PCE);
    g.run_to_exception(UD, None);
    assert_eq!((g.soft.cpu.gpr[RAX], g.soft.cpu.gpr[RDX]), (2, 0));
    let mut g = Guest::user(program);
    count(&mut g, EN | USR | INSTRUCTIONS, 0, 0);
    g.run_to_exception(GP, Some(0));
}

#[test]
fn a_write_takes_effect_after_its_instruction() {
    let mut g = Guest::kernel(|a| {
        wrmsr(a, IA32_PERFEVTSEL0, ON | INSTRUCTIONS)?;
        wrmsr(a, IA32_PERFEVTSEL0 + 1, ON | BRANCHES)?;
        wrmsr(a, IA32_FIXED_CTR_CTRL, 3)?;
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, ALL)?;
        a.nop()?;
        // Sign-extended from 32 bits, to 40.
        wrmsr(a, IA32_PMC0, 0x12_FFFF_FFF0)?;
        a.nop()?;
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, 2 | 1 << 32)?;
        a.nop()?;
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, 0)?;
        a.nop()?;
        a.hlt()
    });
    g.run();
    let pmu = counters(&g);
    assert_eq!(pmu.pmc[0], before_overflow(0x10) + 1 + 4);
    assert_eq!(pmu.pmc[1], 0);
    assert_eq!(pmu.fixed_ctr[0], (1 + 4) * 3);
}

#[test]
fn an_overflow_is_in_the_status_until_it_is_cleared() {
    let mut g = Guest::kernel(|a| {
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, ALL)?;
        a.nop()?;
        a.nop()?;
        a.nop()?;
        a.mov(ecx, IA32_PERF_GLOBAL_STATUS)?;
        a.rdmsr()?;
        a.mov(ebx, eax)?;
        a.mov(esi, edx)?;
        wrmsr(a, IA32_PERF_GLOBAL_OVF_CTRL, 1)?;
        a.mov(ecx, IA32_PERF_GLOBAL_STATUS)?;
        a.rdmsr()?;
        a.hlt()
    });
    count(&mut g, ON | INSTRUCTIONS, ON | INSTRUCTIONS, 3);
    g.update(|s| {
        s.msr.pmu.global_ctrl = 0;
        s.msr.pmu.pmc[0] = before_overflow(3);
        s.msr.pmu.pmc[1] = before_overflow(300);
        s.msr.pmu.fixed_ctr[0] = before_overflow(4);
    });
    g.run();
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[RBX], r[RSI]), (1, 1));
    assert_eq!((r[RAX], r[RDX]), (0, 1));
    let interrupts = &g.platform.performance_interrupts;
    assert_eq!(interrupts.load(Ordering::Relaxed), 0, "none was asked for");
}

#[test]
fn counters_move_with_the_state() {
    let mut g = Guest::kernel(rounds);
    count(&mut g, ON | BRANCHES, EN | OS | INT | INSTRUCTIONS, 3);
    g.update(|s| s.msr.pmu.pmc[1] = before_overflow(100));
    g.run();
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
    });
    let mut second = g.second_processor();
    while !matches!(second.run(u64::MAX), vbts_cpu::Exit::Halt { .. }) {}
    let pmu = second.cpu.state().msr.pmu;
    assert_eq!((pmu.pmc[0], pmu.fixed_ctr[0]), (20, 44));
    assert_eq!(pmu.pmc[1], before_overflow(100 - 44));
}

#[test]
fn a_later_model_has_more_and_wider_counters() {
    let mut g = Guest::of(vbts_cpu::model("nehalem").unwrap());
    mixture(&mut g);
    g.update(|s| {
        s.msr.pmu = PmuState {
            evtsel: [ON | INSTRUCTIONS, 0, 0, ON | INT | BRANCHES],
            pmc: [MASK, 0, 0, (1 << 48) - 1],
            fixed_ctr: [MASK, 0, 0],
            fixed_ctr_ctrl: 3,
            global_ctrl: 0xF | 7 << 32,
            ..PmuState::default()
        }
    });
    g.run();
    let pmu = counters(&g);
    assert_eq!(pmu.pmc, [MASK + 401, 0, 0, 99]);
    assert_eq!(pmu.fixed_ctr[0], MASK + 401);
    assert_eq!(pmu.global_status, 8);
    let interrupts = &g.platform.performance_interrupts;
    assert_eq!(interrupts.load(Ordering::Relaxed), 1);
    // It has no fifth.
    for (msr, there) in [
        (IA32_PMC0 + 3, true),
        (IA32_PMC0 + 4, false),
        (IA32_PERFEVTSEL0 + 3, true),
        (IA32_PERFEVTSEL0 + 4, false),
    ] {
        let mut g = Guest::of(vbts_cpu::model("nehalem").unwrap());
        let end = g.assemble(KERNEL, |a| {
            wrmsr(a, msr, 0)?;
            a.hlt()
        });
        if there {
            g.run_to(end);
        } else {
            g.run_to_exception(GP, Some(0));
        }
    }
}

#[test]
fn the_registers_match_cpuid() {
    let mut g = Guest::kernel(|a| {
        a.mov(eax, 0xA)?;
        a.cpuid()?;
        a.hlt()
    });
    g.run();
    let r = &g.soft.cpu.gpr;
    // Version 2, two counters of 40 bits, seven events; no misses of caches or predictions; three
    // fixed counters.
    assert_eq!(r[RAX], 0x0728_0202);
    assert_eq!(r[RBX], 0x58);
    assert_eq!(r[RDX], 0x503);
}
