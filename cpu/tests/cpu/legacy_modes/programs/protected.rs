//! 16- and 32-bit protected mode without paging (SDM Vol. 3A chapters 3, 5, 6, 7).

use super::Row;
use super::image::*;
use iced_x86::code_asm::*;

pub const PROGRAMS: &[Row] = &[
    ("user_and_back", user_and_back),
    ("user_is_unprivileged", user_is_unprivileged),
    ("io_map", io_map),
    ("conforming_code", conforming_code),
    ("code_of_16_bits", code_of_16_bits),
    ("returns_outward", returns_outward),
    ("fast_system_call", fast_system_call),
    ("control_registers", control_registers),
    ("lmsw_keeps_protection", lmsw_keeps_protection),
];

/// IRET to CPL 3; INT through an interrupt gate and a trap gate back to the stack of the TSS.
fn user_and_back(i: &mut Image) {
    i.interrupt(0x31, 0xEF, sel::CODE32, CODE32 + 0x200);
    i.code32(|a| {
        a.mov(ax, i32::from(sel::USER_DATA))?;
        a.mov(fs, ax)?;
        a.push(i32::from(sel::USER_DATA))?;
        a.push(USER_STACK as i32)?;
        a.push(0x202)?;
        a.push(i32::from(sel::USER_CODE))?;
        a.push(USER as i32)?;
        a.iretd()
    });
    i.user(32, |a| {
        // The kernel's data segments are gone, the user's is there.
        a.mov(ax, ds)?;
        a.movzx(edi, ax)?;
        a.mov(ax, fs)?;
        a.movzx(esi, ax)?;
        a.push(0x55)?;
        a.int(0x31)?;
        a.int(0x30)
    });
    i.assemble(32, CODE32 + 0x200, |a| {
        a.mov(eax, edi)?;
        report(a)?;
        a.mov(eax, esi)?;
        report(a)?;
        a.mov(ebp, esp)?;
        for n in 0..5 {
            a.mov(eax, dword_ptr(ebp + 4 * n))?;
            report(a)?;
        }
        a.pushfd()?;
        a.pop(eax)?;
        // A trap gate leaves IF.
        a.and(eax, 0x200)?;
        report(a)?;
        a.iretd()
    });
    let after = USER + 3 + 3 + 3 + 3 + 2 + 2;
    i.expect(&[
        0,
        USER_SS,
        after,
        USER_CS,
        0x202,
        USER_STACK - 4,
        USER_SS,
        0x200,
    ]);
    i.interrupt(0x30, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.assemble(32, CODE32 + 0x300, |a| {
        a.pushfd()?;
        a.pop(eax)?;
        a.and(eax, 0x200)?;
        report(a)?;
        a.mov(eax, esp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0, STACK0 - 20]);
}

fn user_is_unprivileged(i: &mut Image) {
    use Attempt::User;
    i.attempts32(
        |_| Ok(()),
        &[
            User(|a| a.nop()),
            User(|a| a.cli()),
            User(|a| a.hlt()),
            User(|a| a.in_(al, 0x80)),
            User(|a| a.mov(eax, cr0)),
            User(|a| a.mov(eax, dr7)),
            User(|a| a.clts()),
            User(|a| a.invlpg(byte_ptr(0))),
            User(|a| a.lgdt(ptr(DATA))),
            User(|a| a.lldt(ax)),
            User(|a| a.rdmsr()),
            User(|a| a.wbinvd()),
            User(|a| a.smsw(ax)),
            User(|a| a.sldt(ax)),
            // A gate of DPL 0; the kernel's data; its code.
            User(|a| a.int(0x20)),
            User(|a| {
                a.mov(eax, i32::from(sel::DATA32))?;
                a.mov(ds, ax)
            }),
            User(|a| ljmp32(a, sel::CODE32, CODE32)),
            // POPF changes neither IF nor IOPL.
            User(|a| {
                a.push(0x3202)?;
                a.popfd()?;
                a.pushfd()?;
                a.pop(eax)?;
                a.cmp(eax, 2)?;
                let mut good = a.create_label();
                a.je(good)?;
                a.ud2()?;
                a.set_label(&mut good)?;
                a.nop()
            }),
            User(|a| a.syscall()),
            User(|a| a.push(0i32)),
        ],
    );
    i.expect_all(&[
        &DONE, &GP, &GP, &GP, &GP, &GP, &GP, &GP, &GP, &GP, &GP, &GP, &DONE, &DONE,
    ]);
    let int = [EXCEPTION | 13, 0x20 * 8 + 2];
    i.expect_all(&[&int, &gp(sel::DATA32), &gp(sel::CODE32), &DONE, &UD, &DONE]);
    i.deviates("qemu", "SYSCALL outside 64-bit mode, as AMD has it");
}

/// The I/O permission map of a 32-bit TSS.
fn io_map(i: &mut Image) {
    use Attempt::User;
    i.put(TSS + 0x66, &0x68u16.to_le_bytes());
    // Port 0x20 is free, 0x21 is not; a byte of ones ends the map, which covers ports to 0x27.
    i.put(TSS + 0x68, &[0xFF, 0xFF, 0xFF, 0xFF, 0xFE, 0xFF]);
    i.descriptor(sel::TSS, 0x8900_0000_006D | u64::from(TSS) << 16);
    i.attempts32(
        |_| Ok(()),
        &[
            User(|a| a.in_(al, 0x20)),
            User(|a| a.in_(al, 0x21)),
            User(|a| a.in_(ax, 0x20)),
            User(|a| a.in_(al, 0x28)),
        ],
    );
    i.expect_all(&[&DONE, &GP, &GP, &GP]);
}

/// Conforming code runs at the level of its caller.
fn conforming_code(i: &mut Image) {
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| to_user(a, USER));
    i.user(32, |a| {
        lcall32(a, sel::CONFORMING, CODE32 + 0x200)?;
        a.int(0x31)
    });
    i.assemble(32, CODE32 + 0x200, |a| {
        a.mov(cx, cs)?;
        a.retf()
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.movzx(eax, cx)?;
        report(a)?;
        a.mov(eax, dword_ptr(esp + 4))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[u32::from(sel::CONFORMING | 3), sel::USER_CODE.into()]);
}

/// 16-bit code at CPL 3.
fn code_of_16_bits(i: &mut Image) {
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| {
        a.push(i32::from(sel::USER_DATA))?;
        a.push(USER_STACK as i32)?;
        a.push(2)?;
        a.push(i32::from(sel::USER_CODE16))?;
        a.push(USER as i32)?;
        a.iretd()
    });
    i.user(16, |a| {
        a.mov(eax, 0x1234_5678)?;
        a.push(ax)?;
        a.mov(bx, 0x1111)?;
        a.int(0x31)
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.movzx(eax, bx)?;
        report(a)?;
        for n in [0, 1, 3] {
            a.mov(eax, dword_ptr(esp + 4 * n))?;
            report(a)?;
        }
        exit(a)
    });
    i.expect(&[0x1111, USER + 6 + 1 + 3 + 2, sel::USER_CODE16.into()]);
    i.expect(&[USER_STACK - 2]);
}

/// IRET and RET to CPL 3 check where they lead.
fn returns_outward(i: &mut Image) {
    use Attempt::Kernel;
    macro_rules! iret {
        ($cs:expr, $ss:expr) => {
            Kernel(|a| {
                a.push(i32::from($ss))?;
                a.push(USER_STACK as i32)?;
                a.push(2)?;
                a.push(i32::from($cs))?;
                a.push(USER as i32 + 0xF00)?;
                a.iretd()
            })
        };
    }
    i.attempts32(
        |_| Ok(()),
        &[
            iret!(sel::USER_CODE, sel::USER_DATA),
            iret!(sel::USER_CODE, 0u16),
            iret!(sel::USER_CODE, sel::DATA32),
            iret!(sel::USER_CODE, sel::USER_CODE),
            iret!(sel::USER_CODE & !3, sel::USER_DATA),
            iret!(sel::CODE32 | 3, sel::USER_DATA),
            iret!(0u16, sel::USER_DATA),
            iret!(sel::ABSENT_CODE, sel::USER_DATA),
            iret!(sel::USER_DATA, sel::USER_DATA),
        ],
    );
    i.assemble(32, USER + 0xF00, |a| a.int(COMPLETED_VECTOR));
    i.expect_all(&[
        &DONE,
        &GP,
        &gp(sel::DATA32),
        &gp(sel::USER_CODE),
        &gp(sel::USER_CODE),
        &gp(sel::CODE32),
        &GP,
        &[EXCEPTION | 11, sel::ABSENT_CODE.into()],
        &gp(sel::USER_DATA),
    ]);
}

/// SYSENTER and SYSEXIT, whose segments are flat whatever the descriptors say.
fn fast_system_call(i: &mut Image) {
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| {
        for (msr, value) in [(0x174, 0x23), (0x175, STACK0), (0x176, CODE32 + 0x200)] {
            a.mov(ecx, msr)?;
            a.mov(eax, value)?;
            a.xor(edx, edx)?;
            a.wrmsr()?;
        }
        to_user(a, USER)
    });
    i.user(32, |a| a.sysenter());
    i.assemble(32, CODE32 + 0x200, |a| {
        for s in [cs, ss] {
            a.mov(ax, s)?;
            a.movzx(eax, ax)?;
            report(a)?;
        }
        a.mov(eax, esp)?;
        report(a)?;
        a.mov(edx, USER as i32 + 0x100)?;
        a.mov(ecx, USER_STACK as i32)?;
        a.sysexit()
    });
    i.assemble(32, USER + 0x100, |a| a.int(0x31));
    i.assemble(32, CODE32 + 0x300, |a| {
        for n in [0, 1, 3, 4] {
            a.mov(eax, dword_ptr(esp + 4 * n))?;
            report(a)?;
        }
        exit(a)
    });
    i.expect(&[0x20, 0x28, STACK0]);
    i.expect(&[USER + 0x102, 0x33, USER_STACK, 0x3B]);
}

