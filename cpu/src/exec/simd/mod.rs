//! MMX and SSE to SSE4.2: the registers, the check whether they may be used, and the forms of
//! operands.
//!
//! A kernel is a function of one or two vectors. The function of an instruction reads its operands,
//! calls the kernel, and writes the result. An integer kernel serves the XMM and the MMX form.

mod aes;
mod convert;
mod estimate;
mod float;
mod integer;
mod mxcsr;
mod shuffle;
mod sse2;
mod sse41;
mod sse42;
mod ssse3;
mod transfer;
mod vex;

use std::arch::x86_64::__m128i;

use iced_x86::Code;

use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::int::Int;
use crate::state::vector;
use crate::state::{cr0, cr4};

pub(crate) use mxcsr::{HOST_MXCSR, MASKS as MXCSR_MASKS};

/// The contents of an XMM register.
type V = __m128i;

/// Types of 16 bytes for which every pattern of bits is a value.
///
/// # Safety
/// Every pattern of 16 bytes must be a valid value of the type, and it must have no padding.
unsafe trait Bits128: Copy {}

macro_rules! bits128 {
    ($($t:ty),*) => {$(
        // SAFETY: 16 bytes of integers without padding.
        unsafe impl Bits128 for $t {}
    )*};
}
bits128!(
    u128, V, [u8; 16], [i8; 16], [u16; 8], [i16; 8], [u32; 4], [i32; 4], [u64; 2]
);

/// The same 16 bytes as another type.
#[inline(always)]
fn cast<A: Bits128, B: Bits128>(a: A) -> B {
    // SAFETY: both have 16 bytes, and any bits are a value of `B`.
    unsafe { std::mem::transmute_copy(&a) }
}

/// A packed integer operation.
trait Packed {
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
        impl $crate::exec::simd::Packed for $name {
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
use packed;

/// How an instruction is encoded: where its sources are, and what becomes of the bits above an XMM
/// register that it writes.
trait Encoding {
    /// Raises the exception if the system does not have the instructions on.
    fn need(cpu: &mut Cpu) -> Result<(), Abort>;
    /// The register of the first of two sources.
    fn first(insn: &Insn) -> u8;
    /// The register of the last source.
    fn second(insn: &Insn) -> u8;
    /// Sets an XMM register.
    fn set(cpu: &mut Cpu, n: u8, value: u128);
}

/// Without VEX: the destination is the first source, and a YMM register keeps its upper half.
struct Legacy;
impl Encoding for Legacy {
    #[inline(always)]
    fn need(cpu: &mut Cpu) -> Result<(), Abort> {
        cpu.need_sse()
    }
    #[inline(always)]
    fn first(insn: &Insn) -> u8 {
        insn.dst
    }
    #[inline(always)]
    fn second(insn: &Insn) -> u8 {
        insn.src
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, n: u8, value: u128) {
        cpu.set_xmm(n, value);
    }
}

impl Cpu {
    /// Writes the destination of an instruction.
    #[inline(always)]
    fn put<E: Encoding>(&mut self, insn: &Insn, value: u128) {
        E::set(self, insn.dst, value);
    }

    /// SSE instructions: #UD or #NM unless the system has them on (SDM Vol. 3A 13.1.3).
    #[inline(always)]
    pub(super) fn need_sse(&mut self) -> Result<(), Abort> {
        if self.sys.cr0 & (cr0::EM | cr0::TS) != 0 || self.sys.cr4 & cr4::OSFXSR == 0 {
            return Err(self.no_sse());
        }
        Ok(())
    }

    #[cold]
    fn no_sse(&mut self) -> Abort {
        if self.sys.cr0 & cr0::EM != 0 || self.sys.cr4 & cr4::OSFXSR == 0 {
            self.ud()
        } else {
            self.exception(vector::NM, None)
        }
    }

    /// MMX instructions: #UD or #NM unless the system has them on, #MF if an x87 exception is
    /// pending (SDM Vol. 3A 12.1, 12.5).
    #[inline(always)]
    pub(super) fn need_mmx(&mut self) -> Result<(), Abort> {
        if self.sys.cr0 & (cr0::EM | cr0::TS) != 0 || self.x87.pending() {
            return Err(self.no_mmx());
        }
        Ok(())
    }

    #[cold]
    fn no_mmx(&mut self) -> Abort {
        if self.sys.cr0 & cr0::EM != 0 {
            self.ud()
        } else if self.sys.cr0 & cr0::TS != 0 {
            self.exception(vector::NM, None)
        } else {
            self.exception(vector::MF, None)
        }
    }

    #[inline(always)]
    fn xmm(&self, n: u8) -> u128 {
        self.xmm[usize::from(n & 15)]
    }

    #[inline(always)]
    fn set_xmm(&mut self, n: u8, value: u128) {
        self.xmm[usize::from(n & 15)] = value;
    }

    #[inline(always)]
    fn v(&self, n: u8) -> V {
        cast(self.xmm(n))
    }

    /// Loads a memory operand of 16 bytes, which must be aligned: #GP(0).
    #[inline(always)]
    fn load_aligned(&mut self, insn: &Insn) -> Result<u128, Abort> {
        let la = self.ea(insn);
        if la & 15 != 0 {
            return Err(self.gp(0));
        }
        self.load128(la)
    }

    /// The source of 16 bytes: a register, or memory that must be aligned.
    #[inline(always)]
    fn aligned_source(&mut self, insn: &Insn) -> Result<V, Abort> {
        Ok(if insn.prefix & Insn::MEM != 0 {
            cast(self.load_aligned(insn)?)
        } else {
            self.v(insn.src)
        })
    }
}

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

/// The row of a packed integer instruction with XMM operands.
fn xmm<B: Backend, K: Packed>(t: &mut Table<B>, code: Code) {
    t.handlers([code], xmm_xmm::<K>, xmm_mem::<K>)
        .vector(VectorForm::ALIGNED);
}

/// The row of a packed integer instruction with MMX operands.
fn mmx<B: Backend, K: Packed>(t: &mut Table<B>, code: Code) {
    t.handlers([code], mm_mm::<K>, mm_mem::<K, u64>);
}

/// The rows of a packed integer instruction that has an MMX and an XMM form.
fn mmx_and_xmm<B: Backend, K: Packed>(t: &mut Table<B>, mm: Code, xmm_code: Code) {
    mmx::<B, K>(t, mm);
    xmm::<B, K>(t, xmm_code);
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    integer::rows(t);
    float::rows(t);
    sse41::rows(t);
    transfer::rows(t);
    shuffle::rows(t);
    convert::rows(t);
    ssse3::rows(t);
    sse42::rows(t);
    aes::rows(t);
    mxcsr::rows(t);
    vex::rows(t);
}
