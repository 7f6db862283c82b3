//! Faults in 32-bit protected mode without paging, with their whole frames; double and triple
//! faults.

use super::Row;
use super::image::*;
use iced_x86::code_asm::*;

pub const PROGRAMS: &[Row] = &[
    ("resume_flag", resume_flag),
    ("double_fault", double_fault),
    ("protected_triple_fault", triple_fault),
];

/// Where each of [`FAULTS`] has its instruction.
const AT: u32 = CODE32 + 0x200;

/// Name, instruction, vector, and error code, which goes to the stack first.
type Fault = (
    &'static str,
    fn(&mut CodeAssembler) -> Emit,
    u32,
    Option<u32>,
);

/// What faults at CPL 0, with the whole frame.
const FAULTS: &[Fault] = &[
    ("ud", |a| a.ud2(), 6, None),
    ("gp_limit", |a| a.mov(ds, ecx), 13, Some(0x1FF8)),
    (
        "np_data",
        |a| a.mov(es, dx),
        11,
        Some(sel::ABSENT_DATA as u32),
    ),
    (
        "ss_absent",
        |a| a.mov(ss, dx),
        12,
        Some(sel::ABSENT_DATA as u32),
    ),
    ("ss_null", |a| a.mov(ss, di), 13, Some(0)),
    ("jmp_null", |a| ljmp32(a, 3, 0), 13, Some(0)),
    (
        "jmp_data",
        |a| ljmp32(a, sel::DATA32, 0),
        13,
        Some(sel::DATA32 as u32),
    ),
    (
        "jmp_absent",
        |a| ljmp32(a, sel::ABSENT_CODE, 0),
        11,
        Some(sel::ABSENT_CODE as u32),
    ),
    (
        "jmp_user",
        |a| ljmp32(a, sel::USER_CODE, USER),
        13,
        Some(sel::USER_CODE as u32 & !3),
    ),
    (
        "jmp_limit",
        |a| ljmp32(a, sel::CODE16, 0x1_0000),
        13,
        Some(0),
    ),
    ("int_absent", |a| a.int(0x3F), 11, Some(0x3F * 8 + 2)),
    ("int_limit", |a| a.int(0x80), 13, Some(0x80 * 8 + 2)),
    ("ltr_busy", |a| a.ltr(si), 13, Some(sel::TSS as u32)),
    ("lldt_data", |a| a.lldt(bp), 13, Some(sel::DATA32 as u32)),
    ("cr4_reserved", |a| a.mov(cr4, eax), 13, Some(0)),
];

/// Where QEMU does something else.
const QEMU: &[(&str, &str)] = &[("cr4_reserved", "accepts reserved bits of CR4")];

pub fn faults() -> Vec<(String, Image)> {
    let build = |&(name, fault, vector, error): &Fault| {
        let mut i = Image::new();
        i.interrupt(0x3F, 0x0E, sel::CODE32, 0);
        i.code32(|a| {
            a.mov(eax, 0x8000_0000u32)?;
            a.mov(ecx, 0x1FFB)?;
            a.mov(edx, i32::from(sel::ABSENT_DATA))?;
            a.mov(esi, i32::from(sel::TSS))?;
            a.mov(ebp, i32::from(sel::DATA32))?;
            a.xor(edi, edi)?;
            a.push(2)?;
            a.popfd()?;
            ljmp32(a, sel::CODE32, AT)
        });
        i.assemble(32, AT, fault);
        let mut words = vec![EXCEPTION | vector];
        words.extend(error);
        words.extend([AT, CS, 2]);
        words.resize(7, 0);
        i.expect(&words);
        if let Some((_, how)) = QEMU.iter().find(|d| d.0 == name) {
            i.deviates("qemu", how);
        }
        (format!("fault_{name}"), i)
    };
    FAULTS.iter().map(build).collect()
}

/// Faults push RF, and INT does not (SDM Vol. 3B 17.3.1.1).
fn resume_flag(i: &mut Image) {
    i.interrupt(6, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| {
        a.push(2)?;
        a.popfd()?;
        a.int(6)?;
        a.ud2()
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, dword_ptr(esp + 8))?;
        report(a)?;
        let mut done = a.create_label();
        a.test(eax, eax)?;
        a.bt(eax, 16)?;
        a.jc(done)?;
        a.iretd()?;
        a.set_label(&mut done)?;
        exit(a)
    });
    i.expect(&[2, 0x1_0002]);
    i.deviates("qemu", "before 8.0 pushed no RF");
}

/// #GP whose handler is not present, and then a double fault.
fn double_fault(i: &mut Image) {
    i.interrupt(13, 0x0E, sel::CODE32, 0);
    i.code32(|a| {
        a.push(2)?;
        a.popfd()?;
        ljmp32(a, sel::CODE32, AT)
    });
    i.assemble(32, AT, |a| {
        // The TSS.
        a.mov(ds, eax)?;
        a.hlt()
    });
    i.expect(&[EXCEPTION | 8, 0, AT, CS, 2, 0, 0]);
}

fn triple_fault(i: &mut Image) {
    i.interrupt(13, 0x0E, sel::CODE32, 0);
    i.interrupt(8, 0x8E, sel::DATA32, 0);
    i.code32(|a| {
        mark(a, 3)?;
        a.mov(eax, 0x1FF0)?;
        a.mov(ds, ax)
    });
    i.expect(&[3]);
    i.shutdown = true;
}
