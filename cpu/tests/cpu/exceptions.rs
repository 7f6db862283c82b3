//! Exceptions and interrupts: vectors, error codes, frames, stacks, and what happens when delivery
//! fails.

use crate::common::{
    DATA, Gate, Guest, INTERRUPTING_MSR, INTERRUPTING_VECTOR, IST1, KERNEL, KERNEL_STACK, NMI_PORT,
    RSP0, TSS, USER, USER_STACK, handler, selector,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector;

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// An instruction sequence, and the exception that its last instruction raises.
struct Case {
    user: bool,
    program: Program,
    vector: u8,
    error: Option<u64>,
    /// Length of what runs before the instruction that faults.
    before: u64,
}

const HOLE: u64 = 0x8000_0000_0000;

#[test]
fn faults_push_their_error_code_and_the_address_of_the_instruction() {
    let cases = [
        Case {
            user: false,
            program: |a| a.ud2(),
            vector: vector::UD,
            error: None,
            before: 0,
        },
        Case {
            user: true,
            program: |a| a.hlt(),
            vector: vector::GP,
            error: Some(0),
            before: 0,
        },
        Case {
            user: true,
            program: |a| {
                a.xor(ecx, ecx)?;
                a.div(ecx)
            },
            vector: vector::DE,
            error: None,
            before: 2,
        },
        // Beyond the end of the GDT, with and without RPL.
        Case {
            user: false,
            program: |a| {
                a.mov(eax, 0x1FFB)?;
                a.mov(ds, eax)
            },
            vector: vector::GP,
            error: Some(0x1FF8),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(eax, u32::from(selector::NOT_PRESENT_DS))?;
                a.mov(es, eax)
            },
            vector: vector::NP,
            error: Some(selector::NOT_PRESENT_DS.into()),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(eax, u32::from(selector::NOT_PRESENT_DS))?;
                a.mov(ss, eax)
            },
            vector: vector::SS,
            error: Some(selector::NOT_PRESENT_DS.into()),
            before: 5,
        },
        // A kernel data segment is not the user's to load.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, u32::from(selector::KERNEL_SS))?;
                a.mov(fs, eax)
            },
            vector: vector::GP,
            error: Some(selector::KERNEL_SS.into()),
            before: 5,
        },
        // SS must not be null at CPL 3.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, 3)?;
                a.mov(ss, eax)
            },
            vector: vector::GP,
            error: Some(0),
            before: 5,
        },
        Case {
            user: false,
            program: |a| {
                a.mov(rax, HOLE)?;
                a.mov(al, byte_ptr(rax))
            },
            vector: vector::GP,
            error: Some(0),
            before: 10,
        },
        Case {
            user: true,
            program: |a| {
                a.mov(rsp, HOLE + 0x1000)?;
                a.push(rax)
            },
            vector: vector::SS,
            error: Some(0),
            before: 10,
        },
        // Page faults: user read of a page that is not there, user write to a supervisor page.
        Case {
            user: true,
            program: |a| {
                a.mov(eax, 0x4000_0000)?;
                a.mov(al, byte_ptr(rax))
            },
            vector: vector::PF,
            error: Some(4),
            before: 5,
        },
        Case {
            user: true,
            program: |a| {
                a.mov(eax, KERNEL as u32)?;
                a.mov(byte_ptr(rax), al)
            },
            vector: vector::PF,
            error: Some(7),
            before: 5,
        },
        // A software interrupt is subject to the gate's DPL; its error code is an index of the IDT.
        Case {
            user: true,
            program: |a| a.int(0x21),
            vector: vector::GP,
            error: Some(0x21 << 3 | 2),
            before: 0,
        },
        Case {
            user: true,
            program: |a| a.int3(),
            vector: vector::GP,
            error: Some(3 << 3 | 2),
            before: 0,
        },
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let start = if case.user { USER } else { KERNEL };
        let mut g = if case.user {
            Guest::user(case.program)
        } else {
            Guest::kernel(case.program)
        };
        let frame = g.run_to_exception(case.vector, case.error);
        assert_eq!(frame.rip, start + case.before, "case {i}");
        assert_eq!(frame.rflags & rflags::RF, rflags::RF, "case {i}");
        let (code, top) = if case.user {
            (selector::USER_CS, RSP0)
        } else {
            (selector::KERNEL_CS, KERNEL_STACK)
        };
        assert_eq!(frame.cs, u64::from(code), "case {i}");
        assert_eq!(frame.at + 40, top, "case {i}");
        assert_eq!(g.soft.cpu.cpl, 0);
    }
}

#[test]
fn a_page_fault_tells_the_address_in_cr2() {
    let mut g = Guest::user(|a| a.mov(byte_ptr(0x4000_0123), al));
    g.run_to_exception(vector::PF, Some(6));
    assert_eq!(g.soft.cpu.sys.cr2, 0x4000_0123);
}

