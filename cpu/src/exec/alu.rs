//! Binary and unary arithmetic and logic: ADD to CMP, TEST, INC, DEC, NEG, NOT.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{by_size, operand_size};
use crate::backend::interpreter::dispatch::{Passes, Threaded};
use crate::insn::{Abort, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};

/// An operation on two operands that sets the flags.
trait Binary {
    /// Whether the result is written to the first operand.
    const WRITES: bool = true;
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T;
}

/// Defines a [`Binary`]: result of two 64-bit operands (and the old CF), and how the flags come
/// from it.
macro_rules! binary {
    ($name:ident, |$cpu:ident, $a:ident, $b:ident| $result:expr, $flags:ident) => {
        struct $name;
        impl Binary for $name {
            #[inline(always)]
            fn apply<T: Int>($cpu: &mut Cpu, a: T, b: T) -> T {
                let ($a, $b) = (a.zext(), b.zext());
                let r = T::from_u64($result);
                $cpu.flags = flags!($flags, a, b, r);
                r
            }
        }
    };
}
macro_rules! flags {
    (logic, $a:expr, $b:expr, $r:expr) => {
        Lazy::logic($r)
    };
    ($f:ident, $a:expr, $b:expr, $r:expr) => {
        Lazy::$f($a, $b, $r)
    };
}

binary!(Add, |cpu, a, b| a.wrapping_add(b), add);
binary!(
    Adc,
    |cpu, a, b| a.wrapping_add(b).wrapping_add(u64::from(cpu.flags.cf())),
    adc
);
binary!(Sub, |cpu, a, b| a.wrapping_sub(b), sub);
binary!(
    Sbb,
    |cpu, a, b| a.wrapping_sub(b).wrapping_sub(u64::from(cpu.flags.cf())),
    sbb
);
binary!(And, |cpu, a, b| a & b, logic);
binary!(Or, |cpu, a, b| a | b, logic);
binary!(Xor, |cpu, a, b| a ^ b, logic);

struct Cmp;
impl Binary for Cmp {
    const WRITES: bool = false;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        Sub::apply(cpu, a, b)
    }
}

struct Test;
impl Binary for Test {
    const WRITES: bool = false;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        And::apply(cpu, a, b)
    }
}

/// An operation on one operand.
trait Unary {
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T;
}

struct Inc;
impl Unary for Inc {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
        let one = T::from_u64(1);
        let r = T::from_u64(a.zext().wrapping_add(1));
        cpu.flags = Lazy::add(a, one, r).keep_cf(cpu.flags);
        r
    }
}

struct Dec;
impl Unary for Dec {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
        let one = T::from_u64(1);
        let r = T::from_u64(a.zext().wrapping_sub(1));
        cpu.flags = Lazy::sub(a, one, r).keep_cf(cpu.flags);
        r
    }
}

struct Neg;
impl Unary for Neg {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
        Sub::apply(cpu, T::default(), a)
    }
}

struct Not;
impl Unary for Not {
    #[inline(always)]
    fn apply<T: Int>(_: &mut Cpu, a: T) -> T {
        T::from_u64(!a.zext())
    }
}

/// Computes the result; writes it if the operation does. Returns what is passed on.
#[inline(always)]
fn result<O: Binary, T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, b: T, passed: u64) -> u64 {
    let r = O::apply(cpu, a, b);
    if O::WRITES {
        cpu.set(insn.dst, r)
    } else {
        passed
    }
}

fn reg_reg<const N: u8, O: Binary, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    let b = cpu.second::<N, T>(insn.src, passed);
    result::<O, T>(cpu, insn, a, b, passed)
}

fn reg_imm<const N: u8, O: Binary, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    result::<O, T>(cpu, insn, a, T::from_u64(insn.imm), passed)
}

fn reg_mem<const HIT: bool, const N: u8, O: Binary, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let b = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, passed))?;
    let a = cpu.r::<T>(insn.dst);
    Ok(result::<O, T>(cpu, insn, a, b, passed))
}

#[inline(always)]
fn mem_value<const HIT: bool, const N: u8, O: Binary, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    b: T,
    passed: u64,
) -> Result<u64, Abort> {
    let la = cpu.ea_of::<N>(insn, passed);
    if O::WRITES {
        cpu.modify_if::<HIT, T>(insn, la, move |cpu, a| O::apply(cpu, a, b))?;
    } else {
        let a = cpu.load_if::<HIT, T>(la)?;
        O::apply(cpu, a, b);
    }
    Ok(passed)
}

fn mem_reg<const HIT: bool, const N: u8, O: Binary, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let b = cpu.r::<T>(insn.src);
    mem_value::<HIT, N, O, T>(cpu, insn, b, passed)
}

fn mem_imm<const HIT: bool, const N: u8, O: Binary, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    mem_value::<HIT, N, O, T>(cpu, insn, T::from_u64(insn.imm), passed)
}

fn unary_reg<const N: u8, O: Unary, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    let r = O::apply(cpu, a);
    cpu.set(insn.dst, r)
}

fn unary_mem<const HIT: bool, const N: u8, O: Unary, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    cpu.modify_if::<HIT, T>(insn, cpu.ea_of::<N>(insn, passed), |cpu, a| {
        O::apply(cpu, a)
    })?;
    Ok(passed)
}

fn binary<O: Binary>(i: &Instruction) -> Threaded {
    let size = operand_size(i, 0);
    let mem0 = i.op0_kind() == OpKind::Memory;
    let to_register = |form: Threaded| {
        if O::WRITES {
            form.writes(size)
        } else {
            form.passes(Passes::Same)
        }
    };
    match (mem0, i.op1_kind()) {
        (false, OpKind::Register) => to_register(by_size!(registers, size, reg_reg::<O>)),
        (false, OpKind::Memory) if O::WRITES => by_size!(load, size, reg_mem::<O>).writes(size),
        (false, OpKind::Memory) => by_size!(store, size, reg_mem::<O>),
        (false, _) => to_register(by_size!(registers, size, reg_imm::<O>)),
        (true, OpKind::Register) => by_size!(store, size, mem_reg::<O>),
        (true, _) => by_size!(store, size, mem_imm::<O>),
    }
}

fn unary<O: Unary>(i: &Instruction) -> Threaded {
    let size = operand_size(i, 0);
    if i.op0_kind() == OpKind::Memory {
        by_size!(store, size, unary_mem::<O>)
    } else {
        by_size!(registers, size, unary_reg::<O>).writes(size)
    }
}

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    Some(match i.mnemonic() {
        Mnemonic::Add => binary::<Add>(i),
        Mnemonic::Adc => binary::<Adc>(i),
        Mnemonic::Sub => binary::<Sub>(i),
        Mnemonic::Sbb => binary::<Sbb>(i),
        Mnemonic::And => binary::<And>(i),
        Mnemonic::Or => binary::<Or>(i),
        Mnemonic::Xor => binary::<Xor>(i),
        Mnemonic::Cmp => binary::<Cmp>(i),
        Mnemonic::Test => binary::<Test>(i),
        Mnemonic::Inc => unary::<Inc>(i),
        Mnemonic::Dec => unary::<Dec>(i),
        Mnemonic::Neg => unary::<Neg>(i),
        Mnemonic::Not => unary::<Not>(i),
        _ => return None,
    })
}
