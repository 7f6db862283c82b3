//! Gates and the stacks of inner levels (SDM Vol. 3A 5.8, 6.12).

use iced_x86::code_asm::*;
use iced_x86::{Code, Instruction};

use super::Row;
use super::image::*;

pub const PROGRAMS: &[Row] = &[
    ("call_gate_32", call_gate_32),
    ("call_gate_16", call_gate_16),
    ("call_gate_same_level", call_gate_same_level),
    ("call_gates_refused", call_gates_refused),
    ("interrupt_gate_16", interrupt_gate_16),
    ("interrupt_16_bit_tss", interrupt_16_bit_tss),
];

/// SS0 in the TSS, the limit of the TSS, whether an instruction faults or INT is executed, the
/// vector that follows, and its error code.
const INNER_STACKS: &[(&str, u16, u16, bool, u32, u32)] = &[
    ("null", 0, 0x67, false, 10, 0),
    ("rpl", sel::DATA32 | 3, 0x67, false, 10, sel::DATA32 as u32),
    ("dpl", sel::USER_DATA, 0x67, false, 10, USER_SS & !3),
    ("code", sel::CODE32, 0x67, false, 10, CS),
    (
        "read_only",
        sel::READ_ONLY,
        0x67,
        true,
        10,
        sel::READ_ONLY as u32 | 1,
    ),
    ("nowhere", 0x1FF8, 0x67, true, 10, 0x1FF9),
    (
        "absent",
        sel::ABSENT_DATA,
        0x67,
        false,
        12,
        sel::ABSENT_DATA as u32,
    ),
    ("tss_limit", sel::DATA32, 8, false, 10, sel::TSS as u32),
];

/// The stack of an inner level must be one. The handlers are conforming code, and run on the user's
/// stack.
pub fn inner_stacks() -> Vec<(String, Image)> {
    let rows = INNER_STACKS.iter();
    rows.map(|&(name, ss0, limit, fault, vector, error)| {
        let mut i = Image::new();
        i.put(TSS + 8, &ss0.to_le_bytes());
        let tss = 0x8900_0000_0000 | u64::from(TSS) << 16;
        i.descriptor(sel::TSS, tss | u64::from(limit));
        for (n, vector) in [(0, 10), (1, 12)] {
            let at = CODE32 + 0x200 + 0x80 * n;
            i.interrupt(vector, 0x8E, sel::CONFORMING, at);
            i.assemble(32, at, |a| {
                a.pop(ebx)?;
                mark(a, EXCEPTION | u32::from(vector))?;
                a.mov(eax, ebx)?;
                report(a)?;
                exit(a)
            });
        }
        // HLT at CPL 3 ends in shutdown.
        i.interrupt(13, 0x0E, sel::CODE32, 0);
        i.interrupt(8, 0x0E, sel::CODE32, 0);
        i.code32(|a| {
            a.push(i32::from(sel::USER_DATA))?;
            a.push(USER_STACK as i32)?;
            a.push(0x3002)?;
            a.push(i32::from(sel::USER_CODE))?;
            a.push(USER as i32)?;
            a.iretd()
        });
        i.user(32, |a| {
            a.mov(eax, i32::from(sel::USER_DATA))?;
            a.mov(ds, ax)?;
            if fault { a.ud2() } else { a.int(0x31) }
        });
        i.expect(&[EXCEPTION | vector, error]);
        if fault || vector == 12 {
            i.deviates("qemu", "before 8.0 never set EXT, nor raised #SS here");
        }
        (format!("inner_stack_{name}"), i)
    })
    .collect()
}

/// CALL through a gate from CPL 3 to CPL 0 with two parameters, and back by RET.
fn call_gate_32(i: &mut Image) {
    i.gate(
        GDT + u32::from(sel::GATE),
        0xEC,
        sel::CODE32,
        CODE32 + 0x200,
        2,
    );
    i.code32(|a| to_user(a, USER));
    i.user(32, |a| {
        a.push(0x1111)?;
        a.push(0x2222)?;
        lcall32(a, sel::GATE | 3, 0xDEAD_BEEF)?;
        a.mov(ebx, esp)?;
        a.int(0x31)
    });
    i.assemble(32, CODE32 + 0x200, |a| {
        a.mov(ebp, esp)?;
        for n in 0..6 {
            a.mov(eax, dword_ptr(ebp + 4 * n))?;
            report(a)?;
        }
        a.mov(eax, esp)?;
        report(a)?;
        a.retf_1(8)
    });
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, ebx)?;
        report(a)?;
        exit(a)
    });
    let back = USER + 5 + 5 + 7;
    i.expect(&[back, USER_CS, 0x2222, 0x1111, USER_STACK - 8, USER_SS]);
    i.expect(&[STACK0 - 24, USER_STACK]);
}

