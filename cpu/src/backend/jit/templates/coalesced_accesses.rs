//! Accesses close to the same base register, with one look-up of the TLB: accesses to the fields of
//! a structure, or to a function's variables.

use iced_x86::{ConditionCode, IcedError, Instruction, Mnemonic, OpKind, Register};

use crate::backend::jit::assembler::Mem;
use crate::backend::jit::forms::direct::Effect;
use crate::backend::jit::forms::operand::{Operand, accesses_memory};
use crate::backend::jit::registers::map::{Guest, host};
use crate::backend::jit::registers::scratch::{ScratchRegs, guest};
use crate::backend::jit::templates::direct::set_memory;
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::{Access, canonical};

/// Upper bound on the bytes from the first to the last that a run accesses. Where a page ends among
/// them, `exec` executes the run.
const MAX_RANGE: i64 = 64;

/// Instructions that access memory at `base`, from `lowest` to `end`, and others between them that
/// neither access memory nor change `base`.
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
    /// It names registers alone.
    Registers,
    /// LEA.
    Address,
    /// A conditional branch that is not taken.
    Branch,
}

/// Whether `i`, which is no LEA, has no operand but a memory operand and registers of which at most
/// one needs a scratch register.
fn fits_scratch(i: &Instruction) -> bool {
    let mut other = Register::None;
    (0..i.op_count()).all(|n| {
        let r = i.op_register(n);
        if i.op_kind(n) != OpKind::Register || guest(r).is_some_and(|r| host(r).is_some()) {
            return true;
        }
        let is_same = guest(r).is_some() && other == r.full_register();
        if other != Register::None && !is_same {
            return false;
        }
        other = r.full_register();
        r.is_gpr()
    })
}

impl Step {
    /// Returns what `item` does, if it can be part of a run in a block at `rip`.
    fn of(item: &Item, rip: u64) -> Option<Self> {
        use Mnemonic::{
            Add, And, Cmp, Dec, Inc, Lea, Mov, Movsx, Movsxd, Movzx, Neg, Not, Or, Sar, Shl, Shr,
            Sub, Test, Xor,
        };
        let i = &item.decoded;
        if i.is_jcc_short_or_near() && i.op0_kind() == OpKind::NearBranch64 {
            return canonical(rip.wrapping_add(item.insn.imm)).then_some(Self::Branch);
        }
        if i.mnemonic() == Lea {
            let operand = Operand::of(i, &item.insn, rip)?;
            let others = [operand.base, operand.index.map(|(index, _)| index)];
            let mut others = others.into_iter().flatten().filter(|r| host(*r).is_none());
            let other = others.next();
            let fits = others.all(|r| Some(r) == other)
                && i32::try_from(operand.disp).is_ok()
                && i.op0_register().size() >= 4;
            return (item.available && fits).then_some(Self::Address);
        }
        let form = item.direct?;
        let is_move = matches!(i.mnemonic(), Mov | Movzx | Movsx | Movsxd);
        let is_logic = matches!(i.mnemonic(), Add | Sub | And | Or | Xor | Cmp | Test);
        let is_direct = matches!(form.effect, Effect::Keeps | Effect::Writes(_));
        if !is_direct || i.has_lock_prefix() || !fits_scratch(i) {
            return None;
        }
        if accesses_memory(i, &item.insn) {
            let operand = Operand::of(i, &item.insn, rip)?;
            let is_plain = operand.index.is_none() && operand.segment.is_none();
            let is_read = i.op0_kind() != OpKind::Memory || matches!(i.mnemonic(), Cmp | Test);
            let access = if is_read { Access::Read } else { Access::Write };
            let fits = (is_move || is_logic) && is_plain && operand.base.is_some();
            return fits.then_some(Self::Access { operand, access });
        }
        // SETcc and CMOVcc have a condition.
        let is_other = matches!(i.mnemonic(), Inc | Dec | Neg | Not | Shl | Shr | Sar)
            || i.condition_code() != ConditionCode::None;
        (is_move || is_logic || is_other).then_some(Self::Registers)
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
                (Some(_), Some(_)) => {}
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
    pub(crate) fn coalesced_accesses(&mut self, items: &[Item]) -> Result<usize, IcedError> {
        let Some(run) = Run::of(items, self.context.rip) else {
            return Ok(0);
        };
        self.flags.release_host(self.asm);
        let before = self.flags.location();
        let missed = self.asm.label();
        let all = Operand::at(run.base, run.lowest, (run.end - run.lowest) as usize);
        let m = self.probe(&all, run.access, missed);
        for (n, item) in items[..run.len].iter().enumerate() {
            match (Step::of(item, self.context.rip), &item.direct) {
                (Some(Step::Branch), _) => {
                    self.branch(item)?;
                }
                (Some(Step::Address), _) => {
                    self.lea(item, ScratchRegs::beside(true))?;
                }
                (Some(step), Some(form)) => {
                    let mut i = item.decoded;
                    i.set_code(form.code);
                    let mut regs = ScratchRegs::beside(true);
                    let is_free = self.substitute(&mut i, &mut regs);
                    debug_assert!(is_free);
                    if let Step::Access { operand, .. } = step {
                        let disp = m.disp + (operand.disp - run.lowest) as i32;
                        set_memory(&mut i, &Mem { disp, ..m });
                    }
                    self.emit_direct(item, form, &i, &regs, &items[n + 1..])?;
                }
                _ => {}
            }
        }
        // Each access may fault: `exec` executes them one by one, in one call.
        let back = self.asm.here();
        self.on_miss_of(missed, back, items[0].start, run.len as u8, before);
        Ok(run.len)
    }
}
