//! What the counters count, and where.

use super::{
    ALL, BRANCHES, CMASK, CYCLES, EDGE, EN, INSTRUCTIONS, INV, ON, OS, USR, count, counters, rounds,
};
use crate::common::{DATA, Gate, Guest, KERNEL, handler};
use iced_x86::code_asm::*;
use vbts_cpu::state::Activity;
use vbts_cpu::state::gpr::RCX;
use vbts_cpu::state::vector::UD;

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
fn conditional_branches_count_on_models_that_have_the_event() {
    for (name, expected) in [
        ("core2", 0),
        ("nehalem", 11),
        ("haswell", 11),
        ("skylake", 11),
    ] {
        let mut g = Guest::of(vbts_cpu::model(name).unwrap());
        g.assemble(KERNEL, |a| {
            let [mut again, mut skipped, mut function, mut end] =
                std::array::from_fn(|_| a.create_label());
            a.mov(ecx, 3)?;
            a.set_label(&mut again)?;
            a.call(function)?;
            a.jrcxz(skipped)?; // three times, not taken
            a.loop_(again)?; // three times
            a.jmp(end)?;
            a.set_label(&mut skipped)?;
            a.ud2()?;
            a.set_label(&mut function)?;
            a.test(ecx, ecx)?;
            a.jz(skipped)?; // three times, not taken
            a.ret()?;
            a.set_label(&mut end)?;
            a.jrcxz(function)?;
            a.hlt()
        });
        // JZ leads to UD2 then, whose handler halts.
        let conditional = 0x01C4;
        count(&mut g, ON | conditional, ON | BRANCHES, 0);
        g.run_to_exception(UD, None);
        let pmu = counters(&g);
        let all = 3 * 2 + 9 + 1 + 1 + 1;
        assert_eq!((pmu.pmc[0], pmu.pmc[1]), (expected, all), "{name}");
    }
}

#[test]
fn a_repeated_string_is_one_instruction_of_many_cycles() {
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
