//! Control registers and descriptor-table registers.

use crate::common::{DATA, Guest, KERNEL, selector};
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, PF, UD};
use vbts_cpu::state::{cr0, cr4, gpr};

#[test]
fn control_registers_reject_what_they_do_not_have() {
    let c0 = cr0::PE | cr0::PG | cr0::ET;
    let c4 = cr4::PAE;
    // Register, value, what is read back (or #GP).
    let cases = [
        (0, c0 | cr0::WP | cr0::TS, Some(c0 | cr0::WP | cr0::TS)),
        // ET cannot be cleared, and reserved bits stay clear.
        (0, cr0::PE | cr0::PG | 1 << 17, Some(c0)),
        (0, c0 | 1 << 32, None),
        (0, cr0::PG | cr0::ET, None),
        (0, cr0::PE | cr0::ET, None),
        (0, c0 | cr0::NW, None),
        (2, u64::MAX, Some(u64::MAX)),
        (3, 0x4018, Some(0x4018)),
        (3, 0x4000 | 1 << 40, None),
        (
            4,
            c4 | cr4::PGE | cr4::OSFXSR,
            Some(c4 | cr4::PGE | cr4::OSFXSR),
        ),
        (4, cr4::PGE, None),
        (4, c4 | cr4::VME | cr4::PVI, Some(c4 | cr4::VME | cr4::PVI)),
        (4, c4 | 1 << 20, None),
        (8, 0xF, Some(0xF)),
        (8, 0x10, None),
    ];
    for (n, value, expected) in cases {
        let mut g = Guest::kernel(|a| {
            let r = [cr0, cr1, cr2, cr3, cr4, cr5, cr6, cr7, cr8][n];
            a.mov(r, rax)?;
            a.mov(rbx, r)?;
            a.hlt()
        });
        g.update(|s| s.gpr[gpr::RAX] = value);
        match expected {
            Some(expected) => {
                g.run();
                assert_eq!(g.soft.cpu.gpr[gpr::RBX], expected, "CR{n} {value:#x}");
            }
            None => {
                let frame = g.run_to_exception(GP, Some(0));
                assert_eq!(frame.rip, KERNEL, "CR{n} {value:#x}");
            }
        }
    }
}

#[test]
fn cr1_does_not_exist() {
    let mut g = Guest::kernel(|a| a.mov(rax, cr1));
    g.run_to_exception(UD, None);
}

#[test]
fn clearing_wp_takes_effect_at_once() {
    let mut g = Guest::kernel(|a| {
        a.mov(al, byte_ptr(DATA))?;
        a.mov(rax, cr0)?;
        a.and(eax, !(cr0::WP as u32) as i32)?;
        a.mov(cr0, rax)?;
        a.mov(byte_ptr(DATA), 7)?;
        a.mov(rax, cr0)?;
        a.or(eax, cr0::WP as i32)?;
        a.mov(cr0, rax)?;
        a.mov(byte_ptr(DATA), 8)
    });
    g.page(DATA, 1);
    g.run_to_exception(PF, Some(3));
    assert_eq!(g.read(DATA), 7);
}

#[test]
fn descriptor_table_registers_are_stored_and_loaded() {
    let mut g = Guest::kernel(|a| {
        a.sgdt(fword_ptr(DATA))?;
        a.sidt(fword_ptr(DATA + 0x10))?;
        a.mov(word_ptr(DATA), 0x1234)?;
        a.lgdt(fword_ptr(DATA))?;
        a.sldt(eax)?;
        a.str(ebx)?;
        a.smsw(ecx)?;
        a.hlt()
    });
    g.write(DATA + 8, u64::MAX);
    g.run();
    assert_eq!(g.soft.cpu.sys.gdtr.base, 0x1000);
    assert_eq!(g.soft.cpu.sys.gdtr.limit, 0x1234);
    assert_eq!(g.read(DATA + 0x10), 0x2000 << 16 | 0xFFF);
    // Ten bytes, no more.
    assert_eq!(g.read(DATA + 8), u64::MAX << 16);
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[gpr::RAX], r[gpr::RBX]), (0, selector::TSS.into()));
    assert_eq!(r[gpr::RCX], g.soft.cpu.sys.cr0);

    let mut g = Guest::kernel(|a| a.lgdt(fword_ptr(DATA)));
    g.write(DATA, 0);
    g.write(DATA + 8, 0x8000);
    g.run_to_exception(GP, Some(0));
}
