//! From mode to mode.

use iced_x86::code_asm::*;

use super::Row;
use super::image::*;

pub const PROGRAMS: &[Row] = &[
    ("reset_state", reset_state),
    ("protected_and_back", protected_and_back),
    ("trampoline", trampoline),
    ("down_to_real_mode", down),
    ("ia32e_refused", refused),
    ("ia32e_is_kept", kept),
    ("ia32e_from_code_with_l", from_code_with_l),
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
        ljmp32(a, sel::CODE16, CODE16 + 0x100)
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

const EFER: u32 = 0xC000_0080;

/// MOV to a control register by way of EAX.
fn set_cr(a: &mut CodeAssembler, register: AsmRegisterCr, value: u32) -> Emit {
    a.mov(eax, value)?;
    a.mov(register, eax)
}

fn set_efer(a: &mut CodeAssembler, value: u32) -> Emit {
    a.mov(ecx, EFER)?;
    a.mov(eax, value)?;
    a.xor(edx, edx)?;
    a.wrmsr()
}

fn report_efer(a: &mut CodeAssembler) -> Emit {
    a.mov(ecx, EFER)?;
    a.rdmsr()?;
    report(a)
}

/// In 32-bit code without paging: IA-32e mode, where compatibility mode goes on.
fn activate(a: &mut CodeAssembler) -> Emit {
    set_cr(a, cr4, 0x20)?;
    set_cr(a, cr3, TABLES[0])?;
    set_efer(a, 0x100)?;
    set_cr(a, cr0, 0x8000_0011)
}

/// From 64-bit mode through compatibility mode and protected mode to real-address mode.
fn down(i: &mut Image) {
    identity64(i);
    i.put32(TABLES[3], &[0x87]);
    i.code32(|a| {
        activate(a)?;
        ljmp32(a, sel::CODE64, CODE64)
    });
    i.assemble(64, CODE64, |a| {
        report_efer(a)?;
        a.push(i32::from(sel::CODE32))?;
        a.push(CODE32 as i32 + 0x200)?;
        a.retf()
    });
    i.assemble(32, CODE32 + 0x200, |a| {
        // Compatibility mode: no more paging, no more IA-32e mode.
        set_cr(a, cr0, 0x11)?;
        report_efer(a)?;
        set_efer(a, 0)?;
        // 32-bit paging with a 4-MByte page instead.
        set_cr(a, cr4, 0x10)?;
        set_cr(a, cr3, TABLES[3])?;
        set_cr(a, cr0, 0x8000_0011)?;
        a.mov(eax, dword_ptr(TABLES[3]))?;
        a.and(eax, 0xFF)?;
        a.or(eax, 0x40)?;
        report(a)?;
        set_cr(a, cr0, 0x11)?;
        ljmp32(a, sel::CODE16, CODE16 + 0x200)
    });
    i.assemble(16, CODE16 + 0x200, |a| {
        a.mov(ax, i32::from(sel::DATA16))?;
        for s in [ds, es, ss] {
            a.mov(s, ax)?;
        }
        set_cr(a, cr0, 0x10)?;
        ljmp16(a, 0, CODE16 + 0x300)
    });
    i.assemble(16, CODE16 + 0x300, |a| {
        a.xor(ax, ax)?;
        a.mov(ds, ax)?;
        a.mov(ss, ax)?;
        a.mov(word_ptr(DATA), 0xFFFF)?;
        a.mov(dword_ptr(DATA + 2), 0)?;
        a.lidt(ptr(DATA))?;
        a.push(2)?;
        a.popf()?;
        ljmp16(a, 0, CODE16 + 0x400)
    });
    i.assemble(16, CODE16 + 0x400, |a| a.int(0x3E));
    // The page is accessed, and dirty or not.
    i.expect(&[0x500, 0x100, 0xE7]);
    i.expect(&[EXCEPTION | 0x3E, CODE16 + 0x402, 0, 2]);
}

/// Ways into IA-32e mode that are closed (SDM Vol. 3A 9.8.5).
fn refused(i: &mut Image) {
    use Attempt::Kernel;
    identity64(i);
    i.attempts32(
        |_| Ok(()),
        &[
            Kernel(|a| {
                set_cr(a, cr3, TABLES[0])?;
                set_efer(a, 0x100)
            }),
            // Without PAE.
            Kernel(|a| set_cr(a, cr0, 0x8000_0011)),
            // With a 16-bit TSS.
            Kernel(|a| {
                set_cr(a, cr4, 0x20)?;
                a.mov(eax, i32::from(sel::TSS16))?;
                a.ltr(ax)?;
                set_cr(a, cr0, 0x8000_0011)
            }),
            Kernel(|a| {
                a.mov(eax, i32::from(sel::TSS64))?;
                a.ltr(ax)?;
                set_cr(a, cr0, 0x8000_0011)?;
                report_efer(a)?;
                set_cr(a, cr0, 0x11)
            }),
        ],
    );
    let gp = [EXCEPTION | 13, 0];
    i.expect(&[COMPLETED]);
    i.expect(&gp);
    i.expect(&gp);
    i.expect(&[0x500, COMPLETED]);
    i.deviates("qemu", UNCHECKED);
}

const UNCHECKED: &str = "checks none of this";

/// What 64-bit mode refuses: CR0.PG, CR4.PAE and EFER.LME cannot change.
fn kept(i: &mut Image) {
    identity64(i);
    let handler = CODE64 + 0x400;
    let selector = u32::from(sel::CODE64) << 16;
    i.put32(IDT + 16 * 13, &[handler | selector, 0x8E00, 0, 0]);
    i.code32(|a| {
        activate(a)?;
        ljmp32(a, sel::CODE64, CODE64)
    });
    // The handler goes on at RBX.
    i.assemble(64, handler, |a| {
        a.pop(rax)?;
        report(a)?;
        a.mov(rsp, u64::from(STACK))?;
        a.jmp(rbx)
    });
    let rows: [fn(&mut CodeAssembler) -> Emit; 4] = [
        |a| {
            a.mov(eax, 0x11)?;
            a.mov(cr0, rax)
        },
        |a| {
            a.xor(eax, eax)?;
            a.mov(cr4, rax)
        },
        |a| set_efer(a, 0),
        // Bits 63:32 of CR0.
        |a| {
            a.mov(rax, 0x1_8000_0011u64)?;
            a.mov(cr0, rax)
        },
    ];
    for (n, row) in (0..).zip(rows) {
        let next = CODE64 + 0x40 * (n + 1);
        i.assemble(64, CODE64 + 0x40 * n, |a| {
            a.mov(ebx, next as i32)?;
            row(a)?;
            mark(a, COMPLETED)
        });
    }
    i.assemble(64, CODE64 + 0x100, exit);
    i.expect(&[0; 4]);
    i.deviates("qemu", UNCHECKED);
}

/// A code segment with L, which means nothing before and is refused when IA-32e mode is to begin.
fn from_code_with_l(i: &mut Image) {
    identity64(i);
    i.interrupt(13, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| {
        set_cr(a, cr4, 0x20)?;
        set_cr(a, cr3, TABLES[0])?;
        set_efer(a, 0x100)?;
        ljmp32(a, sel::CODE64, CODE16 + 0x200)
    });
    // L without D: 16-bit code.
    i.assemble(16, CODE16 + 0x200, |a| {
        mark(a, 0x16)?;
        set_cr(a, cr0, 0x8000_0011)
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, dword_ptr(esp + 8))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x16, sel::CODE64.into()]);
    i.deviates("qemu", UNCHECKED);
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
        ljmp32(a, sel::CODE32, CODE32)
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
        ljmp32(a, sel::CODE64, CODE64)
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
