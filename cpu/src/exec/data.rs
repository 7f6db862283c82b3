//! Data transfer: MOV and its relatives, conversions, flag bits, no-operations.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{by_condition, by_size, condition, operand_size};
use crate::backend::interpreter::dispatch::{Passes, Threaded, threaded};
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Int;
use crate::state::{gpr, rflags};

const AX: u8 = gpr::RAX as u8;
const DX: u8 = gpr::RDX as u8;
const AH: u8 = crate::insn::reg::HIGH8;

fn mov_reg_reg<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let v = cpu.second::<N, T>(insn.src, passed);
    cpu.set(insn.dst, v)
}

fn mov_reg_imm<const N: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, _: u64) -> u64 {
    cpu.set(insn.dst, T::from_u64(insn.imm))
}

fn mov_reg_mem<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let v = cpu.load_if::<HIT, T>(cpu.ea_of::<N>(insn, passed))?;
    Ok(cpu.set(insn.dst, v))
}

fn mov_mem_reg<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    cpu.store_if::<HIT, T>(cpu.ea_of::<N>(insn, passed), cpu.r(insn.src))?;
    Ok(passed)
}

fn mov_mem_imm<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    cpu.store_if::<HIT, T>(cpu.ea_of::<N>(insn, passed), T::from_u64(insn.imm))?;
    Ok(passed)
}

fn movzx_reg<const N: u8, S: Int, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let v = cpu.second::<N, S>(insn.src, passed);
    cpu.set(insn.dst, T::from_u64(v.zext()))
}

fn movzx_mem<const HIT: bool, const N: u8, S: Int, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let v = cpu.load_if::<HIT, S>(cpu.ea_of::<N>(insn, passed))?;
    Ok(cpu.set(insn.dst, T::from_u64(v.zext())))
}

fn movsx_reg<const N: u8, S: Int, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    let v = cpu.second::<N, S>(insn.src, passed);
    cpu.set(insn.dst, T::from_u64(v.sext()))
}

fn movsx_mem<const HIT: bool, const N: u8, S: Int, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let v = cpu.load_if::<HIT, S>(cpu.ea_of::<N>(insn, passed))?;
    Ok(cpu.set(insn.dst, T::from_u64(v.sext())))
}

/// No memory is accessed.
fn lea<const HIT: bool, const N: u8, T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    passed: u64,
) -> Result<u64, Abort> {
    let v = cpu.ea_of::<N>(insn, passed);
    Ok(cpu.set(insn.dst, T::from_u64(v)))
}

fn xchg_reg_reg<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (a, b) = (cpu.r::<T>(insn.dst), cpu.r::<T>(insn.src));
    cpu.w(insn.dst, b);
    cpu.w(insn.src, a);
    Ok(Flow::Next)
}

/// XCHG with memory, which is always locked; the register is `dst` or `src`, whichever operand it
/// is (`aux`).
fn xchg_mem<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.r::<T>(insn.aux);
    let mut old = T::default();
    cpu.modify(insn, cpu.ea(insn), |_, m| {
        old = m;
        v
    })?;
    cpu.w(insn.aux, old);
    Ok(Flow::Next)
}

fn bswap<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.r::<T>(insn.dst).zext();
    let r = match T::BITS {
        // Undefined by the manual; processors give zero.
        16 => 0,
        32 => u64::from((v as u32).swap_bytes()),
        _ => v.swap_bytes(),
    };
    cpu.w(insn.dst, T::from_u64(r));
    Ok(Flow::Next)
}

fn cmov_reg<const N: u8, const C: u8, T: Int>(cpu: &mut Cpu, insn: &Insn, passed: u64) -> u64 {
    // A 32-bit destination is zero-extended even if nothing is moved (SDM Vol. 2A, CMOVcc).
    let v = if cpu.flags.cond::<C>() {
        cpu.second::<N, T>(insn.src, passed)
    } else {
        cpu.first::<N, T>(insn.dst, passed)
    };
    cpu.set(insn.dst, v)
}

fn cmov_mem<const HIT: bool, const C: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let m = cpu.load_if::<HIT, T>(cpu.ea(insn))?;
    let v = if cpu.flags.cond::<C>() {
        m
    } else {
        cpu.r::<T>(insn.dst)
    };
    cpu.w(insn.dst, v);
    Ok(Flow::Next)
}

