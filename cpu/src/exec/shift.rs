//! Shifts and rotates (SDM Vol. 2B, SAL/SAR/SHL/SHR, RCL/RCR/ROL/ROR, SHLD, SHRD).
//!
//! The manual defines OF for a count of one only. For other counts processors compute it by the
//! same formula, and so does this file.

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Handler, Inlined, Registers, Table};
use crate::insn::operand::NONE;
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::gpr;
use crate::state::int::Int;

/// A shift of `a` by `n`, which has been masked to 5 or 6 bits and is not zero.
trait Shift {
    /// Its effect on the flags, if native code executes it as itself.
    const FLAGS: Option<FlagEffect>;
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T;
}

fn bit(v: u64, n: u32) -> bool {
    v >> (n & 63) & 1 != 0
}

struct Shl;
impl Shift for Shl {
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Shift);
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
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Shift);
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
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Shift);
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
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Rotate);
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
    const FLAGS: Option<FlagEffect> = Some(FlagEffect::Rotate);
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
    const FLAGS: Option<FlagEffect> = None;
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, a: T, n: u32) -> T {
        let (r, cf) = through_carry(cpu, a, n);
        cpu.flags = cpu.flags.with_cf_of(cf, r.msb() != cf);
        r
    }
}

struct Rcr;
impl Shift for Rcr {
    const FLAGS: Option<FlagEffect> = None;
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

/// Where the count of a shift is.
trait Count {
    /// The count, not masked. `forwarded` is the value of operand `N`.
    fn read<const N: u8>(cpu: &Cpu, insn: &Insn, forwarded: u64) -> u64;
}

struct Immediate;
impl Count for Immediate {
    #[inline(always)]
    fn read<const N: u8>(_: &Cpu, insn: &Insn, _: u64) -> u64 {
        insn.imm
    }
}

/// The second register operand is CL.
struct Cl;
impl Count for Cl {
    #[inline(always)]
    fn read<const N: u8>(cpu: &Cpu, _: &Insn, forwarded: u64) -> u64 {
        cpu.second::<N, u64>(gpr::RCX as u8, forwarded)
    }
}

/// [`Shift`] `O` by `K` of a register or memory.
struct By<O, K>(PhantomData<(O, K)>);

impl<O: Shift, K: Count> Registers for By<O, K> {
    const FLAGS: Option<FlagEffect> = O::FLAGS;

    #[inline(always)]
    fn execute<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, forwarded: u64) -> u64 {
        let a = cpu.first::<N, T>(insn.dst, forwarded);
        let n = masked::<T>(K::read::<N>(cpu, insn, forwarded));
        // With a count of zero the flags stay, but a 32-bit register is still zero-extended.
        let r = if n == 0 { a } else { O::apply(cpu, a, n) };
        cpu.set(insn.dst, r)
    }
}

impl<O: Shift, K: Count> Inlined for By<O, K> {
    const FLAGS: Option<FlagEffect> = O::FLAGS;

    #[inline(always)]
    fn execute<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let n = masked::<T>(K::read::<NONE>(cpu, insn, 0));
        cpu.modify_if::<HIT, T>(insn, cpu.ea(insn), move |cpu, a| {
            if n == 0 { a } else { O::apply(cpu, a, n) }
        })?;
        Ok(Flow::Next)
    }
}

/// SHLD and SHRD of `a`, shifting in bits of `b`. For 16-bit operands and counts above 16 the
/// manual leaves the result undefined. Processors shift the operands repeated: a, b, a.
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

fn double_reg<const LEFT: bool, K: Count, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = masked::<T>(K::read::<NONE>(cpu, insn, 0));
    let (a, b) = (cpu.r::<T>(insn.dst), cpu.r::<T>(insn.src));
    let r = double::<LEFT, T>(cpu, a, b, n);
    cpu.w(insn.dst, r);
    Ok(Flow::Next)
}

fn double_mem<const LEFT: bool, K: Count, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = masked::<T>(K::read::<NONE>(cpu, insn, 0));
    let b = cpu.r::<T>(insn.src);
    cpu.modify(insn, cpu.ea(insn), |cpu, a: T| {
        double::<LEFT, T>(cpu, a, b, n)
    })?;
    Ok(Flow::Next)
}

/// The rows of [`Shift`] `O`: by an immediate, by one, and by CL.
fn shift<B: Backend, O: Shift>(t: &mut Table<B>, imm: [Code; 4], one: [Code; 4], cl: [Code; 4]) {
    by::<B, O, Immediate>(t, imm);
    by::<B, O, Immediate>(t, one);
    by::<B, O, Cl>(t, cl);
}

