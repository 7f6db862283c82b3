//! Flags that are not saved before the look-up of a memory operand overwrites the host's, because
//! the guest overwrites them, too. Only an operand that is not in the TLB makes them visible, since
//! it can fault. They are computed again then, from what their instruction has left.

use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind};

use crate::backend::jit::assembler::{Assembler, RAX, Reg};
use crate::backend::jit::borrowed::guest;
use crate::backend::jit::flags::{self, Fix, Place};
use crate::backend::jit::form::{self, Effect};
use crate::backend::jit::layout::HOST;
use crate::backend::jit::translate::{Item, Translator};

/// An instruction of two operands that writes all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arithmetic {
    /// For `r/m8, r8`.
    opcode: u8,
    /// For `r/m8, imm8`, with an extension in ModRM.
    of_immediate: (u8, u8),
}

const ADD: Arithmetic = arithmetic(0x00, (0x80, 0));
const SUB: Arithmetic = arithmetic(0x28, (0x80, 5));
const CMP: Arithmetic = arithmetic(0x38, (0x80, 7));
const TEST: Arithmetic = arithmetic(0x84, (0xF6, 0));

const fn arithmetic(opcode: u8, of_immediate: (u8, u8)) -> Arithmetic {
    Arithmetic {
        opcode,
        of_immediate,
    }
}

/// An operand that its instruction has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Register(Reg),
    Immediate(i32),
}

/// How to compute the flags of an instruction again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recompute {
    /// Makes the first operand from the result, if it has been overwritten.
    undo: Option<Arithmetic>,
    arithmetic: Arithmetic,
    /// Bytes of the operands.
    size: usize,
    /// The first operand, or the result.
    register: Reg,
    value: Value,
    fix: Fix,
}

impl Recompute {
    /// For the flags of `i`, which `fix` makes those of the guest. `None`: it has no such form, or
    /// has left neither its operands nor a result in registers of the host.
    fn of(i: &Instruction, fix: Fix) -> Option<Self> {
        let register = |n: u32| match i.op_kind(n) {
            OpKind::Register => HOST[usize::from(guest(i.op_register(n))?)],
            _ => None,
        };
        let result = register(0)?;
        let second = || match i.op_kind(1) {
            OpKind::Memory => None,
            OpKind::Register => register(1).map(Value::Register),
            _ => Some(Value::Immediate(i.immediate(1) as i32)),
        };
        let size = i.op0_register().size();
        let (undo, arithmetic, value) = match i.mnemonic() {
            Mnemonic::Cmp => (None, CMP, second()?),
            Mnemonic::Test => (None, TEST, second()?),
            // Their flags are those of the result.
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => (None, TEST, Value::Register(result)),
            Mnemonic::Add if size >= 4 => (Some(SUB), ADD, second()?),
            Mnemonic::Sub if size >= 4 => (Some(ADD), SUB, second()?),
            _ => return None,
        };
        let is_lost = undo.is_some() && value == Value::Register(result);
        (!is_lost).then_some(Self {
            undo,
            arithmetic,
            size,
            register: result,
            value,
            fix,
        })
    }

    /// Whether it reads the host register.
    fn reads(&self, r: Reg) -> bool {
        r == self.register || Value::Register(r) == self.value
    }

    /// Saves the flags. Overwrites RAX and the host's flags.
    pub(super) fn save(&self, a: &mut Assembler) {
        let mut register = self.register;
        if let Some(undo) = self.undo {
            a.mov(RAX, register);
            register = RAX;
            self.apply(undo, register, a);
        }
        self.apply(self.arithmetic, register, a);
        flags::save(a, self.fix);
    }

    fn apply(&self, arithmetic: Arithmetic, to: Reg, a: &mut Assembler) {
        let (opcode, reg) = match self.value {
            Value::Register(r) => (arithmetic.opcode, r),
            Value::Immediate(_) => arithmetic.of_immediate,
        };
        if self.size == 2 {
            a.bytes(&[0x66]);
        }
        // Without a REX prefix, bytes of 4 to 7 are the second ones of the first four registers.
        let second = matches!(self.value, Value::Register(r) if r >= 4);
        if self.size == 1 && (second || to >= 4) && to < 8 && reg < 8 {
            a.bytes(&[0x40]);
        }
        let full = u8::from(self.size > 1);
        a.registers(self.size == 8, &[opcode | full], reg, to);
        if let Value::Immediate(n) = self.value {
            a.bytes(&n.to_le_bytes()[..self.size.min(4)]);
        }
    }
}

impl Translator<'_> {
    /// How to compute the flags again that `item` has left in the host's, if only a memory access
    /// that misses the TLB can observe them before the guest overwrites them.
    pub(super) fn recompute(&mut self, item: &Item, fix: Fix, rest: &[Item]) -> Option<Recompute> {
        // Code that is checked can end before each of them.
        if self.context.checks {
            return None;
        }
        let recompute = Recompute::of(&item.decoded, fix)?;
        let mut is_lost = false;
        for item in rest {
            let plain = item.plain.filter(|plain| plain.reads == 0)?;
            if is_lost && form::accesses_memory(&item.decoded, &item.insn) {
                return None;
            }
            match plain.effect {
                Effect::Writes(_) => return Some(recompute),
                Effect::Keeps => is_lost |= self.overwrites(&item.decoded, &recompute),
                _ => return None,
            }
        }
        None
    }

    fn overwrites(&mut self, i: &Instruction, recompute: &Recompute) -> bool {
        self.info.info(i).used_registers().iter().any(|used| {
            let host = guest_of(used.register()).and_then(|guest| HOST[guest]);
            let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            !is_read && host.is_some_and(|host| recompute.reads(host))
        })
    }

    /// Leaves the host's flags to be overwritten by the look-up of a memory operand. Overwrites
    /// RAX.
    pub(super) fn give_up_flags(&mut self) {
        match (self.place, self.again) {
            (Place::Host(_), Some(again)) => self.place = Place::Lost(again),
            _ => self.save_flags(),
        }
    }
}

/// Number of the general register that has `r`.
fn guest_of(r: iced_x86::Register) -> Option<usize> {
    r.is_gpr().then(|| r.full_register().number())
}