fn set_reg<const C: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = u8::from(cpu.flags.cond::<C>());
    cpu.w(insn.dst, v);
    Ok(Flow::Next)
}

fn set_mem<const HIT: bool, const C: u8>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = u8::from(cpu.flags.cond::<C>());
    cpu.store_if::<HIT, u8>(cpu.ea(insn), v)?;
    Ok(Flow::Next)
}

/// CBW, CWDE, CDQE: the accumulator's lower half, sign-extended into all of it.
fn widen_ax<S: Int, T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let v = cpu.r::<S>(AX);
    cpu.w(AX, T::from_u64(v.sext()));
    Ok(Flow::Next)
}

/// SALC: AL is all ones if CF is set, else zero. No manual has it, every processor does.
fn salc(cpu: &mut Cpu, _: &Insn) -> Exec {
    let v = if cpu.flags.cf() { 0xFF } else { 0 };
    cpu.w::<u8>(AX, v);
    Ok(Flow::Next)
}

/// CWD, CDQ, CQO: the accumulator's sign into rDX.
fn sign_to_dx<T: Int>(cpu: &mut Cpu, _: &Insn) -> Exec {
    let sign = cpu.r::<T>(AX).msb();
    cpu.w(DX, T::from_u64(if sign { !0 } else { 0 }));
    Ok(Flow::Next)
}

fn lahf(cpu: &mut Cpu, _: &Insn) -> Exec {
    let f = cpu.rflags() as u8;
    cpu.w(AH, f);
    Ok(Flow::Next)
}

fn sahf(cpu: &mut Cpu, _: &Insn) -> Exec {
    let low = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;
    let ah = cpu.r::<u8>(AH);
    let bits = (cpu.flags.bits() & !low) | (u64::from(ah) & low);
    cpu.flags = crate::state::flags::Lazy::from_bits(bits);
    Ok(Flow::Next)
}

fn clc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(false);
    Ok(Flow::Next)
}

fn stc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(true);
    Ok(Flow::Next)
}

fn cmc(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.flags = cpu.flags.with_cf(!cpu.flags.cf());
    Ok(Flow::Next)
}

fn cld(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.eflags &= !rflags::DF;
    Ok(Flow::Next)
}

fn std(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.eflags |= rflags::DF;
    Ok(Flow::Next)
}

/// XLAT. An operation before it has added AL to the address.
fn xlat(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let v = cpu.load::<u8>(cpu.ea(insn))?;
    cpu.w(AX, v);
    Ok(Flow::Next)
}

/// NOP, and the hints that this processor ignores.
fn nop(_: &mut Cpu, _: &Insn) -> Exec {
    Ok(Flow::Next)
}

fn pause(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.pause();
    Ok(Flow::Next)
}

fn mov(i: &Instruction) -> Option<Threaded> {
    let size = operand_size(i, 0);
    let general = |r: Register| r.is_gpr();
    Some(match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Register, OpKind::Register)
            if general(i.op0_register()) && general(i.op1_register()) =>
        {
            by_size!(registers, size, mov_reg_reg).writes(size)
        }
        (OpKind::Register, OpKind::Memory) if general(i.op0_register()) => {
            by_size!(load, size, mov_reg_mem).writes(size)
        }
        (OpKind::Memory, OpKind::Register) if general(i.op1_register()) => {
            by_size!(store, size, mov_mem_reg)
        }
        (OpKind::Register, OpKind::Register | OpKind::Memory) => return None,
        (OpKind::Memory, OpKind::Register) => return None,
        (OpKind::Register, _) => by_size!(registers, size, mov_reg_imm).writes(size),
        _ => by_size!(store, size, mov_mem_imm),
    })
}

/// MOVZX, MOVSX and MOVSXD by source and destination size.
macro_rules! extend {
    ($i:expr, $reg:ident, $mem:ident) => {{
        let (size, memory) = (operand_size($i, 0), $i.op1_kind() == OpKind::Memory);
        match (operand_size($i, 1), memory) {
            (1, false) => by_size!(registers, size, $reg::<u8>),
            (1, true) => by_size!(load, size, $mem::<u8>),
            (2, false) => by_size!(registers, size, $reg::<u16>),
            (2, true) => by_size!(load, size, $mem::<u16>),
            (_, false) => by_size!(registers, size, $reg::<u32>),
            (_, true) => by_size!(load, size, $mem::<u32>),
        }
        .writes(size)
    }};
}

