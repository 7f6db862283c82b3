//! Performance monitoring: what the counters count, where, and at which instruction they interrupt.

use std::sync::atomic::Ordering;

use crate::common::{BTS_BUFFER, DATA, DS_AREA, Gate, Guest, KERNEL, USER, handler};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_bts::DebugCtl;
use vbts_cpu::state::gpr::{RAX, RBX, RCX, RDX, RSI};
use vbts_cpu::state::vector::{GP, NMI, UD};
use vbts_cpu::state::{Activity, PmuState, cr4};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

// IA32_PERFEVTSELx.
const USR: u64 = 1 << 16;
const OS: u64 = 1 << 17;
const EDGE: u64 = 1 << 18;
const INT: u64 = 1 << 20;
const EN: u64 = 1 << 22;
const INV: u64 = 1 << 23;
const CMASK: u64 = 1 << 24;
/// Everywhere.
const ON: u64 = EN | OS | USR;
const INSTRUCTIONS: u64 = 0xC0;
const BRANCHES: u64 = 0xC4;
const CYCLES: u64 = 0x3C;

/// All counters in IA32_PERF_GLOBAL_CTRL.
const ALL: u64 = 3 | 7 << 32;
/// Values of a counter: 40 bits.
const MASK: u64 = (1 << 40) - 1;

const IA32_PMC0: u32 = 0xC1;
const IA32_PERFEVTSEL0: u32 = 0x186;
const IA32_FIXED_CTR0: u32 = 0x309;
const IA32_FIXED_CTR_CTRL: u32 = 0x38D;
const IA32_PERF_GLOBAL_STATUS: u32 = 0x38E;
const IA32_PERF_GLOBAL_CTRL: u32 = 0x38F;
const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

/// Sets the unit up.
fn count(g: &mut Guest, first: u64, second: u64, fixed: u64) {
    g.update(|s| {
        s.msr.pmu = PmuState {
            evtsel: [first, second, 0, 0],
            fixed_ctr_ctrl: fixed,
            global_ctrl: ALL,
            ..PmuState::default()
        }
    });
}

fn counters(g: &Guest) -> PmuState {
    g.soft.cpu.state().msr.pmu
}

/// The value from which `n` events overflow.
fn before_overflow(n: u64) -> u64 {
    n.wrapping_neg() & MASK
}

/// 22 instructions up to and with HLT, among them 10 branches.
fn rounds(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(ecx, 10)?; // +0
    a.set_label(&mut again)?;
    a.dec(ecx)?; // +5
    a.jnz(again)?; // +7
    a.hlt()
}

#[test]
fn counters_count_instructions_branches_and_cycles() {
    let mut g = Guest::kernel(rounds);
    count(&mut g, ON | BRANCHES, ON | INSTRUCTIONS, 0x333);
    g.run();
    let pmu = counters(&g);
    assert_eq!(pmu.pmc, [10, 22, 0, 0]);
    assert_eq!(pmu.fixed_ctr[..2], [22, 22]);
    assert_eq!(pmu.global_status, 0);
}

#[test]
fn reference_cycles_are_those_of_the_time_stamp_counter() {
    let mut g = Guest::kernel(rounds);
    count(&mut g, ON | 0x13C, 0, 0x333);
    g.run();
    assert_eq!((counters(&g).pmc[0], counters(&g).fixed_ctr[2]), (22, 22));
    // Time that passes in HLT is none of it.
    let now = g.soft.cpu.now();
    g.soft.advance_to(now + 1000);
    g.update(|s| {
        s.rip = KERNEL;
        s.activity = Activity::Active;
    });
    g.run();
    assert_eq!(counters(&g).fixed_ctr, [44; 3]);
    assert_eq!(g.soft.cpu.now(), now + 1000 + 22);
}

