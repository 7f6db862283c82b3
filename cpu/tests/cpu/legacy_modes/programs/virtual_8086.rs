//! Virtual-8086 mode and virtual interrupts (SDM Vol. 3A chapter 20).

use super::Row;
use super::image::*;
use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};

pub const PROGRAMS: &[Row] = &[
    ("vm86_enter_and_leave", enter_and_leave),
    ("vm86_far_transfers", far_transfers),
    ("vm86_by_task_switch", by_task_switch),
    ("vm86_iopl_0", iopl_0),
    ("vm86_iopl_3", iopl_3),
    ("vm86_virtual_interrupts", virtual_interrupts),
    ("vm86_virtual_interrupt_pending", virtual_interrupt_pending),
    ("vm86_redirection_at_iopl_3", redirection_at_iopl_3),
    ("vm86_refused", refused),
    (
        "protected_mode_virtual_interrupts",
        protected_mode_virtual_interrupts,
    ),
];

const IOPL_3: u32 = 3 << 12;
/// What the programs report of FLAGS: IOPL, IF, TF, ZF and bit 1. `report` leaves others undefined.
const SEEN: i32 = 0x3342;
const VIF: u32 = 1 << 19;
const VIP: u32 = 1 << 20;
const VME: u32 = 1;
const PVI: u32 = 2;

/// Where a handler for vector 20H of the program's own vector table is.
const HANDLER: u32 = USER + 0xC00;

fn set_cr4(a: &mut CodeAssembler, value: u32) -> Emit {
    a.mov(eax, value)?;
    a.mov(cr4, eax)
}

/// Reports segment registers.
fn report_segments(a: &mut CodeAssembler, segments: &[AsmRegisterSegment]) -> Emit {
    for s in segments {
        a.mov(ax, *s)?;
        a.movzx(eax, ax)?;
        report(a)?;
    }
    Ok(())
}

