//! MMX, SSE, and AVX with the extensions that use its registers.
//!
//! [`packed`] has integer operations and the forms of their operands, [`float`] those of floating
//! point. An instruction that exists with VEX and without has one row: see [`rows`]. `vex` has what
//! exists with VEX alone.

mod aes;
mod compare;
mod convert;
mod element;
mod encoding;
mod estimate;
mod extend;
mod float;
mod integer;
mod mmx;
mod mxcsr;
mod packed;
mod round;
mod rows;
mod shuffle;
mod sign;
mod sse2;
mod sse41;
mod sse42;
mod ssse3;
mod transfer;
mod vex;
mod whole;

use std::arch::x86_64::__m128i;

use crate::exec::table::{Backend, Table};

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

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    integer::rows(t);
    ssse3::rows(t);
    sse41::rows(t);
    sse42::rows(t);
    shuffle::rows(t);
    extend::rows(t);
    element::rows(t);
    sign::rows(t);
    float::rows(t);
    compare::rows(t);
    round::rows(t);
    convert::rows(t);
    transfer::rows(t);
    whole::rows(t);
    mmx::rows(t);
    aes::rows(t);
    mxcsr::rows(t);
    vex::rows(t);
}
