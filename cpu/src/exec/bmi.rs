//! Bit manipulation of BMI1, BMI2 and LZCNT, and addition of ADX (SDM Vol. 2A: ADCX, ADOX, ANDN,
//! BEXTR, BLSI, BLSMSK, BLSR, BZHI, LZCNT; Vol. 2B: MULX, PDEP, PEXT, RORX, SARX, SHLX, SHRX,
//! TZCNT).
//!
//! Flags that the manual leaves undefined follow from the result, or are clear.

use std::marker::PhantomData;

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Handler, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::gpr;
use crate::state::int::Int;

/// The operand that is a register (`register`) or memory.
#[inline(always)]
fn operand<T: Int>(cpu: &mut Cpu, insn: &Insn, register: u8) -> Result<T, Abort> {
    if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))
    } else {
        Ok(cpu.r(register))
    }
}

/// TZCNT and LZCNT: CF is set if the source is zero, ZF if the result is.
#[inline(always)]
fn count<T: Int>(cpu: &mut Cpu, insn: &Insn, zeros: fn(u64) -> u32) -> Exec {
    let v = operand::<T>(cpu, insn, insn.src)?.zext();
    let n = T::from_u64(zeros(v).min(T::BITS).into());
    cpu.w(insn.dst, n);
    cpu.flags = Lazy::result(n, v == 0, false);
    Ok(Flow::Next)
}

fn tzcnt<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    count::<T>(cpu, insn, u64::trailing_zeros)
}

fn lzcnt<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    // The operand's bits are moved to the top.
    let shift = 64 - T::BITS;
    let v = operand::<T>(cpu, insn, insn.src)?.zext();
    let n = T::from_u64((v << shift).leading_zeros().min(T::BITS).into());
    cpu.w(insn.dst, n);
    cpu.flags = Lazy::result(n, v == 0, false);
    Ok(Flow::Next)
}

/// ANDN: the first source is a register, which is inverted.
fn andn<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let b = operand::<T>(cpu, insn, insn.aux)?;
    let r = T::from_u64(!cpu.r::<T>(insn.src).zext() & b.zext());
    cpu.w(insn.dst, r);
    cpu.flags = Lazy::logic(r);
    Ok(Flow::Next)
}

/// An operation on the lowest set bit. Returns the result and CF.
trait LowestBit {
    fn apply(v: u64) -> u64;
    /// CF if the source is zero.
    const CARRY_OF_ZERO: bool;
}

/// BLSR clears it.
struct Blsr;
impl LowestBit for Blsr {
    const CARRY_OF_ZERO: bool = true;
    #[inline(always)]
    fn apply(v: u64) -> u64 {
        v & v.wrapping_sub(1)
    }
}

/// BLSMSK makes a mask up to it.
struct Blsmsk;
impl LowestBit for Blsmsk {
    const CARRY_OF_ZERO: bool = true;
    #[inline(always)]
    fn apply(v: u64) -> u64 {
        v ^ v.wrapping_sub(1)
    }
}

/// BLSI isolates it.
struct Blsi;
impl LowestBit for Blsi {
    const CARRY_OF_ZERO: bool = false;
    #[inline(always)]
    fn apply(v: u64) -> u64 {
        v & v.wrapping_neg()
    }
}

fn lowest_bit<O: LowestBit, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = operand::<T>(cpu, insn, insn.src)?.zext();
    let r = T::from_u64(O::apply(v));
    cpu.w(insn.dst, r);
    cpu.flags = Lazy::result(r, (v == 0) == O::CARRY_OF_ZERO, false);
    Ok(Flow::Next)
}

/// The lowest `n` bits set.
#[inline(always)]
fn low_bits(n: u32) -> u64 {
    1u64.checked_shl(n).unwrap_or(0).wrapping_sub(1)
}

/// BEXTR: bits 7:0 of the second source are the first bit, bits 15:8 the number of bits.
fn bextr<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = operand::<T>(cpu, insn, insn.src)?.zext();
    let [start, len] = cpu.r::<u16>(insn.aux).to_le_bytes();
    let r = T::from_u64(v.checked_shr(start.into()).unwrap_or(0) & low_bits(len.into()));
    cpu.w(insn.dst, r);
    cpu.flags = Lazy::logic(r);
    Ok(Flow::Next)
}

