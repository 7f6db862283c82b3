//! Far returns: RET to another segment, and IRET.

use iced_x86::Code;

use crate::exec::far::{enter, real_target, switch_task};
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::frame::Frame;
use crate::processor::task_switch::Cause;
use crate::processor::virtual_8086::InterruptFlag;
use crate::state::descriptor::{is_null, rpl};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, Segment, gpr, rflags, sreg};

/// The code segment that a far return or IRET goes back to (SDM Vol. 2B, RET).
fn return_segment(cpu: &mut Cpu, selector: u16, ip: u64) -> Result<Segment, Abort> {
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let d = cpu.descriptor(selector, vector::GP)?;
    let level = rpl(selector);
    let privilege = if d.is_conforming_code() {
        d.dpl() <= level
    } else {
        d.dpl() == level
    };
    if level < cpu.cpl || !d.is_code() || !privilege {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    cpu.check_code_segment(selector, d)?;
    cpu.check_target(d.attr(), d.limit(), ip)?;
    cpu.accessed(selector, d)
}

/// Takes over the stack that was popped from a frame.
fn switch_stack(cpu: &mut Cpu, ss: Segment, code64: bool, rsp: u64) {
    let sp = &mut cpu.gpr[gpr::RSP];
    *sp = match (code64, ss.attr.contains(SegAttr::DB)) {
        (true, _) => rsp,
        (false, true) => rsp & 0xFFFF_FFFF,
        (false, false) => (*sp & !0xFFFF) | (rsp & 0xFFFF),
    };
    cpu.set_segment(sreg::SS, ss);
}

/// Data segments of the inner level must not stay loaded at the outer one (SDM Vol. 3A 5.8.6). Only
/// the selector becomes null (Vol. 2A, IRET): the base, which 64-bit code uses of FS and GS, stays.
fn drop_inner_segments(cpu: &mut Cpu, cpl: u8) {
    for register in [sreg::ES, sreg::DS, sreg::FS, sreg::GS] {
        let s = cpu.segment(register);
        let conforming = s.attr.contains(SegAttr::CODE | SegAttr::CONFORMING);
        if !s.attr.contains(SegAttr::UNUSABLE) && s.dpl() < cpl && !conforming {
            let base = s.base;
            cpu.set_segment(
                register,
                Segment {
                    base,
                    ..Segment::null(0, 0)
                },
            );
        }
    }
}

/// RETF; `imm` is the number of bytes to release on both stacks.
fn retf<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let mut frame = Frame::current(cpu);
    let ip = frame.pop::<T>(cpu)?.zext();
    let selector = frame.pop::<T>(cpu)?.zext() as u16;
    if !cpu.uses_descriptors() {
        let cs = real_target(cpu, selector, ip)?;
        frame.skip(insn.imm);
        frame.commit(cpu);
        return enter(cpu, insn, cs, cpu.cpl, ip);
    }
    let cs = return_segment(cpu, selector, ip)?;
    frame.skip(insn.imm);
    let cpl = rpl(selector);
    if cpl > cpu.cpl {
        let rsp = frame.pop::<T>(cpu)?.zext();
        let ss_selector = frame.pop::<T>(cpu)?.zext() as u16;
        let code64 = cpu.is_code64(cs.attr);
        let ss = cpu.stack_segment(ss_selector, cpl, code64, vector::GP)?;
        switch_stack(cpu, ss, code64, rsp.wrapping_add(insn.imm));
        drop_inner_segments(cpu, cpl);
    } else {
        frame.commit(cpu);
    }
    enter(cpu, insn, cs, cpl, ip)
}

