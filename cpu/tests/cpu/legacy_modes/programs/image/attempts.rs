//! Programs that try instructions one after the other and report how each ends.

use super::snippets::{exit, mark, report, to_user};
use super::{CODE16, CODE32, EXCEPTION, Image, STACK, TSS, USER, USER_STACK, sel, tss};
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

    /// Virtual-8086 mode with these flags: as [`Image::attempts32`]. The programs have the I/O map
    /// of [`Image::maps`].
    pub fn attempts86(
        &mut self,
        flags: u32,
        setup: impl FnOnce(&mut CodeAssembler) -> Emit,
        rows: &[fn(&mut CodeAssembler) -> Emit],
    ) {
        const SLOT: u32 = 0x60;
        const LAST: i32 = 0xFFFF;
        self.maps();
        self.stubs32(true, |a| {
            let mut end = a.create_label();
            a.pop(eax)?;
            report(a)?;
            a.cmp(ebx, LAST)?;
            a.je(end)?;
            a.mov(dword_ptr(esp), ebx)?;
            a.mov(dword_ptr(esp + 8), (flags | VM) as i32)?;
            a.mov(dword_ptr(esp + 12), USER_STACK as i32)?;
            a.iretd()?;
            a.set_label(&mut end)?;
            exit(a)
        });
        self.code32(|a| {
            setup(a)?;
            a.xor(ebx, ebx)?;
            to_virtual_8086(a, flags, [0; 6], USER)
        });
        for (n, row) in (0..).zip(rows) {
            let (at, next) = (USER + SLOT * n, USER + SLOT * (n + 1));
            self.assemble(16, at, |a| {
                a.mov(bx, next as i32)?;
                row(a)?;
                mark(a, COMPLETED)?;
                a.jmp(u64::from(next))
            });
        }
        self.assemble(16, USER + SLOT * rows.len() as u32, |a| {
            a.mov(ebx, LAST)?;
            a.ud2()
        });
    }

    /// A TSS with an I/O map that allows the ports below 3C0H except [`DENIED_PORT`], and an
    /// interrupt redirection bitmap that leaves vectors 0 to 2FH to programs in virtual-8086 mode.
    pub fn maps(&mut self) {
        const IO_MAP: u32 = 0x88;
        self.descriptor(sel::TSS, 0x0000_8900_0000_00FF | u64::from(TSS) << 16);
        self.put32(TSS + tss::TRAP, &[IO_MAP << 16]);
        self.put(TSS + IO_MAP - 32 + 0x30 / 8, &[0xFF; 26]);
        let denied = DENIED_PORT as u32;
        self.put(TSS + IO_MAP + denied / 8, &[1 << (denied % 8)]);
        self.put(TSS + 0xFF, &[0xFF]);
    }
}

pub const DENIED_PORT: i32 = 0x80;
/// EFLAGS.VM.
pub const VM: u32 = 1 << 17;

/// IRET to virtual-8086 mode with ES, CS, SS, DS, FS, GS, the stack at [`USER_STACK`], and these
/// flags.
pub fn to_virtual_8086(
    a: &mut CodeAssembler,
    flags: u32,
    [es_, cs_, ss_, ds_, fs_, gs_]: [u16; 6],
    ip: u32,
) -> Emit {
    for selector in [gs_, fs_, ds_, es_, ss_] {
        a.push(i32::from(selector))?;
    }
    a.push(USER_STACK as i32)?;
    a.push((flags | VM) as i32)?;
    a.push(i32::from(cs_))?;
    a.push(ip as i32)?;
    a.iretd()
}