#[test]
fn a_counter_counts_if_it_is_enabled_in_both_places() {
    for (select, control, global, expected) in [
        (ON | INSTRUCTIONS, 3, ALL, (22, 22)),
        (ON & !EN | INSTRUCTIONS, 0, ALL, (0, 0)),
        (EN | INSTRUCTIONS, 0, ALL, (0, 0)),
        (ON | INSTRUCTIONS, 3, 1, (22, 0)),
        (ON | INSTRUCTIONS, 3, 1 << 32, (0, 22)),
        (ON | INSTRUCTIONS, 3, 0, (0, 0)),
    ] {
        let mut g = Guest::kernel(rounds);
        count(&mut g, select, 0, control);
        g.update(|s| s.msr.pmu.global_ctrl = global);
        g.run();
        let pmu = counters(&g);
        assert_eq!(
            (pmu.pmc[0], pmu.fixed_ctr[0]),
            expected,
            "{select:#x} {control:#x} {global:#x}"
        );
    }
}

#[test]
fn a_mask_an_inverted_mask_and_edges() {
    for (select, expected) in [
        (INSTRUCTIONS | CMASK, 22),
        (BRANCHES | CMASK, 10),
        // Never two in a cycle.
        (INSTRUCTIONS | (2 * CMASK), 0),
        (BRANCHES | (2 * CMASK), 0),
        (INSTRUCTIONS | CMASK | INV, 0),
        (BRANCHES | CMASK | INV, 12),
        (INSTRUCTIONS | (16 * CMASK) | INV, 22),
        (CYCLES | INV, 22),
        // Not counted, and so not counted wrong.
        (BRANCHES | EDGE, 0),
        (0xC5, 0),
        (0x412E, 0),
        (0x1C0, 0),
    ] {
        let mut g = Guest::kernel(rounds);
        count(&mut g, ON | select, 0, 0);
        g.run();
        assert_eq!(counters(&g).pmc[0], expected, "{select:#x}");
    }
}

#[test]
fn an_instruction_counts_where_it_began() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(eax, 1)?;
            a.syscall()?;
            a.nop()?;
            a.int(0x80)?;
            a.nop()?;
            a.nop()?;
            a.ud2()
        });
        g.assemble(KERNEL, |a| {
            a.nop()?;
            a.nop()?;
            a.sysretq()
        });
        g.assemble(handler(0x80), |a| a.iretq());
        g.gate(
            0x80,
            Gate {
                dpl: 3,
                ..Gate::default()
            },
        );
        g.update(|s| s.msr.lstar = KERNEL);
        g
    };
    // UD2 does not retire. SYSCALL, SYSRET, INT and IRET are branches.
    let user = (6, 2);
    let kernel = (3 + 1 + 1, 2);
    for (rings, (instructions, branches)) in [
        (USR, user),
        (OS, kernel),
        (OS | USR, (user.0 + kernel.0, user.1 + kernel.1)),
    ] {
        let mut g = make();
        let fixed = rings >> 17 & 1 | (rings >> 16 & 1) << 1;
        count(
            &mut g,
            EN | rings | INSTRUCTIONS,
            EN | rings | BRANCHES,
            fixed,
        );
        g.run_to_exception(UD, None);
        let pmu = counters(&g);
        assert_eq!(
            (pmu.pmc[0], pmu.pmc[1], pmu.fixed_ctr[0]),
            (instructions, branches, instructions),
            "{rings:#x}"
        );
    }
}

