//! Real-address mode (SDM Vol. 3A chapter 20).

use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};

use super::Row;
use super::image::*;

pub const PROGRAMS: &[Row] = &[
    ("real_segments", segments),
    ("real_limits", limits),
    ("real_code_limit", code_limit),
    ("real_stack_wraps", stack_wraps),
    ("real_interrupts", interrupts),
    ("real_interrupt_table", interrupt_table),
    ("real_idt_limit", idt_limit),
    ("real_triple_fault", triple_fault),
    ("real_far_transfers", far_transfers),
    ("real_same_offset", same_offset),
    ("real_flags", flags),
    ("real_undefined", undefined),
    ("real_privileged", privileged),
    ("real_exceptions", exceptions),
    ("real_strings", strings),
    ("unreal", unreal),
];

/// The base is the selector times 16; offsets have 16 bits unless the address size says otherwise.
fn segments(i: &mut Image) {
    i.code16(|a| {
        a.mov(ax, 0x1234)?;
        a.mov(ds, ax)?;
        a.mov(word_ptr(0x10), 0xBEEF)?;
        a.mov(ax, 0x1000)?;
        a.mov(es, ax)?;
        a.movzx(eax, word_ptr(0x2350).es())?;
        report(a)?;
        // BX + SI wraps at 64 KBytes.
        a.mov(bx, 0xFFF8)?;
        a.mov(si, 0x18)?;
        a.movzx(eax, word_ptr(bx + si))?;
        report(a)?;
        a.mov(ax, ds)?;
        a.movzx(eax, ax)?;
        report(a)?;
        // LDS, LES.
        a.xor(ax, ax)?;
        a.mov(ds, ax)?;
        a.mov(dword_ptr(DATA), 0x2345_0011)?;
        a.les(di, dword_ptr(DATA))?;
        a.mov(ax, es)?;
        a.shl(eax, 16)?;
        a.mov(ax, di)?;
        report(a)?;
        // 32-bit registers and addresses in 16-bit code.
        a.mov(eax, 0x8765_4321u32)?;
        a.mov(ebx, DATA)?;
        a.mov(dword_ptr(ebx), eax)?;
        a.mov(eax, dword_ptr(DATA))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0xBEEF, 0xBEEF, 0x1234, 0x2345_0011, 0x8765_4321]);
}

const NO_LIMITS: &str = "checks no segment limits";

/// A word at FFFF does not fit, whatever the addressing.
fn limits(i: &mut Image) {
    i.attempts16(&[
        |a| a.mov(al, byte_ptr(0xFFFF)),
        |a| a.mov(ax, word_ptr(0xFFFF)),
        |a| a.mov(eax, dword_ptr(0xFFFD)),
        |a| {
            a.mov(ecx, 0x1_0000)?;
            a.mov(al, byte_ptr(ecx))
        },
        |a| {
            a.mov(bp, 0xFFFF)?;
            a.mov(ax, word_ptr(bp))
        },
        |a| {
            a.mov(sp, 1)?;
            a.mov(ax, word_ptr(0xFFFF))
        },
    ]);
    let gp = EXCEPTION | 13;
    i.expect(&[COMPLETED, gp, gp, gp, EXCEPTION | 12]);
    // With SP = 1 there is no room for a frame, nor for that of a double fault.
    i.shutdown = true;
    i.deviates("qemu", NO_LIMITS);
}

/// Jumps and instructions beyond the limit of CS.
fn code_limit(i: &mut Image) {
    i.attempts16(&[
        // JMP NEAR with a 32-bit operand, 64 KBytes beyond its end. An assembler would reject the
        // target.
        |a| a.db(&[0x66, 0xE9, 0, 0, 1, 0]),
        // An instruction of two bytes at FFFF, in a segment of its own.
        |a| {
            a.mov(ax, 0x1000)?;
            a.mov(es, ax)?;
            a.mov(byte_ptr(0xFFFF).es(), 0xB0)?;
            ljmp16(a, 0x1000, 0xFFFF)
        },
        // One of one byte there is the last.
        |a| {
            a.mov(ax, 0x1000)?;
            a.mov(es, ax)?;
            a.mov(byte_ptr(0xFFFF).es(), 0x90)?;
            ljmp16(a, 0x1000, 0xFFFF)
        },
    ]);
    let gp = EXCEPTION | 13;
    i.expect(&[gp, gp, gp]);
    i.deviates("qemu", NO_LIMITS);
}

