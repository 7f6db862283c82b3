//! Page faults of user code that a handler resolves, and of accesses that the processor makes by
//! itself.

use super::{A, D, FRAME, FULL, LA, P, PT, U, W, error, map_page};
use crate::common::records::check_and;
use crate::common::{Gate, Guest, IST1, USER, handler, selector};
use iced_x86::code_asm::*;
use vbts_cpu::state::cr0;
use vbts_cpu::state::vector::{PF, UD};

#[test]
fn a_handler_maps_the_page_and_the_instruction_runs_again() {
    let make = || {
        let mut g = Guest::user(|a| {
            a.mov(rbx, LA)?; // +0
            a.inc(qword_ptr(rbx))?; // +10
            a.ud2() // +13
        });
        map_page(&mut g, 0);
        g.assemble(handler(PF), |a| {
            a.mov(qword_ptr(PT + 24), rdi)?; // +0
            a.add(rsp, 8)?; // +8
            a.iretq() // +12
        });
        g.update(|s| s.gpr[7] = FRAME | FULL);
        g
    };
    check_and(
        make,
        &[
            (USER + 10, handler(PF), 0),
            (handler(PF) + 12, USER + 10, 3),
            (USER + 13, handler(UD), 0),
        ],
        |g| {
            assert_eq!(g.read(FRAME), 1);
            assert_eq!(g.read(PT + 24), FRAME | FULL | A | D);
            assert_eq!(g.soft.cpu.sys.cr2, LA);
        },
    );
}

/// Loads a descriptor that is not marked as accessed from a GDT in the page under test, at CPL 3.
fn load_from_gdt(flags: u64, wp: bool) -> Guest {
    let mut g = Guest::user(|a| {
        a.mov(eax, u32::from(selector::USER_SS))?;
        a.mov(fs, eax)?;
        a.ud2()
    });
    map_page(&mut g, flags);
    for offset in (0..0x100).step_by(8) {
        let descriptor = g.read(0x1000 + offset);
        g.write(FRAME + offset, descriptor);
    }
    g.write(FRAME + 0x28, 0x00CF_F200_0000_FFFF);
    g.update(|s| {
        s.sys.gdtr.base = LA;
        if !wp {
            s.sys.cr0 &= !cr0::WP;
        }
    });
    g
}

#[test]
fn implicit_accesses_have_supervisor_privilege_at_any_cpl() {
    // The tables are the kernel's, and the descriptor gets its accessed bit.
    for (flags, wp) in [(P | W, true), (P, false)] {
        let mut g = load_from_gdt(flags, wp);
        g.run_to_exception(UD, None);
        assert_eq!(g.read(FRAME + 0x28), 0x00CF_F300_0000_FFFF);
    }
    // Neither the table's absence nor its write protection is the user's fault.
    let mut g = load_from_gdt(P | U, true);
    g.gate(
        PF,
        Gate {
            ist: 1,
            ..Gate::default()
        },
    );
    let frame = g.run_to_exception(PF, Some(error::P | error::W));
    assert_eq!((frame.at + 40, g.soft.cpu.sys.cr2), (IST1, LA + 0x28 + 5));
}
