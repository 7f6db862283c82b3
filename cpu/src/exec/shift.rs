//! Shifts and rotates (SDM Vol. 2B, SAL/SAR/SHL/SHR, RCL/RCR/ROL/ROR, SHLD, SHRD).
//!
//! OF is defined for counts of one only; for others it is computed by the same formula, as
//! processors do.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{by_size, operand_size};
use crate::backend::interpreter::dispatch::Threaded;
use crate::exec::Handler;
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};
use crate::state::gpr;

/// A shift of `a` by `n`, which has been masked to 5 or 6 bits and is not zero.
trait Shift {
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T;
}

fn bit(v: u64, n: u32) -> bool {
    v >> (n & 63) & 1 != 0
}

struct Shl;
impl Shift for Shl {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        // The count may exceed the width of bytes and words.
        let wide = u128::from(a.zext()) << n;
        let r = T::from_u64(wide as u64);
        let cf = wide >> T::BITS & 1 != 0;
        cpu.flags = Lazy::result(r, cf, r.msb() != cf);
        r
    }
}

struct Shr;
impl Shift for Shr {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let before = a.zext() >> (n - 1);
        let r = T::from_u64(before >> 1);
        cpu.flags = Lazy::result(r, before & 1 != 0, a.msb());
        r
    }
}

struct Sar;
impl Shift for Sar {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let before = (a.sext() as i64) >> (n - 1);
        let r = T::from_u64((before >> 1) as u64);
        cpu.flags = Lazy::result(r, before & 1 != 0, false);
        r
    }
}

struct Rol;
impl Shift for Rol {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let (a, k) = (a.zext(), n % T::BITS);
        let r = if k == 0 {
            a
        } else {
            a << k | a >> (T::BITS - k)
        };
        let r = T::from_u64(r);
        let cf = bit(r.zext(), 0);
        cpu.flags = cpu.flags.with_cf_of(cf, r.msb() != cf);
        r
    }
}

struct Ror;
impl Shift for Ror {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let (a, k) = (a.zext(), n % T::BITS);
        let r = if k == 0 {
            a
        } else {
            a >> k | a << (T::BITS - k)
        };
        let r = T::from_u64(r);
        let next = bit(r.zext(), T::BITS - 2);
        cpu.flags = cpu.flags.with_cf_of(r.msb(), r.msb() != next);
        r
    }
}

/// The operand with the carry above it, rotated left by `n` as one number of BITS + 1 bits; and the
/// new carry.
#[inline(always)]
fn through_carry<T: Int>(cpu: &Cpu, a: T, n: u32) -> (T, bool) {
    let wide = u128::from(a.zext()) | u128::from(cpu.flags.cf()) << T::BITS;
    let turned = match n % (T::BITS + 1) {
        0 => wide,
        n => wide << n | wide >> (T::BITS + 1 - n),
    };
    (T::from_u64(turned as u64), turned >> T::BITS & 1 != 0)
}

struct Rcl;
impl Shift for Rcl {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let (r, cf) = through_carry(cpu, a, n);
        cpu.flags = cpu.flags.with_cf_of(cf, r.msb() != cf);
        r
    }
}

struct Rcr;
impl Shift for Rcr {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let right = n % (T::BITS + 1);
        let (r, cf) = through_carry(cpu, a, T::BITS + 1 - right);
        cpu.flags = cpu
            .flags
            .with_cf_of(cf, r.msb() != bit(r.zext(), T::BITS - 2));
        r
    }
}

/// The count: 6 bits for 64-bit operands, 5 for others.
#[inline(always)]
fn masked<T: Int>(n: u64) -> u32 {
    n as u32 & if T::BITS == 64 { 63 } else { 31 }
}

#[inline(always)]
fn reg<O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, n: u32) -> u64 {
    // With a count of zero the flags stay, but a 32-bit register is still zero-extended.
    let r = if n == 0 { a } else { O::apply(cpu, a, n) };
    cpu.set(insn.dst, r)
}

#[inline(always)]
fn mem<const HIT: bool, O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn, n: u32) -> Exec {
    cpu.modify_if::<HIT, T>(insn, cpu.ea(insn), move |cpu, a| {
        if n == 0 { a } else { O::apply(cpu, a, n) }
    })?;
    Ok(Flow::Next)
}

fn reg_imm<const N: u8, O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    reg::<O, T>(cpu, insn, a, masked::<T>(insn.imm))
}

fn mem_imm<const HIT: bool, O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    mem::<HIT, O, T>(cpu, insn, masked::<T>(insn.imm))
}

