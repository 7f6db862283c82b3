//! The counters of NetBurst (SDM Vol. 3B 18.15): pentium4 and pentium4-64.

use std::sync::atomic::Ordering;

use iced_x86::code_asm::*;

use super::{Program, before_overflow, counters, protected, rounds, wrmsr};
use crate::common::{Guest, KERNEL, USER, handler};
use vbts_cpu::state::gpr::{RAX, RDX, RSI};
use vbts_cpu::state::vector::{GP, NMI, UD};
use vbts_cpu::state::{NetBurstPmu, cr4};
use vbts_cpu::{Exit, model};

const MODELS: [&str; 2] = ["pentium4", "pentium4-64"];

const COUNTER: u32 = 0x300;
const CCCR: u32 = 0x360;

// A CCCR.
const ENABLE: u64 = 1 << 12;
/// Active thread: any.
const ANY: u64 = 3 << 16;
const COMPARE: u64 = 1 << 18;
const COMPLEMENT: u64 = 1 << 19;
const THRESHOLD: u64 = 1 << 20;
const MAX_THRESHOLD: u64 = 15 << 20;
const EDGE: u64 = 1 << 24;
const FORCE_OVF: u64 = 1 << 25;
const OVF_PMI: u64 = 1 << 26;
const CASCADE: u64 = 1 << 30;
const OVF: u64 = 1 << 31;
const ON: u64 = ENABLE | ANY;

// An ESCR.
const USR: u64 = 1 << 2;
const OS: u64 = 1 << 3;
const BOTH: u64 = OS | USR;

/// An event: the pair of ESCRs, as an index and as a CCCR selects it, the event select field and
/// the event mask.
#[derive(Debug, Clone, Copy)]
struct Event {
    pair: usize,
    cccr: u64,
    select: u64,
    mask: u64,
}

const fn event(pair: usize, cccr: u64, select: u64, mask: u64) -> Event {
    Event {
        pair,
        cccr,
        select,
        mask,
    }
}

impl Event {
    fn escr(self, rings: u64) -> u64 {
        self.select << 25 | self.mask << 9 | rings
    }
}

/// MSR_FSB_ESCR0, MSR_CRU_ESCR0, MSR_TBPU_ESCR0, MSR_CRU_ESCR2.
const CYCLES: Event = event(1, 6, 0x13, 1);
const INSTRUCTIONS: Event = event(12, 4, 2, 5);
const COMPLETED: Event = event(12, 4, 7, 1);
const BRANCH_TYPE: Event = event(17, 2, 4, 0x1E);
const BRANCHES: Event = event(21, 5, 6, 0xF);
/// Of which no more than one occurs in a cycle, as of any event.
const EXECUTION: Event = event(21, 5, 0xC, 0xFF);

impl Event {
    fn with_mask(self, mask: u64) -> Self {
        Self { mask, ..self }
    }
}

/// Sets counter `n` up.
fn set(g: &mut Guest, n: usize, event: Event, rings: u64, cccr: u64, value: u64) {
    let half = if n < 16 { n / 2 % 2 } else { n - 16 };
    g.update(|s| {
        let pmu = &mut s.msr.pmu.netburst;
        pmu.escr[event.pair][half] = event.escr(rings);
        pmu.cccr[n] = cccr | event.cccr << 13;
        pmu.counter[n] = value;
    });
}

fn pmu(g: &Guest) -> NetBurstPmu {
    counters(g).netburst
}

fn interrupts(g: &Guest) -> u64 {
    g.platform.performance_interrupts.load(Ordering::Relaxed)
}

#[test]
fn each_counter_of_a_group_counts_its_events() {
    for name in MODELS {
        let later = u64::from(name == "pentium4-64");
        for (numbers, event, expected) in [
            (&[0, 1, 2, 3][..], CYCLES, 22),
            (&[12, 13, 14, 15, 16, 17], INSTRUCTIONS, 22),
            (&[12, 17], COMPLETED, 22 * later),
            (&[4, 5, 6, 7], BRANCH_TYPE, 10),
            (&[12, 15, 16], BRANCHES, 10),
            // Not taken and taken, each predicted and mispredicted.
            (&[12], BRANCHES.with_mask(1), 1),
            (&[13], BRANCHES.with_mask(2), 0),
            (&[14], BRANCHES.with_mask(4), 9),
            (&[17], BRANCHES.with_mask(8), 0),
            // Another group has other registers with these numbers.
            (&[4, 8], CYCLES, 0),
            (&[0], INSTRUCTIONS, 0),
        ] {
            for &n in numbers {
                let mut g = protected(name, rounds);
                set(&mut g, n, event, BOTH, ON, 0);
                g.run();
                assert_eq!(pmu(&g).counter[n], expected, "{name} {n} {event:?}");
                assert_eq!(pmu(&g).cccr[n] & OVF, 0);
            }
        }
    }
}

