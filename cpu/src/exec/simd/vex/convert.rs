//! Conversions between floating-point formats and integers, those of F16C (SDM Vol. 1 14.4)
//! included.

use iced_x86::Code;

use super::float::{scalar, unary};
use super::{OneSource, TwoSources, V, cast, source};
use crate::exec::native::VectorForm;
use crate::exec::simd::convert::*;
use crate::exec::simd::float::{ByImmediate, Float, Low, Mulps, Xmm, arithmetic};
use crate::exec::simd::mxcsr::{MASK_SHIFT, Masked, UE, host};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

#[inline(always)]
fn upper_half(v: V) -> V {
    cast(cast::<V, u128>(v) >> 64)
}

/// The lower halves of the lanes, in one.
#[inline(always)]
fn join_halves(lower: V, upper: V) -> V {
    let (lower, upper): ([u64; 2], [u64; 2]) = (cast(lower), cast(upper));
    cast([lower[0], upper[0]])
}

/// Elements of twice the size, in a YMM register: each lane converts its half of the source.
fn widen<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [b] = source(cpu, insn, insn.src)?;
    let halves = [b, upper_half(b)];
    let r = cpu.float_lanes::<2>(|csr, i| K::run(csr, b, halves[i]))?;
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// Elements of half the size, of a YMM register.
fn narrow<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; 2] = source(cpu, insn, insn.src)?;
    let [lower, upper] = cpu.float_lanes(|csr, i| K::run(csr, b[i], b[i]))?;
    cpu.set_lanes(insn.dst, [join_halves(lower, upper)]);
    Ok(Flow::Next)
}

/// Elements of half the size, of an XMM register or memory.
fn narrow_xmm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [b] = source(cpu, insn, insn.src)?;
    let [r] = cpu.float_lanes(|csr, _| K::run(csr, b, b))?;
    cpu.set_lanes(insn.dst, [r]);
    Ok(Flow::Next)
}

// F16C

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

/// VCVTPS2PH.
struct Vcvtps2ph;
impl ByImmediate for Vcvtps2ph {
    #[inline(always)]
    fn run<const P: u8>(csr: Masked, a: V, b: V) -> (V, u32) {
        // SAFETY: as of `Vcvtph2ps`.
        unsafe { host!("vcvtps2ph {a}, {b}, {p}", csr, a, b, p = const P) }
    }
}

/// The low three bits of the immediate are the rounding control, or that MXCSR has it.
#[inline(always)]
fn to_half(imm: u64, csr: Masked, b: V) -> (V, u32) {
    match imm & 7 {
        0 => Vcvtps2ph::run::<0>(csr, b, b),
        1 => Vcvtps2ph::run::<1>(csr, b, b),
        2 => Vcvtps2ph::run::<2>(csr, b, b),
        3 => Vcvtps2ph::run::<3>(csr, b, b),
        _ => Vcvtps2ph::run::<4>(csr, b, b),
    }
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

/// The row of a conversion to an integer of an operand of the size of `T`.
fn integer<B: Backend, K: ToInt, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        to_int::<OneSource, K, Xmm>,
        to_int::<OneSource, K, Low<T>>,
    )
    .vector(VectorForm::UNALIGNED.float());
}

/// The row of a conversion of an integer to an element of the destination.
fn from_integer<B: Backend, K: FromInt, T: Int>(t: &mut Table<B>, code: Code) {
    t.handlers(
        [code],
        from_reg::<TwoSources, K>,
        from_mem::<TwoSources, K, T>,
    )
    .vector(VectorForm::UNALIGNED.float());
}

/// The rows of a conversion to elements of twice the size.
fn wider<B: Backend, K: Float>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handlers(
        [xmm],
        arithmetic::<OneSource, K, Xmm>,
        arithmetic::<OneSource, K, Low<u64>>,
    )
    .vector(VectorForm::UNALIGNED.float());
    t.handler([ymm], widen::<K>)
        .vector(VectorForm::UNALIGNED.float());
}

