//! Far transfers: JMP, CALL and RET to another segment, call gates, and IRET.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::frame::Frame;
use crate::state::descriptor::{Descriptor, is_null, rpl, system};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, Segment, gpr, rflags, sreg};

/// Where a far JMP or CALL goes.
struct Target {
    /// CS after the transfer.
    cs: Segment,
    /// Descriptor privilege level of a nonconforming segment behind a gate: the CPL after a CALL.
    cpl: u8,
    ip: u64,
    /// The call gate that it goes through.
    gate: Option<Descriptor>,
}

/// Finds the target of a far JMP or CALL (SDM Vol. 2A, JMP and CALL).
fn target(cpu: &mut Cpu, selector: u16, ip: u64, call: bool) -> Result<Target, Abort> {
    if !cpu.is_protected() {
        return Ok(Target {
            cs: real_target(cpu, selector, ip)?,
            cpl: 0,
            ip,
            gate: None,
        });
    }
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let d = cpu.descriptor(selector, vector::GP)?;
    match d.system_type() {
        // Call gates are the only system descriptors that are a target: this processor has no task
        // switches.
        Some(system::CALL_GATE) => through_gate(cpu, selector, call),
        Some(system::CALL_GATE_16) if !cpu.is_ia32e() => through_gate(cpu, selector, call),
        Some(_) => Err(cpu.selector_fault(vector::GP, selector)),
        None => {
            if !d.is_code() || !may_enter(cpu, selector, d) {
                return Err(cpu.selector_fault(vector::GP, selector));
            }
            cpu.check_code_segment(selector, d)?;
            cpu.check_target(d.attr(), d.limit(), ip)?;
            let cs = with_rpl(cpu.accessed(selector, d)?, cpu.cpl);
            Ok(Target {
                cs,
                cpl: cpu.cpl,
                ip,
                gate: None,
            })
        }
    }
}

/// CS after a transfer to `selector` in real-address mode, where only the limit that CS already has
/// is checked.
fn real_target(cpu: &mut Cpu, selector: u16, ip: u64) -> Result<Segment, Abort> {
    let cs = cpu.segment(sreg::CS).in_real_mode(selector);
    cpu.check_target(cs.attr, cs.limit, ip)?;
    Ok(cs)
}

/// The privilege rules for entering a code segment directly (SDM Vol. 3A 5.8.1).
fn may_enter(cpu: &Cpu, selector: u16, d: Descriptor) -> bool {
    if d.is_conforming_code() {
        d.dpl() <= cpu.cpl
    } else {
        d.dpl() == cpu.cpl && rpl(selector) <= cpu.cpl
    }
}

fn through_gate(cpu: &mut Cpu, selector: u16, call: bool) -> Result<Target, Abort> {
    let gate = cpu.system_descriptor(selector, vector::GP)?;
    if gate.dpl() < cpu.cpl.max(rpl(selector)) {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    if !gate.has(SegAttr::P) {
        return Err(cpu.selector_fault(vector::NP, selector));
    }
    let code = gate.gate_selector();
    if is_null(code) {
        return Err(cpu.gp(0));
    }
    let d = cpu.descriptor(code, vector::GP)?;
    // Only a CALL can gain privilege (5.8.4), and IA-32e mode has only 64-bit code behind gates
    // (5.8.3.1).
    let inward = call && !d.is_conforming_code();
    let privileged = if d.is_conforming_code() || inward {
        d.dpl() <= cpu.cpl
    } else {
        d.dpl() == cpu.cpl
    };
    if !d.is_code() || !privileged || (cpu.is_ia32e() && !d.has(SegAttr::L)) {
        return Err(cpu.selector_fault(vector::GP, code));
    }
    cpu.check_code_segment(code, d)?;
    let ip = gate.gate_offset();
    cpu.check_target(d.attr(), d.limit(), ip)?;
    let cpl = if inward { d.dpl() } else { cpu.cpl };
    let cs = with_rpl(cpu.accessed(code, d)?, cpl);
    Ok(Target {
        cs,
        cpl,
        ip,
        gate: Some(gate),
    })
}

/// A segment as CS holds it: the selector's RPL is the CPL.
fn with_rpl(mut segment: Segment, cpl: u8) -> Segment {
    segment.selector = (segment.selector & !3) | u16::from(cpl);
    segment
}

/// Continues at `ip` in `cs`.
fn enter(cpu: &mut Cpu, insn: &Insn, cs: Segment, cpl: u8, ip: u64) -> Exec {
    let from = cpu.far_source(insn);
    cpu.set_segment(sreg::CS, cs);
    cpu.cpl = cpl;
    cpu.rip = ip;
    cpu.update_mode();
    cpu.record_far(from);
    Ok(Flow::Jump)
}

fn jump(cpu: &mut Cpu, insn: &Insn, selector: u16, ip: u64) -> Exec {
    let t = target(cpu, selector, ip, false)?;
    enter(cpu, insn, t.cs, t.cpl, t.ip)
}

fn call<T: Int>(cpu: &mut Cpu, insn: &Insn, selector: u16, ip: u64) -> Exec {
    let t = target(cpu, selector, ip, true)?;
    match t.gate {
        None => push_return::<T>(cpu, insn, &t, 0)?,
        Some(_) if cpu.is_ia32e() => push_return::<u64>(cpu, insn, &t, 0)?,
        Some(gate) if gate.is_16_bit() => {
            push_return::<u16>(cpu, insn, &t, gate.gate_parameters())?;
        }
        Some(gate) => push_return::<u32>(cpu, insn, &t, gate.gate_parameters())?,
    }
    enter(cpu, insn, t.cs, t.cpl, t.ip)
}

/// Pushes the return address of a far CALL in words of `T`. A CALL to an inner level switches the
/// stack, and first pushes the old stack pointer and copies `parameters` words.
fn push_return<T: Int>(
    cpu: &mut Cpu,
    insn: &Insn,
    t: &Target,
    parameters: u64,
) -> Result<(), Abort> {
    let old = Frame::current(cpu);
    let (stack, mut frame) = if t.cpl < cpu.cpl {
        let (ss, mut frame) = cpu.inner_stack(t.cpl)?;
        frame.push(cpu, T::from_u64(cpu.seg[sreg::SS].selector.into()))?;
        frame.push(cpu, T::from_u64(cpu.gpr[gpr::RSP]))?;
        for n in (0..parameters).rev() {
            let mut from = old;
            from.skip(n * T::BYTES as u64);
            let word: T = from.pop(cpu)?;
            frame.push(cpu, word)?;
        }
        (Some(ss), frame)
    } else {
        (None, old)
    };
    frame.push(cpu, T::from_u64(cpu.seg[sreg::CS].selector.into()))?;
    frame.push(cpu, T::from_u64(cpu.next_rip(insn)))?;
    if let Some(ss) = stack {
        cpu.set_segment(sreg::SS, ss);
    }
    frame.commit(cpu);
    Ok(())
}

/// The far pointer in memory: an offset of the operand size, then a selector.
fn pointer<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Result<(u16, u64), Abort> {
    let la = cpu.ea(insn);
    let ip = cpu.load::<T>(la)?.zext();
    let selector = cpu.load::<u16>(la.wrapping_add(T::BYTES as u64))?;
    Ok((selector, ip))
}

fn jmp_memory<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (selector, ip) = pointer::<T>(cpu, insn)?;
    jump(cpu, insn, selector, ip)
}

