//! XSAVE and its relatives, XGETBV and XSETBV (SDM Vol. 1 13.7-13.12).
//!
//! The modified optimization, which a processor may use, is not used: a component that is in use is
//! always written.

use std::ops::Range;

use iced_x86::Code;

use super::fxsave::{load_x87, pointers};
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::xsave::MXCSR_INITIAL;
use crate::state::gpr::{RAX, RCX, RDX};
use crate::state::xsave::{COMPACTED, MXCSR_MASK, XsaveArea, component};
use crate::state::{X87State, cr0, cr4, vector};

// What an instruction that saves does.
const XSAVE: u8 = 0;
const XSAVEOPT: u8 = 1;
const XSAVEC: u8 = 2;
const XSAVES: u8 = 3;

// And one that restores.
const XRSTOR: u8 = 0;
const XRSTORS: u8 = 1;

/// MXCSR is saved with either of these, and in the standard format restored.
const WITH_MXCSR: u64 = component::SSE | component::AVX;

/// #UD unless the system has enabled XSAVE.
fn need_xsave(cpu: &mut Cpu) -> Result<(), Abort> {
    if cpu.sys.cr4 & cr4::OSXSAVE == 0 {
        return Err(cpu.ud());
    }
    Ok(())
}

/// Linear address of the area, which must be aligned: #GP(0). XSAVES and XRSTORS are `SUPERVISOR`.
fn area<const SUPERVISOR: bool>(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    need_xsave(cpu)?;
    if SUPERVISOR {
        cpu.require_cpl0()?;
    }
    if cpu.sys.cr0 & cr0::TS != 0 {
        return Err(cpu.exception(vector::NM, None));
    }
    let la = cpu.ea(insn);
    if la & 63 != 0 {
        return Err(cpu.gp(0));
    }
    Ok(la)
}

/// The instruction mask, or the value for XCR0: EDX:EAX.
fn pair(cpu: &Cpu) -> u64 {
    cpu.gpr[RDX] << 32 | cpu.gpr[RAX] & 0xFFFF_FFFF
}

/// RFBM: the components that the instruction asks for. IA32_XSS has none.
fn requested(cpu: &Cpu) -> u64 {
    pair(cpu) & cpu.sys.xcr0
}

/// XINUSE, where MXCSR counts as a part of SSE state.
fn in_use_with_mxcsr(cpu: &Cpu) -> u64 {
    let mxcsr = match cpu.mxcsr {
        MXCSR_INITIAL => 0,
        _ => component::SSE,
    };
    cpu.components_in_use() | mxcsr
}

/// The places of `components` in the area, with `count` vector registers, and that of MXCSR.
fn ranges(
    components: u64,
    count: usize,
    mxcsr: bool,
) -> impl Iterator<Item = Range<usize>> + Clone {
    let [control, stack] = XsaveArea::X87;
    [
        (components & component::X87 != 0, control),
        (mxcsr, XsaveArea::MXCSR),
        (components & component::X87 != 0, stack),
        (
            components & component::SSE != 0,
            XsaveArea::xmm_range(count),
        ),
        (
            components & component::AVX != 0,
            XsaveArea::ymm_high_range(count),
        ),
    ]
    .into_iter()
    .filter_map(|(there, range)| there.then_some(range))
}

/// Raises the faults of a write to a part of the area, by lines of 64 bytes, which are aligned.
fn check_writable(cpu: &mut Cpu, la: u64, range: &Range<usize>) -> Result<(), Abort> {
    for at in (range.start & !63..range.end).step_by(64) {
        cpu.check_writable(la.wrapping_add(at as u64), 64)?;
    }
    Ok(())
}

/// Writes a part of the area, whose faults have been raised.
fn store(cpu: &mut Cpu, la: u64, area: &XsaveArea, range: Range<usize>) -> Result<(), Abort> {
    let at = la.wrapping_add(range.start as u64);
    for (n, bytes) in (0..).zip(area.bytes()[range].as_chunks().0) {
        cpu.store(at.wrapping_add(8 * n), u64::from_le_bytes(*bytes))?;
    }
    Ok(())
}

/// Reads a part of the area.
fn load(cpu: &mut Cpu, la: u64, area: &mut XsaveArea, range: Range<usize>) -> Result<(), Abort> {
    let at = la.wrapping_add(range.start as u64);
    for (n, bytes) in (0..).zip(area.bytes_mut()[range].as_chunks_mut().0) {
        *bytes = cpu.load::<u64>(at.wrapping_add(8 * n))?.to_le_bytes();
    }
    Ok(())
}

