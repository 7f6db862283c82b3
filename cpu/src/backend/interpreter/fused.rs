//! CMP and TEST with the conditional jump behind them: two instructions, one after the other, by
//! one piece of code.
//!
//! The flags are what CMP or TEST leaves; the condition is found from the operands.

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::backend::interpreter::dispatch::{Run, again};
use crate::exec::branch::jump;
use crate::exec::{condition, operand_size};
use crate::insn::{Abort, Exec, Flow, Insn, operand};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};

/// What the jump looks at.
trait Kind {
    /// The flags, and whether condition `C` is met.
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

/// Where the operands are; operand `N` is passed.
trait Form {
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort>;
}

struct RegReg;
impl Form for RegReg {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort> {
        Ok((
            cpu.first::<N, T>(insn.dst, passed),
            cpu.second::<N, T>(insn.src, passed),
        ))
    }
}

struct RegImm;
impl Form for RegImm {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort> {
        Ok((cpu.first::<N, T>(insn.dst, passed), T::from_u64(insn.imm)))
    }
}

/// The memory operand.
#[inline(always)]
fn memory<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> Result<T, Abort> {
    cpu.load_if::<true, T>(cpu.ea_of::<N>(insn, passed))
}

struct RegMem;
impl Form for RegMem {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort> {
        let b = memory::<N, T>(cpu, insn, passed)?;
        Ok((cpu.r(insn.dst), b))
    }
}

struct MemReg;
impl Form for MemReg {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort> {
        let a = memory::<N, T>(cpu, insn, passed)?;
        Ok((a, cpu.r(insn.src)))
    }
}

struct MemImm;
impl Form for MemImm {
    #[inline(always)]
    fn operands<const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        passed: u64,
    ) -> Result<(T, T), Abort> {
        let a = memory::<N, T>(cpu, insn, passed)?;
        Ok((a, T::from_u64(insn.imm)))
    }
}

fn code<const C: u8, const N: u8, K: Kind, F: Form, T: Int>() -> Run {
    |cpu, at, passed| match F::operands::<N, T>(cpu, at.insn(), passed) {
        Ok((a, b)) => {
            let (flags, met) = K::compare::<C, T>(a, b);
            cpu.flags = flags;
            at.with_next(cpu, passed, |cpu, insn| -> Exec {
                if met {
                    jump::<u64>(cpu, insn)
                } else {
                    Ok(Flow::Next)
                }
            })
        }
        Err(Abort) => again(cpu, at, passed),
    }
}

fn by_operand<const C: u8, K: Kind, F: Form, T: Int>(operand: u8) -> Run {
    match operand {
        operand::FIRST => code::<C, { operand::FIRST }, K, F, T>(),
        operand::SECOND => code::<C, { operand::SECOND }, K, F, T>(),
        _ => code::<C, { operand::NONE }, K, F, T>(),
    }
}

fn by_condition<K: Kind, F: Form, T: Int>(jump: &Instruction, operand: u8) -> Option<Run> {
    Some(match condition(jump) {
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
        // Of OF and PF: rare.
        _ => return None,
    })
}

fn by_size<K: Kind, F: Form>(first: &Instruction, jump: &Instruction, operand: u8) -> Option<Run> {
    match operand_size(first, 0) {
        1 => by_condition::<K, F, u8>(jump, operand),
        4 => by_condition::<K, F, u32>(jump, operand),
        8 => by_condition::<K, F, u64>(jump, operand),
        _ => None,
    }
}

fn by_form<K: Kind>(first: &Instruction, jump: &Instruction, operand: u8) -> Option<Run> {
    match (first.op0_kind(), first.op1_kind()) {
        (OpKind::Register, OpKind::Register) => by_size::<K, RegReg>(first, jump, operand),
        (OpKind::Register, OpKind::Memory) => by_size::<K, RegMem>(first, jump, operand),
        (OpKind::Register, _) => by_size::<K, RegImm>(first, jump, operand),
        (OpKind::Memory, OpKind::Register) => by_size::<K, MemReg>(first, jump, operand),
        (OpKind::Memory, _) => by_size::<K, MemImm>(first, jump, operand),
        _ => None,
    }
}

/// Code for the operation of `first` that also executes that of `second`, which is the next in its
/// block. The operation of `first` keeps its body, and that of `second` its code: to be executed
/// one by one where memory is not what the TLB has. `operand` of the first is passed.
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