/// IRET (SDM Vol. 2A, IRET).
fn iret<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    // NMIs are unblocked even if the instruction faults (SDM Vol. 3A 6.7.1).
    if cpu.nmi_blocked {
        cpu.nmi_blocked = false;
        cpu.update_mode();
    }
    cpu.serialize();
    let protected = cpu.uses_descriptors();
    if protected && cpu.eflags & rflags::NT != 0 {
        if cpu.is_ia32e() {
            return Err(cpu.gp(0));
        }
        let task = cpu.previous_task()?;
        return switch_task(cpu, insn, &task, Cause::Return);
    }
    // IRET in the manual has no virtual interrupts. But the handler of a redirected INT n (SDM Vol.
    // 3A 20.3.3) returns with IRET, which therefore needs what POPF needs. So Bochs has it.
    let flag = cpu.interrupt_flag(T::BYTES)?;
    let mut frame = Frame::current(cpu);
    let ip = frame.pop::<T>(cpu)?.zext();
    let selector = frame.pop::<T>(cpu)?.zext() as u16;
    let image = frame.pop::<T>(cpu)?.zext();
    if !protected {
        let cs = real_target(cpu, selector, ip)?;
        match flag {
            InterruptFlag::Virtual => cpu.set_virtual_flags(image)?,
            InterruptFlag::Real => {
                let mask = returned_flags::<T>(cpu) & !(rflags::VIF | rflags::VIP);
                cpu.put_rflags(image, mask);
            }
        }
        frame.commit(cpu);
        return enter(cpu, insn, cs, cpu.cpl, ip);
    }
    if image & rflags::VM != 0 && !cpu.is_ia32e() && cpu.cpl == 0 {
        return enter_virtual_8086(cpu, insn, frame, [ip, selector.into(), image]);
    }
    let cpl = rpl(selector);
    let stack = if cpu.in_64_bit_mode() || cpl > cpu.cpl {
        let rsp = frame.pop::<T>(cpu)?.zext();
        Some((rsp, frame.pop::<T>(cpu)?.zext() as u16))
    } else {
        None
    };
    let cs = return_segment(cpu, selector, ip)?;
    match stack {
        Some((rsp, selector)) => {
            let code64 = cpu.is_code64(cs.attr);
            let ss = cpu.stack_segment(selector, cpl, code64, vector::GP)?;
            switch_stack(cpu, ss, code64, rsp);
        }
        None => frame.commit(cpu),
    }
    if cpl > cpu.cpl {
        drop_inner_segments(cpu, cpl);
    }
    cpu.put_rflags(image, returned_flags::<T>(cpu));
    enter(cpu, insn, cs, cpl, ip)
}

/// The rest of an IRET to virtual-8086 mode behind EIP, CS and EFLAGS.
fn enter_virtual_8086(cpu: &mut Cpu, insn: &Insn, frame: Frame, popped: [u64; 3]) -> Exec {
    let [ip, cs, flags] = popped;
    if ip > 0xFFFF {
        return Err(cpu.gp(0));
    }
    let from = cpu.far_source(insn);
    cpu.return_to_virtual_8086(frame, cs as u16, flags)?;
    cpu.rip = ip;
    cpu.update_mode();
    cpu.record_far(from);
    Ok(Flow::Jump)
}

/// The flags that IRET loads. They depend on the level that executes it, not on the level to which
/// it returns.
fn returned_flags<T: Int>(cpu: &Cpu) -> u64 {
    let mut mask = rflags::ARITH | rflags::TF | rflags::DF | rflags::NT;
    if T::BYTES > 2 {
        mask |= rflags::RF | rflags::AC | rflags::ID;
    }
    if cpu.cpl <= cpu.iopl() {
        mask |= rflags::IF;
    }
    if cpu.cpl == 0 {
        mask |= rflags::IOPL;
        if T::BYTES > 2 {
            mask |= rflags::VIF | rflags::VIP;
        }
    }
    mask
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Retfw, Retfw_imm16], retf::<u16>);
    t.handler([Retfd, Retfd_imm16], retf::<u32>);
    t.handler([Retfq, Retfq_imm16], retf::<u64>);
    t.handler([Iretw], iret::<u16>);
    t.handler([Iretd], iret::<u32>);
    t.handler([Iretq], iret::<u64>);
}
