//! AES, carry-less multiplication (SDM Vol. 1 12.13) and SHA (Vol. 2B: SHA1MSG1 to SHA256RNDS2), on
//! the host's processor, which a model that has them requires: see
//! [`Model::unsupported`](crate::Model::unsupported).

use std::arch::asm;

use iced_x86::Code;

use super::packed::{Binary, Unary, packed, sse};
use super::rows::{xmm, ymm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;

/// `a = insn(a, b)` on the host.
macro_rules! host {
    ($insn:literal, $a:expr, $b:expr) => {{
        let (mut a, b): (V, V) = ($a, $b);
        // SAFETY: the instruction has register operands only, and a model that has it runs only on
        // a host that has it.
        unsafe {
            asm!(
                $insn,
                a = inout(xmm_reg) a,
                b = in(xmm_reg) b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        a
    }};
}

/// AESKEYGENASSIST: the immediate, a round constant, belongs to two of the words.
#[inline(always)]
fn aeskeygenassist(b: V, constant: u8) -> V {
    let words = host!("aeskeygenassist {a}, {b}, 0", b, b);
    cast(cast::<V, u128>(words) ^ u128::from(constant) << 32 ^ u128::from(constant) << 96)
}

/// PCLMULQDQ: two bits of the immediate select the factors.
#[inline(always)]
fn pclmulqdq(a: V, b: V, imm: u8) -> V {
    let half = |v: V, n: u8| -> V { cast(cast::<V, u128>(v) >> (64 * u32::from(n & 1))) };
    host!("pclmulqdq {a}, {b}, 0", half(a, imm), half(b, imm >> 4))
}

/// SHA1RNDS4: the immediate selects the function and the constant of four rounds.
#[inline(always)]
fn sha1rnds4(a: V, b: V, imm: u8) -> V {
    match imm & 3 {
        0 => host!("sha1rnds4 {a}, {b}, 0", a, b),
        1 => host!("sha1rnds4 {a}, {b}, 1", a, b),
        2 => host!("sha1rnds4 {a}, {b}, 2", a, b),
        _ => host!("sha1rnds4 {a}, {b}, 3", a, b),
    }
}

/// SHA256RNDS2: XMM0 has the words and constants of two rounds.
fn sha256rnds2(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let (mut a, b, words) = (cpu.v(insn.dst), cpu.aligned_source(insn)?, cpu.v(0));
    // SAFETY: as for `host`.
    unsafe {
        asm!(
            "sha256rnds2 {a}, {b}, xmm0",
            a = inout(xmm_reg) a,
            b = in(xmm_reg) b,
            in("xmm0") words,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    cpu.set_xmm(insn.dst, cast(a));
    Ok(Flow::Next)
}

packed! {
    Sha1rnds4(a, b, imm) => sha1rnds4(a, b, imm),
    Sha1nexte(a, b, _) => host!("sha1nexte {a}, {b}", a, b),
    Sha1msg1(a, b, _) => host!("sha1msg1 {a}, {b}", a, b),
    Sha1msg2(a, b, _) => host!("sha1msg2 {a}, {b}", a, b),
    Sha256msg1(a, b, _) => host!("sha256msg1 {a}, {b}", a, b),
    Sha256msg2(a, b, _) => host!("sha256msg2 {a}, {b}", a, b),
    Aesenc(a, b, _) => host!("aesenc {a}, {b}", a, b),
    Aesenclast(a, b, _) => host!("aesenclast {a}, {b}", a, b),
    Aesdec(a, b, _) => host!("aesdec {a}, {b}", a, b),
    Aesdeclast(a, b, _) => host!("aesdeclast {a}, {b}", a, b),
    Aesimc(_, b, _) => host!("aesimc {a}, {b}", b, b),
    Aeskeygenassist(_, b, imm) => aeskeygenassist(b, imm),
    Pclmulqdq(a, b, imm) => pclmulqdq(a, b, imm),
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    // Those on YMM registers are VAES and VPCLMULQDQ.
    ymm::<B, Binary<Aesenc>>(t, [Aesenc_xmm_xmmm128, VEX_Vaesenc_xmm_xmm_xmmm128, VEX_Vaesenc_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Aesenclast>>(t, [Aesenclast_xmm_xmmm128, VEX_Vaesenclast_xmm_xmm_xmmm128, VEX_Vaesenclast_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Aesdec>>(t, [Aesdec_xmm_xmmm128, VEX_Vaesdec_xmm_xmm_xmmm128, VEX_Vaesdec_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Aesdeclast>>(t, [Aesdeclast_xmm_xmmm128, VEX_Vaesdeclast_xmm_xmm_xmmm128, VEX_Vaesdeclast_ymm_ymm_ymmm256]);
    ymm::<B, Binary<Pclmulqdq>>(t, [Pclmulqdq_xmm_xmmm128_imm8, VEX_Vpclmulqdq_xmm_xmm_xmmm128_imm8, VEX_Vpclmulqdq_ymm_ymm_ymmm256_imm8]);
    xmm::<B, Unary<Aesimc>>(t, [Aesimc_xmm_xmmm128, VEX_Vaesimc_xmm_xmmm128]);
    xmm::<B, Unary<Aeskeygenassist>>(t, [Aeskeygenassist_xmm_xmmm128_imm8, VEX_Vaeskeygenassist_xmm_xmmm128_imm8]);
    sse::<B, Sha1rnds4>(t, Sha1rnds4_xmm_xmmm128_imm8);
    sse::<B, Sha1nexte>(t, Sha1nexte_xmm_xmmm128);
    sse::<B, Sha1msg1>(t, Sha1msg1_xmm_xmmm128);
    sse::<B, Sha1msg2>(t, Sha1msg2_xmm_xmmm128);
    t.handler([Sha256rnds2_xmm_xmmm128], sha256rnds2).vector(VectorForm::ALIGNED);
    sse::<B, Sha256msg1>(t, Sha256msg1_xmm_xmmm128);
    sse::<B, Sha256msg2>(t, Sha256msg2_xmm_xmmm128);
}
