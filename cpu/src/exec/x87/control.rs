//! FPU control: words, environment, the whole state (SDM Vol. 1 8.1.10, 8.3.11).

use iced_x86::Code;

use super::EXCEPTIONS;
use super::host::abridged_tags;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{X87State, cr0, gpr};

/// Bits of the control word that exist: masks, precision, rounding, and infinity control, which has
/// no effect.
const CONTROL: u16 = 0x1F3F;
/// The bit that reads as 1.
const CONTROL_ONE: u16 = 1 << 6;
/// Status word: ES and B, which tell that an unmasked exception is pending.
const SUMMARY: u16 = 0x8080;

/// Loads the control word.
pub(in crate::exec) fn load_control(x87: &mut X87State, value: u16) {
    x87.fcw = value & CONTROL | CONTROL_ONE;
    summarize(x87);
}

/// Loads the status word.
pub(in crate::exec) fn load_status(x87: &mut X87State, value: u16) {
    x87.fsw = value;
    summarize(x87);
}

/// Brings ES and B up to date.
pub(super) fn summarize(x87: &mut X87State) {
    x87.fsw = x87.fsw & !SUMMARY | if x87.unmasked() != 0 { SUMMARY } else { 0 };
}

/// The tag of a register that is not empty: 00 valid, 01 zero, 10 special (SDM Vol. 1 8.1.7).
fn classify(r: u128) -> u16 {
    let exponent = (r >> 64) as u16 & 0x7FFF;
    let significand = r as u64;
    match (exponent, significand) {
        (0, 0) => 1,
        (1..0x7FFF, s) if s.msb() => 0,
        _ => 2,
    }
}

/// The full tag word.
fn tags(x87: &X87State) -> u16 {
    let tag = |n: usize| {
        if x87.ftw >> n & 1 == 0 {
            3
        } else {
            classify(x87.r[n])
        }
    };
    (0..8).map(|n| tag(n) << (2 * n)).sum()
}

/// The environment in words of `T`: 16 bits in 14 bytes, or 32 in 28 (SDM Vol. 1 figures 8-9,
/// 8-11).
fn save_environment<T: Int>(x87: &X87State) -> [u8; 28] {
    const UNUSED: u64 = 0xFFFF_0000;
    let words = [
        UNUSED | u64::from(x87.fcw),
        UNUSED | u64::from(x87.fsw),
        UNUSED | u64::from(tags(x87)),
        x87.fip,
        // The selectors are zero. Only the 32-bit format has the opcode.
        u64::from(x87.fop) << 16,
        x87.fdp,
        UNUSED,
    ];
    let mut image = [0; 28];
    for (bytes, word) in image.chunks_exact_mut(T::BYTES).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..T::BYTES]);
    }
    image
}

fn load_environment<T: Int>(x87: &mut X87State, image: &[u8]) {
    let word = |n: usize| {
        let mut bytes = [0; 8];
        if let Some(field) = image.get(n * T::BYTES..(n + 1) * T::BYTES) {
            bytes[..T::BYTES].copy_from_slice(field);
        }
        u64::from_le_bytes(bytes)
    };
    x87.ftw = abridged_tags(word(2) as u16);
    x87.fip = word(3);
    x87.fop = if T::BITS == 32 {
        (word(4) >> 16) as u16 & 0x7FF
    } else {
        0
    };
    x87.fdp = word(5);
    x87.fcw = word(0) as u16;
    load_status(x87, word(1) as u16);
    load_control(x87, word(0) as u16);
}

/// FNSTENV masks every exception once the environment is in memory.
fn fnstenv<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_fpu()?;
    let image = save_environment::<T>(&cpu.x87);
    cpu.store_bytes(cpu.ea(insn), &image[..7 * T::BYTES], T::BYTES)?;
    let fcw = cpu.x87.fcw | EXCEPTIONS;
    load_control(&mut cpu.x87, fcw);
    Ok(Flow::Next)
}

fn fldenv<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let mut image = [0; 28];
    let image = &mut image[..7 * T::BYTES];
    cpu.load_bytes(cpu.ea(insn), image, T::BYTES)?;
    load_environment::<T>(&mut cpu.x87, image);
    Ok(Flow::Next)
}

/// Bytes of eight registers.
const REGISTERS: usize = 80;

