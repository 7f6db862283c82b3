//! Segments and their descriptors (SDM Vol. 3A chapters 3 and 5).

use iced_x86::code_asm::*;

use super::Row;
use super::image::*;

pub const PROGRAMS: &[Row] = &[
    ("local_descriptors", local_descriptors),
    ("about_selectors", about_selectors),
    ("segment_limits", segment_limits),
    ("segment_types", segment_types),
    ("stack_of_16_bits", stack_of_16_bits),
    ("task_register", task_register),
    ("accessed", accessed),
];

fn local_descriptors(i: &mut Image) {
    i.put64(LDT, &[0, 0x0040_9200_0000_00FF | u64::from(DATA) << 16]);
    i.attempts32(
        |a| {
            a.mov(ax, i32::from(sel::LDT))?;
            a.lldt(ax)
        },
        &[
            Attempt::Kernel(|a| {
                a.mov(eax, 0xC)?;
                a.mov(es, ax)?;
                a.mov(dword_ptr(0x10).es(), 0x4242)?;
                a.mov(eax, dword_ptr(DATA + 0x10))?;
                report(a)?;
                a.sldt(ax)?;
                a.movzx(eax, ax)?;
                report(a)
            }),
            // Beyond its limit; and null.
            Attempt::Kernel(|a| {
                a.mov(eax, 0x14)?;
                a.mov(es, ax)
            }),
            Attempt::Kernel(|a| {
                a.xor(eax, eax)?;
                a.lldt(ax)?;
                a.mov(eax, 0xC)?;
                a.mov(es, ax)
            }),
        ],
    );
    i.expect(&[0x4242, sel::LDT.into(), COMPLETED]);
    i.expect_all(&[&gp(0x14), &gp(0xC)]);
}

/// LAR, LSL, VERR and VERW, of each descriptor.
fn about_selectors(i: &mut Image) {
    i.gate(GDT + u32::from(sel::GATE), 0xEC, sel::CODE32, 0, 0);
    i.gate(GDT + u32::from(sel::GATE2), 0x85, sel::CODE32, 0, 0);
    i.code32(|a| {
        let selectors = (0..u32::from(sel::TASK)).step_by(8);
        for selector in selectors.chain([sel::END.into()]) {
            // 16 bytes for IA-32e mode.
            if selector == u32::from(sel::TSS64) + 8 {
                continue;
            }
            a.mov(ecx, selector as i32)?;
            a.xor(ebx, ebx)?;
            a.xor(eax, eax)?;
            a.lar(eax, ecx)?;
            a.setz(bl)?;
            // Bits 19:16 are undefined.
            a.and(eax, 0x00F0_FF00)?;
            report(a)?;
            a.xor(eax, eax)?;
            a.lsl(eax, ecx)?;
            a.setz(bh)?;
            report(a)?;
            a.verr(cx)?;
            a.setz(al)?;
            a.movzx(eax, al)?;
            a.shl(eax, 16)?;
            a.or(ebx, eax)?;
            a.verw(cx)?;
            a.setz(al)?;
            a.movzx(eax, al)?;
            a.shl(eax, 24)?;
            a.or(eax, ebx)?;
            report(a)?;
        }
        exit(a)
    });
    // Access rights, limit, and what succeeds: LAR, LSL, VERR, VERW from the lowest byte.
    let rows: &[(u32, u32, u32)] = &[
        (0, 0, 0),
        (0x00C0_9B00, !0, 0x0001_0101),
        (0x00C0_9300, !0, 0x0101_0101),
        (0x0000_9A00, 0xFFFF, 0x0001_0101),
        (0x0000_9200, 0xFFFF, 0x0101_0101),
        (0x00A0_9A00, !0, 0x0001_0101),
        (0x00C0_FA00, !0, 0x0001_0101),
        (0x00C0_F200, !0, 0x0101_0101),
        (0x0000_8B00, 0x67, 0x0101),
        (0x0000_FA00, 0xFFFF, 0x0001_0101),
        // A call gate has no limit; neither has a task gate.
        (0x0000_EC00, 0, 0x01),
        (0x0000_8500, 0, 0x01),
        (0x0000_8100, 0x2B, 0x0101),
        (0x0000_8200, 0xF, 0x0101),
        (0x00C0_9E00, !0, 0x0001_0101),
        (0x00C0_1A00, !0, 0x0001_0101),
        (0x00C0_1200, !0, 0x0101_0101),
        (0x00C0_9800, !0, 0x0101),
        (0x00C0_9000, !0, 0x0001_0101),
        (0x0040_9600, 0xFFF, 0x0101_0101),
        (0x0040_9200, 0xFF, 0x0101_0101),
        (0x0000_8900, 0x67, 0x0101),
        (0x0080_9200, !0, 0x0101_0101),
        (0x0040_9A00, 0xFFFF, 0x0001_0101),
        (0, 0, 0),
    ];
    for &(rights, limit, flags) in rows {
        i.expect(&[rights, limit, flags]);
    }
    i.deviates("qemu", NOT_ACCESSED);
}

