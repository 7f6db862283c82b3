//! Task switches (SDM Vol. 3A chapter 7).

use super::Row;
use super::image::*;
use iced_x86::code_asm::*;

pub const PROGRAMS: &[Row] = &[
    ("task_jump", jump),
    ("task_call_and_return", call_and_return),
    ("task_gate", gate),
    ("task_interrupt", interrupt),
    ("task_fault_with_error_code", fault),
    ("task_double_fault", double_fault),
    ("task_16", task_16),
    ("task_address_space", address_space),
    ("task_debug_trap", debug_trap),
    ("task_local_breakpoints", local_breakpoints),
];

/// Where the other task has its code.
const OTHER: u32 = CODE32 + 0x400;

/// Flags as POPFD sets them: none.
fn clear_flags(a: &mut CodeAssembler) -> Emit {
    a.push(2)?;
    a.popfd()
}

/// JMP: the registers of both tasks, and the busy flags.
fn jump(i: &mut Image) {
    i.task(OTHER);
    i.put32(TASK + tss::EFLAGS, &[0x8D7]);
    i.code32(|a| {
        clear_flags(a)?;
        a.mov(ebx, 0xBBBB_BBBBu32)?;
        a.mov(edi, 0xDDDD_DDDDu32)?;
        ljmp32(a, sel::TASK, 0)?;
        a.hlt()
    });
    i.assemble(32, OTHER, |a| {
        a.pushad()?;
        report_flags(a)?;
        for n in 0..8 {
            a.mov(eax, dword_ptr(esp + 4 * n))?;
            report(a)?;
        }
        a.str(ax)?;
        a.movzx(eax, ax)?;
        report(a)?;
        a.mov(eax, cr0)?;
        a.and(eax, 8)?;
        report(a)?;
        report_type(a, sel::TASK)?;
        report_type(a, sel::TSS)?;
        // The link is not written.
        report_word(a, TASK)?;
        for at in [tss::EFLAGS, tss::EAX + 12, tss::ESP, tss::EAX + 28] {
            report_word(a, TSS + at)?;
        }
        for at in [tss::ES, tss::CS, tss::SS, tss::DS] {
            report_word(a, TSS + at)?;
        }
        a.mov(esi, dword_ptr(TSS + tss::EIP))?;
        a.movzx(eax, byte_ptr(esi))?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x8D7, 8, 7, 6, TASK_STACK, 4, 3, 2, 1]);
    i.expect(&[sel::TASK.into(), 8, 0x8B, 0x89, 0]);
    i.expect(&[2, 0xBBBB_BBBB, STACK, 0xDDDD_DDDD]);
    let data = u32::from(sel::DATA32);
    i.expect(&[data, CS, data, data, 0xF4]);
}

/// CALL nests, and IRET returns. Then the task continues behind its IRET.
fn call_and_return(i: &mut Image) {
    i.task(OTHER);
    i.code32(|a| {
        clear_flags(a)?;
        lcall32(a, sel::TASK, 0)?;
        report_flags(a)?;
        mark(a, 0x1111)?;
        a.mov(eax, dword_ptr(TASK + tss::EFLAGS))?;
        a.and(eax, 0x4000)?;
        report(a)?;
        report_type(a, sel::TASK)?;
        report_type(a, sel::TSS)?;
        lcall32(a, sel::TASK, 0)?;
        mark(a, 0x2222)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        report_flags(a)?;
        report_word(a, TASK)?;
        report_type(a, sel::TASK)?;
        report_type(a, sel::TSS)?;
        a.iretd()?;
        mark(a, 0x3333)?;
        a.iretd()
    });
    i.expect(&[0x4002, sel::TSS.into(), 0x8B, 0x8B]);
    i.expect(&[2, 0x1111]);
    // NT is clear in what IRET has saved. Other flags are those of `report`.
    i.expect(&[0, 0x89, 0x8B, 0x3333, 0x2222]);
}

