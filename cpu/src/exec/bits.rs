//! Bit tests, scans and sums (SDM Vol. 2A: BT, BTS, BTR, BTC, BSF, BSR, CRC32; Vol. 2B: POPCNT).

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{by_size, operand_size};
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::{Int, Lazy};
use crate::state::rflags;

const BT: u8 = 0;
const BTS: u8 = 1;
const BTR: u8 = 2;
const BTC: u8 = 3;

/// The operand after the test of bit `n`, whose old value goes to CF. The other flags are undefined
/// or kept: they stay.
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

/// A bit string: an operation before this one has moved the address to the word that has the bit.
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

/// BSF and BSR. With a source of zero the destination is undefined by the manual; processors keep
/// it (and do clear the upper half for 32-bit operands on some models only: it is kept here).
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

/// POPCNT: ZF tells that there are none, the other flags are cleared.
fn popcnt<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = source::<T>(cpu, insn)?.zext();
    cpu.w(insn.dst, T::from_u64(v.count_ones().into()));
    cpu.flags = Lazy::from_bits(if v == 0 { rflags::ZF } else { 0 });
    Ok(Flow::Next)
}

/// What a byte adds to a remainder: the polynomial 11EDC6F41H, bits in reverse order.
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

/// By kind, form and size.
macro_rules! bit {
    ($i:expr, $kind:ident) => {{
        let memory = $i.op0_kind() == OpKind::Memory;
        let register = $i.op1_kind() == OpKind::Register;
        match (memory, register, operand_size($i, 0)) {
            (false, false, 2) => reg_imm::<$kind, u16>,
            (false, false, 4) => reg_imm::<$kind, u32>,
            (false, false, _) => reg_imm::<$kind, u64>,
            (false, true, 2) => reg_reg::<$kind, u16>,
            (false, true, 4) => reg_reg::<$kind, u32>,
            (false, true, _) => reg_reg::<$kind, u64>,
            (true, false, 2) => mem_imm::<$kind, u16>,
            (true, false, 4) => mem_imm::<$kind, u32>,
            (true, false, _) => mem_imm::<$kind, u64>,
            (true, true, 2) => mem_reg::<$kind, u16>,
            (true, true, 4) => mem_reg::<$kind, u32>,
            (true, true, _) => mem_reg::<$kind, u64>,
        }
    }};
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, _: &Insn) -> Option<Handler> {
    Some(match i.mnemonic() {
        Mnemonic::Bt => bit!(i, BT),
        Mnemonic::Bts => bit!(i, BTS),
        Mnemonic::Btr => bit!(i, BTR),
        Mnemonic::Btc => bit!(i, BTC),
        Mnemonic::Bsf => by_size!(operand_size(i, 0), bsf),
        Mnemonic::Bsr => by_size!(operand_size(i, 0), bsr),
        Mnemonic::Popcnt => by_size!(operand_size(i, 0), popcnt),
        Mnemonic::Crc32 => by_size!(operand_size(i, 1), crc32),
        _ => return None,
    })
}
