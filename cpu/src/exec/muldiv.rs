//! Multiplication and division, and the decimal adjustments of compatibility mode.

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Memory, Registers, Table};
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{gpr, rflags};

const AX: u8 = gpr::RAX as u8;
const DX: u8 = gpr::RDX as u8;
/// AH, which receives the upper half of byte products and the remainder of byte divisions.
const AH: u8 = reg::HIGH8;

/// Where the upper half of a product or dividend is: AH for bytes, else rDX.
#[inline(always)]
fn upper<T: Int>() -> u8 {
    if T::BITS == 8 { AH } else { DX }
}

#[inline(always)]
fn operand<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<T, Abort> {
    if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))
    } else {
        Ok(cpu.r(insn.dst))
    }
}

fn mul<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let b = operand::<T>(cpu, insn)?;
    let wide = u128::from(cpu.r::<T>(AX).zext()) * u128::from(b.zext());
    let (low, high) = (
        T::from_u64(wide as u64),
        T::from_u64((wide >> T::BITS) as u64),
    );
    cpu.w(AX, low);
    cpu.w(upper::<T>(), high);
    let over = high != T::default();
    cpu.flags = Lazy::result(low, over, over);
    Ok(Flow::Next)
}

/// The signed product of two operands, and whether its lower half does not hold it.
#[inline(always)]
fn signed<T: Int>(a: T, b: T) -> (T, T, bool) {
    let wide = i128::from(a.sext() as i64) * i128::from(b.sext() as i64);
    let low = T::from_u64(wide as u64);
    let high = T::from_u64((wide >> T::BITS) as u64);
    (low, high, i128::from(low.sext() as i64) != wide)
}

fn imul1<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let b = operand::<T>(cpu, insn)?;
    let (low, high, over) = signed(cpu.r::<T>(AX), b);
    cpu.w(AX, low);
    cpu.w(upper::<T>(), high);
    cpu.flags = Lazy::result(low, over, over);
    Ok(Flow::Next)
}

/// Writes the product to the destination register, and returns the register's value.
#[inline(always)]
fn imul_into<T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, b: T) -> u64 {
    let (low, _, over) = signed(a, b);
    cpu.flags = Lazy::result(low, over, over);
    cpu.set(insn.dst, low)
}

/// IMUL with two operands.
struct Imul2;

impl Registers for Imul2 {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Product);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let a = cpu.first::<N, T>(insn.dst, forwarded);
        let b = cpu.second::<N, T>(insn.src, forwarded);
        imul_into(cpu, insn, a, b)
    }
}

impl Memory for Imul2 {
    const WRITES: bool = true;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Product);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let b = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok(imul_into(cpu, insn, cpu.r::<T>(insn.dst), b))
    }
}

/// IMUL with three operands, of which the last is an immediate.
struct Imul3;

impl Registers for Imul3 {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Product);

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let a = cpu.second::<N, T>(insn.src, forwarded);
        imul_into(cpu, insn, a, T::from_u64(insn.imm))
    }
}

impl Memory for Imul3 {
    const WRITES: bool = true;
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Product);

    #[inline(always)]
    fn execute<const HIT: bool, const N: u8, T: Int>(
        cpu: &mut Cpu,
        insn: &Insn,
        forwarded: u64,
    ) -> Result<u64, Abort> {
        let a = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, forwarded))?;
        Ok(imul_into(cpu, insn, a, T::from_u64(insn.imm)))
    }
}

#[cold]
fn divide_error(cpu: &mut Cpu) -> Abort {
    cpu.exception(vector::DE, None)
}

/// DIV. It keeps the flags, which the manual leaves undefined.
fn div<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let d = operand::<T>(cpu, insn)?.zext();
    let (hi, lo) = (cpu.r::<T>(upper::<T>()).zext(), cpu.r::<T>(AX).zext());
    // The quotient fits iff the upper half is below the divisor, which also rules out zero.
    if hi >= d {
        return Err(divide_error(cpu));
    }
    let (q, r) = if T::BITS < 64 || hi == 0 {
        let n = if T::BITS < 64 { hi << T::BITS | lo } else { lo };
        (n / d, n % d)
    } else {
        let n = u128::from(hi) << 64 | u128::from(lo);
        ((n / u128::from(d)) as u64, (n % u128::from(d)) as u64)
    };
    cpu.w(AX, T::from_u64(q));
    cpu.w(upper::<T>(), T::from_u64(r));
    Ok(Flow::Next)
}