#[test]
fn branches_count_by_their_type() {
    let program: Program = |a| {
        let [mut function, mut next, mut far, mut end] = std::array::from_fn(|_| a.create_label());
        a.call(function)?; // call
        a.call(function)?;
        a.lea(rax, ptr(function))?;
        a.call(rax)?; // indirect call
        a.lea(rax, ptr(next))?;
        a.jmp(rax)?; // indirect jump
        a.set_label(&mut next)?;
        a.test(eax, eax)?;
        a.jz(end)?; // conditional, not taken
        a.jnz(far)?; // conditional, taken
        a.set_label(&mut far)?;
        a.jmp(end)?; // a direct jump is none of these
        a.set_label(&mut function)?;
        a.ret()?; // return, three times
        a.set_label(&mut end)?;
        a.hlt()
    };
    for (mask, expected) in [
        (0, 0),
        (1 << 1, 2),
        (1 << 2, 3),
        (1 << 3, 3),
        // Returns, indirect calls and indirect jumps.
        (1 << 4, 5),
        (1 << 2 | 1 << 4, 7),
        (0x1E, 9),
    ] {
        let mut g = Guest::of(model("pentium4-64").unwrap());
        g.assemble(KERNEL, program);
        set(&mut g, 5, BRANCH_TYPE.with_mask(mask), BOTH, ON, 0);
        set(&mut g, 12, BRANCHES, BOTH, ON, 0);
        g.run();
        assert_eq!(pmu(&g).counter[5], expected, "{mask:#x}");
        assert_eq!(pmu(&g).counter[12], 10);
    }
}

#[test]
fn a_cccr_decides_how_events_count() {
    #[rustfmt::skip]
    let cases = [
        (INSTRUCTIONS, BOTH, ANY, 0),
        (INSTRUCTIONS, BOTH, ENABLE, 0),
        // For a core with one logical processor: one is active, both are.
        (INSTRUCTIONS, BOTH, ENABLE | 1 << 16, 22),
        (INSTRUCTIONS, BOTH, ENABLE | 2 << 16, 0),
        (INSTRUCTIONS, USR, ON, 0),
        // The flags of the other thread.
        (INSTRUCTIONS, 1 << 1, ON, 22),
        (INSTRUCTIONS, 0, ON, 0),
        // More than so many events in a cycle, or no more.
        (BRANCHES, BOTH, ON | COMPARE, 10),
        (BRANCHES, BOTH, ON | COMPARE | THRESHOLD, 0),
        (BRANCHES, BOTH, ON | COMPARE | COMPLEMENT, 12),
        (BRANCHES, BOTH, ON | COMPARE | COMPLEMENT | THRESHOLD, 22),
        (INSTRUCTIONS, BOTH, ON | COMPARE | COMPLEMENT, 0),
        // Without COMPARE the others mean nothing.
        (BRANCHES, BOTH, ON | COMPLEMENT | EDGE | THRESHOLD, 10),
        (BRANCHES, BOTH, ON | COMPARE | EDGE, 0),
        // As perf selects cycles for the second time, and old kernels for their watchdog.
        (EXECUTION, BOTH, ON | COMPARE | COMPLEMENT | MAX_THRESHOLD, 22),
        (EXECUTION, USR, ON | COMPARE | COMPLEMENT | MAX_THRESHOLD, 22),
        (event(12, 4, 0x3F, 0), BOTH, ON | COMPARE | COMPLEMENT | MAX_THRESHOLD, 22),
        (event(12, 4, 0, 0), BOTH, ON | COMPARE | COMPLEMENT | MAX_THRESHOLD, 0),
        (EXECUTION, BOTH, ON, 0),
        (EXECUTION, BOTH, ON | COMPARE | COMPLEMENT | THRESHOLD, 0),
    ];
    for (event, rings, cccr, expected) in cases {
        let mut g = protected("pentium4", rounds);
        set(&mut g, 13, event, rings, cccr, 0);
        g.run();
        assert_eq!(pmu(&g).counter[13], expected, "{event:?} {rings} {cccr:#x}");
    }
}

