//! Handlers for each vector, for 16-bit and for 32-bit code. Each reports its vector and a part of
//! its stack frame.

use super::snippets::{exit, report};
use super::{EXCEPTION, HANDLERS16, HANDLERS32, Image, VECTORS, sel};
use iced_x86::code_asm::*;
use vbts_testkit::Emit;

impl Image {
    /// Each reports its vector, and IP, CS and FLAGS from the stack.
    pub(super) fn handlers16(&mut self) {
        self.stubs16(|a| {
            a.mov(bp, sp)?;
            for n in 0..3 {
                a.movzx(eax, word_ptr(bp + 2 * n))?;
                report(a)?;
            }
            exit(a)
        });
    }

    /// A handler for each vector that reports it and goes on with `then`.
    pub(super) fn stubs16(&mut self, then: impl FnOnce(&mut CodeAssembler) -> Emit) {
        let common = HANDLERS16 + 8 * VECTORS;
        for vector in 0..VECTORS {
            let at = HANDLERS16 + 8 * vector;
            self.put32(4 * vector, &[at]);
            self.assemble(16, at, |a| {
                a.push(vector as i32)?;
                a.jmp(u64::from(common))
            });
        }
        self.assemble(16, common, |a| {
            a.pop(ax)?;
            a.movzx(eax, al)?;
            a.or(eax, EXCEPTION as i32)?;
            report(a)?;
            then(a)
        });
    }

    /// Each reports its vector and six words from the stack.
    pub(super) fn handlers32(&mut self) {
        self.stubs32(false, |a| {
            a.mov(ebp, esp)?;
            for n in 0..6 {
                a.mov(eax, dword_ptr(ebp + 4 * n))?;
                // RF, which not every machine pushes; there are no addresses above.
                a.btr(eax, 16)?;
                report(a)?;
            }
            exit(a)
        });
    }

    /// A handler for each vector that reports it and goes on with `then`, if `errors` with an error
    /// code on the stack for each.
    pub fn stubs32(&mut self, errors: bool, then: impl FnOnce(&mut CodeAssembler) -> Emit) {
        let common = HANDLERS32 + 16 * VECTORS;
        for vector in 0..VECTORS {
            let at = HANDLERS32 + 16 * vector;
            let kind = if vector < 0x30 { 0x8E } else { 0xEE };
            self.interrupt(vector as u8, kind, sel::CODE32, at);
            self.assemble(32, at, |a| {
                if errors && !matches!(vector, 8 | 10..=14 | 17) {
                    a.push(0)?;
                }
                a.push(vector as i32)?;
                a.jmp(u64::from(common))
            });
        }
        self.assemble(32, common, |a| {
            a.pop(eax)?;
            a.or(eax, EXCEPTION as i32)?;
            report(a)?;
            then(a)
        });
    }
}
