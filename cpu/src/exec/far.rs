//! Far transfers: JMP and CALL to another segment, call gates and task switches.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::frame::Frame;
use crate::processor::task_switch::{Cause, OldTask, Task};
use crate::state::descriptor::{Descriptor, is_null, rpl, system};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, Segment, gpr, rflags, sreg};

/// Where a far JMP or CALL goes.
enum Target {
    Code(CodeTarget),
    Task(Task),
}

/// A far JMP or CALL to code.
struct CodeTarget {
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
    if !cpu.uses_descriptors() {
        return Ok(Target::Code(CodeTarget {
            cs: real_target(cpu, selector, ip)?,
            cpl: cpu.cpl,
            ip,
            gate: None,
        }));
    }
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let d = cpu.descriptor(selector, vector::GP)?;
    let legacy = !cpu.is_ia32e();
    match d.system_type() {
        Some(system::CALL_GATE) => through_gate(cpu, selector, call).map(Target::Code),
        Some(system::CALL_GATE_16) if legacy => through_gate(cpu, selector, call).map(Target::Code),
        // IA-32e mode has no task switches (7.7).
        Some(
            system::TASK_GATE
            | system::TSS_AVAILABLE
            | system::TSS_BUSY
            | system::TSS_16_AVAILABLE
            | system::TSS_16_BUSY,
        ) if legacy => task(cpu, selector, d).map(Target::Task),
        Some(_) => Err(cpu.selector_fault(vector::GP, selector)),
        None => {
            if !d.is_code() || !may_enter(cpu, selector, d) {
                return Err(cpu.selector_fault(vector::GP, selector));
            }
            cpu.check_code_segment(selector, d)?;
            cpu.check_target(d.attr(), d.limit(), ip)?;
            let cs = with_rpl(cpu.accessed(selector, d)?, cpu.cpl);
            Ok(Target::Code(CodeTarget {
                cs,
                cpl: cpu.cpl,
                ip,
                gate: None,
            }))
        }
    }
}

/// The task of `d`, a TSS or task gate. Its DPL decides whether the program may switch to the task
/// (SDM Vol. 3A 7.3).
fn task(cpu: &mut Cpu, selector: u16, d: Descriptor) -> Result<Task, Abort> {
    if d.dpl() < cpu.cpl.max(rpl(selector)) {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    if d.system_type() != Some(system::TASK_GATE) {
        return cpu.available_task(selector);
    }
    if !d.has(SegAttr::P) {
        return Err(cpu.selector_fault(vector::NP, selector));
    }
    cpu.available_task(d.gate_selector())
}

/// CS after a transfer to `selector` without descriptors: in real-address mode and virtual-8086
/// mode, where only the limit that CS already has is checked.
pub(super) fn real_target(cpu: &mut Cpu, selector: u16, ip: u64) -> Result<Segment, Abort> {
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

fn through_gate(cpu: &mut Cpu, selector: u16, call: bool) -> Result<CodeTarget, Abort> {
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
    Ok(CodeTarget {
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
pub(super) fn enter(cpu: &mut Cpu, insn: &Insn, cs: Segment, cpl: u8, ip: u64) -> Exec {
    let from = cpu.far_source(insn);
    cpu.set_segment(sreg::CS, cs);
    cpu.cpl = cpl;
    cpu.rip = ip;
    cpu.update_mode();
    cpu.record_far(from);
    Ok(Flow::Jump)
}

/// Switches to another task. A fault that its state causes is one of that task.
pub(super) fn switch_task(cpu: &mut Cpu, insn: &Insn, task: &Task, cause: Cause) -> Exec {
    let old = OldTask {
        ip: cpu.next_rip(insn),
        flags: cpu.rflags() & !rflags::RF,
        from: cpu.far_source(insn),
    };
    if let Err(Abort) = cpu.switch_task(task, cause, &old)? {
        cpu.raise_fault(false);
    }
    Ok(Flow::Jump)
}

fn jump(cpu: &mut Cpu, insn: &Insn, selector: u16, ip: u64) -> Exec {
    match target(cpu, selector, ip, false)? {
        Target::Code(t) => enter(cpu, insn, t.cs, t.cpl, t.ip),
        Target::Task(task) => switch_task(cpu, insn, &task, Cause::Jump),
    }
}

fn call<T: Int>(cpu: &mut Cpu, insn: &Insn, selector: u16, ip: u64) -> Exec {
    let t = match target(cpu, selector, ip, true)? {
        Target::Code(t) => t,
        Target::Task(task) => return switch_task(cpu, insn, &task, Cause::Nest(None)),
    };
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
    t: &CodeTarget,
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
}
