//! XADD, CMPXCHG, CMPXCHG8B, CMPXCHG16B.

use iced_x86::Code;

use crate::exec::native::FlagEffect;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::gpr::{RAX, RBX, RCX, RDX};
use crate::state::int::Int;

const AX: u8 = RAX as u8;

#[inline(always)]
fn sum<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
    let r = T::from_u64(a.zext().wrapping_add(b.zext()));
    cpu.flags = Lazy::add(a, b, r);
    r
}

fn xadd_reg<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (a, b) = (cpu.r::<T>(insn.dst), cpu.r::<T>(insn.src));
    let r = sum(cpu, a, b);
    // The source first: if both name one register, the sum remains.
    cpu.w(insn.src, a);
    cpu.w(insn.dst, r);
    Ok(Flow::Next)
}

fn xadd_mem<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let b = cpu.r::<T>(insn.src);
    let mut old = b;
    cpu.modify(insn, cpu.ea(insn), |cpu, a: T| {
        old = a;
        sum(cpu, a, b)
    })?;
    cpu.w(insn.src, old);
    Ok(Flow::Next)
}

/// Compares the accumulator with `old`; the flags are those of CMP.
#[inline(always)]
fn compare<T: Int>(cpu: &mut Cpu, old: T) -> bool {
    let acc = cpu.r::<T>(AX);
    cpu.flags = Lazy::sub(acc, old, T::from_u64(acc.zext().wrapping_sub(old.zext())));
    acc == old
}

fn cmpxchg_reg<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let old = cpu.r::<T>(insn.dst);
    if compare(cpu, old) {
        let new = cpu.r::<T>(insn.src);
        cpu.w(insn.dst, new);
    } else {
        cpu.w(AX, old);
    }
    Ok(Flow::Next)
}

/// The destination is written in either case, as on the bus (SDM Vol. 2A, CMPXCHG).
fn cmpxchg_mem<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let new = cpu.r::<T>(insn.src);
    let mut found = new;
    let mut equal = false;
    cpu.modify(insn, cpu.ea(insn), |cpu, old: T| {
        found = old;
        equal = compare(cpu, old);
        if equal { new } else { old }
    })?;
    if !equal {
        cpu.w(AX, found);
    }
    Ok(Flow::Next)
}

fn cmpxchg8b(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let want = cpu.gpr[RDX] << 32 | cpu.gpr[RAX] & 0xFFFF_FFFF;
    let new = cpu.gpr[RCX] << 32 | cpu.gpr[RBX] & 0xFFFF_FFFF;
    let mut found = 0u64;
    cpu.modify(insn, cpu.ea(insn), |_, old: u64| {
        found = old;
        if old == want { new } else { old }
    })?;
    cpu.flags = cpu.flags.with_zf(found == want);
    if found != want {
        cpu.gpr[RAX] = found & 0xFFFF_FFFF;
        cpu.gpr[RDX] = found >> 32;
    }
    Ok(Flow::Next)
}

fn cmpxchg16b(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = cpu.ea(insn);
    if la & 15 != 0 {
        return Err(cpu.gp(0));
    }
    let want = u128::from(cpu.gpr[RDX]) << 64 | u128::from(cpu.gpr[RAX]);
    let new = u128::from(cpu.gpr[RCX]) << 64 | u128::from(cpu.gpr[RBX]);
    let found = cpu.compare_exchange128(la, want, new)?;
    cpu.flags = cpu.flags.with_zf(found == want);
    if found != want {
        cpu.gpr[RAX] = found as u64;
        cpu.gpr[RDX] = (found >> 64) as u64;
    }
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handlers([Xadd_rm8_r8], xadd_reg::<u8>, xadd_mem::<u8>)
        .integer(FlagEffect::Arithmetic);
    t.handlers([Xadd_rm16_r16], xadd_reg::<u16>, xadd_mem::<u16>)
        .integer(FlagEffect::Arithmetic);
    t.handlers([Xadd_rm32_r32], xadd_reg::<u32>, xadd_mem::<u32>)
        .integer(FlagEffect::Arithmetic);
    t.handlers([Xadd_rm64_r64], xadd_reg::<u64>, xadd_mem::<u64>)
        .integer(FlagEffect::Arithmetic);
    t.handlers([Cmpxchg_rm8_r8], cmpxchg_reg::<u8>, cmpxchg_mem::<u8>);
    t.handlers([Cmpxchg_rm16_r16], cmpxchg_reg::<u16>, cmpxchg_mem::<u16>);
    t.handlers([Cmpxchg_rm32_r32], cmpxchg_reg::<u32>, cmpxchg_mem::<u32>);
    t.handlers([Cmpxchg_rm64_r64], cmpxchg_reg::<u64>, cmpxchg_mem::<u64>);
    t.handler([Cmpxchg8b_m64], cmpxchg8b);
    t.handler([Cmpxchg16b_m128], cmpxchg16b);
}