fn cmov(i: &Instruction) -> Threaded {
    let cc = condition(i);
    match (operand_size(i, 0), i.op1_kind() == OpKind::Memory) {
        (2, false) => by_condition!(registers, cc, cmov_reg, u16),
        (2, true) => by_condition!(memory, cc, cmov_mem, u16),
        (4, false) => by_condition!(registers, cc, cmov_reg, u32).writes(4),
        (4, true) => by_condition!(memory, cc, cmov_mem, u32),
        (_, false) => by_condition!(registers, cc, cmov_reg, u64).writes(8),
        (_, true) => by_condition!(memory, cc, cmov_mem, u64),
    }
}

fn xchg(i: &Instruction, insn: &Insn) -> Handler {
    let size = operand_size(i, 0);
    if insn.prefix & Insn::MEM != 0 {
        by_size!(size, xchg_mem)
    } else {
        by_size!(size, xchg_reg_reg)
    }
}

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    Some(match i.mnemonic() {
        Mnemonic::Mov => return mov(i),
        Mnemonic::Movzx => extend!(i, movzx_reg, movzx_mem),
        Mnemonic::Movsx | Mnemonic::Movsxd => extend!(i, movsx_reg, movsx_mem),
        Mnemonic::Lea => {
            let size = operand_size(i, 0);
            by_size!(load, size, lea).writes(size)
        }
        Mnemonic::Cbw => threaded!(widen_ax, u8, u16),
        Mnemonic::Cwde => threaded!(widen_ax, u16, u32),
        Mnemonic::Cdqe => threaded!(widen_ax, u32, u64),
        Mnemonic::Cwd => threaded!(sign_to_dx, u16),
        Mnemonic::Cdq => threaded!(sign_to_dx, u32),
        Mnemonic::Cqo => threaded!(sign_to_dx, u64),
        Mnemonic::Nop | Mnemonic::Reservednop => threaded!(nop).passes(Passes::Same),
        Mnemonic::Cmovo
        | Mnemonic::Cmovno
        | Mnemonic::Cmovb
        | Mnemonic::Cmovae
        | Mnemonic::Cmove
        | Mnemonic::Cmovne
        | Mnemonic::Cmovbe
        | Mnemonic::Cmova
        | Mnemonic::Cmovs
        | Mnemonic::Cmovns
        | Mnemonic::Cmovp
        | Mnemonic::Cmovnp
        | Mnemonic::Cmovl
        | Mnemonic::Cmovge
        | Mnemonic::Cmovle
        | Mnemonic::Cmovg => cmov(i),
        Mnemonic::Seto
        | Mnemonic::Setno
        | Mnemonic::Setb
        | Mnemonic::Setae
        | Mnemonic::Sete
        | Mnemonic::Setne
        | Mnemonic::Setbe
        | Mnemonic::Seta
        | Mnemonic::Sets
        | Mnemonic::Setns
        | Mnemonic::Setp
        | Mnemonic::Setnp
        | Mnemonic::Setl
        | Mnemonic::Setge
        | Mnemonic::Setle
        | Mnemonic::Setg => {
            if i.op0_kind() == OpKind::Memory {
                by_condition!(memory, condition(i), set_mem)
            } else {
                by_condition!(threaded, condition(i), set_reg)
            }
        }
        _ => return None,
    })
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, insn: &Insn) -> Option<Handler> {
    Some(match i.mnemonic() {
        Mnemonic::Xchg => xchg(i, insn),
        Mnemonic::Bswap => by_size!(operand_size(i, 0), bswap),
        Mnemonic::Salc => salc,
        Mnemonic::Lahf => lahf,
        Mnemonic::Sahf => sahf,
        Mnemonic::Clc => clc,
        Mnemonic::Stc => stc,
        Mnemonic::Cmc => cmc,
        Mnemonic::Cld => cld,
        Mnemonic::Std => std,
        Mnemonic::Pause => pause,
        Mnemonic::Xlatb => xlat,
        _ => return None,
    })
}
