//! The records of branches in code that changes.

use crate::common::records::{check, check_and};
use crate::common::{Guest, USER, handler};
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RBX, RDX};
use vbts_cpu::state::rflags;
use vbts_cpu::state::vector::UD;

/// Code in one frame that is executed at [`USER`]` + 0x2000` and written at another linear address.
const CODE: u64 = USER + 0x2000;

const ALIAS: u64 = USER + 0x3000;

#[test]
fn code_that_is_written_through_another_mapping_changes() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut again = a.create_label();
            a.mov(ecx, 3)?; // +0
            a.set_label(&mut again)?;
            a.mov(rdx, CODE)?; // +5
            a.call(rdx)?; // +15
            a.add(ebx, eax)?; // +17
            a.inc(dword_ptr(ALIAS + 1))?; // +19
            a.dec(ecx)?; // +26
            a.jnz(again)?; // +28
            a.ud2() // +30
        });
        g.assemble(CODE, |a| {
            a.mov(eax, 1)?; // +0
            a.ret() // +5
        });
        g.write(0x7000 + (ALIAS >> 12) * 8, CODE | 7);
        g
    };
    let call = [(USER + 15, CODE, 3), (CODE + 5, USER + 17, 3)];
    let round = [call[0], call[1], (USER + 28, USER + 5, 3)];
    let end = [call[0], call[1], (USER + 30, handler(UD), 0)];
    check_and(make, &[round, round, end].concat(), |g| {
        assert_eq!(g.soft.cpu.gpr[RBX], 1 + 2 + 3);
        assert_eq!(g.read(CODE + 1) as u32, 4);
    });
}

#[test]
fn code_can_change_the_next_instruction_through_another_mapping() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rdx, CODE)?; // +0
            a.jmp(rdx) // +10
        });
        g.assemble(CODE, |a| {
            a.mov(byte_ptr(ALIAS + 9), 2)?; // +0: the displacement of the JMP
            a.jmp(CODE + 10)?; // +8
            a.nop()?;
            a.nop()?;
            a.ud2() // +12
        });
        g.write(0x7000 + (ALIAS >> 12) * 8, CODE | 7);
        g
    };
    check(
        make,
        &[
            (USER + 10, CODE, 3),
            (CODE + 8, CODE + 12, 3),
            (CODE + 12, handler(UD), 0),
        ],
    );
}

#[test]
fn code_that_an_interrupt_handler_changes_is_new_after_iret() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.jmp(again) // +0
        });
        // The handler makes the JMP lead here.
        g.assemble(USER + 2, |a| a.ud2());
        g.assemble(handler(0x21), |a| {
            a.mov(byte_ptr(USER + 1), 0)?; // +0
            a.iretq() // +8
        });
        g.update(|s| s.rflags |= rflags::IF);
        g.soft.run(10);
        g.platform.interrupt(0x21);
        g
    };
    check_and(
        make,
        &[
            (USER, handler(0x21), 0),
            (handler(0x21) + 8, USER, 3),
            (USER, USER + 2, 3),
            (USER + 2, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.gpr[RDX], 0),
    );
}
