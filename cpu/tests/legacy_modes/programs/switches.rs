//! From mode to mode.

use iced_x86::code_asm::*;

use super::Row;
use super::image::*;

pub const PROGRAMS: &[Row] = &[
    ("reset_state", reset_state),
    ("protected_and_back", protected_and_back),
    ("trampoline", trampoline),
];

/// The registers as they are when the first program begins.
fn reset_state(i: &mut Image) {
    i.code16(|a| {
        a.mov(eax, cr0)?;
        report(a)?;
        a.mov(eax, cr3)?;
        report(a)?;
        a.mov(eax, cr4)?;
        report(a)?;
        a.mov(ecx, 0xC000_0080u32)?;
        a.rdmsr()?;
        report(a)?;
        a.pushfd()?;
        a.pop(eax)?;
        a.and(eax, !0xCD5i32)?;
        report(a)?;
        a.mov(eax, dr6)?;
        report(a)?;
        a.mov(eax, dr7)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x6000_0010, 0, 0, 0, 2, 0xFFFF_0FF0, 0x400]);
}

/// Real-address mode to protected mode and back.
fn protected_and_back(i: &mut Image) {
    i.code16(|a| {
        mark(a, 1)?;
        enter_protected(a)
    });
    i.assemble(32, CODE32, |a| {
        load_data32(a)?;
        mark(a, 2)?;
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        ljmp32(a, false, sel::CODE16, CODE16 + 0x100)
    });
    i.assemble(16, CODE16 + 0x100, |a| {
        a.mov(ax, i32::from(sel::DATA16))?;
        for s in [ds, es, ss] {
            a.mov(s, ax)?;
        }
        a.mov(eax, cr0)?;
        a.and(al, !1i32)?;
        a.mov(cr0, eax)?;
        ljmp16(a, 0x800, 0x200)
    });
    i.assemble(16, CODE16 + 0x200, |a| {
        a.xor(ax, ax)?;
        for s in [ds, es, ss] {
            a.mov(s, ax)?;
        }
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[1, 2, sel::CODE32.into(), 0x800]);
}

/// 4-level tables that map the first 2 MBytes.
pub fn identity64(i: &mut Image) {
    let [pml4, pdpt, pd, _] = TABLES;
    i.put64(pml4, &[u64::from(pdpt) | 7]);
    i.put64(pdpt, &[u64::from(pd) | 7]);
    i.put64(pd, &[0x87]);
}

/// What Linux's application processors go through (arch/x86/realmode/rm/trampoline_64.S).
fn trampoline(i: &mut Image) {
    identity64(i);
    i.code16(|a| {
        a.cli()?;
        a.wbinvd()?;
        a.mov(ax, cs)?;
        a.mov(ds, ax)?;
        a.mov(es, ax)?;
        a.mov(ss, ax)?;
        // verify_cpu: EFLAGS.ID can be changed, and what CPUID says.
        a.pushfd()?;
        a.pop(eax)?;
        a.mov(ebx, eax)?;
        a.xor(eax, 0x20_0000)?;
        a.push(eax)?;
        a.popfd()?;
        a.pushfd()?;
        a.pop(eax)?;
        a.xor(eax, ebx)?;
        report(a)?;
        a.mov(eax, 0x8000_0001u32)?;
        a.cpuid()?;
        a.mov(eax, edx)?;
        a.and(eax, 1 << 29)?;
        report(a)?;
        load_tables(a)?;
        a.mov(ax, 1)?;
        a.lmsw(ax)?;
        ljmp32(a, true, sel::CODE32, CODE32)
    });
    i.assemble(32, CODE32, |a| {
        load_data32(a)?;
        a.mov(eax, 0x20)?;
        a.mov(cr4, eax)?;
        a.mov(eax, TABLES[0])?;
        a.mov(cr3, eax)?;
        a.mov(ecx, 0xC000_0080u32)?;
        a.rdmsr()?;
        a.or(eax, 0x100)?;
        a.wrmsr()?;
        a.mov(eax, 0x8000_0001u32)?;
        a.mov(cr0, eax)?;
        // Compatibility mode.
        a.rdmsr()?;
        report(a)?;
        ljmp32(a, false, sel::CODE64, CODE64)
    });
    i.assemble(64, CODE64, |a| {
        a.mov(rax, 0x1234_5678_9ABC_DEF0u64)?;
        a.shr(rax, 32)?;
        report(a)?;
        a.mov(rax, cr0)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x20_0000, 1 << 29, 0x500, 0x1234_5678, 0x8000_0011]);
}
