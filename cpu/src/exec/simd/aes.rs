//! AES and carry-less multiplication (SDM Vol. 1 12.13), on the host's processor, which a model
//! that has them requires: see [`Model::unsupported`](crate::Model::unsupported).

use std::arch::asm;

use iced_x86::Code;

use super::{V, cast, packed, xmm};
use crate::exec::table::{Backend, Table};

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

packed! {
    Aesenc(a, b, _) => host!("aesenc {a}, {b}", a, b),
    Aesenclast(a, b, _) => host!("aesenclast {a}, {b}", a, b),
    Aesdec(a, b, _) => host!("aesdec {a}, {b}", a, b),
    Aesdeclast(a, b, _) => host!("aesdeclast {a}, {b}", a, b),
    Aesimc(_, b, _) => host!("aesimc {a}, {b}", b, b),
    Aeskeygenassist(_, b, imm) => aeskeygenassist(b, imm),
    Pclmulqdq(a, b, imm) => pclmulqdq(a, b, imm),
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, Aesenc>(t, Aesenc_xmm_xmmm128);
    xmm::<B, Aesenclast>(t, Aesenclast_xmm_xmmm128);
    xmm::<B, Aesdec>(t, Aesdec_xmm_xmmm128);
    xmm::<B, Aesdeclast>(t, Aesdeclast_xmm_xmmm128);
    xmm::<B, Aesimc>(t, Aesimc_xmm_xmmm128);
    xmm::<B, Aeskeygenassist>(t, Aeskeygenassist_xmm_xmmm128_imm8);
    xmm::<B, Pclmulqdq>(t, Pclmulqdq_xmm_xmmm128_imm8);
}
