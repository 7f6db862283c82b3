//! Near branches: JMP, Jcc, CALL, RET, LOOP, JCXZ.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use super::{by_condition, condition};
use crate::backend::interpreter::dispatch::{Passes, Threaded, handler, memory, threaded};
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn, reg};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::state::flags::Int;
use crate::state::gpr::RCX;

/// Takes a near branch to `target`, which has been checked.
#[inline(always)]
fn take(cpu: &mut Cpu, target: u64) -> Exec {
    cpu.rip = target;
    Ok(Flow::Branch)
}

/// The target of a direct branch, truncated to the operand size. Direct branches in 64-bit mode
/// stay within 2 GBytes of canonical code; one that leaves the canonical range is caught like any
/// other.
#[inline(always)]
fn direct<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    let target = T::from_u64(cpu.gpr[reg::BLOCK as usize].wrapping_add(insn.imm)).zext();
    check::<T>(cpu, target)
}

/// #GP(0) for a target that is not canonical or lies outside the code segment (SDM Vol. 2A, JMP).
#[inline(always)]
fn check<T: Int>(cpu: &mut Cpu, target: u64) -> Result<u64, Abort> {
    let good = if T::BITS == 64 {
        canonical(target)
    } else {
        target <= u64::from(cpu.sys.seg[1].limit)
    };
    if good { Ok(target) } else { Err(cpu.gp(0)) }
}

/// Takes the direct branch `insn`.
#[inline(always)]
pub(crate) fn jump<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = direct::<T>(cpu, insn)?;
    take(cpu, target)
}

fn jcc<const C: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if !cpu.flags.cond::<C>() {
        return Ok(Flow::Next);
    }
    jump::<T>(cpu, insn)
}

fn call<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = direct::<T>(cpu, insn)?;
    cpu.push_if::<HIT, T>(T::from_u64(cpu.next_rip(insn)))?;
    take(cpu, target)
}

#[inline(always)]
fn operand<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    let target = if insn.prefix & Insn::MEM != 0 {
        cpu.load_if::<HIT, T>(cpu.ea(insn))?.zext()
    } else {
        cpu.r::<T>(insn.dst).zext()
    };
    check::<T>(cpu, target)
}

fn jmp_indirect<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = operand::<HIT, T>(cpu, insn)?;
    take(cpu, target)
}

fn call_indirect<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = operand::<HIT, T>(cpu, insn)?;
    cpu.push_if::<HIT, T>(T::from_u64(cpu.next_rip(insn)))?;
    take(cpu, target)
}

fn ret<const HIT: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let target = cpu.peek_if::<HIT, T>(0)?.zext();
    let target = check::<T>(cpu, target)?;
    cpu.drop_stack(T::BYTES as u64 + (insn.imm & 0xFFFF));
    take(cpu, target)
}

/// The counter of LOOP and JCXZ: as wide as the address size (`aux`, in bits).
#[inline(always)]
fn counter(cpu: &Cpu, insn: &Insn) -> u64 {
    match insn.aux {
        16 => cpu.gpr[RCX] & 0xFFFF,
        32 => cpu.gpr[RCX] & 0xFFFF_FFFF,
        _ => cpu.gpr[RCX],
    }
}

/// LOOP, LOOPE (`Z` = 1), LOOPNE (`Z` = 0): any other `Z` does not look at ZF.
fn loop_<const Z: u8, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let n = counter(cpu, insn).wrapping_sub(1);
    let left = match insn.aux {
        16 => n & 0xFFFF,
        32 => n & 0xFFFF_FFFF,
        _ => n,
    };
    let again = left != 0
        && match Z {
            0 => !cpu.flags.zf(),
            1 => cpu.flags.zf(),
            _ => true,
        };
    let target = if again {
        Some(direct::<T>(cpu, insn)?)
    } else {
        None
    };
    match insn.aux {
        16 => cpu.w(RCX as u8, n as u16),
        32 => cpu.w(RCX as u8, n as u32),
        _ => cpu.gpr[RCX] = n,
    }
    match target {
        Some(target) => take(cpu, target),
        None => Ok(Flow::Next),
    }
}

fn jcxz<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if counter(cpu, insn) != 0 {
        return Ok(Flow::Next);
    }
    let target = direct::<T>(cpu, insn)?;
    take(cpu, target)
}

/// By the size of a direct branch's target, which is the last generic parameter.
macro_rules! by_target {
    ($way:ident, $i:expr, $f:ident $(, $c:expr)?) => {
        match $i.op0_kind() {
            OpKind::NearBranch16 => $way!($f $(, $c)?, u16),
            OpKind::NearBranch32 => $way!($f $(, $c)?, u32),
            _ => $way!($f $(, $c)?, u64),
        }
    };
}

fn counted(i: &Instruction) -> Handler {
    match i.mnemonic() {
        Mnemonic::Loop => by_target!(handler, i, loop_, 2),
        Mnemonic::Loope => by_target!(handler, i, loop_, 1),
        Mnemonic::Loopne => by_target!(handler, i, loop_, 0),
        _ => by_target!(handler, i, jcxz),
    }
}

/// Selects frequent instructions.
pub(super) fn threaded(i: &Instruction, _: &Insn) -> Option<Threaded> {
    Some(match i.code() {
        Code::Jmp_rm16 => memory!(jmp_indirect, u16),
        Code::Jmp_rm32 => memory!(jmp_indirect, u32),
        Code::Jmp_rm64 => memory!(jmp_indirect, u64),
        Code::Call_rm16 => memory!(call_indirect, u16),
        Code::Call_rm32 => memory!(call_indirect, u32),
        Code::Call_rm64 => memory!(call_indirect, u64),
        Code::Retnw | Code::Retnw_imm16 => memory!(ret, u16),
        Code::Retnd | Code::Retnd_imm16 => memory!(ret, u32),
        Code::Retnq | Code::Retnq_imm16 => memory!(ret, u64),
        _ if i.is_jcc_short_or_near() => match i.op0_kind() {
            OpKind::NearBranch16 => by_condition!(threaded, condition(i), jcc, u16),
            OpKind::NearBranch32 => by_condition!(threaded, condition(i), jcc, u32),
            _ => by_condition!(threaded, condition(i), jcc, u64),
        }
        .passes(Passes::Same),
        _ if i.is_jmp_short_or_near() => by_target!(threaded, i, jump),
        _ if i.is_call_near() => by_target!(memory, i, call),
        _ => return None,
    })
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction, _: &Insn) -> Option<Handler> {
    match i.mnemonic() {
        Mnemonic::Loop
        | Mnemonic::Loope
        | Mnemonic::Loopne
        | Mnemonic::Jcxz
        | Mnemonic::Jecxz
        | Mnemonic::Jrcxz => Some(counted(i)),
        _ => None,
    }
}
