//! Task-state segments (SDM Vol. 3A 7.2.1, 7.6).

use super::snippets::report;
use super::{EXCEPTION, FAULT_TASKS, FAULT_TSS, IDT, Image, TASK, TASK16, sel};
use iced_x86::code_asm::*;
use vbts_testkit::Emit;

/// Offsets in a 32-bit TSS.
pub mod tss {
    pub const CR3: u32 = 0x1C;
    pub const EIP: u32 = 0x20;
    pub const EFLAGS: u32 = 0x24;
    pub const EAX: u32 = 0x28;
    pub const ESP: u32 = 0x38;
    pub const ES: u32 = 0x48;
    pub const CS: u32 = 0x4C;
    pub const SS: u32 = 0x50;
    pub const DS: u32 = 0x54;
    pub const FS: u32 = 0x58;
    pub const LDT: u32 = 0x60;
    pub const TRAP: u32 = 0x64;
}

/// The top of the stack of [`TASK`] and [`TASK16`].
pub const TASK_STACK: u32 = 0x6B00;

impl Image {
    /// The state of the task [`TASK`], at CPL 0 with flat segments: EAX is 1, ECX 2, and so on, and
    /// ESP [`TASK_STACK`].
    pub fn task(&mut self, eip: u32) {
        self.tss32(TASK, eip, TASK_STACK);
    }

    pub fn tss32(&mut self, at: u32, eip: u32, stack: u32) {
        let data = u32::from(sel::DATA32);
        self.put32(at + tss::EIP, &[eip, 2, 1, 2, 3, 4, stack, 6, 7, 8]);
        let code = sel::CODE32.into();
        self.put32(at + tss::ES, &[data, code, data, data, data, data, 0]);
        self.put32(at + tss::TRAP, &[0x68_0000]);
    }

    /// The state of the task [`TASK16`]: as that of [`TASK`], with registers of 16 bits.
    pub fn task16(&mut self, ip: u16) {
        let (code, data) = (sel::CODE32, sel::DATA32);
        let words = [
            ip,
            2,
            1,
            2,
            3,
            4,
            TASK_STACK as u16,
            6,
            7,
            8,
            data,
            code,
            data,
            data,
            0,
        ];
        for (at, word) in (TASK16 + 0x0E..).step_by(2).zip(words) {
            self.put(at, &word.to_le_bytes());
        }
    }

    /// A task gate in the IDT.
    pub fn task_gate(&mut self, vector: u32, kind: u8, task: u16) {
        self.gate(IDT + 8 * vector, kind, task, 0, 0);
    }

    /// Tasks for [`FAULT_TASKS`]. Each reports its vector and the error code, then `then`.
    pub fn fault_tasks(&mut self, code: u32, then: impl FnOnce(&mut CodeAssembler) -> Emit) {
        for (n, vector) in (0..).zip(FAULT_TASKS) {
            let (at, selector) = (FAULT_TSS + 0x80 * n, sel::FAULT_TASKS + 8 * n as u16);
            self.descriptor(selector, 0x0000_8900_0000_0067 | u64::from(at) << 16);
            self.tss32(at, code, TASK_STACK + 0x100);
            self.put32(at + tss::EAX, &[EXCEPTION | vector]);
            self.task_gate(vector, 0x85, selector);
        }
        self.assemble(32, code, |a| {
            report(a)?;
            a.pop(eax)?;
            report(a)?;
            then(a)
        });
    }
}

/// Reports a word of 32 bits.
pub fn report_word(a: &mut CodeAssembler, at: u32) -> Emit {
    a.mov(eax, dword_ptr(at))?;
    report(a)
}

/// Reports the flags.
pub fn report_flags(a: &mut CodeAssembler) -> Emit {
    a.pushfd()?;
    a.pop(eax)?;
    report(a)
}

/// Reports the byte with the type of a descriptor.
pub fn report_type(a: &mut CodeAssembler, selector: u16) -> Emit {
    a.movzx(eax, byte_ptr(super::GDT + u32::from(selector & !7) + 5))?;
    report(a)
}
