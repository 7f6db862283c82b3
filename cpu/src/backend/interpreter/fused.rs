//! CMP and TEST with the conditional jump behind them: one piece of code executes the two
//! instructions, one after the other.
//!
//! It leaves the flags that CMP or TEST leaves. It finds the condition from the operands, which is
//! faster than from the flags.

use std::marker::PhantomData;

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::backend::interpreter::dispatch::{At, Done, Run, retry_slow};
use crate::exec::alu::{Immediate, Register, Source};
use crate::exec::branch::jump;
use crate::insn::{Abort, Exec, Flow, Insn, operand};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;

/// The instruction before the jump.
trait Kind {
    /// The flags that it leaves, and whether they meet condition `C`.
    fn compare<const C: u8, T: Int>(a: T, b: T) -> (Lazy, bool);
}

struct Cmp;
impl Kind for Cmp {
    #[inline(always)]
    fn compare<const C: u8, T: Int>(a: T, b: T) -> (Lazy, bool) {
        let r = T::from_u64(a.zext().wrapping_sub(b.zext()));
        let flags = Lazy::sub(a, b, r);
        let (sa, sb) = (a.sext() as i64, b.sext() as i64);
        let negated = C & 1 != 0;
        let met = match C >> 1 {
            1 => (a < b) != negated,
            2 => (a == b) != negated,
            3 => (a <= b) != negated,
            6 => (sa < sb) != negated,
            7 => (sa <= sb) != negated,
            _ => flags.cond::<C>(),
        };
        (flags, met)
    }
}

struct Test;
impl Kind for Test {
    #[inline(always)]
    fn compare<const C: u8, T: Int>(a: T, b: T) -> (Lazy, bool) {
        let flags = Lazy::logic(T::from_u64(a.zext() & b.zext()));
        (flags, flags.cond::<C>())
    }
}

/// Where the two operands are.
trait Form {
    /// The operands; `forwarded` is the value of operand `N`. It aborts where the TLB alone does
    /// not find the memory operand.
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<(T, T), Abort>;
}

/// A register, and `S`.
struct RegisterWith<S>(PhantomData<S>);
impl<S: Source> Form for RegisterWith<S> {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<(T, T), Abort> {
        let a = cpu.first::<N, T>(insn.dst, forwarded);
        Ok((a, S::read::<N, T>(cpu, insn, forwarded)))
    }
}

/// A register, and memory.
struct RegisterWithMemory;
impl Form for RegisterWithMemory {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<(T, T), Abort> {
        let b = cpu.load_if::<true, T>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok((cpu.r(insn.dst), b))
    }
}

/// Memory, and `S`.
struct MemoryWith<S>(PhantomData<S>);
impl<S: Source> Form for MemoryWith<S> {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<(T, T), Abort> {
        let a = cpu.load_if::<true, T>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok((a, S::read::<{ operand::NONE }, T>(cpu, insn, 0)))
    }
}

/// Code of the two instructions, for condition `C`. Operand `N` of the first one is forwarded.
fn run<'a, const C: u8, const N: u8, K: Kind, F: Form, T: Int>(
    cpu: &mut Cpu,
    at: At<'a>,
    forwarded: u64,
) -> Done<'a> {
    match F::operands::<N, T>(cpu, at.insn(), forwarded) {
        Ok((a, b)) => {
            let (flags, met) = K::compare::<C, T>(a, b);
            cpu.flags = flags;
            let jcc = |cpu: &mut Cpu, insn: &Insn| -> Exec {
                if met {
                    jump::<u64>(cpu, insn)
                } else {
                    Ok(Flow::Next)
                }
            };
            // SAFETY: `select` gives this code to an operation that is followed by the Jcc.
            unsafe { at.with_next(cpu, forwarded, jcc) }
        }
        Err(Abort) => retry_slow(cpu, at, forwarded),
    }
}

fn by_operand<const C: u8, K: Kind, F: Form, T: Int>(operand: u8) -> Run {
    match operand {
        operand::FIRST => run::<C, { operand::FIRST }, K, F, T>,
        operand::SECOND => run::<C, { operand::SECOND }, K, F, T>,
        _ => run::<C, { operand::NONE }, K, F, T>,
    }
}

