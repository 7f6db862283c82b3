//! String instructions: MOVS, STOS, LODS, CMPS, SCAS, with REP.
//!
//! A repeated instruction is one operation, which can be interrupted: when the iterations that are
//! left are a multiple of [`CHUNK`], and after one that accesses a device, it stops and leaves RIP
//! unchanged, as the manual allows after each iteration (SDM Vol. 2B, REP). So where it stops does
//! not depend on where it was restarted, as after a write to decoded code, which no guest can
//! observe.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn, seg};
use crate::mmu::access::Access;
use crate::mmu::host_access;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::{ArchEvents, VmmRequests};
use crate::state::flags::Lazy;
use crate::state::gpr::{RAX, RCX, RDI, RSI};
use crate::state::int::Int;
use crate::state::rflags;

/// Iterations of a repeated instruction between two checks for pending interrupts: a power of two.
const CHUNK: u64 = 1 << 16;

/// What one iteration does; `false` ends the repetition early (CMPS and SCAS).
trait Step {
    /// Whether the destination, ES:rDI, is stepped.
    const DI: bool;
    /// Whether the source, rSI, is stepped.
    const SI: bool;
    /// Whether 32-bit addressing in 64-bit mode clears the upper halves of the index registers even
    /// if no iteration completes.
    const CLEARS: bool = false;
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort>;
    /// Executes up to `n` iterations at once. Returns their number, which can be 0.
    #[inline(always)]
    fn bulk<T: Int>(_: &mut Cpu, _: &Insn, _: u64) -> u64 {
        0
    }
}

#[inline(always)]
fn source<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    let offset = cpu.index(insn, RSI);
    cpu.linear_address(insn.seg, offset, T::BYTES as u32, false)
}

#[inline(always)]
fn destination<T: Int>(cpu: &mut Cpu, insn: &Insn, write: bool) -> Result<u64, Abort> {
    let offset = cpu.index(insn, RDI);
    cpu.linear_address(seg::ES, offset, T::BYTES as u32, write)
}

/// Iterations that stay in the page of `la`, ascending.
#[inline(always)]
fn in_page<T: Int>(la: u64) -> u64 {
    (0x1000 - (la & 0xFFF)) / T::BYTES as u64
}

struct Movs;
impl Step for Movs {
    const DI: bool = true;
    const SI: bool = true;
    const CLEARS: bool = true;

    #[inline(always)]
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort> {
        let from = source::<T>(cpu, insn)?;
        let v = cpu.load::<T>(from)?;
        let to = destination::<T>(cpu, insn, true)?;
        cpu.store(to, v)?;
        Ok(true)
    }

    fn bulk<T: Int>(cpu: &mut Cpu, insn: &Insn, n: u64) -> u64 {
        let from = cpu.index(insn, RSI).wrapping_add(cpu.seg_base(insn.seg));
        let to = cpu.index(insn, RDI);
        let n = n.min(in_page::<T>(from)).min(in_page::<T>(to));
        let (Some(src), Some(dst)) = (
            cpu.tlb.fast(from, 1, Access::Read),
            cpu.tlb.fast(to, 1, Access::Write),
        ) else {
            return 0;
        };
        // SAFETY: both ranges lie in one page of guest RAM each. A destination that begins inside
        // the source repeats what was just written, as the guest's instruction does.
        unsafe { host_access::copy::<T>(dst, src, n as usize) };
        n
    }
}

struct Stos;
impl Step for Stos {
    const DI: bool = true;
    const SI: bool = false;
    const CLEARS: bool = true;

    #[inline(always)]
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort> {
        let to = destination::<T>(cpu, insn, true)?;
        cpu.store(to, cpu.r::<T>(RAX as u8))?;
        Ok(true)
    }

    fn bulk<T: Int>(cpu: &mut Cpu, insn: &Insn, n: u64) -> u64 {
        let to = cpu.index(insn, RDI);
        let n = n.min(in_page::<T>(to));
        let Some(dst) = cpu.tlb.fast(to, 1, Access::Write) else {
            return 0;
        };
        let v = cpu.r::<T>(RAX as u8);
        // SAFETY: `n` elements from `dst` lie in one page of writable guest RAM.
        unsafe { host_access::fill(dst, v, n as usize) };
        n
    }
}

struct Lods;
impl Step for Lods {
    const DI: bool = false;
    const SI: bool = true;

    #[inline(always)]
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort> {
        let from = source::<T>(cpu, insn)?;
        let v = cpu.load::<T>(from)?;
        cpu.w(RAX as u8, v);
        Ok(true)
    }
}

/// Compares and sets the flags. Returns whether REPE or REPNE continues.
#[inline(always)]
fn compare<T: Int>(cpu: &mut Cpu, insn: &Insn, a: T, b: T) -> bool {
    cpu.flags = Lazy::sub(a, b, T::from_u64(a.zext().wrapping_sub(b.zext())));
    (a == b) == (insn.prefix & Insn::REPNE == 0)
}

struct Cmps;
impl Step for Cmps {
    const DI: bool = true;
    const SI: bool = true;

    // Intel's processors load the second operand first, which decides the fault if both fault.
    #[inline(always)]
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort> {
        let to = destination::<T>(cpu, insn, false)?;
        let b = cpu.load::<T>(to)?;
        let from = source::<T>(cpu, insn)?;
        let a = cpu.load::<T>(from)?;
        Ok(compare(cpu, insn, a, b))
    }
}