fn stack_wraps(i: &mut Image) {
    i.code16(|a| {
        a.mov(ax, 0x1000)?;
        a.mov(ss, ax)?;
        a.mov(esp, 0x1234_0000)?;
        a.push(0x5A5A)?;
        a.mov(eax, esp)?;
        report(a)?;
        a.mov(ax, 0x1FFF)?;
        a.mov(ds, ax)?;
        a.movzx(eax, word_ptr(0xE))?;
        report(a)?;
        a.pop(cx)?;
        a.mov(eax, esp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x1234_FFFE, 0x5A5A, 0x1234_0000]);
}

/// INT n pushes FLAGS, CS and IP, and clears IF and TF; IRET restores them.
fn interrupts(i: &mut Image) {
    i.put32(4 * 0x50, &[0x0800_0100]);
    i.code16(|a| {
        a.push(0x3202)?;
        a.popf()?;
        a.int(0x50)?;
        a.pushf()?;
        a.cli()?;
        a.pop(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.movzx(eax, sp)?;
        report(a)?;
        exit(a)
    });
    // 0800:0100
    i.assemble(16, CODE16 + 0x100, |a| {
        a.mov(bp, sp)?;
        for n in 0..3 {
            a.movzx(eax, word_ptr(bp + 2 * n))?;
            report(a)?;
        }
        a.pushf()?;
        a.pop(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.iret()
    });
    let after = CODE16 + 6;
    i.expect(&[after, 0, 0x3202, 0x3002, 0x800, 0x3202, STACK]);
}

/// LIDT moves the table.
fn interrupt_table(i: &mut Image) {
    i.put32(DATA + 0x100 + 4 * 6, &[CODE16 + 0x100]);
    i.code16(|a| {
        a.mov(word_ptr(DATA), 0x3F)?;
        a.mov(dword_ptr(DATA + 2), DATA as i32 + 0x100)?;
        a.lidt(ptr(DATA))?;
        a.ud2()
    });
    i.assemble(16, CODE16 + 0x100, |a| {
        mark(a, 7)?;
        a.pop(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[7, CODE16 + 20]);
}

/// A vector beyond the limit of IDTR is #GP.
fn idt_limit(i: &mut Image) {
    i.code16(|a| {
        a.push(2)?;
        a.popf()?;
        a.mov(word_ptr(DATA), 0x37)?;
        a.mov(dword_ptr(DATA + 2), 0)?;
        a.lidt(ptr(DATA))?;
        a.int(0x0E)
    });
    i.expect(&[EXCEPTION | 13, CODE16 + 23, 0, 2]);
}

fn triple_fault(i: &mut Image) {
    i.code16(|a| {
        mark(a, 1)?;
        a.mov(word_ptr(DATA), 0)?;
        a.mov(dword_ptr(DATA + 2), 0)?;
        a.lidt(ptr(DATA))?;
        a.int3()
    });
    i.expect(&[1]);
    i.shutdown = true;
}

/// Far JMP, CALL, RET and IRET of both operand sizes.
fn far_transfers(i: &mut Image) {
    i.code16(|a| {
        // The function releases a word.
        a.push(0x77)?;
        lcall16(a, 0x800, 0x200)?;
        a.movzx(eax, sp)?;
        report(a)?;
        // Through memory, with 32 bits.
        a.mov(dword_ptr(DATA), 0x300)?;
        a.mov(word_ptr(DATA + 4), 0x800)?;
        a.call(fword_ptr(DATA))?;
        a.mov(eax, esp)?;
        report(a)?;
        // IRETD.
        a.pushfd()?;
        a.push(0)?;
        a.push(0x800)?;
        a.push(0)?;
        a.push(0x400)?;
        a.iretd()
    });
    i.assemble(16, CODE16 + 0x200, |a| {
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.retf_1(2)
    });
    i.assemble(16, CODE16 + 0x300, |a| {
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.add_instruction(Instruction::with(Code::Retfd))
    });
    i.assemble(16, CODE16 + 0x400, |a| {
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.movzx(eax, sp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x800, STACK, 0x800, STACK, 0x800, STACK]);
}

/// Two segments with code at the same offset.
fn same_offset(i: &mut Image) {
    i.code16(|a| {
        a.mov(cx, 3)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        lcall16(a, 0x820, 0)?;
        lcall16(a, 0x840, 0)?;
        a.loop_(again)?;
        exit(a)
    });
    for (at, n) in [(0x8200, 1), (0x8400, 2)] {
        i.assemble(16, at, |a| {
            mark(a, n)?;
            a.retf()
        });
    }
    i.expect(&[1, 2, 1, 2, 1, 2]);
}

/// Every flag can be changed.
fn flags(i: &mut Image) {
    i.code16(|a| {
        a.push(0x7ED7)?;
        a.popf()?;
        a.pushf()?;
        a.pop(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.push(2)?;
        a.popf()?;
        a.sti()?;
        a.pushf()?;
        a.cli()?;
        a.pop(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.mov(eax, 0x24_0002)?;
        a.push(eax)?;
        a.popfd()?;
        a.pushfd()?;
        a.pop(eax)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x7ED7, 0x202, 0x24_0002]);
}

/// What needs descriptors is #UD.
fn undefined(i: &mut Image) {
    i.attempts16(&[
        |a| a.lldt(ax),
        |a| a.ltr(ax),
        |a| a.sldt(ax),
        |a| a.str(ax),
        |a| a.verr(ax),
        |a| a.verw(ax),
        |a| a.lar(ax, cx),
        |a| a.lsl(ax, cx),
        |a| a.arpl(ax, cx),
        |a| a.syscall(),
        |a| a.ud2(),
        |a| a.mov(cs, ax),
    ]);
    i.expect(&[EXCEPTION | 6; 12]);
}

/// Real-address mode is privileged.
fn privileged(i: &mut Image) {
    i.attempts16(&[
        |a| a.clts(),
        |a| a.smsw(ax),
        |a| {
            a.mov(eax, cr0)?;
            a.mov(cr0, eax)
        },
        |a| a.invlpg(byte_ptr(0)),
        |a| a.wbinvd(),
        |a| a.cli(),
        |a| a.in_(al, 0x80),
        |a| {
            a.mov(eax, dr7)?;
            a.mov(dr7, eax)
        },
        |a| a.sidt(ptr(DATA)),
        |a| a.rdtsc(),
        // PG without PE; NW without CD.
        |a| {
            a.mov(eax, 0x8000_0010u32)?;
            a.mov(cr0, eax)
        },
        |a| {
            a.mov(eax, 0x2000_0010)?;
            a.mov(cr0, eax)
        },
        |a| a.sysenter(),
        |a| a.sysexit(),
    ]);
    i.expect(&[COMPLETED; 10]);
    i.expect(&[EXCEPTION | 13; 4]);
    i.deviates("qemu", "takes PG without PE, and NW without CD");
}

fn exceptions(i: &mut Image) {
    i.attempts16(&[
        |a| {
            a.xor(cx, cx)?;
            a.div(cx)
        },
        |a| a.int3(),
        |a| {
            a.mov(al, 0x7F)?;
            a.add(al, 1)?;
            a.into()
        },
        |a| {
            a.mov(dword_ptr(DATA), 0x0005_0003)?;
            a.mov(ax, 6)?;
            a.bound(ax, dword_ptr(DATA))
        },
        |a| a.int(0x21),
        // Single step.
        |a| {
            a.push(0x102)?;
            a.popf()?;
            a.nop()
        },
    ]);
    let vectors = [0, 3, 4, 5, 0x21, 1];
    i.expect(&vectors.map(|v| EXCEPTION | v));
}

fn strings(i: &mut Image) {
    i.code16(|a| {
        a.mov(ax, 0x1000)?;
        a.mov(es, ax)?;
        a.mov(di, 0xFFFC)?;
        a.mov(cx, 4)?;
        a.mov(ax, 0x1111)?;
        // The index wraps.
        a.rep().stosw()?;
        a.movzx(eax, di)?;
        report(a)?;
        a.movzx(eax, word_ptr(2).es())?;
        report(a)?;
        a.mov(esi, 0x1_0000 + DATA)?;
        a.mov(byte_ptr(DATA), 0x42)?;
        a.lodsb()?;
        a.movzx(eax, al)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[4, 0x1111, 0x42]);
}

/// Limits stay as protected mode has left them (SDM Vol. 3A 9.9.2).
fn unreal(i: &mut Image) {
    i.code16(|a| {
        load_tables(a)?;
        a.mov(eax, cr0)?;
        a.inc(eax)?;
        a.mov(cr0, eax)?;
        a.mov(bx, i32::from(sel::BIG16))?;
        a.mov(ds, bx)?;
        a.dec(eax)?;
        a.mov(cr0, eax)?;
        a.mov(ax, 0x100)?;
        a.mov(ds, ax)?;
        a.mov(ebx, 0x12_3456)?;
        a.mov(dword_ptr(ebx), 0x1357_9BDF)?;
        a.mov(ax, 0x200)?;
        a.mov(ds, ax)?;
        a.mov(eax, dword_ptr(ebx - 0x1000))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x1357_9BDF]);
}