#[test]
fn an_event_from_user_code_switches_stacks_and_loads_a_null_ss() {
    let mut g = Guest::user(|a| a.ud2());
    let frame = g.run_to_exception(vector::UD, None);
    assert_eq!(
        (frame.ss, frame.rsp),
        (selector::USER_SS.into(), USER_STACK)
    );
    assert_eq!(g.soft.cpu.sys.seg[2].selector, 0);
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
    assert_eq!(g.soft.cpu.sys.seg[2].selector, selector::KERNEL_SS);
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
fn contributory_after_contributory_and_page_fault_after_page_fault_are_double_faults() {
    // #GP whose gate is absent: #NP.
    let mut g = Guest::user(|a| a.hlt());
    g.gate(
        vector::GP,
        Gate {
            present: false,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(vector::DF, Some(0));
    assert_eq!(frame.rip, USER);
    assert_eq!(frame.rflags & rflags::RF, 0);

    // #PF that finds no stack.
    let mut g = Guest::user(|a| a.mov(byte_ptr(0x4000_0000), al));
    g.gate(
        vector::DF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    g.page(RSP0 - 0x1000, 0);
    assert_eq!(g.run_to_exception(vector::DF, Some(0)).at + 40, IST1);
    assert_eq!(g.soft.cpu.sys.cr2, RSP0 - 8);
}

#[test]
fn page_fault_after_contributory_is_delivered_for_itself() {
    let mut g = Guest::user(|a| a.hlt());
    g.page(RSP0 - 0x1000, 0);
    g.gate(
        vector::PF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    // Supervisor write to a page that is not there.
    assert_eq!(g.run_to_exception(vector::PF, Some(2)).rip, USER);
}

#[test]
fn a_double_fault_that_cannot_be_delivered_shuts_down() {
    let mut g = Guest::user(|a| a.hlt());
    g.update(|s| s.sys.idtr.limit = 0);
    assert_eq!(g.run(), Exit::Shutdown);
    assert_eq!(g.run(), Exit::Shutdown);
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

#[test]
fn nmis_are_blocked_until_iret() {
    let mut g = Guest::kernel(|a| {
        a.out(NMI_PORT, al)?;
        a.hlt()
    });
    g.assemble(handler(vector::NMI), |a| {
        let mut end = a.create_label();
        a.inc(dword_ptr(DATA))?;
        a.cmp(dword_ptr(DATA), 1)?;
        a.jne(end)?;
        a.out(NMI_PORT, al)?;
        a.nop()?;
        a.mov(eax, dword_ptr(DATA))?;
        a.mov(dword_ptr(DATA + 8), eax)?;
        a.set_label(&mut end)?;
        a.iretq()
    });
    g.run_to(KERNEL + 3);
    assert_eq!(g.read(DATA), 2, "NMIs taken");
    assert_eq!(
        g.read(DATA + 8),
        1,
        "NMIs taken when the first handler ended"
    );
}

#[test]
fn an_interrupt_waits_for_the_instruction_after_sti() {
    let mut g = Guest::kernel(|a| {
        a.mov(al, 0x21)?;
        a.out(crate::common::INTERRUPT_PORT, al)?;
        a.sti()?;
        a.inc(ebx)?;
        a.hlt()
    });
    let frame = g.run_to_exception(0x21, None);
    assert_eq!(frame.rip, KERNEL + 2 + 2 + 1 + 2);
    assert_eq!(g.soft.cpu.gpr[3], 1);
}

#[test]
fn sti_hlt_is_woken_by_the_pending_interrupt() {
    let mut g = Guest::kernel(|a| {
        a.mov(al, 0x21)?;
        a.out(crate::common::INTERRUPT_PORT, al)?;
        a.sti()?;
        a.hlt()
    });
    let frame = g.run_to_exception(0x21, None);
    assert_eq!(frame.rip, KERNEL + 2 + 2 + 1 + 1);
}

#[test]
fn an_interrupt_waits_for_the_instruction_after_mov_ss() {
    let mut g = Guest::kernel(|a| {
        a.mov(ss, eax)?;
        a.inc(ebx)?;
        a.inc(ebx)
    });
    g.update(|s| {
        s.gpr[0] = selector::KERNEL_SS.into();
        s.rflags |= rflags::IF;
    });
    assert_eq!(g.soft.run(1), Exit::Deadline);
    assert!(g.soft.cpu.state().interrupt_shadow);
    g.platform.interrupt(0x21);
    g.run_to_exception(0x21, None);
    assert_eq!(g.soft.cpu.gpr[3], 1);
}

#[test]
fn interrupts_wait_for_if() {
    let mut g = Guest::kernel(|a| {
        a.mov(al, 0x21)?;
        a.out(crate::common::INTERRUPT_PORT, al)?;
        a.nop()?;
        a.hlt()
    });
    g.run_to(KERNEL + 6);
}

/// A fault and an interrupt at the same time: the fault is first, and the interrupt waits until it
/// is let in.
#[test]
fn a_fault_does_not_lose_an_interrupt() {
    let mut g = Guest::new();
    let handler = 0x3_0000;
    g.gate(
        13,
        Gate {
            offset: handler,
            ..Gate::default()
        },
    );
    g.assemble(handler, |a| {
        a.sti()?;
        a.nop()?;
        a.nop()?;
        a.hlt()
    });
    let at = g.assemble(KERNEL, |a| {
        a.sti()?;
        a.mov(ecx, INTERRUPTING_MSR)
    });
    g.assemble(at, |a| {
        a.rdmsr()?;
        a.hlt()
    });
    let interrupt = g.run_to_exception(INTERRUPTING_VECTOR, None);
    assert_eq!(interrupt.rip, handler + 2, "STI; NOP");
    // The frame of the fault lies above, with its error code.
    assert_eq!(g.read(interrupt.rsp), 0);
    assert_eq!(g.read(interrupt.rsp + 8), at);
}