fn by_condition<K: Kind, F: Form, T: Int>(jump: &Instruction, operand: u8) -> Option<Run> {
    // iced-x86 numbers the conditions as the opcode does, after `None`.
    let condition = (jump.condition_code() as u8).wrapping_sub(1);
    Some(match condition {
        2 => by_operand::<2, K, F, T>(operand),
        3 => by_operand::<3, K, F, T>(operand),
        4 => by_operand::<4, K, F, T>(operand),
        5 => by_operand::<5, K, F, T>(operand),
        6 => by_operand::<6, K, F, T>(operand),
        7 => by_operand::<7, K, F, T>(operand),
        8 => by_operand::<8, K, F, T>(operand),
        9 => by_operand::<9, K, F, T>(operand),
        12 => by_operand::<12, K, F, T>(operand),
        13 => by_operand::<13, K, F, T>(operand),
        14 => by_operand::<14, K, F, T>(operand),
        15 => by_operand::<15, K, F, T>(operand),
        // The conditions of OF and PF are rare.
        _ => return None,
    })
}

fn by_size<K: Kind, F: Form>(first: &Instruction, jump: &Instruction, operand: u8) -> Option<Run> {
    let size = match first.op0_kind() {
        OpKind::Register => first.op0_register().size(),
        _ => first.memory_size().size(),
    };
    match size {
        1 => by_condition::<K, F, u8>(jump, operand),
        4 => by_condition::<K, F, u32>(jump, operand),
        8 => by_condition::<K, F, u64>(jump, operand),
        _ => None,
    }
}

fn by_form<K: Kind>(first: &Instruction, jump: &Instruction, operand: u8) -> Option<Run> {
    match (first.op0_kind(), first.op1_kind()) {
        (OpKind::Register, OpKind::Register) => {
            by_size::<K, RegisterWith<Register>>(first, jump, operand)
        }
        (OpKind::Register, OpKind::Memory) => {
            by_size::<K, RegisterWithMemory>(first, jump, operand)
        }
        (OpKind::Register, _) => by_size::<K, RegisterWith<Immediate>>(first, jump, operand),
        (OpKind::Memory, OpKind::Register) => {
            by_size::<K, MemoryWith<Register>>(first, jump, operand)
        }
        (OpKind::Memory, _) => by_size::<K, MemoryWith<Immediate>>(first, jump, operand),
        _ => None,
    }
}

/// Code for the operation of `first` that also executes `second`, the next instruction of the
/// block. The operation of `first` keeps its body, and that of `second` its code, since the two are
/// executed one by one where the TLB does not find the memory operand. `operand` of `first` is
/// forwarded.
pub(crate) fn select(first: &Instruction, second: &Instruction, operand: u8) -> Option<Run> {
    if !second.is_jcc_short_or_near() || second.op0_kind() != OpKind::NearBranch64 {
        return None;
    }
    match first.mnemonic() {
        Mnemonic::Cmp => by_form::<Cmp>(first, second, operand),
        Mnemonic::Test => by_form::<Test>(first, second, operand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::flags::tests::edges;

    fn check<const C: u8, T: Int>(a: T, b: T) {
        let (flags, met) = Cmp::compare::<C, T>(a, b);
        assert_eq!(met, flags.cond::<C>(), "CMP {a:?}, {b:?}, condition {C}");
        let r = T::from_u64(a.zext().wrapping_sub(b.zext()));
        assert_eq!(flags, Lazy::sub(a, b, r));
    }

    fn check_all<T: Int>(a: u64, b: u64) {
        let (a, b) = (T::from_u64(a), T::from_u64(b));
        check::<2, T>(a, b);
        check::<3, T>(a, b);
        check::<4, T>(a, b);
        check::<5, T>(a, b);
        check::<6, T>(a, b);
        check::<7, T>(a, b);
        check::<8, T>(a, b);
        check::<9, T>(a, b);
        check::<12, T>(a, b);
        check::<13, T>(a, b);
        check::<14, T>(a, b);
        check::<15, T>(a, b);
    }

    #[test]
    fn conditions_are_those_of_the_flags() {
        let values = edges();
        for &a in &values {
            for &b in &values {
                check_all::<u8>(a, b);
                check_all::<u32>(a, b);
                check_all::<u64>(a, b);
            }
        }
    }
}
