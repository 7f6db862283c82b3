//! Arithmetic and logic with two operands: ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, TEST.

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Memory, Registers, Table};
use crate::insn::operand::NONE;
use crate::insn::{Abort, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;

/// An operation on two operands that sets the flags.
pub(super) trait Binary {
    /// Whether the result is written to the first operand.
    const WRITES: bool = true;
    /// Its effect on the flags.
    const FLAGS: FlagEffect = FlagEffect::Arithmetic;
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T;
}

struct Add;
impl Binary for Add {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let r = T::from_u64(a.zext().wrapping_add(b.zext()));
        cpu.flags = Lazy::add(a, b, r);
        r
    }
}

struct Adc;
impl Binary for Adc {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let carry = u64::from(cpu.flags.cf());
        let r = T::from_u64(a.zext().wrapping_add(b.zext()).wrapping_add(carry));
        cpu.flags = Lazy::adc(a, b, r);
        r
    }
}

pub(super) struct Sub;
impl Binary for Sub {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let r = T::from_u64(a.zext().wrapping_sub(b.zext()));
        cpu.flags = Lazy::sub(a, b, r);
        r
    }
}

struct Sbb;
impl Binary for Sbb {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let borrow = u64::from(cpu.flags.cf());
        let r = T::from_u64(a.zext().wrapping_sub(b.zext()).wrapping_sub(borrow));
        cpu.flags = Lazy::sbb(a, b, r);
        r
    }
}

struct And;
impl Binary for And {
    const FLAGS: FlagEffect = FlagEffect::Logic;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let r = T::from_u64(a.zext() & b.zext());
        cpu.flags = Lazy::logic(r);
        r
    }
}

struct Or;
impl Binary for Or {
    const FLAGS: FlagEffect = FlagEffect::Logic;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let r = T::from_u64(a.zext() | b.zext());
        cpu.flags = Lazy::logic(r);
        r
    }
}

struct Xor;
impl Binary for Xor {
    const FLAGS: FlagEffect = FlagEffect::Logic;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        let r = T::from_u64(a.zext() ^ b.zext());
        cpu.flags = Lazy::logic(r);
        r
    }
}

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
    const FLAGS: FlagEffect = FlagEffect::Logic;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
        And::apply(cpu, a, b)
    }
}

/// The second operand of an instruction whose first operand is in a register or in memory.
pub(crate) trait Source {
    /// Its value. `forwarded` is the value of operand `N`.
    fn read<const N: u8, T: Int>(cpu: &Cpu, insn: &Insn, forwarded: u64) -> T;
}

pub(crate) struct Register;
impl Source for Register {
    #[inline(always)]
    fn read<const N: u8, T: Int>(cpu: &Cpu, insn: &Insn, forwarded: u64) -> T {
        cpu.second::<N, T>(insn.src, forwarded)
    }
}

pub(crate) struct Immediate;
impl Source for Immediate {
    #[inline(always)]
    fn read<const N: u8, T: Int>(_: &Cpu, insn: &Insn, _: u64) -> T {
        T::from_u64(insn.imm)
    }
}

/// [`Binary`] `O` with a second operand `S`. The first operand is a register or in memory.
struct With<O, S>(PhantomData<(O, S)>);

impl<O: Binary, S: Source> Registers for With<O, S> {
    const WRITES: bool = O::WRITES;
    const FLAGS: Option<FlagEffect> = Some(O::FLAGS);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let a = cpu.first::<N, T>(insn.dst, forwarded);
        let b = S::read::<N, T>(cpu, insn, forwarded);
        to_register::<O, T>(cpu, insn, a, b, forwarded)
    }
}

impl<O: Binary, S: Source> Memory for With<O, S> {
    const WRITES: bool = false;
    const FLAGS: Option<FlagEffect> = Some(O::FLAGS);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let b = S::read::<NONE, T>(cpu, insn, 0);
        let la = cpu.ea_of::<N>(insn, forwarded);
        if O::WRITES {
            cpu.modify_if::<HIT, T>(insn, la, move |cpu, a| O::apply(cpu, a, b))?;
        } else {
            let a = cpu.load_if::<HIT, T>(la)?;
            O::apply(cpu, a, b);
        }
        Ok(forwarded)
    }
}

/// [`Binary`] `O` of a register and memory.
struct WithMemory<O>(PhantomData<O>);

impl<O: Binary> Memory for WithMemory<O> {
    const WRITES: bool = O::WRITES;
    const FLAGS: Option<FlagEffect> = Some(O::FLAGS);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let b = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, forwarded))?;
        let a = cpu.r::<T>(insn.dst);
        Ok(to_register::<O, T>(cpu, insn, a, b, forwarded))
    }
}

