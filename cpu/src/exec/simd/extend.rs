//! PMOVSX and PMOVZX: elements that are extended to wider ones.

use std::array::from_fn;
use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, OneSource};
use super::rows::{Encoded, Handlers, WideForm, ymm};
use super::{V, cast};
use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// An extension.
trait Extend {
    /// The part of the source that is used.
    type Source: Int;
    fn run(b: u64) -> V;
}

macro_rules! extend {
    ($($name:ident: $source:ty, $from:ty => $as:ty as $to:ty, $n:literal)*) => {$(
        struct $name;
        impl Extend for $name {
            type Source = $source;
            #[inline(always)]
            fn run(b: u64) -> V {
                let element = |i| (b >> (<$from>::BITS as usize * i)) as $from as $as as $to;
                cast::<[$to; $n], V>(from_fn(element))
            }
        }
    )*};
}
extend! {
    Pmovsxbw: u64, i8 => i16 as u16, 8
    Pmovsxbd: u32, i8 => i32 as u32, 4
    Pmovsxbq: u16, i8 => i64 as u64, 2
    Pmovsxwd: u64, i16 => i32 as u32, 4
    Pmovsxwq: u32, i16 => i64 as u64, 2
    Pmovsxdq: u64, i32 => i64 as u64, 2
    Pmovzxbw: u64, u8 => u16 as u16, 8
    Pmovzxbd: u32, u8 => u32 as u32, 4
    Pmovzxbq: u16, u8 => u64 as u64, 2
    Pmovzxwd: u64, u16 => u32 as u32, 4
    Pmovzxwq: u32, u16 => u64 as u64, 2
    Pmovzxdq: u64, u32 => u64 as u64, 2
}

/// PMOVSX and PMOVZX.
struct Extension<K>(PhantomData<K>);

impl<K: Extend> Encoded for Extension<K> {
    type Vex = OneSource;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let b = if insn.prefix & Insn::MEM != 0 {
            cpu.load::<K::Source>(cpu.ea(insn))?.zext()
        } else {
            cpu.xmm(insn.src) as u64
        };
        cpu.put::<E>(insn, cast(K::run(b)));
        Ok(Flow::Next)
    }
}

/// VPMOVSX and VPMOVZX to a YMM register: each lane extends its half of the source.
fn extend_lanes<K: Extend>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b = if insn.prefix & Insn::MEM == 0 {
        cpu.xmm(insn.src)
    } else {
        let la = cpu.ea(insn);
        match K::Source::BYTES {
            2 => cpu.load::<u32>(la)?.into(),
            4 => cpu.load::<u64>(la)?.into(),
            _ => cpu.load128(la)?,
        }
    };
    let half = |n: u32| K::run((b >> (K::Source::BITS * n)) as u64);
    cpu.set_lanes(insn.dst, [half(0), half(1)]);
    Ok(Flow::Next)
}

impl<K: Extend> WideForm for Extension<K> {
    fn ymm() -> Handlers {
        [extend_lanes::<K>; 2]
    }
}

#[rustfmt::skip]
pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    ymm::<B, Extension<Pmovsxbw>>(t, [Pmovsxbw_xmm_xmmm64, VEX_Vpmovsxbw_xmm_xmmm64, VEX_Vpmovsxbw_ymm_xmmm128]);
    ymm::<B, Extension<Pmovsxbd>>(t, [Pmovsxbd_xmm_xmmm32, VEX_Vpmovsxbd_xmm_xmmm32, VEX_Vpmovsxbd_ymm_xmmm64]);
    ymm::<B, Extension<Pmovsxbq>>(t, [Pmovsxbq_xmm_xmmm16, VEX_Vpmovsxbq_xmm_xmmm16, VEX_Vpmovsxbq_ymm_xmmm32]);
    ymm::<B, Extension<Pmovsxwd>>(t, [Pmovsxwd_xmm_xmmm64, VEX_Vpmovsxwd_xmm_xmmm64, VEX_Vpmovsxwd_ymm_xmmm128]);
    ymm::<B, Extension<Pmovsxwq>>(t, [Pmovsxwq_xmm_xmmm32, VEX_Vpmovsxwq_xmm_xmmm32, VEX_Vpmovsxwq_ymm_xmmm64]);
    ymm::<B, Extension<Pmovsxdq>>(t, [Pmovsxdq_xmm_xmmm64, VEX_Vpmovsxdq_xmm_xmmm64, VEX_Vpmovsxdq_ymm_xmmm128]);
    ymm::<B, Extension<Pmovzxbw>>(t, [Pmovzxbw_xmm_xmmm64, VEX_Vpmovzxbw_xmm_xmmm64, VEX_Vpmovzxbw_ymm_xmmm128]);
    ymm::<B, Extension<Pmovzxbd>>(t, [Pmovzxbd_xmm_xmmm32, VEX_Vpmovzxbd_xmm_xmmm32, VEX_Vpmovzxbd_ymm_xmmm64]);
    ymm::<B, Extension<Pmovzxbq>>(t, [Pmovzxbq_xmm_xmmm16, VEX_Vpmovzxbq_xmm_xmmm16, VEX_Vpmovzxbq_ymm_xmmm32]);
    ymm::<B, Extension<Pmovzxwd>>(t, [Pmovzxwd_xmm_xmmm64, VEX_Vpmovzxwd_xmm_xmmm64, VEX_Vpmovzxwd_ymm_xmmm128]);
    ymm::<B, Extension<Pmovzxwq>>(t, [Pmovzxwq_xmm_xmmm32, VEX_Vpmovzxwq_xmm_xmmm32, VEX_Vpmovzxwq_ymm_xmmm64]);
    ymm::<B, Extension<Pmovzxdq>>(t, [Pmovzxdq_xmm_xmmm64, VEX_Vpmovzxdq_xmm_xmmm64, VEX_Vpmovzxdq_ymm_xmmm128]);
}
