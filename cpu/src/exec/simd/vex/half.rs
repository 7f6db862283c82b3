//! F16C: conversions between floating-point numbers of 16 and 32 bits (SDM Vol. 1 14.4).

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::simd::convert::{Wider, join_halves};
use crate::exec::simd::float::{ByImmediate, Float, Mulps, by_immediate, run_by_immediate};
use crate::exec::simd::mxcsr::{MASK_SHIFT, Masked, UE, host};
use crate::exec::simd::rows::vex;
use crate::exec::simd::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// VCVTPH2PS.
struct Vcvtph2ps;
impl Float for Vcvtph2ps {
    #[inline(always)]
    fn run(csr: Masked, a: V, b: V) -> (V, u32) {
        // SAFETY: the instruction has register operands only, every exception is masked in a
        // `Masked`, and a model that has it runs only on a host that has it.
        unsafe { host!("vcvtph2ps {a}, {b}", csr, a, b) }
    }
}

by_immediate! { Vcvtps2ph = "vcvtps2ph" }

/// The low three bits of the immediate are the rounding control, or that MXCSR has it.
#[inline(always)]
fn to_half(imm: u64, csr: Masked, b: V) -> (V, u32) {
    run_by_immediate!(Vcvtps2ph, imm & 7, (csr, b, b), 0 1 2 3; 4)
}

/// Whether a result is tiny. [`Cpu::float`] finds that by flushing to zero, which VCVTPS2PH does
/// not do. Scaled by 2^16, a result that is tiny is less than 4, with its full precision.
#[cold]
fn is_tiny(imm: u64, csr: Masked, b: V) -> bool {
    let scale = cast([0x4780_0000u32; 4]);
    let (scaled, _) = Mulps::run(csr.flushing(false), b, scale);
    let (halves, _) = to_half(imm, csr, scaled);
    let (scaled, halves): ([u32; 4], [u16; 8]) = (cast(scaled), cast(halves));
    (0..4).any(|i| scaled[i] << 1 != 0 && halves[i] & 0x7FFF < 0x4400)
}

/// VCVTPS2PH. The destination is the register or memory operand. As on Intel's processors, the
/// conversion has set its flags, or raised its exception, before the store can cause a page
/// fault.
fn to_halves<const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let memory = insn.prefix & Insn::MEM != 0;
    let la = cpu.ea(insn);
    let b = cpu.lanes::<L>(insn.src);
    let unmasked = cpu.mxcsr & UE << MASK_SHIFT == 0;
    let r = cpu.float_lanes::<L>(|csr, i| {
        let (r, after) = to_half(insn.imm, csr, b[i]);
        let tiny = unmasked && is_tiny(insn.imm, csr, b[i]);
        (r, after | if tiny { UE } else { 0 })
    })?;
    let all: u128 = cast(join_halves(r[0], r.get(1).copied().unwrap_or(cast(0u128))));
    match (memory, L) {
        (false, _) => cpu.set_ymm(insn.dst, all, 0),
        (true, 1) => cpu.store(la, all as u64)?,
        (true, _) => cpu.store128(la, all)?,
    }
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    vex::<B, Wider<Vcvtph2ps>>(t, [VEX_Vcvtph2ps_xmm_xmmm64, VEX_Vcvtph2ps_ymm_xmmm128]);
    t.handler([VEX_Vcvtps2ph_xmmm64_xmm_imm8], to_halves::<1>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vcvtps2ph_xmmm128_ymm_imm8], to_halves::<2>)
        .vector(VectorForm::UNALIGNED.float());
}
