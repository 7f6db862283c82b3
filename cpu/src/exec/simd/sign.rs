//! Instructions that go by the signs of elements: blends, tests, and masks of signs.

use std::array::from_fn;
use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, OneSource, source};
use super::rows::{Encoded, Form, Handlers, WideForm, vex, ymm};
use super::sse2::{byte_signs, double_signs, single_signs};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::rflags;

/// A blend by the sign of each element of the mask.
trait BySign {
    fn run(a: V, b: V, mask: V) -> V;
}

macro_rules! by_sign {
    ($($name:ident: $t:ty, $n:literal)*) => {$(
        struct $name;
        impl BySign for $name {
            #[inline(always)]
            fn run(a: V, b: V, mask: V) -> V {
                let signs: [$t; $n] = cast(mask);
                let (a, b): ([$t; $n], [$t; $n]) = (cast(a), cast(b));
                cast::<[$t; $n], V>(from_fn(|i| {
                    if signs[i] >> (<$t>::BITS - 1) != 0 { b[i] } else { a[i] }
                }))
            }
        }
    )*};
}
by_sign! { Pblendvb: u8, 16 Blendvps: u32, 4 Blendvpd: u64, 2 }

/// Without VEX, the mask is XMM0.
fn blendv_xmm0<K: BySign>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.aligned_source(insn)?;
    let r = K::run(cpu.v(insn.dst), b, cpu.v(0));
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// The fourth operand, the mask, is in the immediate.
fn blendv_lanes<K: BySign, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.aux)?;
    let (a, mask) = (cpu.lanes::<L>(insn.src), cpu.lanes::<L>(insn.imm as u8));
    let r = from_fn(|i| K::run(a[i], b[i], mask[i]));
    cpu.set_lanes::<L>(insn.dst, r);
    Ok(Flow::Next)
}

/// A blend with the mask in XMM0 without VEX, and in an operand with VEX.
struct Blendv<K>(PhantomData<K>);

impl<K: BySign> Form for Blendv<K> {
    fn sse() -> Handlers {
        [blendv_xmm0::<K>; 2]
    }
    fn vex() -> Handlers {
        [blendv_lanes::<K, 1>; 2]
    }
}

impl<K: BySign> WideForm for Blendv<K> {
    fn ymm() -> Handlers {
        [blendv_lanes::<K, 2>; 2]
    }
}

/// PTEST: ZF is set if AND is zero, CF if AND NOT is zero.
fn ptest(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b: u128 = cast(cpu.aligned_source(insn)?);
    let a = cpu.xmm(insn.dst);
    let flag = |set, bit| if set { bit } else { 0 };
    cpu.flags = Lazy::from_bits(flag(a & b == 0, rflags::ZF) | flag(!a & b == 0, rflags::CF));
    Ok(Flow::Next)
}

/// The bits of which a test takes account.
const ALL: u128 = u128::MAX;
const SINGLE_SIGNS: u128 = 0x8000_0000_8000_0000_8000_0000_8000_0000;
const DOUBLE_SIGNS: u128 = 0x8000_0000_0000_0000_8000_0000_0000_0000;

/// VPTEST, VTESTPS and VTESTPD: ZF is set if AND is zero, CF if AND NOT is zero.
fn test<const BITS: u128, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b: [V; L] = source(cpu, insn, insn.src)?;
    let a = cpu.lanes::<L>(insn.dst);
    let (mut and, mut and_not) = (0, 0);
    for (a, b) in a.into_iter().zip(b) {
        let (a, b): (u128, u128) = (cast(a), cast(b));
        and |= a & b & BITS;
        and_not |= !a & b & BITS;
    }
    let flag = |set, bit| if set { bit } else { 0 };
    cpu.flags = Lazy::from_bits(flag(and == 0, rflags::ZF) | flag(and_not == 0, rflags::CF));
    Ok(Flow::Next)
}

/// PTEST, and of AVX also VTESTPS and VTESTPD.
struct Test<const BITS: u128>;

impl<const BITS: u128> Form for Test<BITS> {
    const NATIVE: Option<VectorForm> = Some(VectorForm::ALIGNED.flags());