/// Computes the result, and writes it to the destination register if `O` does. Returns the value of
/// that register, or `forwarded`.
#[inline(always)]
fn to_register<O: Binary, T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, b: T, forwarded: u64) -> u64 {
    let r = O::apply(cpu, a, b);
    if O::WRITES {
        cpu.set(insn.dst, r)
    } else {
        forwarded
    }
}

/// The rows of a [`Binary`] of a register or memory, and a register.
fn rm_r<B: Backend, O: Binary>(t: &mut Table<B>, codes: [Code; 4]) {
    t.registers_8_to_64::<With<O, Register>>(codes);
    t.memory_8_to_64::<With<O, Register>>(codes);
}

/// The rows of a [`Binary`] of a register, and a register or memory.
fn r_rm<B: Backend, O: Binary>(t: &mut Table<B>, codes: [Code; 4]) {
    t.registers_8_to_64::<With<O, Register>>(codes);
    t.memory_8_to_64::<WithMemory<O>>(codes);
}

/// The rows of a [`Binary`] of a register or memory, and an immediate.
fn rm_imm<B: Backend, O: Binary>(t: &mut Table<B>, codes: [Code; 4]) {
    t.registers_8_to_64::<With<O, Immediate>>(codes);
    t.memory_8_to_64::<With<O, Immediate>>(codes);
}

