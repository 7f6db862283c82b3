//! What is known of the two registers that native code uses for itself, RAX and R14.
//!
//! A sequence of instructions bounds a pointer. Each of them takes what is known one step further;
//! any other instruction that names the register takes it away, and so does a jump to the place.

use iced_x86::Mnemonic::{Add, And, Cmp, Lea, Mov};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::Rules;
use crate::memory::{displacement, is_direct, is_field};

/// What a register has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Value {
    #[default]
    Unknown,
    /// Offset of an entry of the TLB.
    TlbOffset,
    /// Address of the entry.
    TlbEntry,
    /// Address of the TLB.
    Tlb,
    /// Number that selects an entry of the table of jump targets.
    JumpNumber,
    /// Address of the table.
    Jumps,
    /// Address of the entry.
    JumpEntry,
    /// Address of the entry, which has been compared with the target: the flags have the result.
    JumpCompared,
    /// Address of the entry, which is that of the target.
    JumpFound,
    /// The target of an indirect jump.
    Target,
    /// Index of the window of records.
    Index,
    /// The index, which has been compared with the end: the flags have the result.
    IndexCompared,
    /// The index, which is below the end.
    IndexBelowEnd,
    /// The index of the record behind it.
    NextIndex,
    /// The number of a bit in 8 bytes.
    BitNumber,
}

use Value::{
    BitNumber, Index, IndexBelowEnd, IndexCompared, JumpCompared, JumpEntry, JumpFound, JumpNumber,
    Jumps, NextIndex, Target, Tlb, TlbEntry, TlbOffset, Unknown,
};

/// What both registers have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scratch {
    rax: Value,
    r14: Value,
}

/// Bytes that the constant form of a look-up can read, from the start of the TLB on.
fn tlb_len(rules: &Rules<'_>) -> i64 {
    i64::from(rules.tlb_mask) + i64::from(rules.tlb_entry)
}

impl Scratch {
    /// Whether the memory operand, at one register, can be read.
    pub fn may_read(&self, rules: &Rules<'_>, i: &Instruction) -> bool {
        let value = match i.memory_base() {
            Register::RAX => self.rax,
            Register::R14 => self.r14,
            _ => return false,
        };
        let (at, size) = (i64::from(displacement(i)), i.memory_size().size() as i64);
        let end = match value {
            TlbEntry => i64::from(rules.tlb_entry),
            Tlb => tlb_len(rules),
            JumpEntry => i64::from(rules.jump_code),
            _ => return false,
        };
        at >= 0 && at + size <= end
    }

    /// Whether `i`, an indirect jump, leads to the code of an entry that has been found.
    pub fn may_jump(&self, rules: &Rules<'_>, i: &Instruction) -> bool {
        i.code() == Code::Jmp_rm64
            && i.op0_kind() == OpKind::Memory
            && is_direct(i)
            && i.memory_base() == Register::R14
            && self.r14 == JumpFound
            && displacement(i) as u32 == rules.jump_code
    }

    /// Whether `i` stores the index of the next record.
    pub fn may_store_index(&self, i: &Instruction) -> bool {
        i.code() == Code::Mov_rm64_r64 && i.op1_register() == Register::RAX && self.rax == NextIndex
    }

    /// Whether a register has the number of a bit in an operand of 8 bytes.
    pub fn has_bit_number(&self, r: Register) -> bool {
        r.full_register() == Register::RAX && self.rax == BitNumber
    }