/// What MOV to CR0 and CR4 refuses, without paging.
fn control_registers(i: &mut Image) {
    use Attempt::Kernel;
    i.attempts32(
        |_| Ok(()),
        &[
            // NW without CD.
            Kernel(|a| {
                a.mov(eax, 0x2000_0011)?;
                a.mov(cr0, eax)
            }),
            // PG with LME but without PAE; LME is taken back.
            Kernel(|a| {
                a.mov(ecx, 0xC000_0080u32)?;
                a.mov(eax, 0x100)?;
                a.xor(edx, edx)?;
                a.wrmsr()?;
                a.mov(eax, 0x8000_0011u32)?;
                a.mov(cr0, eax)
            }),
            Kernel(|a| {
                a.mov(ecx, 0xC000_0080u32)?;
                a.xor(eax, eax)?;
                a.xor(edx, edx)?;
                a.wrmsr()
            }),
        ],
    );
    i.expect_all(&[&GP, &GP, &[COMPLETED]]);
    i.deviates("qemu", "checks none of this");
}

fn lmsw_keeps_protection(i: &mut Image) {
    i.code32(|a| {
        a.mov(eax, 0xA)?;
        a.lmsw(ax)?;
        a.smsw(eax)?;
        report(a)?;
        a.xor(eax, eax)?;
        a.lmsw(ax)?;
        a.smsw(eax)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x6000_001B, 0x6000_0011]);
}