/// The rows of a [`Binary`] of the accumulator, and an immediate. `rm` has the codes with the same
/// operands in ModRM.
fn accumulator<B: Backend, O: Binary>(t: &mut Table<B>, codes: [Code; 4], rm: [Code; 4]) {
    t.registers_8_to_64::<With<O, Immediate>>(codes);
    t.native_as(codes, rm);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    rm_r::<B, Add>(t, [Add_rm8_r8, Add_rm16_r16, Add_rm32_r32, Add_rm64_r64]);
    r_rm::<B, Add>(t, [Add_r8_rm8, Add_r16_rm16, Add_r32_rm32, Add_r64_rm64]);
    accumulator::<B, Add>(t, [Add_AL_imm8, Add_AX_imm16, Add_EAX_imm32, Add_RAX_imm32], [Add_rm8_imm8, Add_rm16_imm16, Add_rm32_imm32, Add_rm64_imm32]);
    rm_imm::<B, Add>(t, [Add_rm8_imm8, Add_rm16_imm16, Add_rm32_imm32, Add_rm64_imm32]);
    rm_imm::<B, Add>(t, [Add_rm8_imm8_82, Add_rm16_imm8, Add_rm32_imm8, Add_rm64_imm8]);
    rm_r::<B, Or>(t, [Or_rm8_r8, Or_rm16_r16, Or_rm32_r32, Or_rm64_r64]);
    r_rm::<B, Or>(t, [Or_r8_rm8, Or_r16_rm16, Or_r32_rm32, Or_r64_rm64]);
    accumulator::<B, Or>(t, [Or_AL_imm8, Or_AX_imm16, Or_EAX_imm32, Or_RAX_imm32], [Or_rm8_imm8, Or_rm16_imm16, Or_rm32_imm32, Or_rm64_imm32]);
    rm_imm::<B, Or>(t, [Or_rm8_imm8, Or_rm16_imm16, Or_rm32_imm32, Or_rm64_imm32]);
    rm_imm::<B, Or>(t, [Or_rm8_imm8_82, Or_rm16_imm8, Or_rm32_imm8, Or_rm64_imm8]);
    rm_r::<B, Adc>(t, [Adc_rm8_r8, Adc_rm16_r16, Adc_rm32_r32, Adc_rm64_r64]);
    r_rm::<B, Adc>(t, [Adc_r8_rm8, Adc_r16_rm16, Adc_r32_rm32, Adc_r64_rm64]);
    accumulator::<B, Adc>(t, [Adc_AL_imm8, Adc_AX_imm16, Adc_EAX_imm32, Adc_RAX_imm32], [Adc_rm8_imm8, Adc_rm16_imm16, Adc_rm32_imm32, Adc_rm64_imm32]);
    rm_imm::<B, Adc>(t, [Adc_rm8_imm8, Adc_rm16_imm16, Adc_rm32_imm32, Adc_rm64_imm32]);
    rm_imm::<B, Adc>(t, [Adc_rm8_imm8_82, Adc_rm16_imm8, Adc_rm32_imm8, Adc_rm64_imm8]);
    rm_r::<B, Sbb>(t, [Sbb_rm8_r8, Sbb_rm16_r16, Sbb_rm32_r32, Sbb_rm64_r64]);
    r_rm::<B, Sbb>(t, [Sbb_r8_rm8, Sbb_r16_rm16, Sbb_r32_rm32, Sbb_r64_rm64]);
    accumulator::<B, Sbb>(t, [Sbb_AL_imm8, Sbb_AX_imm16, Sbb_EAX_imm32, Sbb_RAX_imm32], [Sbb_rm8_imm8, Sbb_rm16_imm16, Sbb_rm32_imm32, Sbb_rm64_imm32]);
    rm_imm::<B, Sbb>(t, [Sbb_rm8_imm8, Sbb_rm16_imm16, Sbb_rm32_imm32, Sbb_rm64_imm32]);
    rm_imm::<B, Sbb>(t, [Sbb_rm8_imm8_82, Sbb_rm16_imm8, Sbb_rm32_imm8, Sbb_rm64_imm8]);
    rm_r::<B, And>(t, [And_rm8_r8, And_rm16_r16, And_rm32_r32, And_rm64_r64]);
    r_rm::<B, And>(t, [And_r8_rm8, And_r16_rm16, And_r32_rm32, And_r64_rm64]);
    accumulator::<B, And>(t, [And_AL_imm8, And_AX_imm16, And_EAX_imm32, And_RAX_imm32], [And_rm8_imm8, And_rm16_imm16, And_rm32_imm32, And_rm64_imm32]);
    rm_imm::<B, And>(t, [And_rm8_imm8, And_rm16_imm16, And_rm32_imm32, And_rm64_imm32]);
    rm_imm::<B, And>(t, [And_rm8_imm8_82, And_rm16_imm8, And_rm32_imm8, And_rm64_imm8]);
    rm_r::<B, Sub>(t, [Sub_rm8_r8, Sub_rm16_r16, Sub_rm32_r32, Sub_rm64_r64]);
    r_rm::<B, Sub>(t, [Sub_r8_rm8, Sub_r16_rm16, Sub_r32_rm32, Sub_r64_rm64]);
    accumulator::<B, Sub>(t, [Sub_AL_imm8, Sub_AX_imm16, Sub_EAX_imm32, Sub_RAX_imm32], [Sub_rm8_imm8, Sub_rm16_imm16, Sub_rm32_imm32, Sub_rm64_imm32]);
    rm_imm::<B, Sub>(t, [Sub_rm8_imm8, Sub_rm16_imm16, Sub_rm32_imm32, Sub_rm64_imm32]);
    rm_imm::<B, Sub>(t, [Sub_rm8_imm8_82, Sub_rm16_imm8, Sub_rm32_imm8, Sub_rm64_imm8]);
    rm_r::<B, Xor>(t, [Xor_rm8_r8, Xor_rm16_r16, Xor_rm32_r32, Xor_rm64_r64]);
    r_rm::<B, Xor>(t, [Xor_r8_rm8, Xor_r16_rm16, Xor_r32_rm32, Xor_r64_rm64]);
    accumulator::<B, Xor>(t, [Xor_AL_imm8, Xor_AX_imm16, Xor_EAX_imm32, Xor_RAX_imm32], [Xor_rm8_imm8, Xor_rm16_imm16, Xor_rm32_imm32, Xor_rm64_imm32]);
    rm_imm::<B, Xor>(t, [Xor_rm8_imm8, Xor_rm16_imm16, Xor_rm32_imm32, Xor_rm64_imm32]);
    rm_imm::<B, Xor>(t, [Xor_rm8_imm8_82, Xor_rm16_imm8, Xor_rm32_imm8, Xor_rm64_imm8]);
    rm_r::<B, Cmp>(t, [Cmp_rm8_r8, Cmp_rm16_r16, Cmp_rm32_r32, Cmp_rm64_r64]);
    r_rm::<B, Cmp>(t, [Cmp_r8_rm8, Cmp_r16_rm16, Cmp_r32_rm32, Cmp_r64_rm64]);
    accumulator::<B, Cmp>(t, [Cmp_AL_imm8, Cmp_AX_imm16, Cmp_EAX_imm32, Cmp_RAX_imm32], [Cmp_rm8_imm8, Cmp_rm16_imm16, Cmp_rm32_imm32, Cmp_rm64_imm32]);
    rm_imm::<B, Cmp>(t, [Cmp_rm8_imm8, Cmp_rm16_imm16, Cmp_rm32_imm32, Cmp_rm64_imm32]);
    rm_imm::<B, Cmp>(t, [Cmp_rm8_imm8_82, Cmp_rm16_imm8, Cmp_rm32_imm8, Cmp_rm64_imm8]);
    rm_r::<B, Test>(t, [Test_rm8_r8, Test_rm16_r16, Test_rm32_r32, Test_rm64_r64]);
    accumulator::<B, Test>(t, [Test_AL_imm8, Test_AX_imm16, Test_EAX_imm32, Test_RAX_imm32], [Test_rm8_imm8, Test_rm16_imm16, Test_rm32_imm32, Test_rm64_imm32]);
    rm_imm::<B, Test>(t, [Test_rm8_imm8, Test_rm16_imm16, Test_rm32_imm32, Test_rm64_imm32]);
    rm_imm::<B, Test>(t, [Test_rm8_imm8_F6r1, Test_rm16_imm16_F7r1, Test_rm32_imm32_F7r1, Test_rm64_imm32_F7r1]);
}