#[test]
fn an_overflow_interrupts_after_its_instruction() {
    for name in MODELS {
        for n in [1, 2, 3, 7, 20] {
            let mut g = protected(name, rounds);
            set(
                &mut g,
                16,
                INSTRUCTIONS,
                BOTH,
                ON | OVF_PMI,
                before_overflow(n),
            );
            g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
            g.run_to(handler(NMI) + 1);
            // MOV, and then DEC and JNZ.
            let expected = KERNEL + if n % 2 == 0 { 6 } else { 5 };
            assert_eq!(g.read(g.soft.cpu.gpr[4]) & 0xFFFF_FFFF, expected, "{n}");
            assert_eq!((pmu(&g).counter[16], interrupts(&g)), (1, 1));
            assert_eq!(pmu(&g).cccr[16] & OVF, OVF);
        }
    }
}

#[test]
fn an_overflow_interrupts_until_software_clears_it() {
    // A write to a port stands for that to the local APIC which unmasks the interrupt. There are so
    // many of them before and after OVF is cleared.
    let guest = |cccr, before, after| {
        let mut g = protected("pentium4", |a| {
            a.nop()?;
            a.nop()?;
            for _ in 0..before {
                a.out(0x80, al)?;
            }
            wrmsr(a, CCCR + 12, ON | OVF_PMI | 4 << 13)?;
            for _ in 0..after {
                a.out(0x80, al)?;
            }
            a.hlt()
        });
        set(&mut g, 12, INSTRUCTIONS, BOTH, cccr, before_overflow(2));
        g.run();
        assert_eq!(pmu(&g).cccr[12] & OVF, 0);
        interrupts(&g)
    };
    assert_eq!(guest(ON | OVF_PMI, 0, 0), 1);
    assert_eq!(guest(ON | OVF_PMI, 2, 0), 3);
    assert_eq!(guest(ON | OVF_PMI, 2, 2), 3);
    assert_eq!(guest(ON, 2, 2), 0);
    // The processor needs the counters as long as one interrupts.
    let mut g = protected("pentium4", rounds);
    for (cccr, uses) in [(0, false), (ON, true), (OVF | OVF_PMI, true), (OVF, false)] {
        g.update(|s| s.msr.pmu.netburst.cccr[3] = cccr);
        assert_eq!(g.soft.cpu.uses_counters(), uses, "{cccr:#x}");
    }
}

#[test]
fn each_event_overflows_if_it_is_forced_to() {
    let mut g = protected("pentium4", rounds);
    set(&mut g, 5, BRANCH_TYPE, BOTH, ON | OVF_PMI | FORCE_OVF, 0);
    g.platform.interrupt_is_nmi.store(true, Ordering::Relaxed);
    g.run_to(handler(NMI) + 1);
    // After the first JNZ.
    assert_eq!(g.read(g.soft.cpu.gpr[4]) & 0xFFFF_FFFF, KERNEL + 5);
    assert_eq!(pmu(&g).counter[5], 1);
    assert_eq!(pmu(&g).cccr[5] & OVF, OVF);
}

#[test]
fn an_overflow_starts_the_counter_that_cascades() {
    // Branches are counted from the fifth instruction on: the third JNZ and the seven after it.
    for (first, second, expected) in [
        (12, 14, 8),
        (13, 15, 8),
        (14, 16, 8),
        (15, 17, 8),
        // These are not counters of one chain.
        (12, 15, 0),
        (16, 14, 0),
    ] {
        let mut g = protected("pentium4", rounds);
        set(&mut g, second, BRANCHES, BOTH, ANY | CASCADE | OVF_PMI, 0);
        set(&mut g, first, INSTRUCTIONS, BOTH, ON, before_overflow(5));
        g.run();
        let pmu = pmu(&g);
        assert_eq!(pmu.counter[second], expected, "{first} {second}");
        assert_eq!(pmu.counter[first], 22 - 5);
        assert_eq!(pmu.cccr[second] & (ENABLE | OVF), 0);
    }
    // It stops when software clears the other one's OVF.
    let mut g = protected("pentium4", |a| {
        a.nop()?;
        a.nop()?;
        wrmsr(a, CCCR, ANY)?;
        a.nop()?;
        a.hlt()
    });
    set(&mut g, 2, CYCLES, BOTH, ANY | CASCADE, 0);
    set(&mut g, 0, CYCLES, BOTH, ON, before_overflow(1));
    g.run();
    assert_eq!(pmu(&g).counter[2], 1 + 4);
}

