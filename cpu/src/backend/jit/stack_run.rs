//! PUSH or POP several times in a row, as functions begin and end: with one look-up of the TLB.

use iced_x86::Code;

use crate::backend::jit::assembler::{Mem, RAX};
use crate::backend::jit::branch::{RSP, SLOT};
use crate::backend::jit::flags::Place;
use crate::backend::jit::form::{Guest, Operand};
use crate::backend::jit::layout::HOST;
use crate::backend::jit::translate::{Item, Translator};
use crate::mmu::access::Access;

/// The access of an instruction that can be part of a run.
fn kind(item: &Item) -> Option<Access> {
    let i = &item.decoded;
    let access = match i.code() {
        Code::Push_r64 => Access::Write,
        Code::Pop_r64 => Access::Read,
        _ => return None,
    };
    // The stack pointer would change, or have to be up to date.
    (register(item) != RSP).then_some(access)
}

fn register(item: &Item) -> Guest {
    item.decoded.op0_register().number() as Guest
}

/// The first of `items` that are a run, and how they access the stack. `None` if fewer than two
/// are.
fn run(items: &[Item]) -> Option<(&[Item], Access)> {
    let access = kind(items.first()?)?;
    let others = items.iter().position(|item| kind(item) != Some(access));
    let run = &items[..others.unwrap_or(items.len())];
    (run.len() > 1).then_some((run, access))
}

impl Translator<'_> {
    /// Translates the run at the start of `items`. Returns its length, or 0 if there is none.
    pub(super) fn stack_run(&mut self, items: &[Item]) -> usize {
        let Some((run, access)) = run(items) else {
            return 0;
        };
        self.save_flags();
        let size = SLOT * run.len() as i64;
        let pushes = access == Access::Write;
        let lowest = if pushes { -size } else { 0 };
        let missed = self.asm.label();
        let m = self.probe(&Operand::at(RSP, lowest, size as usize), access, missed);
        for (n, item) in run.iter().enumerate() {
            let guest = register(item);
            let host = HOST[usize::from(guest)].unwrap_or(RAX);
            let slot = |n: usize| Mem {
                disp: m.disp + (SLOT * n as i64) as i32,
                ..m
            };
            if pushes {
                self.read(host, guest);
                self.asm.store(&slot(run.len() - 1 - n), host);
            } else {
                self.asm.load(host, &slot(n));
                self.write(guest, host);
            }
        }
        self.move_stack(if pushes { -size } else { size });
        // Any of them may fault: `exec` executes one by one, in one call.
        let back = self.asm.here();
        self.on_miss_of(missed, back, run[0].start, run.len() as u8, Place::Saved);
        run.len()
    }
}