struct Scas;
impl Step for Scas {
    const DI: bool = true;
    const SI: bool = false;

    #[inline(always)]
    fn step<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<bool, Abort> {
        let to = destination::<T>(cpu, insn, false)?;
        let b = cpu.load::<T>(to)?;
        Ok(compare(cpu, insn, cpu.r::<T>(RAX as u8), b))
    }
}

/// How far `n` elements move an index register: backwards if RFLAGS.DF is set.
#[inline(always)]
pub(super) fn distance<T: Int>(cpu: &Cpu, n: u64) -> u64 {
    let bytes = n.wrapping_mul(T::BYTES as u64);
    if cpu.eflags & rflags::DF != 0 {
        bytes.wrapping_neg()
    } else {
        bytes
    }
}

/// Moves the index registers by `n` elements.
#[inline(always)]
fn advance<S: Step, T: Int>(cpu: &mut Cpu, insn: &Insn, n: u64) {
    let delta = distance::<T>(cpu, n);
    if S::SI {
        let v = cpu.index(insn, RSI).wrapping_add(delta);
        cpu.set_index(insn, RSI, v);
    }
    if S::DI {
        let v = cpu.index(insn, RDI).wrapping_add(delta);
        cpu.set_index(insn, RDI, v);
    }
}

fn once<S: Step, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    S::step::<T>(cpu, insn)?;
    advance::<S, T>(cpu, insn, 1);
    Ok(Flow::Next)
}

/// 32-bit addressing clears the upper halves of the registers that it counts with, as any write of
/// 32 bits does. Intel's processors do so before the first iteration.
fn clear_upper<S: Step>(cpu: &mut Cpu, insn: &Insn) {
    let si = S::CLEARS && S::SI;
    let di = S::CLEARS && S::DI;
    for (id, clears) in [(RCX, true), (RSI, si), (RDI, di)] {
        if clears {
            let v = cpu.index(insn, id);
            cpu.set_index(insn, id, v);
        }
    }
}

fn repeat<S: Step, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if insn.aux == 32 {
        clear_upper::<S>(cpu, insn);
    }
    // CMPS and SCAS write the flags when they complete. A fault or trap finds the flags of before
    // the instruction (SDM Vol. 2B, REP).
    let flags = cpu.flags;
    // With TF set there is a trap after each iteration (SDM Vol. 3B 17.3.1.4).
    let chunk = if cpu.pending_work.contains(ArchEvents::TRAP) {
        1
    } else {
        cpu.index(insn, RCX).wrapping_sub(1) % CHUNK + 1
    };
    let mut done = 0;
    while done < chunk {
        let count = cpu.index(insn, RCX);
        if count == 0 {
            return Ok(Flow::Next);
        }
        let bulk = if cpu.in_64_bit_mode() && insn.aux == 64 && cpu.eflags & rflags::DF == 0 {
            S::bulk::<T>(cpu, insn, count.min(chunk - done))
        } else {
            0
        };
        if bulk > 0 {
            advance::<S, T>(cpu, insn, bulk);
            cpu.set_index(insn, RCX, count - bulk);
            done += bulk;
            continue;
        }
        // Each iteration commits: a fault in the next restarts from there.
        let more = match S::step::<T>(cpu, insn) {
            Ok(more) => more,
            Err(Abort) => {
                cpu.flags = flags;
                return Err(Abort);
            }
        };
        advance::<S, T>(cpu, insn, 1);
        cpu.set_index(insn, RCX, count - 1);
        done += 1;
        if !more {
            return Ok(Flow::Next);
        }
        // The device may have much to do, for which the time limit has to wait.
        if cpu.pending_work.contains(VmmRequests::BUS) {
            break;
        }
    }
    if cpu.index(insn, RCX) == 0 {
        return Ok(Flow::Next);
    }
    cpu.flags = flags;
    cpu.pmu.idle += 1;
    cpu.rip = cpu.this_rip(insn);
    Ok(Flow::Jump)
}

fn execute<S: Step, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if insn.prefix & (Insn::REP | Insn::REPNE) != 0 {
        repeat::<S, T>(cpu, insn)
    } else {
        once::<S, T>(cpu, insn)
    }
}

/// The rows of one string instruction, for operands of 8, 16, 32 and 64 bits.
fn string<B: Backend, S: Step>(t: &mut Table<B>, [c8, c16, c32, c64]: [Code; 4]) {
    t.handler([c8], execute::<S, u8>);
    t.handler([c16], execute::<S, u16>);
    t.handler([c32], execute::<S, u32>);
    t.handler([c64], execute::<S, u64>);
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    string::<B, Movs>(t, [Movsb_m8_m8, Movsw_m16_m16, Movsd_m32_m32, Movsq_m64_m64]);
    string::<B, Stos>(t, [Stosb_m8_AL, Stosw_m16_AX, Stosd_m32_EAX, Stosq_m64_RAX]);
    string::<B, Lods>(t, [Lodsb_AL_m8, Lodsw_AX_m16, Lodsd_EAX_m32, Lodsq_RAX_m64]);
    string::<B, Cmps>(t, [Cmpsb_m8_m8, Cmpsw_m16_m16, Cmpsd_m32_m32, Cmpsq_m64_m64]);
    string::<B, Scas>(t, [Scasb_AL_m8, Scasw_AX_m16, Scasd_EAX_m32, Scasq_RAX_m64]);
}
