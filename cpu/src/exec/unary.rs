//! Arithmetic and logic with one operand: INC, DEC, NEG, NOT.

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::alu::{Binary, Sub};
use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Memory, Registers, Table};
use crate::insn::{Abort, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;

/// An operation on one operand.
trait Unary {
    /// Its effect on the flags.
    const FLAGS: FlagEffect;
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T;
}

struct Inc;
impl Unary for Inc {
    const FLAGS: FlagEffect = FlagEffect::ArithmeticKeepsCf;
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
    const FLAGS: FlagEffect = FlagEffect::ArithmeticKeepsCf;
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
    const FLAGS: FlagEffect = FlagEffect::Arithmetic;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
        Sub::apply(cpu, T::default(), a)
    }
}

struct Not;
impl Unary for Not {
    const FLAGS: FlagEffect = FlagEffect::Keeps;
    #[inline(always)]
    fn apply<T: Int>(_: &mut Cpu, a: T) -> T {
        T::from_u64(!a.zext())
    }
}

/// [`Unary`] `O` of a register or memory.
struct Of<O>(PhantomData<O>);

impl<O: Unary> Registers for Of<O> {
    const FLAGS: Option<FlagEffect> = Some(O::FLAGS);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let a = cpu.first::<N, T>(insn.dst, forwarded);
        let r = O::apply(cpu, a);
        cpu.set(insn.dst, r)
    }
}

impl<O: Unary> Memory for Of<O> {
    const WRITES: bool = false;
    const FLAGS: Option<FlagEffect> = Some(O::FLAGS);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let la = cpu.ea_of::<N>(insn, forwarded);
        cpu.modify_if::<HIT, T>(insn, la, |cpu, a| O::apply(cpu, a))?;
        Ok(forwarded)
    }
}

fn unary<B: Backend, O: Unary>(t: &mut Table<B>, rm: [Code; 4]) {
    t.registers_8_to_64::<Of<O>>(rm);
    t.memory_8_to_64::<Of<O>>(rm);
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    unary::<B, Inc>(t, [Inc_rm8, Inc_rm16, Inc_rm32, Inc_rm64]);
    unary::<B, Dec>(t, [Dec_rm8, Dec_rm16, Dec_rm32, Dec_rm64]);
    unary::<B, Neg>(t, [Neg_rm8, Neg_rm16, Neg_rm32, Neg_rm64]);
    unary::<B, Not>(t, [Not_rm8, Not_rm16, Not_rm32, Not_rm64]);
    t.registers::<Of<Inc>, u16>(Inc_r16);
    t.registers::<Of<Inc>, u32>(Inc_r32);
    t.registers::<Of<Dec>, u16>(Dec_r16);
    t.registers::<Of<Dec>, u32>(Dec_r32);
}