    fn sse() -> Handlers {
        [ptest; 2]
    }
    fn vex() -> Handlers {
        [test::<BITS, 1>; 2]
    }
}

impl<const BITS: u128> WideForm for Test<BITS> {
    fn ymm() -> Handlers {
        [test::<BITS, 2>; 2]
    }
}

/// PMOVMSKB, MOVMSKPS and MOVMSKPD: the signs of all elements.
trait Signs {
    /// Elements of an XMM register.
    const N: u32;
    fn of(v: V) -> u64;
}

macro_rules! signs {
    ($($name:ident: $n:literal = $of:ident)*) => {$(
        struct $name;
        impl Signs for $name {
            const N: u32 = $n;
            #[inline(always)]
            fn of(v: V) -> u64 {
                $of(v)
            }
        }
    )*};
}
signs! { Bytes: 16 = byte_signs Singles: 4 = single_signs Doubles: 2 = double_signs }

/// The instruction of these signs.
struct SignMask<K>(PhantomData<K>);

impl<K: Signs> Encoded for SignMask<K> {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        cpu.w(insn.dst, K::of(cpu.v(insn.src)));
        Ok(Flow::Next)
    }
}

fn signs_of_ymm<K: Signs>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [lower, upper] = cpu.lanes::<2>(insn.src);
    cpu.w(insn.dst, K::of(lower) | K::of(upper) << K::N);
    Ok(Flow::Next)
}

impl<K: Signs> WideForm for SignMask<K> {
    fn ymm() -> Handlers {
        [signs_of_ymm::<K>; 2]
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Blendv<Pblendvb>>(t, [Pblendvb_xmm_xmmm128, VEX_Vpblendvb_xmm_xmm_xmmm128_xmm, VEX_Vpblendvb_ymm_ymm_ymmm256_ymm]);
    ymm::<B, Blendv<Blendvps>>(t, [Blendvps_xmm_xmmm128, VEX_Vblendvps_xmm_xmm_xmmm128_xmm, VEX_Vblendvps_ymm_ymm_ymmm256_ymm]);
    ymm::<B, Blendv<Blendvpd>>(t, [Blendvpd_xmm_xmmm128, VEX_Vblendvpd_xmm_xmm_xmmm128_xmm, VEX_Vblendvpd_ymm_ymm_ymmm256_ymm]);
    ymm::<B, Test<ALL>>(t, [Ptest_xmm_xmmm128, VEX_Vptest_xmm_xmmm128, VEX_Vptest_ymm_ymmm256]);
    vex::<B, Test<SINGLE_SIGNS>>(t, [VEX_Vtestps_xmm_xmmm128, VEX_Vtestps_ymm_ymmm256]);
    vex::<B, Test<DOUBLE_SIGNS>>(t, [VEX_Vtestpd_xmm_xmmm128, VEX_Vtestpd_ymm_ymmm256]);
    ymm::<B, SignMask<Bytes>>(t, [Pmovmskb_r32_xmm, VEX_Vpmovmskb_r32_xmm, VEX_Vpmovmskb_r32_ymm]);
    ymm::<B, SignMask<Bytes>>(t, [Pmovmskb_r64_xmm, VEX_Vpmovmskb_r64_xmm, VEX_Vpmovmskb_r64_ymm]);
    ymm::<B, SignMask<Singles>>(t, [Movmskps_r32_xmm, VEX_Vmovmskps_r32_xmm, VEX_Vmovmskps_r32_ymm]);
    ymm::<B, SignMask<Singles>>(t, [Movmskps_r64_xmm, VEX_Vmovmskps_r64_xmm, VEX_Vmovmskps_r64_ymm]);
    ymm::<B, SignMask<Doubles>>(t, [Movmskpd_r32_xmm, VEX_Vmovmskpd_r32_xmm, VEX_Vmovmskpd_r32_ymm]);
    ymm::<B, SignMask<Doubles>>(t, [Movmskpd_r64_xmm, VEX_Vmovmskpd_r64_xmm, VEX_Vmovmskpd_r64_ymm]);
}
