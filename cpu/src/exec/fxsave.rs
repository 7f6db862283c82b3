//! FXSAVE and FXRSTOR (SDM Vol. 1 10.5).

use iced_x86::Code;

use super::simd::MXCSR_MASK;
use super::x87;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// Length of the area in bytes. FXSAVE does not write the bytes after the last register.
const AREA: usize = 512;
/// Offset of ST0/MM0.
const ST: usize = 32;
/// Offset of XMM0.
const XMM: usize = 160;
/// XMM registers outside 64-bit mode.
const XMM_LEGACY: usize = 8;

/// Linear address of the area, which must be aligned: #GP(0).
fn area(cpu: &mut Cpu, insn: &Insn) -> Result<u64, Abort> {
    cpu.need_fpu()?;
    let la = cpu.ea(insn);
    if la & 15 != 0 {
        return Err(cpu.gp(0));
    }
    Ok(la)
}

/// Number of XMM registers in this mode.
fn xmm_count(cpu: &Cpu) -> usize {
    if cpu.in_64_bit_mode() {
        cpu.xmm.len()
    } else {
        XMM_LEGACY
    }
}

/// `LONG` is the form with REX.W, which has pointers of 64 bits instead of a selector and 32 bits.
fn fxsave<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = area(cpu, insn)?;
    let x87 = &cpu.x87;
    let pointer = |p: u64| if LONG { p } else { p & 0xFFFF_FFFF };
    let mut image = [0; AREA];
    let mut put = |offset: usize, bytes: &[u8]| {
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &x87.fcw.to_le_bytes());
    put(2, &x87.fsw.to_le_bytes());
    put(4, &[x87.ftw]);
    put(6, &x87.fop.to_le_bytes());
    put(8, &pointer(x87.fip).to_le_bytes());
    put(16, &pointer(x87.fdp).to_le_bytes());
    put(24, &cpu.mxcsr.to_le_bytes());
    put(28, &MXCSR_MASK.to_le_bytes());
    for i in 0..8 {
        put(ST + 16 * i, &x87.st(i).to_le_bytes());
    }
    let count = xmm_count(cpu);
    for (i, xmm) in cpu.xmm.iter().take(count).enumerate() {
        put(XMM + 16 * i, &xmm.to_le_bytes());
    }
    cpu.store_bytes(la, &image[..XMM + 16 * count])?;
    Ok(Flow::Next)
}

fn fxrstor<const LONG: bool>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let la = area(cpu, insn)?;
    let count = xmm_count(cpu);
    let mut image = [0; AREA];
    cpu.load_bytes(la, &mut image[..XMM + 16 * count])?;
    let get = |offset: usize, len: usize| {
        let mut wide = [0; 16];
        wide[..len].copy_from_slice(&image[offset..offset + len]);
        u128::from_le_bytes(wide)
    };
    let mxcsr = get(24, 4) as u32;
    if mxcsr & !MXCSR_MASK != 0 {
        return Err(cpu.gp(0));
    }
    let pointer = if LONG { 8 } else { 4 };
    cpu.mxcsr = mxcsr;
    cpu.x87.ftw = get(4, 1) as u8;
    cpu.x87.fop = get(6, 2) as u16 & 0x7FF;
    cpu.x87.fip = get(8, pointer) as u64;
    cpu.x87.fdp = get(16, pointer) as u64;
    x87::load_status(&mut cpu.x87, get(2, 2) as u16);
    x87::load_control(&mut cpu.x87, get(0, 2) as u16);
    for i in 0..8 {
        cpu.x87.set_st(i, get(ST + 16 * i, 16));
    }
    for (i, xmm) in cpu.xmm.iter_mut().take(count).enumerate() {
        *xmm = get(XMM + 16 * i, 16);
    }
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Fxsave_m512byte], fxsave::<false>);
    t.handler([Fxsave64_m512byte], fxsave::<true>);
    t.handler([Fxrstor_m512byte], fxrstor::<false>);
    t.handler([Fxrstor64_m512byte], fxrstor::<true>);
}