/// The second register is CL.
fn reg_cl<const N: u8, O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let a = cpu.first::<N, T>(insn.dst, passed);
    let n = cpu.second::<N, u64>(gpr::RCX as u8, passed);
    reg::<O, T>(cpu, insn, a, masked::<T>(n))
}

fn mem_cl<const HIT: bool, O: Shift, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    mem::<HIT, O, T>(cpu, insn, masked::<T>(cpu.gpr[gpr::RCX]))
}

fn shift<O: Shift>(i: &Instruction) -> Threaded {
    let size = operand_size(i, 0);
    match (
        i.op0_kind() == OpKind::Memory,
        i.op1_kind() == OpKind::Register,
    ) {
        (false, false) => by_size!(registers, size, reg_imm::<O>).writes(size),
        (false, true) => by_size!(registers, size, reg_cl::<O>).writes(size),
        (true, false) => by_size!(memory, size, mem_imm::<O>),
        (true, true) => by_size!(memory, size, mem_cl::<O>),
    }
}

/// SHLD and SHRD of `a`, shifting in bits of `b`. For 16-bit operands and counts above 16 the
/// result is undefined; what processors give is the operands repeated: a, b, a.
#[inline(always)]
fn double<const LEFT: bool, T: Int>(cpu: &mut Cpu, a: T, b: T, n: u32) -> T {
    if n == 0 {
        return a;
    }
    let (wa, wb) = (u128::from(a.zext()), u128::from(b.zext()));
    let (r, cf) = if LEFT {
        let wide = if T::BITS == 16 {
            wa << 32 | wb << 16 | wa
        } else {
            wa << T::BITS | wb
        };
        let top = if T::BITS == 16 { 32 } else { T::BITS };
        let cf = wide >> (top + T::BITS - n) & 1 != 0;
        (T::from_u64((wide << n >> top) as u64), cf)
    } else {
        let wide = if T::BITS == 16 {
            wa << 32 | wb << 16 | wa
        } else {
            wb << T::BITS | wa
        };
        let cf = wide >> (n - 1) & 1 != 0;
        (T::from_u64((wide >> n) as u64), cf)
    };
    cpu.flags = Lazy::result(r, cf, r.msb() != a.msb());
    r
}

fn double_reg<const LEFT: bool, const CL: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = masked::<T>(if CL { cpu.gpr[gpr::RCX] } else { insn.imm });
    let (a, b) = (cpu.r::<T>(insn.dst), cpu.r::<T>(insn.src));
    let r = double::<LEFT, T>(cpu, a, b, n);
    cpu.w(insn.dst, r);
    Ok(Flow::Next)
}

fn double_mem<const LEFT: bool, const CL: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = masked::<T>(if CL { cpu.gpr[gpr::RCX] } else { insn.imm });
    let b = cpu.r::<T>(insn.src);
    cpu.modify(insn, cpu.ea(insn), |cpu, a: T| {
        double::<LEFT, T>(cpu, a, b, n)
    })?;
    Ok(Flow::Next)
}

fn double_shift<const LEFT: bool>(i: &Instruction) -> Handler {
    let size = operand_size(i, 0);
    match (
        i.op0_kind() == OpKind::Memory,
        i.op2_kind() == OpKind::Register,
        size,
    ) {
        (false, false, 2) => double_reg::<LEFT, false, u16>,
        (false, false, 4) => double_reg::<LEFT, false, u32>,
        (false, false, _) => double_reg::<LEFT, false, u64>,
        (false, true, 2) => double_reg::<LEFT, true, u16>,
        (false, true, 4) => double_reg::<LEFT, true, u32>,
        (false, true, _) => double_reg::<LEFT, true, u64>,
        (true, false, 2) => double_mem::<LEFT, false, u16>,
        (true, false, 4) => double_mem::<LEFT, false, u32>,
        (true, false, _) => double_mem::<LEFT, false, u64>,
        (true, true, 2) => double_mem::<LEFT, true, u16>,
        (true, true, 4) => double_mem::<LEFT, true, u32>,
        (true, true, _) => double_mem::<LEFT, true, u64>,
    }
}

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    Some(match i.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => shift::<Shl>(i),
        Mnemonic::Shr => shift::<Shr>(i),
        Mnemonic::Sar => shift::<Sar>(i),
        Mnemonic::Rol => shift::<Rol>(i),
        Mnemonic::Ror => shift::<Ror>(i),
        Mnemonic::Rcl => shift::<Rcl>(i),
        Mnemonic::Rcr => shift::<Rcr>(i),
        _ => return None,
    })
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, _: &Insn) -> Option<Handler> {
    match i.mnemonic() {
        Mnemonic::Shld => Some(double_shift::<true>(i)),
        Mnemonic::Shrd => Some(double_shift::<false>(i)),
        _ => None,
    }
}