/// BZHI: bits 7:0 of the second source are the first bit that is cleared. CF is set if there is
/// none.
fn bzhi<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = operand::<T>(cpu, insn, insn.src)?.zext();
    let n = u32::from(cpu.r::<u8>(insn.aux));
    let r = T::from_u64(v & low_bits(n));
    cpu.w(insn.dst, r);
    cpu.flags = Lazy::result(r, n >= T::BITS, false);
    Ok(Flow::Next)
}

/// PDEP: the lowest bits of the first source go to where the mask has bits.
fn pdep<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let mut mask = operand::<T>(cpu, insn, insn.aux)?.zext();
    let (mut source, mut r) = (cpu.r::<T>(insn.src).zext(), 0);
    while mask != 0 && source != 0 {
        let lowest = mask & mask.wrapping_neg();
        if source & 1 != 0 {
            r |= lowest;
        }
        source >>= 1;
        mask ^= lowest;
    }
    cpu.w(insn.dst, T::from_u64(r));
    Ok(Flow::Next)
}

/// PEXT: the bits of the first source where the mask has bits become the lowest.
fn pext<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let mut mask = operand::<T>(cpu, insn, insn.aux)?.zext();
    let (source, mut r, mut n) = (cpu.r::<T>(insn.src).zext(), 0, 0);
    while mask != 0 {
        let lowest = mask & mask.wrapping_neg();
        r |= u64::from(source & lowest != 0) << n;
        n += 1;
        mask ^= lowest;
    }
    cpu.w(insn.dst, T::from_u64(r));
    Ok(Flow::Next)
}

/// MULX: rDX times the source; the upper half to the first operand, which is the same register as
/// the second if only that half is wanted.
fn mulx<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    const DX: u8 = gpr::RDX as u8;
    let b = operand::<T>(cpu, insn, insn.aux)?;
    let wide = u128::from(cpu.r::<T>(DX).zext()) * u128::from(b.zext());
    cpu.w(insn.src, T::from_u64(wide as u64));
    cpu.w(insn.dst, T::from_u64((wide >> T::BITS) as u64));
    Ok(Flow::Next)
}

/// `a` plus the source and a carry: the sum, and its carry.
#[inline(always)]
fn sum<T: Int>(cpu: &mut Cpu, insn: &Insn, carry: bool) -> Result<(T, bool), Abort> {
    let b = operand::<T>(cpu, insn, insn.src)?.zext();
    let sum = u128::from(cpu.r::<T>(insn.dst).zext()) + u128::from(b) + u128::from(carry);
    Ok((T::from_u64(sum as u64), sum >> T::BITS != 0))
}

/// ADCX: CF is the carry.
fn adcx<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (r, carry) = sum::<T>(cpu, insn, cpu.flags.cf())?;
    cpu.w(insn.dst, r);
    cpu.flags = cpu.flags.with_cf(carry);
    Ok(Flow::Next)
}

/// ADOX: OF is the carry.
fn adox<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (r, carry) = sum::<T>(cpu, insn, cpu.flags.of())?;
    cpu.w(insn.dst, r);
    cpu.flags = cpu.flags.with_cf_of(cpu.flags.cf(), carry);
    Ok(Flow::Next)
}

/// A shift that sets no flags, by a count below the width.
trait Shift {
    fn apply<T: Int>(v: T, n: u32) -> u64;
}

struct Rorx;
impl Shift for Rorx {
    #[inline(always)]
    fn apply<T: Int>(v: T, n: u32) -> u64 {
        let v = v.zext();
        v >> n | v << ((T::BITS - n) % T::BITS)
    }
}

struct Sarx;
impl Shift for Sarx {
    #[inline(always)]
    fn apply<T: Int>(v: T, n: u32) -> u64 {
        ((v.sext() as i64) >> n) as u64
    }
}

struct Shlx;
impl Shift for Shlx {
    #[inline(always)]
    fn apply<T: Int>(v: T, n: u32) -> u64 {
        v.zext() << n
    }
}

struct Shrx;
impl Shift for Shrx {
    #[inline(always)]
    fn apply<T: Int>(v: T, n: u32) -> u64 {
        v.zext() >> n
    }
}

/// Where the count of a shift is.
trait Count {
    fn read(cpu: &Cpu, insn: &Insn) -> u32;
}

struct Register;
impl Count for Register {
    #[inline(always)]
    fn read(cpu: &Cpu, insn: &Insn) -> u32 {
        cpu.r(insn.aux)
    }
}

