//! SYSCALL, SYSRET, SYSENTER, SYSEXIT and SWAPGS.

use crate::common::{Guest, KERNEL, KERNEL_STACK, USER, USER_STACK, selector};
use iced_x86::code_asm::*;
use vbts_cpu::state::vector::{GP, UD};
use vbts_cpu::state::{efer, gpr, rflags};

const USER_CS: u64 = selector::USER_CS as u64;
const USER_SS: u64 = selector::USER_SS as u64;
const HOLE: u64 = 0x8000_0000_0000;

#[test]
fn syscall_and_sysretq_save_and_restore() {
    let mut g = Guest::user(|a| {
        a.stc()?;
        a.syscall()?;
        a.ud2()
    });
    g.assemble(KERNEL, |a| {
        a.mov(rax, rsp)?;
        a.mov(ebx, cs)?;
        a.mov(edx, ss)?;
        a.sysretq()
    });
    g.update(|s| {
        s.rflags |= rflags::IF;
        s.msr.lstar = KERNEL;
        s.msr.fmask = rflags::CF | rflags::IF;
    });
    let frame = g.run_to_exception(UD, None);
    assert_eq!(
        (frame.rip, frame.cs, frame.ss),
        (USER + 3, USER_CS, USER_SS)
    );
    let r = &g.soft.cpu.gpr;
    // SYSCALL leaves the stack alone.
    assert_eq!(r[gpr::RAX], USER_STACK);
    assert_eq!((r[gpr::RBX], r[gpr::RDX]), (0x10, 0x18));
    assert_eq!(r[gpr::RCX], USER + 3);
    assert_eq!(r[gpr::R11], rflags::FIXED | rflags::CF | rflags::IF);
    assert_eq!(
        frame.rflags & !rflags::RF,
        rflags::FIXED | rflags::CF | rflags::IF
    );
}

#[test]
fn syscall_clears_the_flags_of_fmask() {
    let mut g = Guest::user(|a| {
        a.stc()?;
        a.std()?;
        a.syscall()
    });
    g.assemble(KERNEL, |a| a.hlt());
    g.update(|s| {
        s.rflags |= rflags::IF;
        s.msr.lstar = KERNEL;
        s.msr.fmask = rflags::IF | rflags::DF;
    });
    g.run_to(KERNEL + 1);
    assert_eq!(g.rflags(), rflags::FIXED | rflags::CF);
    assert_eq!(g.soft.cpu.cpl, 0);
}

#[test]
fn sysretd_returns_to_compatibility_mode() {
    let mut g = Guest::kernel(|a| a.sysret());
    g.assemble(USER, |a| a.ud2());
    g.update(|s| {
        s.gpr[gpr::RCX] = USER | 1 << 40;
        s.gpr[gpr::R11] = rflags::RF | rflags::VM | rflags::ZF;
    });
    let frame = g.run_to_exception(UD, None);
    assert_eq!((frame.rip, frame.cs), (USER, selector::USER_CS32.into()));
    assert_eq!(frame.rflags & !rflags::RF, rflags::FIXED | rflags::ZF);
}

#[test]
fn sysretq_to_an_address_that_is_not_canonical_faults_in_the_kernel() {
    let mut g = Guest::kernel(|a| a.sysretq());
    g.update(|s| s.gpr[gpr::RCX] = HOLE);
    let frame = g.run_to_exception(GP, Some(0));
    assert_eq!(
        (frame.cs, frame.rsp),
        (selector::KERNEL_CS.into(), KERNEL_STACK)
    );
}

#[test]
fn syscall_needs_sce_and_sysret_needs_cpl_0() {
    let mut g = Guest::user(|a| a.syscall());
    g.update(|s| s.sys.efer &= !efer::SCE);
    g.run_to_exception(UD, None);
    let mut g = Guest::user(|a| a.sysretq());
    g.run_to_exception(GP, Some(0));
}

#[test]
fn sysenter_and_sysexit() {
    let mut g = Guest::user(|a| a.sysenter());
    g.assemble(KERNEL, |a| {
        a.mov(eax, cs)?;
        a.mov(ebx, ss)?;
        a.mov(rsi, rsp)?;
        a.mov(edx, USER as u32 + 0x100)?;
        a.mov(ecx, USER_STACK as u32 - 8)?;
        a.sysexitq()
    });
    g.assemble(USER + 0x100, |a| a.ud2());
    g.update(|s| {
        s.rflags |= rflags::IF;
        s.msr.sysenter_eip = KERNEL;
        s.msr.sysenter_esp = KERNEL_STACK;
    });
    let frame = g.run_to_exception(UD, None);
    assert_eq!((frame.rip, frame.cs), (USER + 0x100, USER_CS));
    assert_eq!(
        (frame.rsp, frame.ss),
        (USER_STACK - 8, selector::USER_SS_SYSEXIT.into())
    );
    assert_eq!(frame.rflags & rflags::IF, 0);
    let r = &g.soft.cpu.gpr;
    assert_eq!((r[0], r[3], r[6]), (0x10, 0x18, KERNEL_STACK));

    let mut g = Guest::user(|a| a.sysenter());
    g.update(|s| s.msr.sysenter_cs = 0);
    g.run_to_exception(GP, Some(0));
}

#[test]
fn swapgs_exchanges_the_bases() {
    let mut g = Guest::kernel(|a| {
        a.swapgs()?;
        a.mov(rax, qword_ptr(8).gs())?;
        a.hlt()
    });
    g.write(crate::common::DATA + 8, 0x1122_3344);
    g.update(|s| {
        s.seg[5].base = 0x55;
        s.msr.kernel_gs_base = crate::common::DATA;
    });
    g.run();
    assert_eq!(g.soft.cpu.gpr[0], 0x1122_3344);
    assert_eq!(g.soft.cpu.msr.kernel_gs_base, 0x55);
    let mut g = Guest::user(|a| a.swapgs());
    g.run_to_exception(GP, Some(0));
}
