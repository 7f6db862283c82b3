//! Instructions that depend on CPL, IOPL and CR4, and the time-stamp counter.

use crate::common::{DATA, Guest};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, UD};
use vbts_cpu::state::{cr4, gpr, rflags};

type Program = fn(&mut CodeAssembler) -> Result<(), IcedError>;

#[test]
fn privileged_instructions_fault_in_user_code() {
    let programs: &[Program] = &[
        |a| a.mov(rax, cr0),
        |a| a.mov(cr3, rax),
        |a| a.mov(rax, cr8),
        |a| a.lgdt(fword_ptr(DATA)),
        |a| a.lidt(fword_ptr(DATA)),
        |a| a.lldt(ax),
        |a| a.ltr(ax),
        |a| a.lmsw(ax),
        |a| a.clts(),
        |a| a.invlpg(byte_ptr(DATA)),
        |a| a.invd(),
        |a| a.wbinvd(),
        |a| a.hlt(),
        |a| a.rdmsr(),
        |a| a.wrmsr(),
        |a| a.cli(),
        |a| a.sti(),
        |a| a.rdpmc(),
    ];
    for (i, program) in programs.iter().enumerate() {
        let mut g = Guest::user(program);
        let frame = g.run_to_exception(GP, Some(0));
        assert_eq!(frame.rip, crate::common::USER, "program {i}");
    }
}

#[test]
fn iopl_lets_user_code_change_if() {
    let mut g = Guest::user(|a| {
        a.sti()?;
        a.nop()?;
        a.cli()?;
        a.sti()?;
        a.ud2()
    });
    g.update(|s| s.rflags |= rflags::IOPL);
    let frame = g.run_to_exception(UD, None);
    assert_ne!(frame.rflags & rflags::IF, 0);
}

#[test]
fn rdtsc_and_rdpmc_are_subject_to_cr4() {
    let mut g = Guest::user(|a| {
        a.rdtsc()?;
        a.ud2()
    });
    g.run_to_exception(UD, None);
    g.update(|s| s.sys.cr4 |= cr4::TSD);
    let mut g = Guest::user(|a| a.rdtsc());
    g.update(|s| s.sys.cr4 |= cr4::TSD);
    g.run_to_exception(GP, Some(0));

    for (counter, exists) in [
        (0u32, true),
        (2, false),
        (1 << 30 | 2, true),
        (1 << 30 | 3, false),
    ] {
        let mut g = Guest::user(|a| {
            a.mov(ecx, counter)?;
            a.rdpmc()?;
            a.ud2()
        });
        g.update(|s| s.sys.cr4 |= cr4::PCE);
        if exists {
            g.run_to_exception(UD, None);
        } else {
            g.run_to_exception(GP, Some(0));
        }
    }
}

#[test]
fn the_tsc_counts_instructions() {
    let mut g = Guest::kernel(|a| {
        a.rdtsc()?;
        a.mov(ebx, eax)?;
        a.nop()?;
        a.rdtsc()?;
        a.sub(eax, ebx)?;
        a.hlt()
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[gpr::RAX], 3);
}
