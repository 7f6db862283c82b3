//! Performance-monitoring interrupts: the instruction after which an overflow interrupts, and
//! counters that the interrupt freezes.

use std::sync::atomic::Ordering;

use iced_x86::code_asm::*;
use vbts_bts::DebugCtl;

use super::{
    ALL, BRANCHES, EN, IA32_PERF_GLOBAL_CTRL, IA32_PERF_GLOBAL_OVF_CTRL, IA32_PMC0, INSTRUCTIONS,
    INT, ON, OS, USR, before_overflow, count, counters, mixture, wrmsr,
};
use crate::common::{BTS_BUFFER, DS_AREA, Gate, Guest, KERNEL, USER, handler};
use vbts_cpu::state::Activity;
use vbts_cpu::state::vector::{NMI, UD};

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
fn an_interrupt_freezes_the_counters_if_debugctl_selects_it() {
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