/// Saves the requested components; `FORM` is the instruction.
fn save<const FORM: u8, const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = match FORM {
        XSAVES => area::<true>(cpu, insn)?,
        _ => area::<false>(cpu, insn)?,
    };
    let compacted = matches!(FORM, XSAVEC | XSAVES);
    let requested = requested(cpu);
    let used = match compacted {
        true => in_use_with_mxcsr(cpu),
        false => cpu.components_in_use(),
    };
    let (saved, mxcsr) = match FORM {
        XSAVE => (requested, requested & WITH_MXCSR != 0),
        XSAVEOPT => (requested & used, requested & WITH_MXCSR != 0),
        _ => (requested & used, requested & used & component::SSE != 0),
    };
    let mut image = XsaveArea::default();
    let header = if compacted {
        image.put_xstate_bv(requested & used);
        image.put_xcomp_bv(requested);
        XsaveArea::BITMAPS
    } else {
        load(cpu, la, &mut image, XsaveArea::XSTATE_BV)?;
        image.put_xstate_bv(image.xstate_bv() & !requested | used & requested);
        XsaveArea::XSTATE_BV
    };
    image.put_x87(&cpu.x87, pointers::<LONG>());
    image.put_mxcsr(cpu.mxcsr);
    image.put_xmm(&cpu.xmm);
    image.put_ymm_high(&cpu.ymm_high);
    let written = ranges(saved, cpu.vector_registers(), mxcsr).chain([header]);
    for range in written.clone() {
        check_writable(cpu, la, &range)?;
    }
    for range in written {
        store(cpu, la, &image, range)?;
    }
    Ok(Flow::Next)
}

/// Whether XRSTOR and XRSTORS accept the header (SDM Vol. 1 13.8, 13.12).
fn accepts<const FORM: u8>(cpu: &Cpu, image: &XsaveArea) -> bool {
    let (present, format) = (image.xstate_bv(), image.xcomp_bv());
    let good = if format & COMPACTED != 0 {
        let places = format & !COMPACTED;
        places & !cpu.sys.xcr0 == 0 && present & !places == 0
    } else {
        FORM == XRSTOR && format == 0 && present & !cpu.sys.xcr0 == 0
    };
    good && image.rest_of_header_is_zero()
}

/// Restores the requested components, or gives them their initial values; `FORM` is the
/// instruction.
fn restore<const FORM: u8, const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = match FORM {
        XRSTORS => area::<true>(cpu, insn)?,
        _ => area::<false>(cpu, insn)?,
    };
    let mut image = XsaveArea::default();
    load(cpu, la, &mut image, XsaveArea::HEADER)?;
    if !accepts::<FORM>(cpu, &image) {
        return Err(cpu.gp(0));
    }
    let requested = requested(cpu);
    let loaded = requested & image.xstate_bv();
    // In the compacted format MXCSR belongs to SSE state.
    let compacted = image.xcomp_bv() & COMPACTED != 0;
    let loads_mxcsr = match compacted {
        true => loaded & component::SSE != 0,
        false => requested & WITH_MXCSR != 0,
    };
    let count = cpu.vector_registers();
    for range in ranges(loaded, count, loads_mxcsr) {
        load(cpu, la, &mut image, range)?;
    }
    if loads_mxcsr {
        if image.mxcsr() & !MXCSR_MASK != 0 {
            return Err(cpu.gp(0));
        }
        cpu.mxcsr = image.mxcsr();
    } else if requested & component::SSE != 0 {
        cpu.mxcsr = MXCSR_INITIAL;
    }
    if loaded & component::X87 != 0 {
        load_x87(cpu, image.x87(pointers::<LONG>()));
    } else if requested & component::X87 != 0 {
        cpu.x87 = X87State::default();
    }
    // What is not loaded is zero in the image.
    if requested & component::SSE != 0 {
        cpu.xmm[..count].copy_from_slice(&image.xmm()[..count]);
    }
    if requested & component::AVX != 0 {
        cpu.ymm_high[..count].copy_from_slice(&image.ymm_high()[..count]);
    }
    Ok(Flow::Next)
}

/// XGETBV: XCR0, or with ECX = 1 those of its components that are in use.
fn xgetbv(cpu: &mut Cpu, _: &Insn) -> Exec {
    need_xsave(cpu)?;
    let value = match cpu.gpr[RCX] as u32 {
        0 => cpu.sys.xcr0,
        1 => cpu.sys.xcr0 & in_use_with_mxcsr(cpu),
        _ => return Err(cpu.gp(0)),
    };
    cpu.gpr[RAX] = value & 0xFFFF_FFFF;
    cpu.gpr[RDX] = value >> 32;
    Ok(Flow::Next)
}

fn xsetbv(cpu: &mut Cpu, insn: &Insn) -> Exec {
    need_xsave(cpu)?;
    cpu.require_cpl0()?;
    let value = pair(cpu);
    if cpu.gpr[RCX] as u32 != 0 || !cpu.xcr0_accepts(value) {
        return Err(cpu.gp(0));
    }
    cpu.sys.xcr0 = value;
    cpu.serialize();
    cpu.end_block(insn)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Xsave_mem], save::<XSAVE, false>);
    t.handler([Xsave64_mem], save::<XSAVE, true>);
    t.handler([Xsaveopt_mem], save::<XSAVEOPT, false>);
    t.handler([Xsaveopt64_mem], save::<XSAVEOPT, true>);
    t.handler([Xsavec_mem], save::<XSAVEC, false>);
    t.handler([Xsavec64_mem], save::<XSAVEC, true>);
    t.handler([Xsaves_mem], save::<XSAVES, false>);
    t.handler([Xsaves64_mem], save::<XSAVES, true>);
    t.handler([Xrstor_mem], restore::<XRSTOR, false>);
    t.handler([Xrstor64_mem], restore::<XRSTOR, true>);
    t.handler([Xrstors_mem], restore::<XRSTORS, false>);
    t.handler([Xrstors64_mem], restore::<XRSTORS, true>);
    t.handler([Xgetbv], xgetbv);
    t.handler([Xsetbv], xsetbv);
}