#[test]
fn a_repeated_string_is_one_instruction_and_takes_its_time() {
    let mut g = Guest::kernel(|a| {
        a.rep().stosb()?;
        a.hlt()
    });
    count(
        &mut g,
        ON | INSTRUCTIONS,
        ON | INSTRUCTIONS | CMASK | INV,
        0x33,
    );
    g.update(|s| {
        s.gpr[RCX] = 200_000;
        s.gpr[7] = DATA;
    });
    g.run();
    let pmu = counters(&g);
    assert_eq!(g.soft.cpu.gpr[RCX], 0);
    assert_eq!((pmu.pmc[0], pmu.fixed_ctr[0]), (2, 2));
    // The cycles in which none retires are the rest.
    assert!(pmu.pmc[1] >= 3, "{pmu:?}");
    assert_eq!(pmu.fixed_ctr[1], pmu.pmc[0] + pmu.pmc[1]);
}

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
fn user_code_reads_counters_if_it_may() {
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

/// WRMSR of constants.
fn wrmsr(a: &mut CodeAssembler, msr: u32, value: u64) -> Result<(), IcedError> {
    a.mov(ecx, msr)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
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

/// 400 instructions at CPL 0, of which every fourth is a branch: a NOP, a comparison, a branch that
/// is taken each second time, a NOP. Returns the address after each instruction.
fn mixture(g: &mut Guest) -> Vec<(u64, bool)> {
    let mut after = Vec::new();
    let bytes = crate::common::assemble(64, KERNEL, |a| {
        for n in 0..100 {
            let mut next = a.create_label();
            a.nop()?;
            a.cmp(eax, n % 2)?;
            a.je(next)?;
            a.set_label(&mut next)?;
            a.nop()?;
        }
        a.hlt()
    });
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, KERNEL, 0);
    for insn in &mut decoder {
        after.push((insn.next_ip(), insn.is_jcc_short_or_near()));
    }
    g.write_bytes(KERNEL, &bytes);
    after
}

/// Runs to the NMI of a performance-monitoring interrupt: where it came.
fn interrupted(g: &mut Guest) -> u64 {
    g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
    let rip = g.run_to_exception(NMI, None).rip;
    let interrupts = &g.platform.performance_interrupts;
    assert_eq!(interrupts.load(Ordering::Relaxed), 1);
    rip
}

#[test]
fn an_overflow_interrupts_after_its_instruction() {
    for n in (1..=130).chain([200, 399]) {
        let mut g = Guest::new();
        let after = mixture(&mut g);
        count(&mut g, EN | OS | INT | INSTRUCTIONS, 0, 0);
        g.update(|s| s.msr.pmu.pmc[0] = before_overflow(n));
        assert_eq!(interrupted(&mut g), after[n as usize - 1].0, "{n}");
        // The handler's HLT.
        assert_eq!(counters(&g).pmc[0], 1, "{n}");
        assert_eq!(counters(&g).global_status, 1);

        let mut g = Guest::new();
        let after = mixture(&mut g);
        count(&mut g, 0, 0, 0xB << 4);
        g.update(|s| s.msr.pmu.fixed_ctr[1] = before_overflow(n));
        assert_eq!(interrupted(&mut g), after[n as usize - 1].0, "cycle {n}");
        assert_eq!(counters(&g).global_status, 1 << 33);
    }
    for n in (1..=40).chain([99, 100]) {
        let mut g = Guest::new();
        let after = mixture(&mut g);
        count(&mut g, 0, EN | OS | INT | BRANCHES, 0);
        g.update(|s| s.msr.pmu.pmc[1] = before_overflow(n));
        let expected = after.iter().filter(|i| i.1).nth(n as usize - 1);
        assert_eq!(interrupted(&mut g), expected.unwrap().0, "branch {n}");
        assert_eq!(counters(&g).global_status, 2);
    }
}

#[test]
fn an_overflow_in_user_code_interrupts_there() {
    for n in [1, 2, 7, 60] {
        let mut g = Guest::user(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.syscall()?; // +0
            a.nop()?; // +2
            a.jmp(again) // +3
        });
        g.assemble(KERNEL, |a| {
            for _ in 0..100 {
                a.nop()?;
            }
            a.sysretq()
        });
        g.update(|s| s.msr.lstar = KERNEL);
        count(&mut g, EN | USR | INT | INSTRUCTIONS, 0, 0);
        g.update(|s| s.msr.pmu.pmc[0] = before_overflow(n));
        // After SYSCALL that is the kernel's first instruction.
        let expected = [USER, KERNEL, USER + 3][n as usize % 3];
        assert_eq!(interrupted(&mut g), expected, "{n}");
        assert_eq!(counters(&g).pmc[0], 0, "the kernel does not count");
    }
}

