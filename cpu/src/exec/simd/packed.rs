//! Packed integer operations: kernels, and the forms of their operands.
//!
//! A kernel is a function of one or two vectors. A form reads the operands of an instruction, calls
//! the kernel, and writes the result. One kernel serves MMX, XMM and YMM registers: on the latter
//! it computes each lane of 128 bits.

use std::array::from_fn;
use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::source;
use super::rows::{Form, Handlers, MmxForm, WideForm};
use super::{V, cast};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Handler, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;

/// A packed integer operation.
pub(super) trait Packed {
    /// On 128 bits. `a` is the destination operand.
    fn full(a: V, b: V, imm: u8) -> V;
    /// On the low 64 bits of the operands. The caller ignores the upper half of the result.
    #[inline(always)]
    fn half(a: V, b: V, imm: u8) -> V {
        Self::full(a, b, imm)
    }
}

/// Defines kernels by their function on 128 bits and, if that differs, on 64 bits.
macro_rules! packed {
    ($(
        $(#[$doc:meta])*
        $name:ident($a:pat, $b:pat, $i:pat) => $full:expr $(; half => $half:expr)?,
    )*) => {$(
        $(#[$doc])*
        pub(super) struct $name;
        impl $crate::exec::simd::packed::Packed for $name {
            #[inline(always)]
            fn full(a: V, b: V, imm: u8) -> V {
                let ($a, $b, $i) = (a, b, imm);
                $full
            }
            $(
                #[inline(always)]
                fn half(a: V, b: V, imm: u8) -> V {
                    let ($a, $b, $i) = (a, b, imm);
                    $half
                }
            )?
        }
    )*};
}
pub(super) use packed;

fn xmm_xmm<K: Packed>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let r = K::full(cpu.v(insn.dst), cpu.v(insn.src), insn.imm as u8);
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

fn xmm_mem<K: Packed>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let b = cpu.load_aligned(insn)?;
    let r = K::full(cpu.v(insn.dst), cast(b), insn.imm as u8);
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

/// Shifts by an immediate: the count is the second operand.
fn xmm_imm<K: Packed>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_sse()?;
    let r = K::full(
        cpu.v(insn.dst),
        cast(u128::from(insn.imm as u8)),
        insn.imm as u8,
    );
    cpu.set_xmm(insn.dst, cast(r));
    Ok(Flow::Next)
}

#[inline(always)]
fn mmx_result<K: Packed>(cpu: &mut Cpu, insn: &Insn, b: u64) -> Exec {
    let a = cpu.x87.mm(insn.dst);
    let r: u128 = cast(K::half(
        cast(u128::from(a)),
        cast(u128::from(b)),
        insn.imm as u8,
    ));
    cpu.x87.set_mm(insn.dst, r as u64);
    Ok(Flow::Next)
}

fn mm_mm<K: Packed>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let b = cpu.x87.mm(insn.src);
    mmx_result::<K>(cpu, insn, b)
}

/// The operand has the size of `T`: PUNPCKLBW and its relatives read only 32 bits.
fn mm_mem<K: Packed, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    let b = cpu.load::<T>(cpu.ea(insn))?.zext();
    mmx_result::<K>(cpu, insn, b)
}

fn mm_imm<K: Packed>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_mmx()?;
    mmx_result::<K>(cpu, insn, insn.imm & 0xFF)
}

/// `K` on each lane. The immediate of a lane is that of the one below, shifted by `STEP`.
#[inline(always)]
fn each<K: Packed, const STEP: usize, const L: usize>(a: [V; L], b: [V; L], imm: u64) -> [V; L] {
    from_fn(|i| K::full(a[i], b[i], (imm >> (STEP * i)) as u8))
}

fn two_sources<K: Packed, const STEP: usize, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b = source(cpu, insn, insn.aux)?;
    let r = each::<K, STEP, L>(cpu.lanes(insn.src), b, insn.imm);
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

fn one_source<K: Packed, const STEP: usize, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let b = source(cpu, insn, insn.src)?;
    let r = each::<K, STEP, L>(b, b, insn.imm);
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// Shifts all elements by the same count, which has 128 bits.
fn shift<K: Packed, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let [count] = source(cpu, insn, insn.aux)?;
    let r = cpu.lanes::<L>(insn.src).map(|a| K::full(a, count, 0));
    cpu.set_lanes(insn.dst, r);
    Ok(Flow::Next)
}

