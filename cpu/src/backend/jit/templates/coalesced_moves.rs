//! Moves between registers and memory close to the same base register, with one look-up of the TLB:
//! accesses to the fields of a structure, or to a function's variables.

use iced_x86::{IcedError, Mnemonic, OpKind, Register};

use crate::backend::jit::assembler::Mem;
use crate::backend::jit::forms::direct::Effect;
use crate::backend::jit::forms::operand::{Operand, accesses_memory};
use crate::backend::jit::registers::map::{Guest, host};
use crate::backend::jit::registers::scratch::{ScratchRegs, guest};
use crate::backend::jit::templates::direct::set_memory;
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::Access;

/// Upper bound on the bytes from the first to the last that a run accesses. Where a page ends among
/// them, `exec` executes the run.
const MAX_RANGE: i64 = 64;

/// Instructions that access memory at `base`, from `lowest` to `end`, and instructions of registers
/// alone between them.
struct Run {
    base: Guest,
    lowest: i64,
    end: i64,
    access: Access,
    /// How many there are. The last one accesses memory.
    len: usize,
}

/// What an instruction of a run does.
enum Step {
    /// It accesses memory.
    Access { operand: Operand, access: Access },
    /// It names registers alone, and has a host register for each.
    Registers,
}

impl Step {
    /// Returns what `item` does, if it can be part of a run in a block at `rip`.
    fn of(item: &Item, rip: u64) -> Option<Self> {
        use Mnemonic::{Add, And, Cmp, Mov, Movsx, Movsxd, Movzx, Or, Sub, Test, Xor};
        let i = &item.decoded;
        let form = item.direct.filter(|form| form.reads == 0)?;
        let is_move = matches!(i.mnemonic(), Mov | Movzx | Movsx | Movsxd);
        if accesses_memory(i, &item.insn) {
            let operand = Operand::of(i, &item.insn, rip)?;
            let is_plain = operand.index.is_none() && operand.segment.is_none();
            let access = match i.op0_kind() {
                OpKind::Memory => Access::Write,
                _ => Access::Read,
            };
            let fits = is_move && is_plain && operand.base.is_some_and(|base| host(base).is_some());
            return fits.then_some(Self::Access { operand, access });
        }
        let is_listed = is_move || matches!(i.mnemonic(), Add | Sub | And | Or | Xor | Cmp | Test);
        let is_mapped = |n| match i.op_kind(n) {
            OpKind::Register => guest(i.op_register(n)).is_some_and(|guest| host(guest).is_some()),
            _ => true,
        };
        let keeps_pointer = is_listed && (0..i.op_count()).all(is_mapped);
        let is_direct = matches!(form.effect, Effect::Keeps | Effect::Writes(_));
        (keeps_pointer && is_direct).then_some(Self::Registers)
    }
}

/// Whether `item`, an instruction of a run, writes a register.
fn writes(item: &Item, register: Guest) -> bool {
    let i = &item.decoded;
    let written = match i.mnemonic() {
        Mnemonic::Cmp | Mnemonic::Test => Register::None,
        _ => i.op0_register(),
    };
    written.is_gpr() && written.full_register().number() == usize::from(register)
}

impl Run {
    /// Returns the run at the start of `items`, in a block at `rip`. It has at least two accesses.
    fn of(items: &[Item], rip: u64) -> Option<Self> {
        let mut run: Option<Self> = None;
        for (n, item) in items.iter().enumerate() {
            match (Step::of(item, rip), &mut run) {
                (Some(Step::Access { operand, access }), None) => {
                    run = Some(Self {
                        base: operand.base?,
                        lowest: operand.disp,
                        end: operand.disp + operand.size as i64,
                        access,
                        len: 1,
                    });
                }
                (Some(Step::Access { operand, access }), Some(run)) => {
                    let lowest = run.lowest.min(operand.disp);
                    let end = run.end.max(operand.disp + operand.size as i64);
                    if operand.base != Some(run.base) || end - lowest > MAX_RANGE {
                        break;
                    }
                    (run.lowest, run.end, run.len) = (lowest, end, n + 1);
                    if access == Access::Write {
                        run.access = access;
                    }
                }
                (Some(Step::Registers), Some(_)) => {}
                _ => break,
            }
            if run.as_ref().is_some_and(|run| writes(item, run.base)) {
                break;
            }
        }
        run.filter(|run| run.len > 1)
    }
}

impl Translator<'_> {
    /// Translates the run at the start of `items`. Returns its length, or 0 if there is none.
    ///
    /// # Errors
    /// An instruction could not be encoded.
    pub(crate) fn coalesced_moves(&mut self, items: &[Item]) -> Result<usize, IcedError> {
        let Some(run) = Run::of(items, self.context.rip) else {
            return Ok(0);
        };
        self.flags.release_host(self.asm);
        let before = self.flags.location();
        let missed = self.asm.label();
        let all = Operand::at(run.base, run.lowest, (run.end - run.lowest) as usize);
        let m = self.probe(&all, run.access, missed);
        for (n, item) in items[..run.len].iter().enumerate() {
            let Some(form) = item.direct else {
                continue;
            };
            match Step::of(item, self.context.rip) {
                Some(Step::Access { operand, .. }) => {
                    let mut i = item.decoded;
                    i.set_code(form.code);
                    // One register at most, besides the base.
                    let mut regs = ScratchRegs::beside(true);
                    let is_free = self.substitute(&mut i, &mut regs);
                    debug_assert!(is_free);
                    let disp = m.disp + (operand.disp - run.lowest) as i32;
                    set_memory(&mut i, &Mem { disp, ..m });
                    regs.load(self.asm);
                    self.encode(&i)?;
                    regs.store(self.asm);
                }
                _ => {
                    self.direct(item, &form, &items[n + 1..])?;
                }
            }
        }
        // Each access may fault: `exec` executes them one by one, in one call.
        let back = self.asm.here();
        self.on_miss_of(missed, back, items[0].start, run.len as u8, before);
        Ok(run.len)
    }
}