fn call_memory<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let (selector, ip) = pointer::<T>(cpu, insn)?;
    call::<T>(cpu, insn, selector, ip)
}

/// `imm` is the offset, `disp` the selector.
fn jmp_direct(cpu: &mut Cpu, insn: &Insn) -> Exec {
    jump(cpu, insn, insn.disp as u16, insn.imm)
}

fn call_direct<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    call::<T>(cpu, insn, insn.disp as u16, insn.imm)
}

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
    if !cpu.is_protected() {
        let cs = real_target(cpu, selector, ip)?;
        frame.skip(insn.imm);
        frame.commit(cpu);
        return enter(cpu, insn, cs, 0, ip);
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

/// IRET (SDM Vol. 2A, IRET). This processor has no virtual-8086 mode and no task switches: a return
/// to either raises #GP(0), as NT does in IA-32e mode.
fn iret<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    // NMIs are unblocked even if the instruction faults (SDM Vol. 3A 6.7.1).
    if cpu.nmi_blocked {
        cpu.nmi_blocked = false;
        cpu.update_mode();
    }
    cpu.serialize();
    let protected = cpu.is_protected();
    if protected && cpu.eflags & rflags::NT != 0 {
        return Err(cpu.gp(0));
    }
    let mut frame = Frame::current(cpu);
    let ip = frame.pop::<T>(cpu)?.zext();
    let selector = frame.pop::<T>(cpu)?.zext() as u16;
    let image = frame.pop::<T>(cpu)?.zext();
    if !protected {
        let cs = real_target(cpu, selector, ip)?;
        frame.commit(cpu);
        cpu.put_rflags(
            image,
            returned_flags::<T>(cpu) & !(rflags::VIF | rflags::VIP),
        );
        return enter(cpu, insn, cs, 0, ip);
    }
    if image & rflags::VM != 0 && !cpu.is_ia32e() && cpu.cpl == 0 {
        return Err(cpu.gp(0));
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

/// The flags that IRET loads. They depend on the level that executes it, not on the level to which
/// it returns.
fn returned_flags<T: Int>(cpu: &Cpu) -> u64 {
    let mut mask = rflags::ARITH | rflags::TF | rflags::DF | rflags::NT;
    if T::BYTES > 2 {
        mask |= rflags::RF | rflags::AC | rflags::ID;
    }
    if u64::from(cpu.cpl) <= cpu.eflags >> 12 & 3 {
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
    t.handler([Jmp_ptr1616, Jmp_ptr1632], jmp_direct);
    t.handler([Call_ptr1616], call_direct::<u16>);
    t.handler([Call_ptr1632], call_direct::<u32>);
    t.handler([Jmp_m1616], jmp_memory::<u16>);
    t.handler([Jmp_m1632], jmp_memory::<u32>);
    t.handler([Jmp_m1664], jmp_memory::<u64>);
    t.handler([Call_m1616], call_memory::<u16>);
    t.handler([Call_m1632], call_memory::<u32>);
    t.handler([Call_m1664], call_memory::<u64>);
    t.handler([Retfw, Retfw_imm16], retf::<u16>);
    t.handler([Retfd, Retfd_imm16], retf::<u32>);
    t.handler([Retfq, Retfq_imm16], retf::<u64>);
    t.handler([Iretw], iret::<u16>);
    t.handler([Iretd], iret::<u32>);
    t.handler([Iretq], iret::<u64>);
}