/// IDIV. It keeps the flags, which the manual leaves undefined.
fn idiv<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let d = i128::from(operand::<T>(cpu, insn)?.sext() as i64);
    let hi = i128::from(cpu.r::<T>(upper::<T>()).sext() as i64);
    let lo = i128::from(cpu.r::<T>(AX).zext());
    let n = hi << T::BITS | lo;
    let (Some(q), Some(r)) = (n.checked_div(d), n.checked_rem(d)) else {
        return Err(divide_error(cpu));
    };
    let half = 1i128 << (T::BITS - 1);
    if !(-half..half).contains(&q) {
        return Err(divide_error(cpu));
    }
    cpu.w(AX, T::from_u64(q as u64));
    cpu.w(upper::<T>(), T::from_u64(r as u64));
    Ok(Flow::Next)
}

/// DAA and DAS (SDM Vol. 2A).
fn decimal<const SUB: bool>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let old = cpu.r::<u8>(AX);
    let old_cf = cpu.flags.cf();
    let mut al = old;
    let mut cf = false;
    let af = old & 15 > 9 || cpu.flags.af();
    let step = |v: u8, n: u8| {
        if SUB {
            v.overflowing_sub(n)
        } else {
            v.overflowing_add(n)
        }
    };
    if af {
        let (v, carry) = step(al, 6);
        al = v;
        cf = old_cf || carry;
    }
    if old > 0x99 || old_cf {
        al = step(al, 0x60).0;
        cf = true;
    }
    cpu.w(AX, al);
    let bits = Lazy::result(al, cf, false).bits() | if af { rflags::AF } else { 0 };
    cpu.flags = Lazy::from_bits(bits);
    Ok(Flow::Next)
}

/// AAA and AAS (SDM Vol. 2A).
fn ascii<const SUB: bool>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let adjust = cpu.r::<u8>(AX) & 15 > 9 || cpu.flags.af();
    let mut ax = cpu.r::<u16>(AX);
    if adjust {
        ax = if SUB {
            ax.wrapping_sub(0x106)
        } else {
            ax.wrapping_add(0x106)
        };
    }
    ax &= 0xFF0F;
    cpu.w(AX, ax);
    let kept = Lazy::result(ax as u8, adjust, false).bits();
    cpu.flags = Lazy::from_bits(kept | if adjust { rflags::AF } else { 0 });
    Ok(Flow::Next)
}

fn aam(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let base = insn.imm as u8;
    let al = cpu.r::<u8>(AX);
    let (Some(q), Some(r)) = (al.checked_div(base), al.checked_rem(base)) else {
        return Err(divide_error(cpu));
    };
    cpu.w(AX, u16::from(q) << 8 | u16::from(r));
    cpu.flags = Lazy::logic(r);
    Ok(Flow::Next)
}

fn aad(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (al, ah) = (cpu.r::<u8>(AX), cpu.r::<u8>(AH));
    let r = al.wrapping_add(ah.wrapping_mul(insn.imm as u8));
    cpu.w(AX, u16::from(r));
    cpu.flags = Lazy::logic(r);
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Mul_rm8], mul::<u8>);
    t.handler([Mul_rm16], mul::<u16>);
    t.handler([Mul_rm32], mul::<u32>);
    t.handler([Mul_rm64], mul::<u64>);
    t.handler([Imul_rm8], imul1::<u8>);
    t.handler([Imul_rm16], imul1::<u16>);
    t.handler([Imul_rm32], imul1::<u32>);
    t.handler([Imul_rm64], imul1::<u64>);
    let r_rm = [Imul_r16_rm16, Imul_r32_rm32, Imul_r64_rm64];
    t.registers_16_to_64::<Imul2>(r_rm);
    t.memory_16_to_64::<Imul2>(r_rm);
    for r_rm_imm in [
        [
            Imul_r16_rm16_imm16,
            Imul_r32_rm32_imm32,
            Imul_r64_rm64_imm32,
        ],
        [Imul_r16_rm16_imm8, Imul_r32_rm32_imm8, Imul_r64_rm64_imm8],
    ] {
        t.registers_16_to_64::<Imul3>(r_rm_imm);
        t.memory_16_to_64::<Imul3>(r_rm_imm);
    }
    t.handler([Div_rm8], div::<u8>);
    t.handler([Div_rm16], div::<u16>);
    t.handler([Div_rm32], div::<u32>);
    t.handler([Div_rm64], div::<u64>);
    t.handler([Idiv_rm8], idiv::<u8>);
    t.handler([Idiv_rm16], idiv::<u16>);
    t.handler([Idiv_rm32], idiv::<u32>);
    t.handler([Idiv_rm64], idiv::<u64>);
    t.handler([Daa], decimal::<false>);
    t.handler([Das], decimal::<true>);
    t.handler([Aaa], ascii::<false>);
    t.handler([Aas], ascii::<true>);
    t.handler([Aam_imm8], aam);
    t.handler([Aad_imm8], aad);
}
