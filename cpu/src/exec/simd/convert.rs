//! Conversions between floating-point formats and integers.

use std::arch::asm;

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use super::float::{Float, float, shape};
use super::mxcsr::{HOST_MXCSR, host};
use super::{V, cast};
use crate::exec::Handler;
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Int;

float! {
    Cvtps2pd = "cvtps2pd" Cvtpd2ps = "cvtpd2ps" Cvtss2sd = "cvtss2sd" Cvtsd2ss = "cvtsd2ss"
    Cvtdq2ps = "cvtdq2ps" Cvtps2dq = "cvtps2dq" Cvttps2dq = "cvttps2dq"
    Cvtdq2pd = "cvtdq2pd" Cvtpd2dq = "cvtpd2dq" Cvttpd2dq = "cvttpd2dq"
}

/// CVTSI2SS and CVTSI2SD.
trait FromInt {
    fn run(csr: u32, a: V, b: u64) -> (V, u32);
}

macro_rules! from_int {
    ($($name:ident = $insn:literal)*) => {$(
        struct $name;
        impl FromInt for $name {
            #[inline(always)]
            fn run(mut csr: u32, mut a: V, b: u64) -> (V, u32) {
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in `csr`.
                unsafe {
                    asm!(
                        "ldmxcsr [{csr}]",
                        $insn,
                        "stmxcsr [{csr}]",
                        "ldmxcsr [rip + {host}]",
                        csr = in(reg) &raw mut csr,
                        a = inout(xmm_reg) a,
                        b = in(reg) b,
                        host = sym HOST_MXCSR,
                        options(nostack, preserves_flags),
                    );
                }
                (a, csr)
            }
        }
    )*};
}
from_int! {
    Cvtsi2ss32 = "cvtsi2ss {a}, {b:e}" Cvtsi2ss64 = "cvtsi2ss {a}, {b:r}"
    Cvtsi2sd32 = "cvtsi2sd {a}, {b:e}" Cvtsi2sd64 = "cvtsi2sd {a}, {b:r}"
}

fn from_reg<K: FromInt>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let (a, b) = (cpu.v(insn.dst), cpu.r::<u64>(insn.src));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

fn from_mem<K: FromInt, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    let a = cpu.v(insn.dst);
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// CVTSS2SI and its kin.
trait ToInt {
    /// The size of the integer.
    type Result: Int;
    fn run(csr: u32, b: V) -> (u64, u32);
}

macro_rules! to_int {
    ($($name:ident: $t:ty = $insn:literal)*) => {$(
        struct $name;
        impl ToInt for $name {
            type Result = $t;
            #[inline(always)]
            fn run(mut csr: u32, b: V) -> (u64, u32) {
                let r: u64;
                // SAFETY: the instruction has register operands only, and every exception is masked
                // in `csr`.
                unsafe {
                    asm!(
                        "ldmxcsr [{csr}]",
                        $insn,
                        "stmxcsr [{csr}]",
                        "ldmxcsr [rip + {host}]",
                        csr = in(reg) &raw mut csr,
                        r = out(reg) r,
                        b = in(xmm_reg) b,
                        host = sym HOST_MXCSR,
                        options(nostack, preserves_flags),
                    );
                }
                (r, csr)
            }
        }
    )*};
}
to_int! {
    Cvtss2si32: u32 = "cvtss2si {r:e}, {b}" Cvtss2si64: u64 = "cvtss2si {r:r}, {b}"
    Cvtsd2si32: u32 = "cvtsd2si {r:e}, {b}" Cvtsd2si64: u64 = "cvtsd2si {r:r}, {b}"
    Cvttss2si32: u32 = "cvttss2si {r:e}, {b}" Cvttss2si64: u64 = "cvttss2si {r:r}, {b}"
    Cvttsd2si32: u32 = "cvttsd2si {r:e}, {b}" Cvttsd2si64: u64 = "cvttsd2si {r:r}, {b}"
}

#[inline(always)]
fn to_int<K: ToInt>(cpu: &mut Cpu, insn: &Insn, b: u128) -> Exec {
    let r = cpu.float(|csr| K::run(csr, cast(b)))?;
    cpu.w(insn.dst, K::Result::from_u64(r));
    Ok(Flow::Next)
}

fn to_int_reg<K: ToInt>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.xmm(insn.src);
    to_int::<K>(cpu, insn, b)
}

fn to_int_mem<K: ToInt, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    to_int::<K>(cpu, insn, b.into())
}

#[inline(always)]
fn lower_half(v: V) -> V {
    cast(cast::<V, u128>(v) & u128::from(u64::MAX))
}

/// Two integers to two floats, in the lower half; the upper one is kept.
struct Cvtpi2ps;
impl Float for Cvtpi2ps {
    #[inline(always)]
    fn run(csr: u32, a: V, b: V) -> (V, u32) {
        let (r, csr) = Cvtdq2ps::run(csr, a, lower_half(b));
        let (a, r): ([u64; 2], [u64; 2]) = (cast(a), cast(r));
        (cast([r[0], a[1]]), csr)
    }
}

/// The second operand's upper half is zero, which converts without raising anything.
struct LowerHalf<K>(K);
impl<K: Float> Float for LowerHalf<K> {
    #[inline(always)]
    fn run(csr: u32, a: V, b: V) -> (V, u32) {
        K::run(csr, a, lower_half(b))
    }
}