    /// What is known after `i`.
    pub fn after(self, rules: &Rules<'_>, i: &Instruction) -> Self {
        let Self { rax, r14 } = self;
        let first = i.op0_register();
        let may_begin = matches!(first, Register::RAX | Register::EAX | Register::R14);
        if !may_begin && (rax, r14) == (Unknown, Unknown) {
            return self;
        }
        // A comparison is followed by the jump that uses it.
        if rax == IndexCompared {
            let is_below = i.mnemonic() == Mnemonic::Jae;
            let rax = if is_below { IndexBelowEnd } else { Unknown };
            return Self { rax, r14 }.forget(i);
        }
        if r14 == JumpCompared {
            let is_found = i.mnemonic() == Mnemonic::Jne;
            let r14 = if is_found { JumpFound } else { Unknown };
            return Self { rax, r14 }.forget(i);
        }
        let field =
            |base: Register, at: i32| i.op1_kind() == OpKind::Memory && is_field(i, base, at);
        let value = || is_immediate(i.op1_kind()).then(|| i.immediate(1));
        let is = |rax_is: Value, r14_is: Value| {
            Some(Self {
                rax: rax_is,
                r14: r14_is,
            })
        };
        let next = match (i.mnemonic(), i.op0_kind(), first) {
            (_, kind, _) if kind != OpKind::Register => None,
            (Mov, _, Register::RAX) if field(Register::R15, rules.window_index) => is(Index, r14),
            (Mov, _, Register::RAX) if field(Register::RSP, rules.target) => is(Target, r14),
            (Mov, _, Register::R14) if field(Register::R15, rules.tlb) => is(rax, Tlb),
            (Cmp, _, Register::RAX) if rax == Index && field(Register::R15, rules.window_end) => {
                is(IndexCompared, r14)
            }
            (Cmp, _, Register::RAX)
                if (rax, r14) == (Target, JumpEntry) && field(Register::R14, 0) =>
            {
                is(rax, JumpCompared)
            }
            (Add, _, Register::RAX)
                if rax == IndexBelowEnd && value() == Some(rules.record.into()) =>
            {
                is(NextIndex, r14)
            }
            (And, _, Register::EAX) => match value().map(|value| value as u32) {
                Some(mask) if mask == rules.tlb_mask => is(TlbOffset, r14),
                Some(mask) if mask == rules.jump_mask => is(JumpNumber, r14),
                Some(mask) if mask < 64 => is(BitNumber, r14),
                _ => None,
            },
            (Add, _, Register::RAX) if rax == TlbOffset && field(Register::R15, rules.tlb) => {
                is(TlbEntry, r14)
            }
            (Lea, _, Register::R14)
                if i.memory_base() == Register::RIP
                    && rules.jumps.contains(&i.ip_rel_memory_address()) =>
            {
                is(rax, Jumps)
            }
            (Lea, _, Register::R14) if is_entry(i) && (rax, r14) == (JumpNumber, Jumps) => {
                is(rax, JumpEntry)
            }
            _ => None,
        };
        next.unwrap_or_else(|| self.forget(i))
    }

    /// What stays known after an instruction that is part of no sequence.
    fn forget(self, i: &Instruction) -> Self {
        let names = |r: Register| {
            (0..i.op_count())
                .any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).full_register() == r)
        };
        let compares = i.mnemonic() == Mnemonic::Cmp || i.mnemonic() == Mnemonic::Test;
        Self {
            rax: match compares || !(names(Register::RAX) || is_implicit(i)) {
                true => self.rax,
                false => Unknown,
            },
            r14: match compares || !(names(Register::R14) || i.mnemonic() == Mnemonic::Call) {
                true => self.r14,
                false => Unknown,
            },
        }
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64
    )
}

/// Whether it is `LEA R14, [R14 + 8 * RAX]`.
fn is_entry(i: &Instruction) -> bool {
    i.memory_base() == Register::R14
        && i.memory_index() == Register::RAX
        && i.memory_index_scale() == 8
        && i.memory_displacement64() == 0
}

/// Whether it writes RAX without naming it, or calls a routine.
fn is_implicit(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Mul | Imul
            | Div
            | Idiv
            | Cbw
            | Cwde
            | Cdqe
            | Cwd
            | Cdq
            | Cqo
            | Cmpxchg
            | Cmpxchg8b
            | Cmpxchg16b
            | Lahf
            | Call
    )
}