#[test]
fn user_code_counts_apart() {
    let mut g = Guest::of(model("pentium4-64").unwrap());
    g.soft.soft_only("KVM executes RDPMC");
    g.start_user(|a| {
        a.mov(ecx, 12)?;
        a.syscall()?;
        a.mov(ecx, 12)?;
        a.rdpmc()?;
        a.mov(esi, eax)?;
        // Only the low half.
        a.mov(ecx, 1 << 31 | 14)?;
        a.rdpmc()?;
        a.ud2()
    });
    g.assemble(KERNEL, |a| {
        a.nop()?;
        a.sysretq()
    });
    set(&mut g, 12, INSTRUCTIONS, USR, ON, 0);
    set(&mut g, 14, INSTRUCTIONS, OS, ON, 0x12_3456_7800);
    g.update(|s| {
        s.msr.lstar = KERNEL;
        s.sys.cr4 |= cr4::PCE;
    });
    assert_eq!(g.run_to_exception(UD, None).rip, USER + 23);
    let r = &g.soft.cpu.gpr;
    assert_eq!(r[RSI], 3);
    assert_eq!((r[RAX], r[RDX]), (0x3456_7802, 0));
    // Without CR4.PCE, and for a counter that does not exist.
    for (index, pce) in [(12, 0), (18, cr4::PCE), (1 << 30, cr4::PCE)] {
        let mut g = Guest::of(model("pentium4-64").unwrap());
        g.soft.soft_only("KVM executes RDPMC");
        g.start_user(|a| {
            a.mov(ecx, index)?;
            a.rdpmc()
        });
        g.update(|s| s.sys.cr4 |= pce);
        g.run_to_exception(GP, Some(0));
    }
}

#[test]
fn the_registers_that_exist() {
    for name in MODELS {
        let mut g = protected(name, rounds);
        let cpu = &mut g.soft.cpu;
        let old = name == "pentium4";
        let escrs = [
            0x3A0..=0x3B9,
            0x3BC..=0x3BE,
            0x3C0..=0x3C5,
            0x3C8..=0x3CD,
            0x3E0..=0x3E1,
        ];
        let mut there: Vec<u32> = escrs.into_iter().flatten().collect();
        // The first models have MSR_IQ_ESCR0 and 1.
        there.extend([0x3BA, 0x3BB].iter().filter(|_| old));
        assert_eq!(there.len(), if old { 45 } else { 43 });
        for number in 0x3A0..0x3F0 {
            let exists = there.contains(&number);
            // Each holds a value of its own.
            let value = u64::from(number) << 9 | BOTH;
            let written = cpu.write_msr(number, value).is_some();
            assert_eq!(written, exists, "{name} {number:#x}");
        }
        for &number in &there {
            let value = u64::from(number) << 9 | BOTH;
            assert_eq!(cpu.read_msr(number), Some(value), "{name} {number:#x}");
            assert_eq!(cpu.write_msr(number, 1 << 31), None);
        }
        for n in 0..18 {
            let value = u64::MAX - u64::from(n);
            assert_eq!(cpu.write_msr(COUNTER + n, value), Some(()));
            assert_eq!(cpu.read_msr(COUNTER + n), Some(value & 0xFF_FFFF_FFFF));
            // PMI after an overflow is off, so that none is pending.
            let value = 0xC3FF_E000 & !(OVF_PMI << 1 | FORCE_OVF) | u64::from(n) << 13;
            assert_eq!(cpu.write_msr(CCCR + n, value), Some(()));
            assert_eq!(cpu.read_msr(CCCR + n), Some(value));
            for reserved in [0, 11, 28, 29, 32] {
                assert_eq!(cpu.write_msr(CCCR + n, 1 << reserved), None, "{reserved}");
            }
        }
        for absent in [0x2FE, 0x312, 0x35F, 0x372, 0x3F0, 0x3F3, 0xC1, 0x186, 0x38F] {
            assert_eq!(cpu.read_msr(absent), None, "{name} {absent:#x}");
        }
        // What perf writes for events of the caches.
        assert_eq!(cpu.write_msr(0x3F1, 0x0100_0001), Some(()));
        assert_eq!(cpu.write_msr(0x3F2, 1), Some(()));
    }
}

#[test]
fn counters_move_with_the_state() {
    let mut g = protected("pentium4", rounds);
    set(
        &mut g,
        17,
        INSTRUCTIONS,
        BOTH,
        ON | OVF_PMI,
        before_overflow(30),
    );
    set(&mut g, 6, BRANCH_TYPE, BOTH, ON, 5);
    let mut second = g.second_processor();
    while !matches!(second.run(u64::MAX), Exit::Halt { .. }) {}
    let netburst = second.cpu.state().msr.pmu.netburst;
    assert_eq!(netburst.counter[17], before_overflow(30 - 22));
    assert_eq!(netburst.counter[6], 15);
}
