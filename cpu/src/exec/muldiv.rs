//! Multiplication and division, and the decimal adjustments of compatibility mode.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{by_size, operand_size};
use crate::backend::interpreter::dispatch::Threaded;
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};
use crate::state::vector;
use crate::state::{gpr, rflags};

const AX: u8 = gpr::RAX as u8;
const DX: u8 = gpr::RDX as u8;
/// AH, where the upper half of byte products and the remainder of byte quotients go.
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

/// The product becomes the destination register; returns what is passed on.
#[inline(always)]
fn imul_into<T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, b: T) -> u64 {
    let (low, _, over) = signed(a, b);
    cpu.flags = Lazy::result(low, over, over);
    cpu.set(insn.dst, low)
}

fn imul2_reg<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    let b = cpu.second::<N, T>(insn.src, passed);
    imul_into(cpu, insn, a, b)
}

fn imul2_mem<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let b = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, passed))?;
    Ok(imul_into(cpu, insn, cpu.r::<T>(insn.dst), b))
}

fn imul3_reg<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.second::<N, T>(insn.src, passed);
    imul_into(cpu, insn, a, T::from_u64(insn.imm))
}

fn imul3_mem<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let a = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, passed))?;
    Ok(imul_into(cpu, insn, a, T::from_u64(insn.imm)))
}

#[cold]
fn divide_error(cpu: &mut Cpu) -> Abort {
    cpu.exception(vector::DE, None)
}

/// DIV. The flags are undefined: they stay.
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

/// IDIV. The flags are undefined: they stay.
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

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    let size = operand_size(i, 0);
    Some(
        match (i.mnemonic(), i.op_count(), i.op_kind(1)) {
            (Mnemonic::Imul, 2, OpKind::Register) => by_size!(registers, size, imul2_reg),
            (Mnemonic::Imul, 2, _) => by_size!(load, size, imul2_mem),
            (Mnemonic::Imul, 3, OpKind::Register) => by_size!(registers, size, imul3_reg),
            (Mnemonic::Imul, 3, _) => by_size!(load, size, imul3_mem),
            _ => return None,
        }
        .writes(size),
    )
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, _: &Insn) -> Option<Handler> {
    let size = || operand_size(i, 0);
    Some(match i.mnemonic() {
        Mnemonic::Mul => by_size!(size(), mul),
        Mnemonic::Imul => by_size!(size(), imul1),
        Mnemonic::Div => by_size!(size(), div),
        Mnemonic::Idiv => by_size!(size(), idiv),
        Mnemonic::Daa => decimal::<false>,
        Mnemonic::Das => decimal::<true>,
        Mnemonic::Aaa => ascii::<false>,
        Mnemonic::Aas => ascii::<true>,
        Mnemonic::Aam => aam,
        Mnemonic::Aad => aad,
        _ => return None,
    })
}
