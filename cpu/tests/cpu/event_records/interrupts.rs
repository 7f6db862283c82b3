//! The records of interrupts and NMIs.

use crate::common::records::{check, check_and};
use crate::common::{
    Gate, Guest, INTERRUPT_PORT, IST1, KERNEL, NMI_PORT, RSP0, USER, handler, selector,
};
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::gpr::{RAX, RBX, RCX};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::{NMI, UD};

#[test]
fn an_nmi_inside_an_nmi_waits_for_iret() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.out(NMI_PORT, al)?; // +0
            a.hlt() // +2
        });
        // The first run of the handler asks for another.
        g.assemble(handler(NMI), |a| {
            let mut end = a.create_label();
            a.inc(ebx)?; // +0
            a.cmp(ebx, 1)?; // +2
            a.jne(end)?; // +5
            a.out(NMI_PORT, al)?; // +7
            a.nop()?; // +9
            a.set_label(&mut end)?;
            a.iretq() // +10
        });
        g
    };
    let h = handler(NMI);
    check_and(
        make,
        &[
            (KERNEL + 2, h, 0),
            (h + 10, KERNEL + 2, 0),
            (KERNEL + 2, h, 0),
            (h + 5, h + 10, 0),
            (h + 10, KERNEL + 2, 0),
        ],
        |g| {
            assert_eq!((g.soft.cpu.rip, g.soft.cpu.gpr[RBX]), (KERNEL + 3, 2));
            assert!(!g.soft.cpu.state().nmi_blocked);
        },
    );
}

#[test]
fn an_nmi_is_taken_with_interrupts_off_and_an_interrupt_after_it() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.out(INTERRUPT_PORT, al)?; // +0
            a.out(NMI_PORT, al)?; // +2
            a.sti()?; // +4
            a.nop()?; // +5
            a.cli()?; // +6
            a.hlt() // +7
        });
        for vector in [NMI, 0x21] {
            g.assemble(handler(vector), |a| a.iretq());
        }
        g.update(|s| s.gpr[RAX] = 0x21);
        g
    };
    check(
        make,
        &[
            (KERNEL + 4, handler(NMI), 0),
            (handler(NMI), KERNEL + 4, 0),
            (KERNEL + 6, handler(0x21), 0),
            (handler(0x21), KERNEL + 6, 0),
        ],
    );
}

#[test]
fn an_interrupt_of_user_code_takes_the_stack_of_its_gate() {
    for (ist, top) in [(0, RSP0), (1, IST1)] {
        let make = || {
            let mut g = Guest::user(|a| {
                a.nop()?;
                a.ud2()
            });
            g.gate(
                0x21,
                Gate {
                    ist,
                    ..Gate::default()
                },
            );
            g.assemble(handler(0x21), |a| {
                a.mov(rbx, rsp)?; // +0
                a.iretq() // +3
            });
            g.update(|s| s.rflags |= rflags::IF);
            g.platform.interrupt(0x21);
            g
        };
        check_and(
            make,
            &[
                (USER, handler(0x21), 0),
                (handler(0x21) + 3, USER, 3),
                (USER + 1, handler(UD), 0),
            ],
            |g| assert_eq!(g.soft.cpu.gpr[RBX], top - 40),
        );
    }
}

#[test]
fn an_interrupt_ends_hlt_and_returns_to_the_next_instruction() {
    let make = || {
        let mut g = Guest::kernel(|a| {
            a.hlt()?; // +0
            a.cli()?; // +1
            a.hlt() // +2
        });
        g.assemble(handler(0x21), |a| a.iretq());
        g.update(|s| s.rflags |= rflags::IF);
        g.soft.run(10);
        g.platform.interrupt(0x21);
        g
    };
    // The guest runs before tracing is on; it has executed HLT and nothing else.
    assert_eq!(make().soft.cpu.rip, KERNEL + 1);
    check_and(
        make,
        &[
            (KERNEL + 1, handler(0x21), 0),
            (handler(0x21), KERNEL + 1, 0),
        ],
        |g| assert_eq!(g.soft.cpu.rip, KERNEL + 3),
    );
}

#[test]
fn mov_ss_holds_interrupts_and_nmis_for_one_instruction() {
    for nmi in [false, true] {
        let vector = if nmi { NMI } else { 0x21 };
        let make = || {
            let mut g = Guest::kernel(|a| {
                let mut next = a.create_label();
                a.mov(ss, ecx)?; // +0
                a.jmp(next)?; // +2
                a.set_label(&mut next)?;
                a.cli()?; // +4
                a.hlt() // +5
            });
            g.assemble(handler(vector), |a| a.iretq());
            g.update(|s| {
                s.gpr[RCX] = selector::KERNEL_SS.into();
                s.rflags |= rflags::IF;
            });
            assert_eq!(g.soft.run(1), Exit::Deadline);
            if nmi {
                g.platform.nmi();
            } else {
                g.platform.interrupt(vector);
            }
            g
        };
        check(
            make,
            &[
                (KERNEL + 2, KERNEL + 4, 0),
                (KERNEL + 4, handler(vector), 0),
                (handler(vector), KERNEL + 4, 0),
            ],
        );
    }
}