#[test]
fn a_counter_that_is_set_again_interrupts_again() {
    // The handler does what a kernel does: stops, clears, sets, goes on.
    const PERIOD: u64 = 37;
    let mut g = Guest::user(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 5000)?;
        a.set_label(&mut again)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.ud2()
    });
    g.assemble(KERNEL, |a| {
        a.push(rcx)?;
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, 0)?;
        wrmsr(a, IA32_PERF_GLOBAL_OVF_CTRL, 1)?;
        wrmsr(a, IA32_PMC0, PERIOD.wrapping_neg())?;
        wrmsr(a, IA32_PERF_GLOBAL_CTRL, ALL)?;
        a.pop(rcx)?;
        a.iretq()
    });
    g.gate(
        NMI,
        Gate {
            offset: KERNEL,
            ..Gate::default()
        },
    );
    count(&mut g, EN | USR | INT | INSTRUCTIONS, 0, 2);
    g.update(|s| s.msr.pmu.pmc[0] = before_overflow(PERIOD));
    g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
    g.run_to_exception(UD, None);
    let interrupts = g.platform.performance_interrupts.load(Ordering::Relaxed);
    assert_eq!(counters(&g).fixed_ctr[0], 10_001);
    assert_eq!(interrupts, 10_001 / PERIOD);
    assert_eq!(
        counters(&g).pmc[0],
        before_overflow(PERIOD - 10_001 % PERIOD)
    );
}

#[test]
fn an_interrupt_freezes_the_counters_if_that_is_wanted() {
    for (freeze, global) in [
        (DebugCtl::empty(), ALL),
        (DebugCtl::FREEZE_PERFMON_ON_PMI, 0),
        (DebugCtl::FREEZE_LBRS_ON_PMI, ALL),
    ] {
        let mut g = Guest::new();
        mixture(&mut g);
        count(&mut g, EN | OS | INT | INSTRUCTIONS, ON | BRANCHES, 3);
        g.update(|s| {
            s.msr.pmu.pmc[0] = before_overflow(44);
            s.debugctl = (freeze | DebugCtl::LBR).bits();
        });
        interrupted(&mut g);
        let pmu = counters(&g);
        assert_eq!(pmu.global_ctrl, global, "{freeze:?}");
        let frozen = u64::from(global == 0);
        assert_eq!((pmu.pmc[0], pmu.pmc[1]), (1 - frozen, 11));
        assert_eq!(pmu.fixed_ctr[0], 45 - frozen);
        let mut left = freeze | DebugCtl::LBR;
        left.set(
            DebugCtl::LBR,
            !freeze.contains(DebugCtl::FREEZE_LBRS_ON_PMI),
        );
        assert_eq!(g.soft.cpu.state().debugctl, left.bits());
    }
}

#[test]
fn an_interrupt_of_the_branch_trace_store_freezes_the_counters_as_well() {
    let mut g = Guest::user(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 10)?; // +0
        a.set_label(&mut again)?;
        a.loop_(again)?; // +5
        a.ud2()
    });
    let tracing = DebugCtl::TR | DebugCtl::BTS | DebugCtl::BTINT | DebugCtl::FREEZE_PERFMON_ON_PMI;
    g.trace(tracing.bits(), 16);
    g.write(DS_AREA + 0x18, BTS_BUFFER + 4 * 24);
    count(&mut g, ON | INSTRUCTIONS, ON | BRANCHES, 3);
    g.run_to_exception(UD, None);
    let pmu = counters(&g);
    assert_eq!(pmu.global_ctrl, 0);
    assert_eq!(
        (pmu.pmc[0], pmu.pmc[1]),
        (5, 4),
        "MOV, and the fourth branch"
    );
    assert_eq!(pmu.global_status, 0, "it has no bit there");
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
fn a_deadline_and_an_overflow_do_not_disturb_each_other() {
    // Runs of so many instructions each.
    for slice in [1, 5, 60] {
        let mut g = Guest::new();
        let after = mixture(&mut g);
        g.soft.soft_only("it runs in steps of virtual time");
        count(&mut g, EN | OS | INT | INSTRUCTIONS, ON | BRANCHES, 0);
        g.update(|s| s.msr.pmu.pmc[0] = before_overflow(121));
        g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
        while g.soft.cpu.state().activity != Activity::Halted {
            let deadline = g.soft.cpu.now() + slice;
            g.soft.run(deadline);
        }
        g.run_to(handler(NMI) + 1);
        assert_eq!(g.read(g.soft.cpu.gpr[4]), after[120].0, "{slice}");
        assert_eq!(counters(&g).pmc[..2], [1, 30]);
    }
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
fn the_unit_is_what_cpuid_says() {
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