struct Immediate;
impl Count for Immediate {
    #[inline(always)]
    fn read(_: &Cpu, insn: &Insn) -> u32 {
        insn.imm as u32
    }
}

/// [`Shift`] `O` by [`Count`] `C`.
struct By<O, C>(PhantomData<(O, C)>);

impl<O: Shift, C: Count> By<O, C> {
    fn execute<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        let v = operand::<T>(cpu, insn, insn.src)?;
        let n = C::read(cpu, insn) % T::BITS;
        cpu.w(insn.dst, T::from_u64(O::apply(v, n)));
        Ok(Flow::Next)
    }
}

/// The rows of an instruction with operands of 32 and 64 bits.
fn wide<B: Backend>(t: &mut Table<B>, flags: FlagEffect, codes: [Code; 2], handlers: [Handler; 2]) {
    for (code, handler) in codes.into_iter().zip(handlers) {
        t.handler([code], handler).integer(flags);
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Tzcnt_r16_rm16], tzcnt::<u16>).integer(FlagEffect::Result);
    t.handler([Tzcnt_r32_rm32], tzcnt::<u32>).integer(FlagEffect::Result);
    t.handler([Tzcnt_r64_rm64], tzcnt::<u64>).integer(FlagEffect::Result);
    t.handler([Lzcnt_r16_rm16], lzcnt::<u16>).integer(FlagEffect::Result);
    t.handler([Lzcnt_r32_rm32], lzcnt::<u32>).integer(FlagEffect::Result);
    t.handler([Lzcnt_r64_rm64], lzcnt::<u64>).integer(FlagEffect::Result);
    wide(t, FlagEffect::Result, [VEX_Andn_r32_r32_rm32, VEX_Andn_r64_r64_rm64], [andn::<u32>, andn::<u64>]);
    wide(t, FlagEffect::Result, [VEX_Blsr_r32_rm32, VEX_Blsr_r64_rm64], [lowest_bit::<Blsr, u32>, lowest_bit::<Blsr, u64>]);
    wide(t, FlagEffect::Result, [VEX_Blsmsk_r32_rm32, VEX_Blsmsk_r64_rm64], [lowest_bit::<Blsmsk, u32>, lowest_bit::<Blsmsk, u64>]);
    wide(t, FlagEffect::Result, [VEX_Blsi_r32_rm32, VEX_Blsi_r64_rm64], [lowest_bit::<Blsi, u32>, lowest_bit::<Blsi, u64>]);
    wide(t, FlagEffect::Result, [VEX_Bextr_r32_rm32_r32, VEX_Bextr_r64_rm64_r64], [bextr::<u32>, bextr::<u64>]);
    wide(t, FlagEffect::Result, [VEX_Bzhi_r32_rm32_r32, VEX_Bzhi_r64_rm64_r64], [bzhi::<u32>, bzhi::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Pdep_r32_r32_rm32, VEX_Pdep_r64_r64_rm64], [pdep::<u32>, pdep::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Pext_r32_r32_rm32, VEX_Pext_r64_r64_rm64], [pext::<u32>, pext::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Mulx_r32_r32_rm32, VEX_Mulx_r64_r64_rm64], [mulx::<u32>, mulx::<u64>]);
    t.handler([Adcx_r32_rm32], adcx::<u32>);
    t.handler([Adcx_r64_rm64], adcx::<u64>);
    t.handler([Adox_r32_rm32], adox::<u32>);
    t.handler([Adox_r64_rm64], adox::<u64>);
    wide(t, FlagEffect::Keeps, [VEX_Rorx_r32_rm32_imm8, VEX_Rorx_r64_rm64_imm8], [By::<Rorx, Immediate>::execute::<u32>, By::<Rorx, Immediate>::execute::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Sarx_r32_rm32_r32, VEX_Sarx_r64_rm64_r64], [By::<Sarx, Register>::execute::<u32>, By::<Sarx, Register>::execute::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Shlx_r32_rm32_r32, VEX_Shlx_r64_rm64_r64], [By::<Shlx, Register>::execute::<u32>, By::<Shlx, Register>::execute::<u64>]);
    wide(t, FlagEffect::Keeps, [VEX_Shrx_r32_rm32_r32, VEX_Shrx_r64_rm64_r64], [By::<Shrx, Register>::execute::<u32>, By::<Shrx, Register>::execute::<u64>]);
}