/// Shifts by an immediate.
fn shift_imm<K: Packed, const L: usize>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.need_avx()?;
    let count = insn.imm as u8;
    let a = cpu.lanes::<L>(insn.src);
    let r = from_fn(|i| K::full(a[i], cast(u128::from(count)), count));
    cpu.set_lanes::<L>(insn.dst, r);
    Ok(Flow::Next)
}

/// Where a packed integer instruction has its operands.
pub(super) trait Operands {
    /// Without VEX.
    fn sse<K: Packed>() -> Handlers {
        [xmm_xmm::<K>, xmm_mem::<K>]
    }
    /// On MMX registers.
    fn mmx<K: Packed>() -> Handlers {
        [mm_mm::<K>, mm_mem::<K, u64>]
    }
    /// With VEX, on `L` lanes.
    fn vex<K: Packed, const L: usize>() -> Handler;
}

/// Two sources.
pub(super) type Binary<K> = Integer<InTwo<0>, K>;
/// Two sources, where each lane has `STEP` bits of the immediate.
pub(super) type BinaryInSteps<K, const STEP: usize> = Integer<InTwo<STEP>, K>;
/// Two sources, of which the one in memory has 32 bits for MMX registers.
pub(super) type BinaryHalf<K> = Integer<InTwoHalf, K>;
/// One source.
pub(super) type Unary<K> = Integer<InOne<0>, K>;
/// One source, where each lane has `STEP` bits of the immediate.
pub(super) type UnaryInSteps<K, const STEP: usize> = Integer<InOne<STEP>, K>;
/// A shift of which every element has the same count.
pub(super) type Shift<K> = Integer<InCount, K>;
/// A shift by an immediate.
pub(super) type ShiftByImmediate<K> = Integer<InImmediate, K>;

pub(super) struct InTwo<const STEP: usize>;
impl<const STEP: usize> Operands for InTwo<STEP> {
    fn vex<K: Packed, const L: usize>() -> Handler {
        two_sources::<K, STEP, L>
    }
}

pub(super) struct InTwoHalf;
impl Operands for InTwoHalf {
    fn mmx<K: Packed>() -> Handlers {
        [mm_mm::<K>, mm_mem::<K, u32>]
    }
    fn vex<K: Packed, const L: usize>() -> Handler {
        two_sources::<K, 0, L>
    }
}

pub(super) struct InOne<const STEP: usize>;
impl<const STEP: usize> Operands for InOne<STEP> {
    fn vex<K: Packed, const L: usize>() -> Handler {
        one_source::<K, STEP, L>
    }
}

pub(super) struct InCount;
impl Operands for InCount {
    fn vex<K: Packed, const L: usize>() -> Handler {
        shift::<K, L>
    }
}

pub(super) struct InImmediate;
impl Operands for InImmediate {
    fn sse<K: Packed>() -> Handlers {
        [xmm_imm::<K>; 2]
    }
    fn mmx<K: Packed>() -> Handlers {
        [mm_imm::<K>; 2]
    }
    fn vex<K: Packed, const L: usize>() -> Handler {
        shift_imm::<K, L>
    }
}

/// The form of kernel `K` with operands `O`.
pub(super) struct Integer<O, K>(PhantomData<(O, K)>);

impl<O: Operands, K: Packed> Form for Integer<O, K> {
    fn sse() -> Handlers {
        O::sse::<K>()
    }
    fn vex() -> Handlers {
        [O::vex::<K, 1>(); 2]
    }
}

impl<O: Operands, K: Packed> WideForm for Integer<O, K> {
    fn ymm() -> Handlers {
        [O::vex::<K, 2>(); 2]
    }
}

impl<O: Operands, K: Packed> MmxForm for Integer<O, K> {
    fn mmx() -> Handlers {
        O::mmx::<K>()
    }
}

/// The row of an instruction on XMM registers that does not exist with VEX.
pub(super) fn sse<B: Backend, K: Packed>(t: &mut Table<B>, code: Code) {
    t.handlers([code], xmm_xmm::<K>, xmm_mem::<K>)
        .vector(VectorForm::ALIGNED);
}

/// The row of an instruction on MMX registers that has its other forms under other codes.
pub(super) fn mm<B: Backend, K: Packed>(t: &mut Table<B>, code: Code) {
    t.handlers([code], mm_mm::<K>, mm_mem::<K, u64>);
}
