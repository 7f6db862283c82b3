//! Shuffles whose pattern is an immediate, and duplications.

use iced_x86::Code;

use super::encoding::{Encoding, OneSource};
use super::integer::Punpcklqdq;
use super::packed::{Binary, BinaryInSteps, Unary, mm, packed};
use super::rows::{Encoded, Handlers, WideForm, ymm};
use super::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// The element of `v` that two bits of the immediate select.
macro_rules! pick {
    ($v:expr, $imm:expr, $n:literal) => {
        $v[usize::from($imm >> (2 * $n) & 3)]
    };
}

#[inline(always)]
fn pshufd(b: V, imm: u8) -> V {
    let b: [u32; 4] = cast(b);
    cast([
        pick!(b, imm, 0),
        pick!(b, imm, 1),
        pick!(b, imm, 2),
        pick!(b, imm, 3),
    ])
}

#[inline(always)]
fn shufps(a: V, b: V, imm: u8) -> V {
    let (a, b): ([u32; 4], [u32; 4]) = (cast(a), cast(b));
    cast([
        pick!(a, imm, 0),
        pick!(a, imm, 1),
        pick!(b, imm, 2),
        pick!(b, imm, 3),
    ])
}

#[inline(always)]
fn shufpd(a: V, b: V, imm: u8) -> V {
    let (a, b): ([u64; 2], [u64; 2]) = (cast(a), cast(b));
    cast([a[usize::from(imm & 1)], b[usize::from(imm >> 1 & 1)]])
}

#[inline(always)]
fn words(w: [u16; 4], imm: u8) -> [u16; 4] {
    [
        pick!(w, imm, 0),
        pick!(w, imm, 1),
        pick!(w, imm, 2),
        pick!(w, imm, 3),
    ]
}

#[inline(always)]
fn pshuflw(b: V, imm: u8) -> V {
    let [w0, w1, w2, w3, h @ ..]: [u16; 8] = cast(b);
    let l = words([w0, w1, w2, w3], imm);
    cast([l[0], l[1], l[2], l[3], h[0], h[1], h[2], h[3]])
}

#[inline(always)]
fn pshufhw(b: V, imm: u8) -> V {
    let [l @ .., w4, w5, w6, w7]: [u16; 8] = cast(b);
    let h = words([w4, w5, w6, w7], imm);
    cast([l[0], l[1], l[2], l[3], h[0], h[1], h[2], h[3]])
}

packed! {
    Pshufd(_, b, imm) => pshufd(b, imm),
    Pshuflw(_, b, imm) => pshuflw(b, imm),
    Pshufhw(_, b, imm) => pshufhw(b, imm),
    Shufps(a, b, imm) => shufps(a, b, imm),
    Shufpd(a, b, imm) => shufpd(a, b, imm),
    Movsldup(_, b, _) => pshufd(b, 0b10_10_00_00),
    Movshdup(_, b, _) => pshufd(b, 0b11_11_01_01),
}

#[inline(always)]
fn twice(v: u64) -> u128 {
    u128::from(v) | u128::from(v) << 64
}

/// MOVDDUP: the lowest element, in both. On YMM registers, each lane has its own.
struct Movddup;

impl Encoded for Movddup {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        cpu.put::<E>(insn, twice(cpu.xmm(insn.src) as u64));
        Ok(Flow::Next)
    }
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let v = cpu.load::<u64>(cpu.ea(insn))?;
        cpu.put::<E>(insn, twice(v));
        Ok(Flow::Next)
    }
}

impl WideForm for Movddup {
    fn ymm() -> Handlers {
        Unary::<Punpcklqdq>::ymm()
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Unary<Pshufd>>(t, [Pshufd_xmm_xmmm128_imm8, VEX_Vpshufd_xmm_xmmm128_imm8, VEX_Vpshufd_ymm_ymmm256_imm8]);
    ymm::<B, Unary<Pshuflw>>(t, [Pshuflw_xmm_xmmm128_imm8, VEX_Vpshuflw_xmm_xmmm128_imm8, VEX_Vpshuflw_ymm_ymmm256_imm8]);
    ymm::<B, Unary<Pshufhw>>(t, [Pshufhw_xmm_xmmm128_imm8, VEX_Vpshufhw_xmm_xmmm128_imm8, VEX_Vpshufhw_ymm_ymmm256_imm8]);
    ymm::<B, Binary<Shufps>>(t, [Shufps_xmm_xmmm128_imm8, VEX_Vshufps_xmm_xmm_xmmm128_imm8, VEX_Vshufps_ymm_ymm_ymmm256_imm8]);
    ymm::<B, BinaryInSteps<Shufpd, 2>>(t, [Shufpd_xmm_xmmm128_imm8, VEX_Vshufpd_xmm_xmm_xmmm128_imm8, VEX_Vshufpd_ymm_ymm_ymmm256_imm8]);
    ymm::<B, Unary<Movsldup>>(t, [Movsldup_xmm_xmmm128, VEX_Vmovsldup_xmm_xmmm128, VEX_Vmovsldup_ymm_ymmm256]);
    ymm::<B, Unary<Movshdup>>(t, [Movshdup_xmm_xmmm128, VEX_Vmovshdup_xmm_xmmm128, VEX_Vmovshdup_ymm_ymmm256]);
    // PSHUFW shuffles the four words of an MMX register as PSHUFLW shuffles the lower four.
    mm::<B, Pshuflw>(t, Pshufw_mm_mmm64_imm8);
    ymm::<B, Movddup>(t, [Movddup_xmm_xmmm64, VEX_Vmovddup_xmm_xmmm64, VEX_Vmovddup_ymm_ymmm256]);
}
