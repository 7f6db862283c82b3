//! The records of instructions that fault and run again.

use crate::common::records::check_and;
use crate::common::{DATA, Guest, USER, handler};
use iced_x86::code_asm::*;
use vbts_cpu::state::gpr::{RCX, RDI, RSI, RSP};
use vbts_cpu::state::vector::{PF, UD};

/// Takes a page away. The page-fault handler gives it back, from R8 to R9, and returns.
fn take_away(g: &mut Guest, la: u64) {
    let entry = g.page_entry(la);
    g.page(la, 0);
    g.assemble(handler(PF), |a| {
        a.mov(qword_ptr(r9), r8)?; // +0
        a.add(rsp, 8)?; // +3
        a.iretq() // +7
    });
    g.update(|s| {
        s.gpr[8] = entry;
        s.gpr[9] = 0x7000 + (la >> 12) * 8;
    });
}

#[test]
fn a_repeated_string_resumes_where_it_faulted() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.rep().movsq()?; // +0
            a.ud2() // +3
        });
        for n in 0..32 {
            g.write(DATA + 8 * n, n + 1);
        }
        take_away(&mut g, DATA + 0x3000);
        g.update(|s| {
            s.gpr[RCX] = 32;
            s.gpr[RSI] = DATA;
            s.gpr[RDI] = DATA + 0x2FC0;
        });
        g
    };
    check_and(
        make,
        &[
            (USER, handler(PF), 0),
            (handler(PF) + 7, USER, 3),
            (USER + 3, handler(UD), 0),
        ],
        |g| {
            for n in 0..32 {
                assert_eq!(g.read(DATA + 0x2FC0 + 8 * n), n + 1);
            }
            let cpu = &g.soft.cpu;
            assert_eq!((cpu.gpr[RCX], cpu.gpr[RSI]), (0, DATA + 0x100));
            assert_eq!(cpu.sys.cr2, DATA + 0x3000);
        },
    );
}

#[test]
fn a_branch_across_two_pages_comes_from_its_first_byte() {
    let at = USER + 0xFFE;
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rdx, at)?; // +0
            a.jmp(rdx) // +10
        });
        g.assemble(at, |a| a.jmp(USER + 0x2000));
        g.assemble(USER + 0x2000, |a| a.ud2());
        take_away(&mut g, USER + 0x1000);
        g
    };
    check_and(
        make,
        &[
            (USER + 10, at, 3),
            (at, handler(PF), 0),
            (handler(PF) + 7, at, 3),
            (at, USER + 0x2000, 3),
            (USER + 0x2000, handler(UD), 0),
        ],
        |g| assert_eq!(g.soft.cpu.sys.cr2, USER + 0x1000),
    );
}

#[test]
fn a_call_whose_stack_is_missing_happens_once() {
    let make = || {
        let mut g = Guest::user(|a| {
            let mut f = a.create_label();
            a.call(f)?; // +0
            a.set_label(&mut f)?;
            a.ud2() // +5
        });
        take_away(&mut g, DATA + 0x3000);
        g.update(|s| s.gpr[RSP] = DATA + 0x3008);
        g
    };
    check_and(
        make,
        &[
            (USER, handler(PF), 0),
            (handler(PF) + 7, USER, 3),
            (USER, USER + 5, 3),
            (USER + 5, handler(UD), 0),
        ],
        |g| assert_eq!(g.read(DATA + 0x3000), USER + 5),
    );
}
