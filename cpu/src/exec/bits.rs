//! Bit tests, scans and sums (SDM Vol. 2A: BT, BTS, BTR, BTC, BSF, BSR, CRC32; Vol. 2B: POPCNT).

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Handler, Table};
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

const BT: u8 = 0;
const BTS: u8 = 1;
const BTR: u8 = 2;
const BTC: u8 = 3;

/// Copies bit `n` to CF, and returns the operand after the instruction. It keeps the other flags,
/// which the manual leaves undefined or unaffected.
#[inline(always)]
fn test<const KIND: u8, T: Int>(cpu: &mut Cpu, a: T, n: u64) -> T {
    let mask = 1u64 << (n & u64::from(T::BITS - 1));
    let a = a.zext();
    cpu.flags = cpu.flags.with_cf(a & mask != 0);
    T::from_u64(match KIND {
        BTS => a | mask,
        BTR => a & !mask,
        BTC => a ^ mask,
        _ => a,
    })
}

#[inline(always)]
fn in_reg<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, n: u64) -> Exec {
    let r = test::<KIND, T>(cpu, cpu.r::<T>(insn.dst), n);
    if KIND != BT {
        cpu.w(insn.dst, r);
    }
    Ok(Flow::Next)
}

#[inline(always)]
fn in_mem<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, la: u64, n: u64) -> Exec {
    if KIND == BT {
        let a = cpu.load::<T>(la)?;
        test::<KIND, T>(cpu, a, n);
    } else {
        cpu.modify(insn, la, |cpu, a: T| test::<KIND, T>(cpu, a, n))?;
    }
    Ok(Flow::Next)
}

fn reg_imm<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    in_reg::<KIND, T>(cpu, insn, insn.imm)
}

fn reg_reg<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    in_reg::<KIND, T>(cpu, insn, cpu.r::<T>(insn.src).zext())
}

fn mem_imm<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    in_mem::<KIND, T>(cpu, insn, cpu.ea(insn), insn.imm)
}

/// A bit string. `add_bit_offset` has moved the address to the word that holds the bit.
fn mem_reg<const KIND: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = cpu.r::<T>(insn.src).zext();
    in_mem::<KIND, T>(cpu, insn, cpu.ea(insn), n)
}

#[inline(always)]
fn source<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<T, Abort> {
    if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))
    } else {
        Ok(cpu.r(insn.src))
    }
}

/// BSF and BSR. The manual leaves the destination undefined if the source is zero. Processors keep
/// it; some models clear its upper half for 32-bit operands, which this one keeps.
#[inline(always)]
fn scan<T: Int>(cpu: &mut Cpu, insn: &Insn, position: fn(u64) -> u32) -> Exec {
    let v = source::<T>(cpu, insn)?.zext();
    if v != 0 {
        cpu.w(insn.dst, T::from_u64(u64::from(position(v))));
    }
    cpu.flags = cpu.flags.with_zf(v == 0);
    Ok(Flow::Next)
}

fn bsf<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    scan::<T>(cpu, insn, u64::trailing_zeros)
}

fn bsr<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    scan::<T>(cpu, insn, |v| 63 - v.leading_zeros())
}

/// POPCNT: ZF is set if the source is zero. The other flags are cleared.
fn popcnt<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = source::<T>(cpu, insn)?.zext();
    cpu.w(insn.dst, T::from_u64(v.count_ones().into()));
    cpu.flags = Lazy::from_bits(if v == 0 { rflags::ZF } else { 0 });
    Ok(Flow::Next)
}

/// The remainder of each byte by the polynomial 11EDC6F41H, bits in reverse order.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut remainder = i as u32;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 1;
            remainder >>= 1;
            if carry != 0 {
                remainder ^= 0x82F6_3B78;
            }
            bit += 1;
        }
        table[i] = remainder;
        i += 1;
    }
    table
};