/// The rows of a conversion to elements of half the size.
fn narrower<B: Backend, K: Float>(t: &mut Table<B>, xmm: Code, ymm: Code) {
    t.handler([xmm], narrow_xmm::<K>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([ymm], narrow::<K>)
        .vector(VectorForm::UNALIGNED.float());
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    from_integer::<B, Cvtsi2ss32, u32>(t, VEX_Vcvtsi2ss_xmm_xmm_rm32);
    from_integer::<B, Cvtsi2ss64, u64>(t, VEX_Vcvtsi2ss_xmm_xmm_rm64);
    from_integer::<B, Cvtsi2sd32, u32>(t, VEX_Vcvtsi2sd_xmm_xmm_rm32);
    from_integer::<B, Cvtsi2sd64, u64>(t, VEX_Vcvtsi2sd_xmm_xmm_rm64);
    integer::<B, Cvtss2si32, u32>(t, VEX_Vcvtss2si_r32_xmmm32);
    integer::<B, Cvtss2si64, u32>(t, VEX_Vcvtss2si_r64_xmmm32);
    integer::<B, Cvttss2si32, u32>(t, VEX_Vcvttss2si_r32_xmmm32);
    integer::<B, Cvttss2si64, u32>(t, VEX_Vcvttss2si_r64_xmmm32);
    integer::<B, Cvtsd2si32, u64>(t, VEX_Vcvtsd2si_r32_xmmm64);
    integer::<B, Cvtsd2si64, u64>(t, VEX_Vcvtsd2si_r64_xmmm64);
    integer::<B, Cvttsd2si32, u64>(t, VEX_Vcvttsd2si_r32_xmmm64);
    integer::<B, Cvttsd2si64, u64>(t, VEX_Vcvttsd2si_r64_xmmm64);
    scalar::<B, Cvtss2sd, u32>(t, VEX_Vcvtss2sd_xmm_xmm_xmmm32);
    scalar::<B, Cvtsd2ss, u64>(t, VEX_Vcvtsd2ss_xmm_xmm_xmmm64);
    unary::<B, Cvtdq2ps>(t, VEX_Vcvtdq2ps_xmm_xmmm128, VEX_Vcvtdq2ps_ymm_ymmm256);
    unary::<B, Cvtps2dq>(t, VEX_Vcvtps2dq_xmm_xmmm128, VEX_Vcvtps2dq_ymm_ymmm256);
    unary::<B, Cvttps2dq>(t, VEX_Vcvttps2dq_xmm_xmmm128, VEX_Vcvttps2dq_ymm_ymmm256);
    wider::<B, Cvtps2pd>(t, VEX_Vcvtps2pd_xmm_xmmm64, VEX_Vcvtps2pd_ymm_xmmm128);
    wider::<B, Cvtdq2pd>(t, VEX_Vcvtdq2pd_xmm_xmmm64, VEX_Vcvtdq2pd_ymm_xmmm128);
    wider::<B, Vcvtph2ps>(t, VEX_Vcvtph2ps_xmm_xmmm64, VEX_Vcvtph2ps_ymm_xmmm128);
    narrower::<B, Cvtpd2ps>(t, VEX_Vcvtpd2ps_xmm_xmmm128, VEX_Vcvtpd2ps_xmm_ymmm256);
    narrower::<B, Cvtpd2dq>(t, VEX_Vcvtpd2dq_xmm_xmmm128, VEX_Vcvtpd2dq_xmm_ymmm256);
    narrower::<B, Cvttpd2dq>(t, VEX_Vcvttpd2dq_xmm_xmmm128, VEX_Vcvttpd2dq_xmm_ymmm256);
    t.handler([VEX_Vcvtps2ph_xmmm64_xmm_imm8], to_halves::<1>)
        .vector(VectorForm::UNALIGNED.float());
    t.handler([VEX_Vcvtps2ph_xmmm128_ymm_imm8], to_halves::<2>)
        .vector(VectorForm::UNALIGNED.float());
}
