//! The records of exceptions.

use super::{FOR_USER, user32};
use crate::common::records::{check, check_and};
use crate::common::{DATA, Gate, Guest, IST1, USER, handler};
use iced_x86::code_asm::*;
use vbts_cpu::Exit;
use vbts_cpu::state::gpr::{RAX, RBX, RSP};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::{BP, BR, DB, DE, DF, GP, OF, SS, UD};

#[test]
fn exceptions_that_instructions_ask_for() {
    // 32-bit code has all of them: INT3, INTO, BOUND, INT n, INT1, and a division by zero.
    let make = || {
        let mut g = user32(|a| {
            a.int3()?; // +0
            a.into()?; // +1
            a.int(0x21)?; // +2
            a.int1()?; // +4
            a.div(ecx)?; // +5
            a.bound(eax, dword_ptr(ebx)) // +7
        });
        for vector in [BP, OF, 0x21] {
            g.gate(vector, FOR_USER);
        }
        for vector in [BP, OF, 0x21, DB] {
            g.assemble(handler(vector), |a| a.iretq());
        }
        g.assemble(handler(DE), |a| {
            a.add(dword_ptr(rsp), 2)?; // +0
            a.iretq() // +4
        });
        g.update(|s| {
            s.rflags |= rflags::OF;
            s.gpr[RBX] = DATA;
            s.gpr[RAX] = 1;
        });
        g
    };
    check(
        make,
        &[
            (USER, handler(BP), 0),
            (handler(BP), USER + 1, 3),
            (USER + 1, handler(OF), 0),
            (handler(OF), USER + 2, 3),
            (USER + 2, handler(0x21), 0),
            (handler(0x21), USER + 4, 3),
            (USER + 4, handler(DB), 0),
            (handler(DB), USER + 5, 3),
            (USER + 5, handler(DE), 0),
            (handler(DE) + 4, USER + 7, 3),
            (USER + 7, handler(BR), 0),
        ],
    );
}

#[test]
fn an_instruction_breakpoint_comes_before_and_a_watchpoint_after() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut next = a.create_label();
            a.nop()?; // +0
            a.jmp(next)?; // +1: breakpoint 0
            a.set_label(&mut next)?;
            a.mov(byte_ptr(rbx), al)?; // +3: breakpoint 1
            a.ud2() // +5
        });
        // Sets RF in the frame, so that the breakpoint is passed.
        g.assemble(handler(DB), |a| {
            a.or(byte_ptr(rsp + 18), 1)?; // +0
            a.iretq() // +5
        });
        g.update(|s| {
            s.gpr[RBX] = DATA;
            s.sys.dr[0] = USER + 1;
            s.sys.dr[1] = DATA;
            s.sys.dr7 = 1 | 1 << 2 | 1 << 20;
        });
        g
    };
    let iret = handler(DB) + 5;
    check_and(
        make,
        &[
            (USER + 1, handler(DB), 0),
            (iret, USER + 1, 3),
            (USER + 1, USER + 3, 3),
            (USER + 5, handler(DB), 0),
            (iret, USER + 5, 3),
            (USER + 5, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.sys.dr6 & 0xE00F, 1 << 1),
    );
}

#[test]
fn a_double_fault_is_one_transfer_and_a_triple_fault_none() {
    let absent = Gate {
        present: false,
        ..Gate::default()
    };
    let double = || {
        let mut g = Guest::user(|a| a.hlt());
        g.gate(GP, absent);
        g.gate(
            DF,
            Gate {
                ist: 1,
                ..Gate::default()
            },
        );
        g
    };
    check_and(double, &[(USER, handler(DF), 0)], |g| {
        assert_eq!(g.soft.cpu.gpr[RSP], IST1 - 48);
    });
    let triple = || {
        let mut g = double();
        g.gate(DF, absent);
        g
    };
    check_and(triple, &[], |g| assert_eq!(g.soft.cpu.rip, USER));
    assert_eq!(triple().run(), Exit::Shutdown);
}

#[test]
fn a_stack_in_the_tss_that_is_not_canonical_is_ss() {
    let make = || {
        let mut g = Guest::user(|a| a.int(0x21));
        g.gate(0x21, FOR_USER);
        g.write(crate::common::TSS + 4, 0x8000_0000_1000);
        g.gate(
            SS,
            Gate {
                ist: 1,
                ..Gate::default()
            },
        );
        g
    };
    check_and(make, &[(USER, handler(SS), 0)], |g| {
        assert_eq!(g.read(IST1 - 48), 0, "error code");
        assert_eq!(g.read(IST1 - 40), USER);
    });
}