/// Programs at CPL 3 can use a task gate of DPL 3. Those at CPL 0 can name it with RPL 3.
fn gate(i: &mut Image) {
    i.task(OTHER);
    i.gate(GDT + u32::from(sel::GATE), 0xE5, sel::TASK, 0, 0);
    i.interrupt(0x31, 0xEE, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| {
        lcall32(a, sel::GATE | 3, 0)?;
        to_user(a, USER)
    });
    i.user(32, |a| {
        lcall32(a, sel::GATE, 0)?;
        a.mov(ebx, esp)?;
        a.int(0x31)
    });
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, ebx)?;
        report(a)?;
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(ax, cs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        report_word(a, TSS + tss::CS)?;
        report_word(a, TSS + tss::SS)?;
        report_word(a, TSS + tss::ESP)?;
        a.iretd()?;
        a.jmp(again)
    });
    i.expect(&[CS, CS, sel::DATA32.into(), STACK]);
    i.expect(&[CS, USER_CS, USER_SS, USER_STACK, USER_STACK, CS]);
}

/// INT n through a task gate. The handler is behind its IRET when it is called again.
fn interrupt(i: &mut Image) {
    i.task(OTHER);
    i.task_gate(0x31, 0xE5, sel::TASK);
    i.code32(|a| {
        clear_flags(a)?;
        a.int(0x31)?;
        mark(a, 0x1111)?;
        a.int(0x31)?;
        mark(a, 0x2222)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(eax, esp)?;
        report(a)?;
        report_word(a, TSS + tss::EFLAGS)?;
        report_word(a, TASK)?;
        a.iretd()?;
        a.jmp(again)
    });
    let once = [TASK_STACK, 2, sel::TSS.into()];
    i.expect(&once);
    i.expect(&[0x1111]);
    i.expect(&once);
    i.expect(&[0x2222]);
}

/// A fault saves its own address, and RF. Its error code is on the new task's stack.
fn fault(i: &mut Image) {
    i.task(OTHER);
    i.task_gate(13, 0x85, sel::TASK);
    i.code32(|a| {
        clear_flags(a)?;
        a.mov(eax, i32::from(sel::TSS))?;
        ljmp32(a, sel::CODE32, CODE32 + 0x200)
    });
    i.assemble(32, CODE32 + 0x200, |a| {
        a.mov(ds, ax)?;
        mark(a, 0x1111)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        a.pop(eax)?;
        report(a)?;
        a.mov(eax, esp)?;
        report(a)?;
        report_word(a, TSS + tss::EIP)?;
        report_word(a, TSS + tss::EFLAGS)?;
        // MOV DS, AX has three bytes.
        a.add(dword_ptr(TSS + tss::EIP), 3)?;
        a.iretd()
    });
    i.expect(&[
        sel::TSS.into(),
        TASK_STACK,
        CODE32 + 0x200,
        0x1_0002,
        0x1111,
    ]);
    i.deviates("qemu", "before 8.0 saved no RF");
}

/// #DF through a task gate, as 32-bit kernels have it.
fn double_fault(i: &mut Image) {
    i.task(OTHER);
    i.task_gate(8, 0x85, sel::TASK);
    i.interrupt(13, 0x0E, sel::CODE32, 0);
    i.code32(|a| {
        clear_flags(a)?;
        a.xor(esp, esp)?;
        a.mov(eax, i32::from(sel::TSS))?;
        ljmp32(a, sel::CODE32, CODE32 + 0x200)
    });
    i.assemble(32, CODE32 + 0x200, |a| a.mov(ds, ax));
    i.assemble(32, OTHER, |a| {
        report_flags(a)?;
        a.pop(eax)?;
        report(a)?;
        report_word(a, TSS + tss::EIP)?;
        report_word(a, TSS + tss::ESP)?;
        exit(a)
    });
    i.expect(&[0x4002, 0, CODE32 + 0x200, 0]);
}

