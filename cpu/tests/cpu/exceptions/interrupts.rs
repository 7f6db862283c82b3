//! External interrupts and NMIs: when the processor takes them.

use crate::common::{
    DATA, Gate, Guest, INTERRUPTING_MSR, INTERRUPTING_VECTOR, KERNEL, NMI_PORT, handler, selector,
};
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::{rflags, vector};

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
