//! Segment registers: loading and storing them, and asking about selectors.

use iced_x86::{Code, Instruction};

use super::by_size;
use crate::exec::Handler;
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::PendingWork;
use crate::processor::segment::{Descriptor, is_null, rpl, sreg, system};
use crate::state::SegAttr;
use crate::state::flags::Int;
use crate::state::vector;

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
    cpu.pending_work |= PendingWork::SHADOW | PendingWork::HOLD_TRAP;
    cpu.end_block(insn)
}

/// MOV to a segment register.
fn load(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = operand(cpu, insn, insn.src)?;
    cpu.load_segment(insn.dst.into(), selector)?;
    Ok(Flow::Next)
}

fn load_ss(cpu: &mut Cpu, insn: &Insn) -> Exec {
    load(cpu, insn)?;
    after_ss(cpu, insn)
}

/// MOV from a segment register: 16 bits to memory, zero-extended to a register.
fn store<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = cpu.sys.seg[usize::from(insn.src) % 6].selector;
    if insn.prefix & Insn::MEM != 0 {
        cpu.store(cpu.ea(insn), selector)?;
    } else {
        cpu.w(insn.dst, T::from_u64(selector.into()));
    }
    Ok(Flow::Next)
}

fn push<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let selector = cpu.sys.seg[usize::from(insn.dst) % 6].selector;
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

/// The descriptor that a program asks about, if it may know of it.
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

/// Whether a descriptor is one of a segment: code, data, LDT or TSS.
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

/// ARPL: raises the RPL of a selector to that of its caller's.
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

/// SLDT and STR: `aux` selects. 16 bits to memory, zero-extended to a register.
fn store_system<T: Int, const TASK: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.require_protected()?;
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
        cpu.sys.ldtr = crate::processor::segment::null_segment(selector, 0);
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
    const BUSY: u8 = system::TSS_BUSY & !system::TSS_AVAILABLE;
    cpu.set_type_bits(selector, d, BUSY)?;
    let mut tr = d.segment(selector);
    tr.attr |= SegAttr::from_bits_retain(BUSY.into());
    cpu.sys.tr = tr;
    Ok(Flow::Next)
}

/// The descriptor of an LDT or TSS of one of these types, which must be in the GDT.
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
    Ok(d)
}

pub(super) fn lower(i: &Instruction, insn: &Insn) -> Option<Handler> {
    Some(match i.code() {
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 => {
            match usize::from(insn.dst) {
                // MOV CS is #UD.
                sreg::CS => return None,
                sreg::SS => load_ss,
                _ => load,
            }
        }
        Code::Mov_rm16_Sreg => store::<u16>,
        Code::Mov_r32m16_Sreg => store::<u32>,
        Code::Mov_r64m16_Sreg => store::<u64>,
        Code::Pushw_ES
        | Code::Pushw_CS
        | Code::Pushw_SS
        | Code::Pushw_DS
        | Code::Pushw_FS
        | Code::Pushw_GS => push::<u16>,
        Code::Pushd_ES
        | Code::Pushd_CS
        | Code::Pushd_SS
        | Code::Pushd_DS
        | Code::Pushd_FS
        | Code::Pushd_GS => push::<u32>,
        Code::Pushq_FS | Code::Pushq_GS => push::<u64>,
        Code::Popw_SS => pop_ss::<u16>,
        Code::Popd_SS => pop_ss::<u32>,
        Code::Popw_ES | Code::Popw_DS | Code::Popw_FS | Code::Popw_GS => pop::<u16>,
        Code::Popd_ES | Code::Popd_DS | Code::Popd_FS | Code::Popd_GS => pop::<u32>,
        Code::Popq_FS | Code::Popq_GS => pop::<u64>,
        Code::Les_r16_m1616
        | Code::Lds_r16_m1616
        | Code::Lss_r16_m1616
        | Code::Lfs_r16_m1616
        | Code::Lgs_r16_m1616 => load_pointer::<u16>,
        Code::Les_r32_m1632
        | Code::Lds_r32_m1632
        | Code::Lss_r32_m1632
        | Code::Lfs_r32_m1632
        | Code::Lgs_r32_m1632 => load_pointer::<u32>,
        Code::Lss_r64_m1664 | Code::Lfs_r64_m1664 | Code::Lgs_r64_m1664 => load_pointer::<u64>,
        Code::Lar_r16_rm16 | Code::Lar_r32_r32m16 | Code::Lar_r64_r64m16 => {
            by_size!(i.op_register(0).size(), lar)
        }
        Code::Lsl_r16_rm16 | Code::Lsl_r32_r32m16 | Code::Lsl_r64_r64m16 => {
            by_size!(i.op_register(0).size(), lsl)
        }
        Code::Verr_rm16 | Code::Verr_r32m16 | Code::Verr_r64m16 => verr,
        Code::Verw_rm16 | Code::Verw_r32m16 | Code::Verw_r64m16 => verw,
        Code::Arpl_rm16_r16 | Code::Arpl_r32m16_r32 => arpl,
        Code::Sldt_rm16 => store_system::<u16, false>,
        Code::Sldt_r32m16 => store_system::<u32, false>,
        Code::Sldt_r64m16 => store_system::<u64, false>,
        Code::Str_rm16 => store_system::<u16, true>,
        Code::Str_r32m16 => store_system::<u32, true>,
        Code::Str_r64m16 => store_system::<u64, true>,
        Code::Lldt_rm16 | Code::Lldt_r32m16 | Code::Lldt_r64m16 => lldt,
        Code::Ltr_rm16 | Code::Ltr_r32m16 | Code::Ltr_r64m16 => ltr,
        _ => return None,
    })
}