/// CRC32. The destination has 32 bits, zero-extended, whatever the size of the source.
fn crc32<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let bytes = source::<T>(cpu, insn)?.zext().to_le_bytes();
    let mut remainder = cpu.r::<u32>(insn.dst);
    for byte in &bytes[..T::BYTES] {
        remainder = CRC32C[usize::from(remainder as u8 ^ byte)] ^ remainder >> 8;
    }
    cpu.w(insn.dst, remainder);
    Ok(Flow::Next)
}

/// What BT and its relatives with a register operand add to the address. The bit number is signed
/// and may point beyond the operand (SDM Vol. 2A, BT): the address moves by whole words.
fn add_bit_offset<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let words = cpu.r::<T>(insn.src).sext() as i64 >> T::BITS.trailing_zeros();
    let bytes = (words as u64).wrapping_mul(T::BYTES as u64);
    cpu.gpr[usize::from(reg::TMP)] = cpu.ea(insn).wrapping_add(bytes);
    Ok(Flow::Next)
}

/// The rows of one of BT, BTS, BTR and BTC: with an immediate, and with a register.
fn bit<B: Backend, const KIND: u8>(t: &mut Table<B>, imm: [Code; 3], reg: [Code; 3]) {
    let handlers: [[Handler; 5]; 3] = [
        bit_handlers::<KIND, u16>(),
        bit_handlers::<KIND, u32>(),
        bit_handlers::<KIND, u64>(),
    ];
    for ((imm, reg), [reg_imm, mem_imm, reg_reg, mem_reg, addend]) in
        imm.into_iter().zip(reg).zip(handlers)
    {
        t.handlers([imm], reg_imm, mem_imm)
            .integer(FlagEffect::BitTest);
        t.handlers([reg], reg_reg, mem_reg)
            .integer(FlagEffect::BitTest);
        t.set_addend([reg], addend);
    }
}

fn bit_handlers<const KIND: u8, T: Int>() -> [Handler; 5] {
    [
        reg_imm::<KIND, T>,
        mem_imm::<KIND, T>,
        reg_reg::<KIND, T>,
        mem_reg::<KIND, T>,
        add_bit_offset::<T>,
    ]
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    bit::<B, BT>(t, [Bt_rm16_imm8, Bt_rm32_imm8, Bt_rm64_imm8], [Bt_rm16_r16, Bt_rm32_r32, Bt_rm64_r64]);
    bit::<B, BTS>(t, [Bts_rm16_imm8, Bts_rm32_imm8, Bts_rm64_imm8], [Bts_rm16_r16, Bts_rm32_r32, Bts_rm64_r64]);
    bit::<B, BTR>(t, [Btr_rm16_imm8, Btr_rm32_imm8, Btr_rm64_imm8], [Btr_rm16_r16, Btr_rm32_r32, Btr_rm64_r64]);
    bit::<B, BTC>(t, [Btc_rm16_imm8, Btc_rm32_imm8, Btc_rm64_imm8], [Btc_rm16_r16, Btc_rm32_r32, Btc_rm64_r64]);
    t.handler([Bsf_r16_rm16], bsf::<u16>);
    t.handler([Bsf_r32_rm32], bsf::<u32>);
    t.handler([Bsf_r64_rm64], bsf::<u64>);
    t.handler([Bsr_r16_rm16], bsr::<u16>);
    t.handler([Bsr_r32_rm32], bsr::<u32>);
    t.handler([Bsr_r64_rm64], bsr::<u64>);
    t.handler([Popcnt_r16_rm16], popcnt::<u16>).integer(FlagEffect::Arithmetic);
    t.handler([Popcnt_r32_rm32], popcnt::<u32>).integer(FlagEffect::Arithmetic);
    t.handler([Popcnt_r64_rm64], popcnt::<u64>).integer(FlagEffect::Arithmetic);
    t.handler([Crc32_r32_rm8, Crc32_r64_rm8], crc32::<u8>);
    t.handler([Crc32_r32_rm16], crc32::<u16>);
    t.handler([Crc32_r32_rm32], crc32::<u32>);
    t.handler([Crc32_r64_rm64], crc32::<u64>);
}