/// XMM from MMX.
fn xmm_mm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let (a, b) = (cpu.v(insn.dst), cast(u128::from(cpu.x87.mm(insn.src))));
    let r = cpu.float(|csr| K::run(csr, a, b))?;
    cpu.x87.enter_mmx();
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

#[inline(always)]
fn to_mm<K: Float>(cpu: &mut Cpu, insn: &Insn, b: u128) -> Exec {
    let r = cpu.float(|csr| K::run(csr, cast(0u128), cast(b)))?;
    cpu.x87.set_mm(insn.dst, cast::<V, u128>(r) as u64);
    Ok(Flow::Next)
}

fn mm_xmm<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let b = cpu.xmm(insn.src);
    to_mm::<K>(cpu, insn, b)
}

fn mm_mem64<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let b = cpu.load::<u64>(cpu.ea(insn))?;
    to_mm::<K>(cpu, insn, b.into())
}

fn mm_mem128<K: Float>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    cpu.need_mmx()?;
    let b = cpu.load_aligned(insn)?;
    to_mm::<K>(cpu, insn, b)
}

/// Selects handlers.
pub(super) fn lower(i: &Instruction) -> Option<Handler> {
    let memory = i.op1_kind() == OpKind::Memory;
    macro_rules! form {
        ($reg:expr, $mem:expr) => {
            if memory { $mem as Handler } else { $reg }
        };
    }
    Some(match i.code() {
        Code::Cvtsi2ss_xmm_rm32 => form!(from_reg::<Cvtsi2ss32>, from_mem::<Cvtsi2ss32, u32>),
        Code::Cvtsi2ss_xmm_rm64 => form!(from_reg::<Cvtsi2ss64>, from_mem::<Cvtsi2ss64, u64>),
        Code::Cvtsi2sd_xmm_rm32 => form!(from_reg::<Cvtsi2sd32>, from_mem::<Cvtsi2sd32, u32>),
        Code::Cvtsi2sd_xmm_rm64 => form!(from_reg::<Cvtsi2sd64>, from_mem::<Cvtsi2sd64, u64>),
        Code::Cvtss2si_r32_xmmm32 => form!(to_int_reg::<Cvtss2si32>, to_int_mem::<Cvtss2si32, u32>),
        Code::Cvtss2si_r64_xmmm32 => form!(to_int_reg::<Cvtss2si64>, to_int_mem::<Cvtss2si64, u32>),
        Code::Cvtsd2si_r32_xmmm64 => form!(to_int_reg::<Cvtsd2si32>, to_int_mem::<Cvtsd2si32, u64>),
        Code::Cvtsd2si_r64_xmmm64 => form!(to_int_reg::<Cvtsd2si64>, to_int_mem::<Cvtsd2si64, u64>),
        Code::Cvttss2si_r32_xmmm32 => {
            form!(to_int_reg::<Cvttss2si32>, to_int_mem::<Cvttss2si32, u32>)
        }
        Code::Cvttss2si_r64_xmmm32 => {
            form!(to_int_reg::<Cvttss2si64>, to_int_mem::<Cvttss2si64, u32>)
        }
        Code::Cvttsd2si_r32_xmmm64 => {
            form!(to_int_reg::<Cvttsd2si32>, to_int_mem::<Cvttsd2si32, u64>)
        }
        Code::Cvttsd2si_r64_xmmm64 => {
            form!(to_int_reg::<Cvttsd2si64>, to_int_mem::<Cvttsd2si64, u64>)
        }
        // From memory they touch no MMX register, and leave the x87 FPU alone.
        Code::Cvtpi2ps_xmm_mmm64 => form!(xmm_mm::<Cvtpi2ps>, shape::<Cvtpi2ps>(i)),
        Code::Cvtpi2pd_xmm_mmm64 => form!(xmm_mm::<Cvtdq2pd>, shape::<Cvtdq2pd>(i)),
        Code::Cvtps2pi_mm_xmmm64 => {
            form!(mm_xmm::<LowerHalf<Cvtps2dq>>, mm_mem64::<Cvtps2dq>)
        }
        Code::Cvttps2pi_mm_xmmm64 => {
            form!(mm_xmm::<LowerHalf<Cvttps2dq>>, mm_mem64::<Cvttps2dq>)
        }
        Code::Cvtpd2pi_mm_xmmm128 => form!(mm_xmm::<Cvtpd2dq>, mm_mem128::<Cvtpd2dq>),
        Code::Cvttpd2pi_mm_xmmm128 => form!(mm_xmm::<Cvttpd2dq>, mm_mem128::<Cvttpd2dq>),
        _ => match i.mnemonic() {
            Mnemonic::Cvtps2pd => shape::<Cvtps2pd>(i),
            Mnemonic::Cvtpd2ps => shape::<Cvtpd2ps>(i),
            Mnemonic::Cvtss2sd => shape::<Cvtss2sd>(i),
            Mnemonic::Cvtsd2ss => shape::<Cvtsd2ss>(i),
            Mnemonic::Cvtdq2ps => shape::<Cvtdq2ps>(i),
            Mnemonic::Cvtps2dq => shape::<Cvtps2dq>(i),
            Mnemonic::Cvttps2dq => shape::<Cvttps2dq>(i),
            Mnemonic::Cvtdq2pd => shape::<Cvtdq2pd>(i),
            Mnemonic::Cvtpd2dq => shape::<Cvtpd2dq>(i),
            Mnemonic::Cvttpd2dq => shape::<Cvttpd2dq>(i),
            _ => return None,
        },
    })
}