fn call_gate_16(i: &mut Image) {
    i.gate(
        GDT + u32::from(sel::GATE),
        0xE4,
        sel::CODE32,
        0xFFFF_9200,
        1,
    );
    i.code32(|a| to_user(a, USER));
    i.user(32, |a| {
        a.push(0x1234_5678)?;
        lcall32(a, sel::GATE, 0)?;
        a.int(0x31)
    });
    i.assemble(32, 0x9200, |a| {
        a.mov(ebp, esp)?;
        for n in 0..5 {
            a.movzx(eax, word_ptr(ebp + 2 * n))?;
            report(a)?;
        }
        a.mov(eax, esp)?;
        report(a)?;
        // RET FAR with 16-bit operands releases the parameter on both stacks.
        a.add_instruction(Instruction::with1(Code::Retfw_imm16, 2)?)
    });
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, dword_ptr(esp + 12))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[
        USER + 12,
        USER_CS,
        0x5678,
        USER_STACK - 4,
        USER_SS,
        STACK0 - 10,
    ]);
    i.expect(&[USER_STACK - 2]);
}

/// Without a change of level a gate pushes words of its own size, and copies nothing; JMP pushes
/// nothing.
fn call_gate_same_level(i: &mut Image) {
    i.gate(GDT + u32::from(sel::GATE), 0x84, sel::CODE32, 0x9200, 4);
    i.gate(GDT + u32::from(sel::GATE2), 0x8C, sel::CODE32, 0x9240, 4);
    i.code32(|a| {
        lcall32(a, sel::GATE, 0)?;
        ljmp32(a, sel::GATE2, 0)
    });
    i.assemble(32, 0x9200, |a| {
        a.mov(eax, esp)?;
        report(a)?;
        a.add_instruction(Instruction::with(Code::Retfw))
    });
    i.assemble(32, 0x9240, |a| {
        a.mov(eax, esp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[STACK - 4, STACK]);
}

fn call_gates_refused(i: &mut Image) {
    use Attempt::{Kernel, User};
    i.gate(
        GDT + u32::from(sel::GATE),
        0x8C,
        sel::CODE32,
        CODE32 + 0x200,
        0,
    );
    i.gate(
        GDT + u32::from(sel::GATE2),
        0x6C,
        sel::CODE32,
        CODE32 + 0x200,
        0,
    );
    i.attempts32(
        |_| Ok(()),
        &[
            // DPL 0 from CPL 3, and from CPL 0 with RPL 3; not present; JMP to more privilege.
            User(|a| lcall32(a, sel::GATE, 0)),
            Kernel(|a| lcall32(a, sel::GATE | 3, 0)),
            User(|a| lcall32(a, sel::GATE2, 0)),
            User(|a| ljmp32(a, sel::CONFORMING, CODE32 + 0x1FF)),
            // To nothing, to data, and to what is absent.
            Kernel(|a| {
                a.mov(word_ptr(GDT + u32::from(sel::GATE) + 2), 0)?;
                lcall32(a, sel::GATE, 0)
            }),
            Kernel(|a| {
                a.mov(
                    word_ptr(GDT + u32::from(sel::GATE) + 2),
                    i32::from(sel::DATA32),
                )?;
                lcall32(a, sel::GATE, 0)
            }),
            Kernel(|a| {
                a.mov(
                    word_ptr(GDT + u32::from(sel::GATE) + 2),
                    i32::from(sel::ABSENT_CODE),
                )?;
                lcall32(a, sel::GATE, 0)
            }),
            // An LDT is no target.
            Kernel(|a| lcall32(a, sel::LDT, 0)),
        ],
    );
    // The byte before the first attempt is zero: ADD [EAX], AL with the data segment that user code
    // has.
    i.put(CODE32 + 0x1FF, &[0xF4]);
    i.expect_all(&[
        &gp(sel::GATE),
        &gp(sel::GATE),
        &np(sel::GATE2),
        // HLT, at CPL 3.
        &GP,
        &GP,
        &gp(sel::DATA32),
        &np(sel::ABSENT_CODE),
        &gp(sel::LDT),
    ]);
}

/// A 16-bit gate truncates what it pushes.
fn interrupt_gate_16(i: &mut Image) {
    i.interrupt(0x31, 0xE6, sel::CODE32, 0x1234_9200);
    i.code32(|a| to_user(a, USER));
    i.user(32, |a| a.int(0x31));
    i.assemble(32, 0x9200, |a| {
        a.mov(ebp, esp)?;
        for n in 0..5 {
            a.movzx(eax, word_ptr(ebp + 2 * n))?;
            report(a)?;
        }
        a.mov(eax, esp)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[USER + 2, USER_CS, 2, USER_STACK, USER_SS, STACK0 - 10]);
    i.deviates("qemu", "takes 32 bits of a 16-bit gate's offset");
}

fn interrupt_16_bit_tss(i: &mut Image) {
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x200);
    i.code32(|a| {
        a.mov(ax, i32::from(sel::TSS16))?;
        a.ltr(ax)?;
        to_user(a, USER)
    });
    i.user(32, |a| a.int(0x31));
    i.assemble(32, CODE32 + 0x200, |a| {
        a.mov(eax, esp)?;
        report(a)?;
        a.mov(eax, dword_ptr(GDT + u32::from(sel::TSS16) + 4).ss())?;
        report(a)?;
        exit(a)
    });
    // Busy.
    i.expect(&[STACK0 - 20, 0x8300]);
}
