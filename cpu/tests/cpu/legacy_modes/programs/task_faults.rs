//! Task switches that fault (SDM Vol. 3A 7.3, table 7-1).

use super::Row;
use super::image::*;
use iced_x86::code_asm::*;

pub const PROGRAMS: &[Row] = &[
    ("tasks_refused", refused),
    ("task_returns_refused", returns_refused),
    ("task_state_of_a_fault", state_of_a_fault),
];

const OTHER: u32 = CODE32 + 0xC00;
/// The limit of the TSS of [`sel::TASK`].
const LIMIT: u32 = GDT + sel::TASK as u32;

fn ts(selector: u16) -> [u32; 2] {
    [EXCEPTION | 10, u32::from(selector & !3)]
}

/// What JMP, CALL and INT do not accept. Each leaves the old task as it was.
fn refused(i: &mut Image) {
    use Attempt::{Kernel, User};
    i.task(OTHER);
    i.gate(GDT + u32::from(sel::GATE), 0x85, sel::TASK, 0, 0);
    i.gate(GDT + u32::from(sel::GATE2), 0xE5, sel::TSS, 0, 0);
    i.attempts32(
        |_| Ok(()),
        &[
            // Busy; DPL 0 from CPL 3 and with RPL 3; in an LDT.
            Kernel(|a| ljmp32(a, sel::TSS, 0)),
            User(|a| lcall32(a, sel::TASK, 0)),
            Kernel(|a| lcall32(a, sel::TASK | 3, 0)),
            // A gate of DPL 0, one to a busy task, and one that is not present.
            User(|a| ljmp32(a, sel::GATE, 0)),
            User(|a| ljmp32(a, sel::GATE2, 0)),
            Kernel(|a| {
                a.mov(byte_ptr(GDT + u32::from(sel::GATE2) + 5), 0x65)?;
                ljmp32(a, sel::GATE2, 0)
            }),
            // Interrupts: to a busy task, to no task, not present, DPL 0.
            User(|a| a.int(0x31)),
            Kernel(|a| a.int(0x32)),
            Kernel(|a| a.int(0x33)),
            User(|a| a.int(0x34)),
            // A TSS that is not present, or too small.
            Kernel(|a| {
                a.mov(byte_ptr(LIMIT + 5), 9)?;
                ljmp32(a, sel::TASK, 0)
            }),
            Kernel(|a| {
                a.mov(byte_ptr(LIMIT + 5), 0x89)?;
                a.mov(word_ptr(LIMIT), 0x66)?;
                lcall32(a, sel::TASK, 0)
            }),
            Kernel(|a| {
                a.mov(word_ptr(GDT + u32::from(sel::TASK16)), 0x2A)?;
                lcall32(a, sel::TASK16, 0)
            }),
            // Nothing has changed.
            Kernel(|a| {
                a.mov(eax, cr0)?;
                a.and(eax, 8)?;
                report(a)?;
                report_type(a, sel::TASK)
            }),
            Kernel(|a| {
                report_word(a, TASK)?;
                report_word(a, TSS + tss::EIP)
            }),
        ],
    );
    i.task_gate(0x31, 0xE5, sel::TSS);
    i.task_gate(0x32, 0xE5, sel::DATA32);
    i.task_gate(0x33, 0x65, sel::TASK);
    i.task_gate(0x34, 0x85, sel::TASK);
    i.expect_all(&[
        &gp(sel::TSS),
        &gp(sel::TASK),
        &gp(sel::TASK),
        &gp(sel::GATE),
        &gp(sel::TSS),
        &np(sel::GATE2),
        &gp(sel::TSS),
        &gp(sel::DATA32),
        &[EXCEPTION | 11, 0x33 * 8 + 2],
        &[EXCEPTION | 13, 0x34 * 8 + 2],
        &np(sel::TASK),
        &ts(sel::TASK),
        &ts(sel::TASK16),
        &[0, 0x89, COMPLETED],
        &[0, 0, COMPLETED],
    ]);
}

