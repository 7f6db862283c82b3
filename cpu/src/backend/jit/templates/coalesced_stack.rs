//! PUSH or POP several times in a row, as functions begin and end: with one look-up of the TLB.

use iced_x86::Code;

use crate::backend::jit::assembler::Mem;
use crate::backend::jit::flags::FlagsLocation;
use crate::backend::jit::forms::operand::{Operand, RSP, SLOT};
use crate::backend::jit::registers::map::{Guest, SCRATCH, host};
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::Access;

/// Returns the access of an instruction that can be part of a run.
fn kind(item: &Item) -> Option<Access> {
    let i = &item.decoded;
    let access = match i.code() {
        Code::Push_r64 => Access::Write,
        Code::Pop_r64 => Access::Read,
        _ => return None,
    };
    // PUSH RSP stores the stack pointer, and POP RSP changes it.
    (register(item) != RSP).then_some(access)
}

fn register(item: &Item) -> Guest {
    item.decoded.op0_register().number() as Guest
}

/// Returns the run at the start of `items`, and how it accesses the stack. A run has at least two
/// instructions.
fn run(items: &[Item]) -> Option<(&[Item], Access)> {
    let access = kind(items.first()?)?;
    let others = items.iter().position(|item| kind(item) != Some(access));
    let run = &items[..others.unwrap_or(items.len())];
    (run.len() > 1).then_some((run, access))
}

impl Translator<'_> {
    /// Translates the run at the start of `items`. Returns its length, or 0 if there is none.
    pub(crate) fn coalesced_stack(&mut self, items: &[Item]) -> usize {
        let Some((run, access)) = run(items) else {
            return 0;
        };
        self.flags.save(self.asm);
        let size = SLOT * run.len() as i64;
        let pushes = access == Access::Write;
        let lowest = if pushes { -size } else { 0 };
        let missed = self.asm.label();
        let m = self.probe(&Operand::at(RSP, lowest, size as usize), access, missed);
        for (n, item) in run.iter().enumerate() {
            let guest = register(item);
            let host = host(guest).unwrap_or(SCRATCH);
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
        // Each of them may fault: `exec` executes them one by one, in one call.
        let back = self.asm.here();
        self.on_miss_of(
            missed,
            back,
            run[0].start,
            run.len() as u8,
            FlagsLocation::Saved,
        );
        run.len()
    }
}