/// To a 16-bit task, from there to a 32-bit one, and back to both.
fn task_16(i: &mut Image) {
    i.task16(OTHER as u16);
    i.task(OTHER + 0x200);
    i.code32(|a| {
        clear_flags(a)?;
        a.mov(eax, i32::from(sel::DATA32))?;
        a.mov(fs, ax)?;
        a.mov(gs, ax)?;
        lcall32(a, sel::TASK16, 0)?;
        a.mov(ax, fs)?;
        a.movzx(eax, ax)?;
        report(a)?;
        report_type(a, sel::TASK16)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        a.pusha()?;
        report_flags(a)?;
        for n in 0..8 {
            a.movzx(eax, word_ptr(esp + 2 * n))?;
            report(a)?;
        }
        for s in [fs, gs, ds] {
            a.mov(ax, s)?;
            a.movzx(eax, ax)?;
            report(a)?;
        }
        a.movzx(eax, word_ptr(TASK16))?;
        report(a)?;
        a.mov(ebx, 0x1234_5678)?;
        lcall32(a, sel::TASK, 0)?;
        a.movzx(eax, bx)?;
        report(a)?;
        a.iretd()
    });
    i.assemble(32, OTHER + 0x200, |a| {
        report_word(a, TASK)?;
        // BX and SP, CS and SS.
        report_word(a, TASK16 + 0x18)?;
        report_word(a, TASK16 + 0x24)?;
        a.iretd()
    });
    let data = u32::from(sel::DATA32);
    i.expect(&[0x4002, 8, 7, 6, TASK_STACK, 4, 3, 2, 1, 0, 0, data]);
    i.expect(&[sel::TSS.into(), sel::TASK16.into()]);
    i.expect(&[(TASK_STACK - 16) << 16 | 0x5678, data << 16 | CS]);
    i.expect(&[0x5678, data, 0x81]);
    i.deviates("bochs", "sets the undefined upper halves of registers");
}

/// Each task has its page directory.
fn address_space(i: &mut Image) {
    let [first, second, table, other_table] = TABLES;
    for (directory, table) in [(first, table), (second, other_table)] {
        i.put32(directory, &[table | 3]);
        for page in 0..0x10 {
            i.put32(table + 4 * page, &[page << 12 | 3]);
        }
    }
    // Page D is page 7 in the second address space.
    i.put32(other_table + 4 * 0xD, &[0x7003]);
    i.put32(0xD800, &[0x1111_1111]);
    i.put32(DATA, &[0x2222_2222]);
    i.task(OTHER);
    i.put32(TASK + tss::CR3, &[second]);
    i.put32(TSS + tss::CR3, &[first]);
    i.code32(|a| {
        a.mov(dword_ptr(DATA), 0x2222_2222)?;
        a.mov(eax, first)?;
        a.mov(cr3, eax)?;
        a.mov(eax, cr0)?;
        a.or(eax, 0x8000_0000u32 as i32)?;
        a.mov(cr0, eax)?;
        report_word(a, 0xD800)?;
        lcall32(a, sel::TASK, 0)?;
        report_word(a, 0xD800)?;
        a.mov(eax, cr3)?;
        report(a)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| {
        report_word(a, 0xD800)?;
        a.mov(eax, cr3)?;
        report(a)?;
        a.iretd()
    });
    i.expect(&[0x1111_1111, 0x2222_2222, second, 0x1111_1111, first]);
}

/// The debug trap flag of a TSS raises #DB before the task's first instruction.
fn debug_trap(i: &mut Image) {
    i.task(OTHER);
    i.put32(TASK + tss::TRAP, &[0x68_0001]);
    i.interrupt(1, 0x8E, sel::CODE32, CODE32 + 0x300);
    i.code32(|a| lcall32(a, sel::TASK, 0));
    i.assemble(32, CODE32 + 0x300, |a| {
        a.mov(eax, dword_ptr(esp))?;
        report(a)?;
        a.mov(eax, dr6)?;
        report(a)?;
        exit(a)
    });
    i.assemble(32, OTHER, |a| a.hlt());
    i.expect(&[OTHER, 0xFFFF_8FF0]);
    i.deviates("qemu", "has no debug trap of tasks");
}

fn local_breakpoints(i: &mut Image) {
    i.task(OTHER);
    i.code32(|a| {
        // Of breakpoints 0 and 1 both enables, and of exact detection.
        a.mov(eax, 0x70F)?;
        a.mov(dr7, eax)?;
        ljmp32(a, sel::TASK, 0)
    });
    i.assemble(32, OTHER, |a| {
        a.mov(eax, dr7)?;
        report(a)?;
        exit(a)
    });
    i.expect(&[0x60A]);
    i.deviates("qemu", "keeps DR7.LE");
}