fn fnsave<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_fpu()?;
    let environment = 7 * T::BYTES;
    let mut image = [0; 28 + REGISTERS];
    image[..28].copy_from_slice(&save_environment::<T>(&cpu.x87));
    for (i, bytes) in image[environment..]
        .chunks_exact_mut(10)
        .take(8)
        .enumerate()
    {
        bytes.copy_from_slice(&cpu.x87.st(i).to_le_bytes()[..10]);
    }
    cpu.store_bytes(cpu.ea(insn), &image[..environment + REGISTERS], T::BYTES)?;
    initialize(&mut cpu.x87);
    Ok(Flow::Next)
}

fn frstor<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let environment = 7 * T::BYTES;
    let mut image = [0; 28 + REGISTERS];
    let image = &mut image[..environment + REGISTERS];
    cpu.load_bytes(cpu.ea(insn), image, T::BYTES)?;
    load_environment::<T>(&mut cpu.x87, &image[..environment]);
    for (i, bytes) in image[environment..].chunks_exact(10).enumerate() {
        let mut wide = [0; 16];
        wide[..10].copy_from_slice(bytes);
        cpu.x87.set_st(i, u128::from_le_bytes(wide));
    }
    Ok(Flow::Next)
}

/// FNINIT empties the registers, but does not clear them.
fn initialize(x87: &mut X87State) {
    *x87 = X87State {
        r: x87.r,
        ..X87State::default()
    };
}

fn fninit(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_fpu()?;
    initialize(&mut cpu.x87);
    Ok(Flow::Next)
}

fn fnclex(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_fpu()?;
    // The flags, SF and ES, and B.
    cpu.x87.fsw &= !0x80FF;
    Ok(Flow::Next)
}

fn fldcw(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.wait_fpu()?;
    let value = cpu.load(cpu.ea(insn))?;
    load_control(&mut cpu.x87, value);
    Ok(Flow::Next)
}

fn fnstcw(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_fpu()?;
    cpu.store(cpu.ea(insn), cpu.x87.fcw)?;
    Ok(Flow::Next)
}

fn fnstsw(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_fpu()?;
    cpu.store(cpu.ea(insn), cpu.x87.fsw)?;
    Ok(Flow::Next)
}

fn fnstsw_ax(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_fpu()?;
    cpu.w(gpr::RAX as u8, cpu.x87.fsw);
    Ok(Flow::Next)
}

/// FWAIT. Unlike the others it depends on CR0.TS only if CR0.MP is set, and not on CR0.EM (SDM Vol.
/// 3A table 2-2).
fn fwait(cpu: &mut Cpu, _: &Insn) -> Exec {
    if cpu.sys.cr0 & (cr0::MP | cr0::TS) == cr0::MP | cr0::TS {
        return Err(cpu.exception(vector::NM, None));
    }
    if cpu.x87.pending() {
        return Err(cpu.exception(vector::MF, None));
    }
    Ok(Flow::Next)
}

/// FNENI, FNDISI and FNSETPM, which have an effect on the 8087 and the 287 only.
fn nothing(cpu: &mut Cpu, _: &Insn) -> Exec {
    cpu.need_fpu()?;
    Ok(Flow::Next)
}

/// The rows of the control instructions. FSTCW, FSAVE and their relatives are two instructions:
/// FWAIT, and the one that does not wait.
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Wait], fwait);
    t.handler([Fnstenv_m14byte], fnstenv::<u16>);
    t.handler([Fnstenv_m28byte], fnstenv::<u32>);
    t.handler([Fldenv_m14byte], fldenv::<u16>);
    t.handler([Fldenv_m28byte], fldenv::<u32>);
    t.handler([Fnsave_m94byte], fnsave::<u16>);
    t.handler([Fnsave_m108byte], fnsave::<u32>);
    t.handler([Frstor_m94byte], frstor::<u16>);
    t.handler([Frstor_m108byte], frstor::<u32>);
    t.handler([Fninit], fninit);
    t.handler([Fnclex], fnclex);
    t.handler([Fldcw_m2byte], fldcw);
    t.handler([Fnstcw_m2byte], fnstcw);
    t.handler([Fnstsw_m2byte], fnstsw);
    t.handler([Fnstsw_AX], fnstsw_ax);
    t.handler([Fneni, Fndisi, Fnsetpm], nothing);
}
