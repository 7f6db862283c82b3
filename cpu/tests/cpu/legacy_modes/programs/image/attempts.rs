//! Programs that try instructions one after the other and report how each ends.

use super::snippets::{exit, mark, report, to_user};
use super::{CODE16, CODE32, EXCEPTION, Image, STACK, USER, sel};
use iced_x86::code_asm::*;
use vbts_testkit::Emit;

/// An instruction to try.
#[derive(Debug, Clone, Copy)]
pub enum Attempt {
    /// At CPL 0.
    Kernel(fn(&mut CodeAssembler) -> Emit),
    /// At CPL 3; [`COMPLETED_VECTOR`] is reported if it completes.
    User(fn(&mut CodeAssembler) -> Emit),
}

/// Reported of an instruction that does not fault.
pub const COMPLETED: u32 = 0x600D_600D;

pub const COMPLETED_VECTOR: i32 = 0x30;

/// What [`Image::attempts32`] reports of an instruction at CPL 3 that completes, and of faults.
pub const DONE: [u32; 2] = [EXCEPTION | COMPLETED_VECTOR as u32, 0];

pub const GP: [u32; 2] = [EXCEPTION | 13, 0];

pub const UD: [u32; 2] = [EXCEPTION | 6, 0];

pub fn gp(selector: u16) -> [u32; 2] {
    [EXCEPTION | 13, u32::from(selector & !3)]
}

pub fn np(selector: u16) -> [u32; 2] {
    [EXCEPTION | 11, u32::from(selector & !3)]
}

impl Image {
    /// Real-address mode: tries instructions one after the other. Each reports its vector if it
    /// faults, and else [`COMPLETED`].
    pub fn attempts16(&mut self, rows: &[fn(&mut CodeAssembler) -> Emit]) {
        const SLOT: u32 = 0x40;
        self.stubs16(|a| {
            a.xor(ax, ax)?;
            a.mov(ss, ax)?;
            a.mov(sp, STACK as i32)?;
            a.mov(ds, ax)?;
            a.mov(es, ax)?;
            a.push(ax)?;
            a.push(bx)?;
            a.retf()
        });
        for (n, row) in (0..).zip(rows) {
            let next = CODE16 + SLOT * (n + 1);
            self.assemble(16, CODE16 + SLOT * n, |a| {
                a.mov(bx, next as i32)?;
                row(a)?;
                mark(a, COMPLETED)?;
                a.jmp(u64::from(next))
            });
        }
        self.assemble(16, CODE16 + SLOT * rows.len() as u32, exit);
    }

    /// Protected mode: as [`Image::attempts16`], and reports the error code as well; 0 if there is
    /// none.
    pub fn attempts32(&mut self, setup: impl FnOnce(&mut CodeAssembler) -> Emit, rows: &[Attempt]) {
        const SLOT: u32 = 0x80;
        self.stubs32(true, |a| {
            a.pop(eax)?;
            report(a)?;
            a.mov(eax, i32::from(sel::DATA32))?;
            for s in [ds, es, ss] {
                a.mov(s, ax)?;
            }
            a.mov(esp, STACK as i32)?;
            a.jmp(ebx)
        });
        let first = CODE32 + 0x200;
        self.code32(|a| {
            setup(a)?;
            a.jmp(u64::from(first))
        });
        for (n, row) in (0..).zip(rows) {
            let (at, next) = (first + SLOT * n, first + SLOT * (n + 1));
            match row {
                Attempt::Kernel(f) => self.assemble(32, at, |a| {
                    a.mov(ebx, next as i32)?;
                    f(a)?;
                    mark(a, COMPLETED)?;
                    a.jmp(u64::from(next))
                }),
                Attempt::User(f) => {
                    let user = USER + SLOT * n;
                    self.assemble(32, at, |a| {
                        a.mov(ebx, next as i32)?;
                        to_user(a, user)
                    });
                    self.assemble(32, user, |a| {
                        f(a)?;
                        a.int(COMPLETED_VECTOR)
                    });
                }
            }
        }
        self.assemble(32, first + SLOT * rows.len() as u32, exit);
    }
}