/// IRET with NT, and a link to no busy task.
fn returns_refused(i: &mut Image) {
    use Attempt::Kernel;
    i.task(OTHER);
    fn back(a: &mut CodeAssembler, link: u16) -> Emit {
        a.mov(word_ptr(TSS), i32::from(link))?;
        a.push(0x4002)?;
        a.popfd()?;
        a.iretd()
    }
    i.attempts32(
        |_| Ok(()),
        &[
            Kernel(|a| back(a, 0)),
            Kernel(|a| back(a, sel::TASK)),
            Kernel(|a| back(a, sel::DATA32)),
            Kernel(|a| back(a, sel::TASK | 4)),
            Kernel(|a| back(a, 0x1FF8)),
            Kernel(|a| {
                a.mov(byte_ptr(LIMIT + 5), 0x0B)?;
                back(a, sel::TASK)
            }),
        ],
    );
    i.expect_all(&[
        &ts(0),
        &ts(sel::TASK),
        &ts(sel::DATA32),
        &ts(sel::TASK | 4),
        &ts(0x1FF8),
        &np(sel::TASK),
    ]);
}

/// Name, a word of the new task's TSS, what is in it, the vector that follows, and the error code.
type State = (&'static str, u32, u32, u32, u32);

const DATA_SELECTOR: u32 = sel::DATA32 as u32;
const ABSENT: u32 = sel::ABSENT_DATA as u32;

const STATES: &[State] = &[
    ("ldt_data", tss::LDT, DATA_SELECTOR, 10, DATA_SELECTOR),
    ("ldt_nowhere", tss::LDT, 0x1FF8, 10, 0x1FF8),
    ("cs_null", tss::CS, 0, 10, 0),
    ("cs_data", tss::CS, DATA_SELECTOR, 10, DATA_SELECTOR),
    ("cs_rpl", tss::CS, CS | 3, 10, CS),
    (
        "cs_absent",
        tss::CS,
        sel::ABSENT_CODE as u32,
        11,
        sel::ABSENT_CODE as u32,
    ),
    ("ss_null", tss::SS, 0, 10, 0),
    ("ss_code", tss::SS, CS, 10, CS),
    ("ss_dpl", tss::SS, USER_SS, 10, USER_SS & !3),
    ("ss_absent", tss::SS, ABSENT, 12, ABSENT),
    ("ds_nowhere", tss::DS, 0x1FF8, 10, 0x1FF8),
    ("ds_absent", tss::DS, ABSENT, 11, ABSENT),
    (
        "es_execute_only",
        tss::ES,
        sel::EXECUTE_ONLY as u32,
        10,
        sel::EXECUTE_ONLY as u32,
    ),
    ("fs_rpl", tss::FS, DATA_SELECTOR | 3, 10, DATA_SELECTOR),
];

const QEMU: &str = "reports faults of a new task behind its start";

/// The fault of a new task's state has a task, too: the new task may have no stack.
pub fn states() -> Vec<(String, Image)> {
    let build = |&(name, at, value, vector, error): &State| {
        let mut i = Image::new();
        i.task(OTHER);
        i.put32(TASK + at, &[value]);
        i.fault_tasks(CODE32 + 0x600, |a| {
            // The fault is one of the new task, which is linked to the old one.
            report_word(a, TASK + tss::EIP)?;
            report_word(a, TASK + at)?;
            report_word(a, TASK)?;
            report_type(a, sel::TASK)?;
            exit(a)
        });
        i.code32(|a| lcall32(a, sel::TASK, 0));
        i.assemble(32, OTHER, |a| a.hlt());
        i.expect(&[EXCEPTION | vector, error, OTHER, value]);
        i.expect(&[sel::TSS.into(), 0x8B]);
        i.deviates("qemu", QEMU);
        if name == "cs_rpl" {
            i.deviates("bochs", "checks SS before CS");
        }
        (format!("task_state_{name}"), i)
    };
    STATES.iter().map(build).collect()
}

/// An instruction pointer outside CS, with the handler on the new task's stack.
fn state_of_a_fault(i: &mut Image) {
    i.task(0x2_0000);
    i.put32(TASK + tss::CS, &[sel::CODE16.into()]);
    i.code32(|a| ljmp32(a, sel::TASK, 0));
    i.expect(&[EXCEPTION | 13, 0, 0x2_0000, sel::CODE16.into(), 2, 0, 0]);
    i.deviates("qemu", QEMU);
}
