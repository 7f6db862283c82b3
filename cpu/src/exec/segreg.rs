//! Segment registers: loads, stores, and the instructions that test a selector.

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::mmu::access::canonical;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::state::descriptor::{Descriptor, is_null, rpl, system};
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{SegAttr, Segment, sreg};

/// The 16-bit operand in position 0 or 1: a register (`n`) or memory.
fn operand(cpu: &mut Cpu, insn: &Insn, n: u8) -> Result<u16, Abort> {
    if insn.prefix & Insn::MEM != 0 {
        cpu.load(cpu.ea(insn))
    } else {
        Ok(cpu.r(n))
    }
}

/// Ends an instruction that has loaded SS: the next one, which will load RSP, must not be
/// interrupted (SDM Vol. 3A 6.8.3).
fn after_ss(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.pending_work
        .insert(ArchEvents::SHADOW | ArchEvents::HOLD_TRAP);
    cpu.end_block(insn)
}

/// MOV to a segment register; to CS it is #UD.
fn mov_to_segment(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let register = usize::from(insn.dst);
    if register == sreg::CS {
        return Err(cpu.ud());
    }
    let selector = operand(cpu, insn, insn.src)?;
    cpu.load_segment(register, selector)?;
    if register == sreg::SS {
        return after_ss(cpu, insn);
    }
    Ok(Flow::Next)
}

/// MOV from a segment register: 16 bits to memory, zero-extended to a register.
fn store<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = cpu.seg[usize::from(insn.src) % 6].selector;
    if insn.prefix & Insn::MEM != 0 {
        cpu.store(cpu.ea(insn), selector)?;
    } else {
        cpu.w(insn.dst, T::from_u64(selector.into()));
    }
    Ok(Flow::Next)
}

fn push<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = cpu.seg[usize::from(insn.dst) % 6].selector;
    if T::BITS == 64 {
        cpu.push(u64::from(selector))?;
    } else {
        // A 32-bit slot keeps its upper half on Intel's processors (SDM Vol. 2B, PUSH).
        cpu.push_into::<false, T, u16>(selector)?;
    }
    Ok(Flow::Next)
}

fn pop<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = cpu.peek::<T>(0)?.zext() as u16;
    // The width of the stack pointer is that of the old stack.
    let rsp = cpu.gpr[crate::state::gpr::RSP];
    cpu.drop_stack(T::BYTES as u64);
    if let Err(Abort) = cpu.load_segment(insn.dst.into(), selector) {
        cpu.gpr[crate::state::gpr::RSP] = rsp;
        return Err(Abort);
    }
    Ok(Flow::Next)
}

fn pop_ss<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    pop::<T>(cpu, insn)?;
    after_ss(cpu, insn)
}

/// LDS, LES, LSS, LFS, LGS: `aux` is the segment register.
fn load_pointer<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = cpu.ea(insn);
    let offset: T = cpu.load(la)?;
    let selector = cpu.load::<u16>(la.wrapping_add(T::BYTES as u64))?;
    cpu.load_segment(insn.aux.into(), selector)?;
    cpu.w(insn.dst, offset);
    Ok(Flow::Next)
}

/// The descriptor of a selector that a program tests, if its privilege allows the program to see
/// it.
fn visible(cpu: &mut Cpu, selector: u16) -> Result<Option<Descriptor>, Abort> {
    if is_null(selector) {
        return Ok(None);
    }
    let level = cpu.cpl.max(rpl(selector));
    let found = cpu.find_descriptor(selector)?;
    Ok(found.filter(|d| d.is_conforming_code() || level <= d.dpl()))
}

fn set_zf(cpu: &mut Cpu, zf: bool) -> Exec {
    cpu.flags = cpu.flags.with_zf(zf);
    Ok(Flow::Next)
}

/// Whether a descriptor has a limit: a code, data, LDT or TSS segment.
fn has_limit(ty: Option<u8>, ia32e: bool) -> bool {
    match ty {
        None | Some(system::LDT | system::TSS_AVAILABLE | system::TSS_BUSY) => true,
        Some(system::TSS_16_AVAILABLE | system::TSS_16_BUSY) => !ia32e,
        _ => false,
    }
}

fn lar<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    let selector = operand(cpu, insn, insn.src)?;
    let ia32e = cpu.is_ia32e();
    let found = visible(cpu, selector)?.filter(|d| match d.system_type() {
        Some(system::CALL_GATE) => true,
        Some(system::CALL_GATE_16 | system::TASK_GATE) => !ia32e,
        ty => has_limit(ty, ia32e),
    });
    if let Some(d) = found {
        cpu.w(insn.dst, T::from_u64(d.low >> 32 & 0x00F0_FF00));
    }
    set_zf(cpu, found.is_some())
}

fn lsl<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    let selector = operand(cpu, insn, insn.src)?;
    let ia32e = cpu.is_ia32e();
    let found = visible(cpu, selector)?.filter(|d| has_limit(d.system_type(), ia32e));
    if let Some(d) = found {
        cpu.w(insn.dst, T::from_u64(d.limit().into()));
    }
    set_zf(cpu, found.is_some())
}

fn verr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    let selector = operand(cpu, insn, insn.dst)?;
    let found = visible(cpu, selector)?;
    set_zf(cpu, found.is_some_and(Descriptor::is_readable))
}

fn verw(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    let selector = operand(cpu, insn, insn.dst)?;
    let found = visible(cpu, selector)?;
    set_zf(cpu, found.is_some_and(Descriptor::is_writable))
}

