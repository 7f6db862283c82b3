//! Fast system calls: SYSCALL, SYSRET, SYSENTER, SYSEXIT, and SWAPGS (SDM Vol. 3A 5.8.7, 5.8.8).

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::state::descriptor::is_null;
use crate::state::{Segment, dr6, efer, gpr, rflags, sreg};

/// The flags that SYSRET loads from R11: all except RF and VM (SDM Vol. 2B, SYSRET).
const SYSRET_FLAGS: u64 = 0x3C_7FD7;

/// Continues at `rip` with `cpl`. The stack selector is the code selector plus 8.
fn enter(cpu: &mut Cpu, insn: &Insn, cs: u16, ss: u16, cpl: u8, long: bool, rip: u64) -> Exec {
    let from = cpu.far_source(insn);
    let cs = (cs & !3) | u16::from(cpl);
    let ss = (ss & !3) | u16::from(cpl);
    cpu.set_segment(sreg::CS, Segment::flat_code(cs, cpl, long));
    cpu.set_segment(sreg::SS, Segment::flat_stack(ss, cpl));
    cpu.cpl = cpl;
    cpu.rip = rip;
    cpu.update_mode();
    cpu.record_far(from);
    Ok(Flow::Jump)
}

fn syscall(cpu: &mut Cpu, insn: &Insn) -> Exec {
    // Intel's processors have SYSCALL in 64-bit mode only.
    if !cpu.in_64_bit_mode() || cpu.sys.efer & efer::SCE == 0 {
        return Err(cpu.ud());
    }
    let flags = cpu.rflags();
    cpu.gpr[gpr::RCX] = cpu.next_rip(insn);
    cpu.gpr[gpr::R11] = flags & !rflags::RF;
    cpu.put_rflags(flags & !(cpu.msr.fmask | rflags::RF), !0);
    // A trap is due after SYSCALL only if TF is still set.
    if flags & rflags::TF != 0 && cpu.eflags & rflags::TF == 0 {
        cpu.pending_work.insert(ArchEvents::NO_STEP);
    }
    let cs = (cpu.msr.star >> 32) as u16;
    let lstar = cpu.msr.lstar;
    enter(cpu, insn, cs, (cs & !3).wrapping_add(8), 0, true, lstar)
}

fn sysret<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    if !cpu.in_64_bit_mode() || cpu.sys.efer & efer::SCE == 0 {
        return Err(cpu.ud());
    }
    cpu.require_cpl0()?;
    let rcx = cpu.gpr[gpr::RCX];
    // Intel checks the target while still at CPL 0.
    if LONG && !canonical(rcx) {
        return Err(cpu.gp(0));
    }
    let flags = cpu.gpr[gpr::R11] & SYSRET_FLAGS;
    cpu.put_rflags(flags, !0);
    // Unlike IRET, SYSRET to a program that is being stepped traps at once.
    if flags & rflags::TF != 0 {
        cpu.pending_db |= dr6::BS;
        cpu.pending_work.insert(ArchEvents::DEBUG);
    }
    let base = (cpu.msr.star >> 48) as u16;
    let (cs, rip) = if LONG {
        (base.wrapping_add(16), rcx)
    } else {
        (base, rcx & 0xFFFF_FFFF)
    };
    enter(cpu, insn, cs, base.wrapping_add(8), 3, LONG, rip)
}

fn sysenter(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let cs = cpu.msr.sysenter_cs as u16;
    if is_null(cs) || !cpu.is_protected() {
        return Err(cpu.gp(0));
    }
    cpu.put_rflags(0, rflags::VM | rflags::IF | rflags::RF);
    let long = cpu.is_ia32e();
    cpu.gpr[gpr::RSP] = cpu.msr.sysenter_esp & cpu.linear_mask;
    let rip = cpu.msr.sysenter_eip & cpu.linear_mask;
    enter(cpu, insn, cs, (cs & !3).wrapping_add(8), 0, long, rip)
}

fn sysexit<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let base = cpu.msr.sysenter_cs as u16 & !3;
    if base == 0 || !cpu.is_protected() {
        return Err(cpu.gp(0));
    }
    cpu.require_cpl0()?;
    let (rip, rsp) = (cpu.gpr[gpr::RDX], cpu.gpr[gpr::RCX]);
    if LONG && !(canonical(rip) && canonical(rsp)) {
        return Err(cpu.gp(0));
    }
    let (cs, mask) = if LONG {
        (base.wrapping_add(32), u64::MAX)
    } else {
        (base.wrapping_add(16), 0xFFFF_FFFF)
    };
    cpu.gpr[gpr::RSP] = rsp & mask;
    enter(cpu, insn, cs, cs.wrapping_add(8), 3, LONG, rip & mask)
}

fn swapgs(cpu: &mut Cpu, _: &Insn) -> Exec {
    if !cpu.in_64_bit_mode() {
        return Err(cpu.ud());
    }
    cpu.require_cpl0()?;
    let base = cpu.seg_base(sreg::GS as u8);
    let kernel = std::mem::replace(&mut cpu.msr.kernel_gs_base, base);
    cpu.set_seg_base(sreg::GS, kernel);
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Syscall], syscall);
    t.handler([Sysretd], sysret::<false>);
    t.handler([Sysretq], sysret::<true>);
    t.handler([Sysenter], sysenter);
    t.handler([Sysexitd], sysexit::<false>);
    t.handler([Sysexitq], sysexit::<true>);
    t.handler([Swapgs], swapgs);
}
