//! The two counters of Pentium M (P6 family).

use std::sync::atomic::Ordering;

use iced_x86::code_asm::*;

use super::{
    CMASK, EDGE, EN, IA32_PERFEVTSEL0, IA32_PMC0, INSTRUCTIONS, INT, INV, ON, OS, USR,
    before_overflow, counters, protected, rounds, wrmsr,
};
use crate::common::{Guest, KERNEL, assemble, handler};
use vbts_cpu::state::gpr::{RAX, RBX, RCX, RDX, RSI};
use vbts_cpu::state::vector::{GP, NMI};
use vbts_cpu::{Cpu, model};

const MODEL: &str = "pentium-m";
const CPU_CLK_UNHALTED: u64 = 0x79;
const BR_INST_RETIRED: u64 = 0xC4;
const BR_TAKEN_RETIRED: u64 = 0xC9;

/// A guest with [`rounds`] and these PerfEvtSel0 and 1.
fn guest(first: u64, second: u64) -> Guest {
    let mut g = protected(MODEL, rounds);
    g.update(|s| s.msr.pmu.evtsel = [first, second, 0, 0]);
    g
}

#[test]
fn the_first_register_enables_both_counters() {
    const BOTH: u64 = OS | USR;
    for (first, second, expected) in [
        (ON | CPU_CLK_UNHALTED, BOTH | BR_INST_RETIRED, [22, 10]),
        (BOTH | CPU_CLK_UNHALTED, ON | BR_INST_RETIRED, [0, 0]),
        // As perf's driver disables counter 0 alone.
        (EN | 0x2E, BOTH | INT | INSTRUCTIONS, [0, 22]),
        (EN | USR | INSTRUCTIONS, OS | INSTRUCTIONS, [0, 22]),
        (ON | BR_TAKEN_RETIRED, 0, [9, 0]),
        (ON | INSTRUCTIONS | EDGE, BOTH | 0x3C, [0, 0]),
        (
            ON | INSTRUCTIONS | (2 * CMASK) | INV,
            BOTH | BR_INST_RETIRED | CMASK | INV,
            [22, 12],
        ),
    ] {
        let mut g = guest(first, second);
        g.run();
        let pmu = counters(&g);
        assert_eq!(pmu.pmc[..2], expected, "{first:#x} {second:#x}");
        assert_eq!((pmu.global_status, pmu.global_ctrl), (0, 0));
    }
}

#[test]
fn taken_branches_count_by_the_instruction() {
    let mut g = protected(MODEL, |a| {
        let [mut next, mut function, mut end] = std::array::from_fn(|_| a.create_label());
        a.mov(ecx, 1)?; // RDPMC reads counter 1.
        a.call(function)?; // taken
        a.cmp(ecx, 1)?;
        a.jne(end)?; // not taken
        a.rdpmc()?;
        a.mov(esi, eax)?;
        a.cmp(ecx, 1)?;
        a.je(next)?; // taken
        a.set_label(&mut next)?;
        a.rdpmc()?;
        a.jmp(end)?; // taken
        a.set_label(&mut function)?;
        a.ret()?; // taken
        a.set_label(&mut end)?;
        a.hlt()
    });
    g.update(|s| s.msr.pmu.evtsel = [ON | BR_INST_RETIRED, OS | BR_TAKEN_RETIRED, 0, 0]);
    g.run();
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[RSI], r[RAX]), (2, 3));
    assert_eq!(counters(&g).pmc[..2], [5, 4]);
}

#[test]
fn an_overflow_interrupts_after_its_instruction() {
    for n in [1_u64, 2, 3, 10, 21] {
        let mut g = guest(0, 0);
        g.write_bytes(
            KERNEL,
            &assemble(32, KERNEL, |a| {
                wrmsr(a, IA32_PMC0 + 1, n.wrapping_neg() & 0xFFFF_FFFF)?;
                wrmsr(a, IA32_PERFEVTSEL0 + 1, OS | INT | INSTRUCTIONS)?;
                wrmsr(a, IA32_PERFEVTSEL0, EN)?;
                for _ in 0..25 {
                    a.nop()?;
                }
                a.hlt()
            }),
        );
        g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
        g.run_to(handler(NMI) + 1);
        let nops = KERNEL + 3 * (3 * 5 + 2);
        assert_eq!(g.read(g.soft.cpu.gpr[4]) & 0xFFFF_FFFF, nops + n, "{n}");
        assert_eq!(g.platform.performance_interrupts.load(Ordering::Relaxed), 1);
        assert_eq!(counters(&g).pmc[1], 1, "the handler's HLT");
    }
}

#[test]
fn registers_and_rdpmc() {
    let mut g = guest(ON | INSTRUCTIONS, 0);
    let cpu: &mut Cpu = &mut g.soft.cpu;
    assert_eq!(cpu.write_msr(IA32_PMC0, 0x8000_0000), Some(()));
    assert_eq!(cpu.read_msr(IA32_PMC0), Some(0xFF_8000_0000));
    assert_eq!(cpu.write_msr(IA32_PERFEVTSEL0, 1 << 21), None);
    for absent in [0xC3, 0x188, 0x309, 0x38D, 0x38E, 0x38F, 0x390, 0x300, 0x360] {
        assert_eq!(cpu.read_msr(absent), None, "{absent:#x}");
        assert_eq!(cpu.write_msr(absent, 0), None, "{absent:#x}");
    }
    assert!(cpu.uses_counters());
    // As perf's driver stops and disables them.
    assert_eq!(cpu.write_msr(IA32_PERFEVTSEL0, OS | INSTRUCTIONS), Some(()));
    assert!(cpu.uses_counters());
    assert_eq!(cpu.write_msr(IA32_PERFEVTSEL0, EN | 0x2E), Some(()));
    assert!(!cpu.uses_counters());
    for (index, there) in [
        (0_u32, true),
        (1, true),
        (2, false),
        (1 << 30, false),
        (1 << 31, false),
    ] {
        let mut g = Guest::of(model(MODEL).unwrap());
        let end = g.assemble(KERNEL, |a| {
            a.mov(ebx, 7)?;
            a.mov(ecx, index)?;
            a.rdpmc()?;
            a.hlt()
        });
        g.soft.soft_only("KVM executes RDPMC");
        g.update(|s| s.msr.pmu.pmc[..2].copy_from_slice(&[before_overflow(1), 5]));
        if there {
            g.run_to(end);
            let r = &g.soft.cpu.gpr;
            let value = r[RAX] | r[RDX] << 32;
            assert_eq!((r[RBX], r[RCX]), (7, index.into()));
            assert_eq!(value, [before_overflow(1), 5][index as usize]);
        } else {
            g.run_to_exception(GP, Some(0));
        }
    }
}