const NOT_ACCESSED: &str = "does not mark the segment of a far jump as accessed";

fn segment_limits(i: &mut Image) {
    use Attempt::Kernel;
    i.attempts32(
        |a| {
            a.mov(eax, i32::from(sel::SMALL))?;
            a.mov(fs, ax)?;
            a.mov(eax, i32::from(sel::EXPAND_DOWN))?;
            a.mov(gs, ax)
        },
        &[
            Kernel(|a| a.mov(eax, dword_ptr(0xFC).fs())),
            Kernel(|a| a.mov(eax, dword_ptr(0xFD).fs())),
            Kernel(|a| a.mov(byte_ptr(0x100).fs(), 1)),
            Kernel(|a| a.mov(al, byte_ptr(0xFFF).gs())),
            Kernel(|a| a.mov(al, byte_ptr(0x1000).gs())),
            // A stack without room.
            Kernel(|a| {
                a.mov(eax, i32::from(sel::SMALL))?;
                a.mov(ss, ax)?;
                a.mov(esp, 0x102)?;
                a.pop(eax)
            }),
        ],
    );
    let done: [u32; 1] = [COMPLETED];
    // The last one has no room for a frame either, nor for that of the double fault.
    i.expect_all(&[&done, &GP, &GP, &GP, &done]);
    i.shutdown = true;
    i.deviates("qemu", "checks no segment limits");
}

fn segment_types(i: &mut Image) {
    use Attempt::Kernel;
    i.attempts32(
        |_| Ok(()),
        &[
            // Execute-only code cannot be read, or loaded; code cannot be written.
            Kernel(|a| {
                a.mov(eax, i32::from(sel::EXECUTE_ONLY))?;
                a.mov(es, ax)
            }),
            Kernel(|a| {
                a.mov(eax, i32::from(sel::CODE32))?;
                a.mov(es, ax)?;
                a.mov(eax, dword_ptr(0x100).es())
            }),
            Kernel(|a| {
                a.mov(eax, i32::from(sel::READ_ONLY))?;
                a.mov(ss, ax)
            }),
            Kernel(|a| {
                a.mov(eax, i32::from(sel::USER_DATA))?;
                a.mov(ss, ax)
            }),
            // A null segment can be loaded, not used.
            Kernel(|a| {
                a.xor(eax, eax)?;
                a.mov(es, ax)
            }),
            Kernel(|a| {
                a.mov(eax, 0x8003)?;
                a.mov(es, ax)
            }),
        ],
    );
    let done: [u32; 1] = [COMPLETED];
    i.expect_all(&[
        &gp(sel::EXECUTE_ONLY),
        &done,
        &gp(sel::READ_ONLY),
        &gp(sel::USER_DATA),
        &done,
        &gp(0x8000),
    ]);
}

/// 32-bit code on a stack with a 16-bit pointer.
fn stack_of_16_bits(i: &mut Image) {
    i.code32(|a| {
        a.mov(eax, i32::from(sel::DATA16))?;
        a.mov(ss, ax)?;
        a.mov(esp, 0x1234_0000)?;
        a.push(0x7777_8888)?;
        a.mov(eax, esp)?;
        report(a)?;
        a.mov(eax, dword_ptr(0xFFFC))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x1234_FFFC, 0x7777_8888]);
}

fn task_register(i: &mut Image) {
    i.attempts32(
        |_| Ok(()),
        &[
            Attempt::Kernel(|a| {
                a.str(eax)?;
                report(a)?;
                a.mov(eax, dword_ptr(GDT + u32::from(sel::TSS) + 4))?;
                report(a)
            }),
            Attempt::Kernel(|a| {
                a.xor(eax, eax)?;
                a.ltr(ax)
            }),
            Attempt::Kernel(|a| {
                a.mov(eax, i32::from(sel::LDT))?;
                a.ltr(ax)
            }),
            Attempt::Kernel(|a| {
                a.mov(eax, i32::from(sel::TSS16) | 4)?;
                a.ltr(ax)
            }),
        ],
    );
    i.expect(&[sel::TSS.into(), 0x8B00, COMPLETED]);
    i.expect_all(&[&GP, &gp(sel::LDT), &gp(sel::TSS16 | 4)]);
    i.deviates("qemu", "LTR takes a null selector");
}

/// Loading a segment marks its descriptor.
fn accessed(i: &mut Image) {
    i.code32(|a| {
        a.mov(eax, dword_ptr(GDT + u32::from(sel::SMALL) + 4))?;
        report(a)?;
        a.mov(eax, i32::from(sel::SMALL))?;
        a.mov(es, ax)?;
        for selector in [sel::SMALL, sel::CODE32, sel::DATA32] {
            a.mov(eax, dword_ptr(GDT + u32::from(selector) + 4))?;
            report(a)?;
        }
        exit(a)
    });
    i.expect(&[0x0040_9200, 0x0040_9300, 0x00CF_9B00, 0x00CF_9300]);
    i.deviates("qemu", NOT_ACCESSED);
}