/// The segment registers inside, and the frame of the exception that leaves it.
fn enter_and_leave(i: &mut Image) {
    i.maps();
    i.interrupt(6, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.put32(0x1_0000 - 0x3000, &[0x1234_5678]);
    i.code32(|a| to_virtual_8086(a, 2, [0xFFFF, 0x800, 0, 0x3, 0x123, 0x456], 0x4000));
    i.assemble(16, USER, |a| {
        report_segments(a, &[es, cs, ss, ds, fs, gs])?;
        a.movzx(eax, sp)?;
        report(a)?;
        // Selector D00: the first word of page D.
        a.mov(ax, 0xD00)?;
        a.mov(ds, ax)?;
        a.mov(eax, dword_ptr(0))?;
        report(a)?;
        a.push(1)?;
        a.ud2()
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(ebp, esp)?;
        for n in 1..9 {
            a.mov(eax, dword_ptr(ebp + 4 * n))?;
            a.btr(eax, 16)?;
            report(a)?;
        }
        a.movzx(ecx, word_ptr(ebp))?;
        // UD2.
        a.movzx(eax, word_ptr(ecx + 0x8000).ss())?;
        report(a)?;
        report_segments(a, &[es, cs, ss, ds, fs, gs])?;
        a.mov(eax, esp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0xFFFF, 0x800, 0, 3, 0x123, 0x456, USER_STACK, 0x1234_5678]);
    let flags = VM | 2;
    i.expect(&[0x800, flags, USER_STACK - 2, 0, 0xFFFF, 0xD00, 0x123, 0x456]);
    i.expect(&[0x0B0F, 0, CS, sel::DATA32.into(), 0, 0, 0, STACK0 - 36]);
}

/// JMP, CALL and RET load a base as in real-address mode.
fn far_transfers(i: &mut Image) {
    i.maps();
    i.interrupt(6, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| to_virtual_8086(a, 2, [0; 6], USER));
    i.assemble(16, USER, |a| {
        lcall16(a, 0xC10, 0)?;
        report_segments(a, &[cs])?;
        ljmp16(a, 0xC20, 0)
    });
    i.assemble(16, USER + 0x100, |a| {
        report_segments(a, &[cs])?;
        a.retf()
    });
    i.assemble(16, USER + 0x200, |a| {
        report_segments(a, &[cs])?;
        a.ud2()
    });
    i.assemble(32, CODE32 + 0x300, exit);
    i.expect(&[0xC10, 0, 0xC20]);
}

fn by_task_switch(i: &mut Image) {
    i.task(USER);
    i.maps();
    i.interrupt(6, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.put32(TASK + tss::EFLAGS, &[VM | 2]);
    i.put32(TASK + tss::ES, &[0x111, 0, 0, 0x333, 0x444, 0x555]);
    // The stack for level 0, and the I/O map at the end of the TSS that follows.
    i.put32(TASK + 4, &[STACK0, sel::DATA32.into()]);
    i.descriptor(sel::TASK, 0x0000_8900_0000_00FF | u64::from(TASK) << 16);
    i.code32(|a| ljmp32(a, sel::TASK, 0));
    i.assemble(16, USER, |a| {
        report_segments(a, &[es, cs, ss, ds, fs, gs])?;
        a.ud2()
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, dword_ptr(esp + 12))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x111, 0, 0, 0x333, 0x444, 0x555, TASK_STACK]);
}

/// Instructions that IOPL 3 or privilege needs, and those that need descriptors.
fn iopl_0(i: &mut Image) {
    i.attempts86(
        2,
        |_| Ok(()),
        &[
            |a| a.cli(),
            |a| a.sti(),
            |a| a.pushf(),
            |a| a.popf(),
            |a| a.pushfd(),
            |a| a.int(0x30),
            |a| a.iret(),
            // The I/O map alone counts.
            |a| a.in_(al, DENIED_PORT),
            |a| a.in_(ax, DENIED_PORT - 1),
            |a| a.in_(al, DENIED_PORT + 1),
            |a| {
                a.mov(dx, 0x3F8)?;
                a.in_(al, dx)
            },
            |a| a.hlt(),
            |a| a.clts(),
            |a| a.mov(eax, cr0),
            |a| a.lgdt(ptr(0)),
            |a| a.add_instruction(Instruction::with1(Code::Str_rm16, iced_x86::Register::AX)?),
            |a| a.lar(ax, bx),
            |a| a.arpl(ax, bx),
            // The gate's DPL counts for INT3, and IOPL does not.
            |a| a.int3(),
            // Offsets end at FFFF.
            |a| {
                a.mov(esi, 0x1_0000)?;
                a.mov(al, byte_ptr(esi))
            },
        ],
    );
    i.expect_all(&[
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &[COMPLETED],
        &GP,
        &GP,
        &GP,
        &GP,
        &GP,
        &UD,
        &UD,
        &UD,
        &[EXCEPTION | 13, 3 * 8 + 2],
        &GP,
        &UD,
    ]);
    i.deviates("qemu", "ignores segment limits");
}

fn iopl_3(i: &mut Image) {
    i.attempts86(
        IOPL_3 | 2,
        |_| Ok(()),
        &[
            |a| {
                a.sti()?;
                a.pushf()?;
                a.cli()?;
                a.pop(ax)?;
                a.and(eax, SEEN)?;
                report(a)
            },
            // IOPL, VM, VIF and VIP do not change.
            |a| {
                a.mov(eax, 0x1A_0002)?;
                a.push(eax)?;
                a.popfd()?;
                a.pushfd()?;
                a.pop(eax)?;
                report(a)
            },
            |a| a.int(0x30),
            |a| {
                return_with(a, 0x42)?;
                a.pushf()?;
                a.pop(ax)?;
                a.and(eax, SEEN)?;
                report(a)
            },
            |a| a.in_(al, DENIED_PORT),
            |a| a.hlt(),
        ],
    );
    i.expect_all(&[
        &[IOPL_3 | 0x202, COMPLETED],
        &[IOPL_3 | 2, COMPLETED],
        &[EXCEPTION | 0x30, 0],
        &[IOPL_3 | 0x42, COMPLETED],
        &GP,
        &GP,
        &UD,
    ]);
}

/// IRET with this image of FLAGS, to the JMP after CALL.
fn return_with(a: &mut CodeAssembler, flags: i32) -> Emit {
    let (mut to, mut done) = (a.create_label(), a.create_label());
    a.push(flags)?;
    a.push(cs)?;
    a.call(to)?;
    a.jmp(done)?;
    a.set_label(&mut to)?;
    a.iret()?;
    a.set_label(&mut done)
}

/// CR4.VME at IOPL 0.
fn virtual_interrupts(i: &mut Image) {
    i.put32(4 * 0x20, &[HANDLER]);
    i.assemble(16, HANDLER, |a| {
        a.mov(bp, sp)?;
        a.mov(ax, word_ptr(bp + 4))?;
        a.and(eax, SEEN)?;
        report(a)?;
        a.pushf()?;
        a.pop(ax)?;
        a.and(eax, SEEN)?;
        report(a)?;
        a.add(sp, 6)?;
        a.jmp(bx)
    });
    fn image(a: &mut CodeAssembler) -> Emit {
        a.pushf()?;
        a.pop(ax)?;
        a.and(eax, SEEN)?;
        report(a)
    }
    i.attempts86(
        2,
        |a| set_cr4(a, VME),
        &[
            |a| {
                a.sti()?;
                image(a)
            },
            |a| {
                a.sti()?;
                a.cli()?;
                image(a)
            },
            |a| {
                a.push(0x202)?;
                a.popf()?;
                image(a)
            },
            // TF, and 32 bits.
            |a| {
                a.push(0x102)?;
                a.popf()
            },
            |a| a.pushfd(),
            |a| a.popfd(),
            // The handler of the program finds VIF as IF, and has it clear.
            |a| {
                a.sti()?;
                a.int(0x20)
            },
            |a| a.int(0x30),
            |a| {
                return_with(a, 0x202)?;
                image(a)
            },
            |a| return_with(a, 0x102),
            |a| a.iretd(),
        ],
    );
    i.expect_all(&[
        &[IOPL_3 | 0x202, COMPLETED],
        &[IOPL_3 | 2, COMPLETED],
        &[IOPL_3 | 0x202, COMPLETED],
        &GP,
        &GP,
        &GP,
        &[IOPL_3 | 0x202, IOPL_3 | 2],
        &GP,
        &[IOPL_3 | 0x202, COMPLETED],
        &GP,
        &GP,
        &UD,
    ]);
    i.deviates("qemu", "has no virtual interrupts");
}

fn virtual_interrupt_pending(i: &mut Image) {
    i.attempts86(
        VIP | 2,
        |a| set_cr4(a, VME),
        &[
            |a| a.sti(),
            |a| {
                a.push(0x202)?;
                a.popf()
            },
            |a| {
                a.push(2)?;
                a.popf()
            },
            |a| a.cli(),
        ],
    );
    i.expect_all(&[&GP, &GP, &[COMPLETED], &[COMPLETED], &UD]);
    i.deviates("qemu", "has no virtual interrupts");
}

/// At IOPL 3 the program's handler finds IF.
fn redirection_at_iopl_3(i: &mut Image) {
    i.put32(4 * 0x20, &[HANDLER]);
    i.assemble(16, HANDLER, |a| {
        a.pushf()?;
        a.pop(ax)?;
        a.and(eax, SEEN)?;
        report(a)?;
        a.iret()
    });
    i.attempts86(
        IOPL_3 | 2,
        |a| set_cr4(a, VME),
        &[
            |a| {
                a.sti()?;
                a.int(0x20)?;
                a.pushf()?;
                a.cli()?;
                a.pop(ax)?;
                a.and(eax, SEEN)?;
                report(a)
            },
            |a| a.int(0x30),
        ],
    );
    i.expect_all(&[
        &[IOPL_3 | 2, IOPL_3 | 0x202, COMPLETED],
        &[EXCEPTION | 0x30, 0],
        &UD,
    ]);
    i.deviates("qemu", "has no virtual interrupts");
}

/// IRET to an offset above FFFFH, and a handler that is not at level 0.
fn refused(i: &mut Image) {
    i.maps();
    i.interrupt(6, 0x8E, sel::CONFORMING, CODE32 + 0x300);
    i.stubs32(true, |a| {
        a.pop(eax)?;
        report(a)?;
        a.test(ebx, ebx)?;
        let mut second = a.create_label();
        a.je(second)?;
        exit(a)?;
        a.set_label(&mut second)?;
        a.inc(ebx)?;
        a.mov(byte_ptr(IDT + 6 * 8 + 2).ss(), i32::from(sel::CONFORMING))?;
        to_virtual_8086(a, 2, [0; 6], USER)
    });
    i.code32(|a| {
        a.xor(ebx, ebx)?;
        to_virtual_8086(a, 2, [0; 6], 0x1_0000)
    });
    i.assemble(16, USER, |a| a.ud2());
    i.expect_all(&[&GP, &[EXCEPTION | 13, u32::from(sel::CONFORMING) | 1]]);
    i.deviates("qemu", "does not check the offset");
}

/// CR4.PVI: CLI and STI at CPL 3 change VIF.
fn protected_mode_virtual_interrupts(i: &mut Image) {
    use Attempt::User;
    i.attempts32(
        |a| set_cr4(a, PVI),
        &[
            User(|a| {
                a.sti()?;
                a.pushfd()?;
                a.pop(edi)?;
                a.int(0x31)
            }),
            User(|a| {
                a.cli()?;
                a.pushfd()?;
                a.pop(edi)?;
                a.int(0x31)
            }),
        ],
    );
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x180);
    i.assemble(32, CODE32 + 0x180, |a| {
        a.mov(eax, edi)?;
        report(a)?;
        a.mov(eax, i32::from(sel::DATA32))?;
        for s in [ds, es, ss] {
            a.mov(s, ax)?;
        }
        a.jmp(ebx)
    });
    i.expect(&[VIF | 2, 2]);
    i.deviates("qemu", "has no virtual interrupts");
}