/// ARPL: raises the RPL of a selector to that of the caller's selector.
fn arpl(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    let caller = cpu.r::<u16>(insn.src) & 3;
    let selector = operand(cpu, insn, insn.dst)?;
    let raise = selector & 3 < caller;
    if raise {
        let raised = (selector & !3) | caller;
        if insn.prefix & Insn::MEM != 0 {
            cpu.store(cpu.ea(insn), raised)?;
        } else {
            cpu.w(insn.dst, raised);
        }
    }
    set_zf(cpu, raise)
}

/// STR (`TASK`) and SLDT: 16 bits to memory, zero-extended to a register.
fn store_system<T: Int, const TASK: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    cpu.check_umip()?;
    let selector = if TASK {
        cpu.sys.tr.selector
    } else {
        cpu.sys.ldtr.selector
    };
    if insn.prefix & Insn::MEM != 0 {
        cpu.store(cpu.ea(insn), selector)?;
    } else {
        cpu.w(insn.dst, T::from_u64(selector.into()));
    }
    Ok(Flow::Next)
}

fn lldt(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    cpu.require_cpl0()?;
    let selector = operand(cpu, insn, insn.dst)?;
    if is_null(selector) {
        cpu.sys.ldtr = Segment::null(selector, 0);
        return Ok(Flow::Next);
    }
    let d = system_segment(cpu, selector, &[system::LDT])?;
    cpu.sys.ldtr = d.segment(selector);
    Ok(Flow::Next)
}

fn ltr(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
    cpu.require_cpl0()?;
    let selector = operand(cpu, insn, insn.dst)?;
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let types: &[u8] = if cpu.is_ia32e() {
        &[system::TSS_AVAILABLE]
    } else {
        &[system::TSS_AVAILABLE, system::TSS_16_AVAILABLE]
    };
    let d = system_segment(cpu, selector, types)?;
    cpu.set_type_bits(selector, d, system::BUSY)?;
    let mut tr = d.segment(selector);
    tr.attr |= SegAttr::from_bits_retain(system::BUSY.into());
    cpu.sys.tr = tr;
    Ok(Flow::Next)
}

/// The descriptor of an LDT or TSS of one of these types, which must be in the GDT. Its base must
/// be canonical (SDM Vol. 1 3.3.7.1).
fn system_segment(cpu: &mut Cpu, selector: u16, types: &[u8]) -> Result<Descriptor, Abort> {
    if selector & 4 != 0 {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    let d = cpu.system_descriptor(selector, vector::GP)?;
    if !d.system_type().is_some_and(|ty| types.contains(&ty)) {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    if !d.has(SegAttr::P) {
        return Err(cpu.selector_fault(vector::NP, selector));
    }
    if !canonical(d.base()) {
        return Err(cpu.selector_fault(vector::GP, selector));
    }
    Ok(d)
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Mov_Sreg_rm16, Mov_Sreg_r32m16, Mov_Sreg_r64m16], mov_to_segment);
    t.handler([Mov_rm16_Sreg], store::<u16>);
    t.handler([Mov_r32m16_Sreg], store::<u32>);
    t.handler([Mov_r64m16_Sreg], store::<u64>);
    t.handler([Pushw_ES, Pushw_CS, Pushw_SS, Pushw_DS, Pushw_FS, Pushw_GS], push::<u16>);
    t.handler([Pushd_ES, Pushd_CS, Pushd_SS, Pushd_DS, Pushd_FS, Pushd_GS], push::<u32>);
    t.handler([Pushq_FS, Pushq_GS], push::<u64>);
    t.handler([Popw_SS], pop_ss::<u16>);
    t.handler([Popd_SS], pop_ss::<u32>);
    t.handler([Popw_ES, Popw_DS, Popw_FS, Popw_GS], pop::<u16>);
    t.handler([Popd_ES, Popd_DS, Popd_FS, Popd_GS], pop::<u32>);
    t.handler([Popq_FS, Popq_GS], pop::<u64>);
    t.handler([Les_r16_m1616, Lds_r16_m1616, Lss_r16_m1616, Lfs_r16_m1616, Lgs_r16_m1616], load_pointer::<u16>);
    t.handler([Les_r32_m1632, Lds_r32_m1632, Lss_r32_m1632, Lfs_r32_m1632, Lgs_r32_m1632], load_pointer::<u32>);
    t.handler([Lss_r64_m1664, Lfs_r64_m1664, Lgs_r64_m1664], load_pointer::<u64>);
    t.handler([Lar_r16_rm16], lar::<u16>);
    t.handler([Lar_r32_r32m16], lar::<u32>);
    t.handler([Lar_r64_r64m16], lar::<u64>);
    t.handler([Lsl_r16_rm16], lsl::<u16>);
    t.handler([Lsl_r32_r32m16], lsl::<u32>);
    t.handler([Lsl_r64_r64m16], lsl::<u64>);
    t.handler([Verr_rm16, Verr_r32m16, Verr_r64m16], verr);
    t.handler([Verw_rm16, Verw_r32m16, Verw_r64m16], verw);
    t.handler([Arpl_rm16_r16, Arpl_r32m16_r32], arpl);
    t.handler([Sldt_rm16], store_system::<u16, false>);
    t.handler([Sldt_r32m16], store_system::<u32, false>);
    t.handler([Sldt_r64m16], store_system::<u64, false>);
    t.handler([Str_rm16], store_system::<u16, true>);
    t.handler([Str_r32m16], store_system::<u32, true>);
    t.handler([Str_r64m16], store_system::<u64, true>);
    t.handler([Lldt_rm16, Lldt_r32m16, Lldt_r64m16], lldt);
    t.handler([Ltr_rm16, Ltr_r32m16, Ltr_r64m16], ltr);
}