fn by<B: Backend, O: Shift, K: Count>(t: &mut Table<B>, codes: [Code; 4]) {
    t.registers_8_to_64::<By<O, K>>(codes);
    let [c8, words @ ..] = codes;
    t.inlined_memory::<By<O, K>, u8>(c8);
    t.inlined_memory_16_to_64::<By<O, K>>(words);
}

/// The rows of SHLD (`LEFT`) or SHRD by `K`.
fn double_shift<B: Backend, const LEFT: bool, K: Count>(t: &mut Table<B>, codes: [Code; 3]) {
    let handlers: [[Handler; 2]; 3] = [
        [double_reg::<LEFT, K, u16>, double_mem::<LEFT, K, u16>],
        [double_reg::<LEFT, K, u32>, double_mem::<LEFT, K, u32>],
        [double_reg::<LEFT, K, u64>, double_mem::<LEFT, K, u64>],
    ];
    for (code, [register, memory]) in codes.into_iter().zip(handlers) {
        t.handlers([code], register, memory);
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    shift::<B, Rol>(t, [Rol_rm8_imm8, Rol_rm16_imm8, Rol_rm32_imm8, Rol_rm64_imm8], [Rol_rm8_1, Rol_rm16_1, Rol_rm32_1, Rol_rm64_1], [Rol_rm8_CL, Rol_rm16_CL, Rol_rm32_CL, Rol_rm64_CL]);
    shift::<B, Ror>(t, [Ror_rm8_imm8, Ror_rm16_imm8, Ror_rm32_imm8, Ror_rm64_imm8], [Ror_rm8_1, Ror_rm16_1, Ror_rm32_1, Ror_rm64_1], [Ror_rm8_CL, Ror_rm16_CL, Ror_rm32_CL, Ror_rm64_CL]);
    shift::<B, Rcl>(t, [Rcl_rm8_imm8, Rcl_rm16_imm8, Rcl_rm32_imm8, Rcl_rm64_imm8], [Rcl_rm8_1, Rcl_rm16_1, Rcl_rm32_1, Rcl_rm64_1], [Rcl_rm8_CL, Rcl_rm16_CL, Rcl_rm32_CL, Rcl_rm64_CL]);
    shift::<B, Rcr>(t, [Rcr_rm8_imm8, Rcr_rm16_imm8, Rcr_rm32_imm8, Rcr_rm64_imm8], [Rcr_rm8_1, Rcr_rm16_1, Rcr_rm32_1, Rcr_rm64_1], [Rcr_rm8_CL, Rcr_rm16_CL, Rcr_rm32_CL, Rcr_rm64_CL]);
    shift::<B, Shl>(t, [Shl_rm8_imm8, Shl_rm16_imm8, Shl_rm32_imm8, Shl_rm64_imm8], [Shl_rm8_1, Shl_rm16_1, Shl_rm32_1, Shl_rm64_1], [Shl_rm8_CL, Shl_rm16_CL, Shl_rm32_CL, Shl_rm64_CL]);
    shift::<B, Shr>(t, [Shr_rm8_imm8, Shr_rm16_imm8, Shr_rm32_imm8, Shr_rm64_imm8], [Shr_rm8_1, Shr_rm16_1, Shr_rm32_1, Shr_rm64_1], [Shr_rm8_CL, Shr_rm16_CL, Shr_rm32_CL, Shr_rm64_CL]);
    shift::<B, Shl>(t, [Sal_rm8_imm8, Sal_rm16_imm8, Sal_rm32_imm8, Sal_rm64_imm8], [Sal_rm8_1, Sal_rm16_1, Sal_rm32_1, Sal_rm64_1], [Sal_rm8_CL, Sal_rm16_CL, Sal_rm32_CL, Sal_rm64_CL]);
    shift::<B, Sar>(t, [Sar_rm8_imm8, Sar_rm16_imm8, Sar_rm32_imm8, Sar_rm64_imm8], [Sar_rm8_1, Sar_rm16_1, Sar_rm32_1, Sar_rm64_1], [Sar_rm8_CL, Sar_rm16_CL, Sar_rm32_CL, Sar_rm64_CL]);
    double_shift::<B, true, Immediate>(t, [Shld_rm16_r16_imm8, Shld_rm32_r32_imm8, Shld_rm64_r64_imm8]);
    double_shift::<B, true, Cl>(t, [Shld_rm16_r16_CL, Shld_rm32_r32_CL, Shld_rm64_r64_CL]);
    double_shift::<B, false, Immediate>(t, [Shrd_rm16_r16_imm8, Shrd_rm32_r32_imm8, Shrd_rm64_r64_imm8]);
    double_shift::<B, false, Cl>(t, [Shrd_rm16_r16_CL, Shrd_rm32_r32_CL, Shrd_rm64_r64_CL]);
}
