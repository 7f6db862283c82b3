//! Delivery of an event through the IDT (SDM Vol. 3A 6.12, 6.14): stack, frame, gate, TSS.

use crate::common::{Gate, Guest, IST1, KERNEL_STACK, RSP0, TSS, USER, USER_STACK, selector};
use vbts_cpu::Exit;
use vbts_cpu::state::{rflags, vector};

#[test]
fn an_event_from_user_code_switches_stacks_and_loads_a_null_ss() {
    let mut g = Guest::user(|a| a.ud2());
    let frame = g.run_to_exception(vector::UD, None);
    assert_eq!(
        (frame.ss, frame.rsp),
        (selector::USER_SS.into(), USER_STACK)
    );
    assert_eq!(g.soft.cpu.segment(2).selector, 0);
}

#[test]
fn frames_are_aligned_to_16_bytes() {
    for offset in 0..16 {
        let mut g = Guest::kernel(|a| a.ud2());
        g.update(|s| s.gpr[4] = KERNEL_STACK - offset);
        let frame = g.run_to_exception(vector::UD, None);
        assert_eq!(frame.at + 40, (KERNEL_STACK - offset) & !15);
        assert_eq!(frame.rsp, KERNEL_STACK - offset);
    }
}

#[test]
fn interrupt_gates_clear_if_and_trap_gates_do_not() {
    for (ty, expected) in [(Gate::INTERRUPT, 0), (Gate::TRAP, rflags::IF)] {
        let mut g = Guest::user(|a| a.int(0x21));
        g.gate(
            0x21,
            Gate {
                ty,
                dpl: 3,
                ..Gate::default()
            },
        );
        g.update(|s| s.rflags |= rflags::IF | rflags::AC);
        let frame = g.run_to_exception(0x21, None);
        assert_eq!(g.rflags() & rflags::IF, expected);
        assert_eq!(
            frame.rflags & (rflags::IF | rflags::AC | rflags::RF),
            rflags::IF | rflags::AC
        );
        assert_eq!(frame.rip, USER + 2);
    }
}

#[test]
fn a_gate_with_an_ist_switches_stacks_even_without_a_change_of_cpl() {
    let mut g = Guest::kernel(|a| a.ud2());
    g.gate(
        vector::UD,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(vector::UD, None);
    assert_eq!(frame.at + 40, IST1);
    assert_eq!(
        (frame.ss, frame.rsp),
        (selector::KERNEL_SS.into(), KERNEL_STACK)
    );
    assert_eq!(g.soft.cpu.segment(2).selector, selector::KERNEL_SS);
}

#[test]
fn an_external_event_sets_ext_in_the_faults_of_its_delivery_and_a_program_does_not() {
    let absent = Gate {
        present: false,
        dpl: 3,
        ..Gate::default()
    };
    let mut g = Guest::user(|a| a.int(0x21));
    g.gate(0x21, absent);
    assert_eq!(
        g.run_to_exception(vector::NP, Some(0x21 << 3 | 2)).rip,
        USER
    );

    let mut g = Guest::user(|a| a.ud2());
    g.gate(vector::UD, absent);
    g.run_to_exception(vector::NP, Some(6 << 3 | 3));

    let mut g = Guest::user(|a| a.nop());
    g.gate(
        0x21,
        Gate {
            selector: selector::NOT_PRESENT_CS,
            ..Gate::default()
        },
    );
    g.update(|s| s.rflags |= rflags::IF);
    g.platform.interrupt(0x21);
    let frame = g.run_to_exception(vector::NP, Some(u64::from(selector::NOT_PRESENT_CS) | 1));
    assert_eq!(frame.rip, USER);
}

#[test]
fn a_gate_to_code_that_is_not_64_bit_faults_with_its_selector() {
    let mut g = Guest::kernel(|a| a.int(0x21));
    g.gate(
        0x21,
        Gate {
            selector: selector::KERNEL_CS32,
            ..Gate::default()
        },
    );
    g.run_to_exception(vector::GP, Some(selector::KERNEL_CS32.into()));
}

#[test]
fn a_vector_beyond_the_idt_limit_is_gp() {
    let mut g = Guest::kernel(|a| a.int(0x80));
    g.update(|s| s.sys.idtr.limit = 0x7FF);
    g.run_to_exception(vector::GP, Some(0x80 << 3 | 2));
}

#[test]
fn a_tss_without_the_stack_is_ts() {
    let mut g = Guest::user(|a| a.hlt());
    g.update(|s| s.sys.tr.limit = 3);
    g.gate(
        vector::TS,
        Gate {
            selector: selector::CONFORMING_CS,
            ..Gate::default()
        },
    );
    // #TS after #GP is a double fault, which finds no stack either.
    assert_eq!(g.run(), Exit::Shutdown);

    let mut g = Guest::user(|a| a.int(0x21));
    g.update(|s| s.sys.tr.limit = 0xB);
    g.gate(
        0x21,
        Gate {
            dpl: 3,
            ist: 1,
            ..Gate::default()
        },
    );
    g.run_to_exception(vector::TS, Some(selector::TSS.into()));
    assert_eq!(g.read(TSS + 4), RSP0);
}

#[test]
fn a_handler_in_a_conforming_segment_runs_at_the_callers_level() {
    let mut g = Guest::user(|a| a.int(0x21));
    g.assemble(USER + 0x100, |a| a.ud2());
    g.gate(
        0x21,
        Gate {
            selector: selector::CONFORMING_CS,
            offset: USER + 0x100,
            dpl: 3,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(vector::UD, None);
    assert_eq!(
        (frame.rip, frame.cs),
        (USER + 0x100, u64::from(selector::CONFORMING_CS | 3))
    );
    assert_eq!(frame.rsp, USER_STACK - 40);
}
