//! Integers of the four operand sizes.

use std::arch::asm;

/// Unsigned integers of the four operand sizes.
pub trait Int: Copy + Eq + Ord + Default + std::fmt::Debug + Into<u64> + 'static {
    /// Width in bits.
    const BITS: u32;
    /// Width in bytes.
    const BYTES: usize = Self::BITS as usize / 8;
    /// Truncates.
    fn from_u64(v: u64) -> Self;
    /// Sign-extends to 64 bits.
    fn sext(self) -> u64;
    /// Zero-extends to 64 bits.
    #[inline(always)]
    fn zext(self) -> u64 {
        self.into()
    }
    /// Stores `new` at `p` if `old` is there, atomically; returns what was there.
    ///
    /// # Safety
    /// `p` is valid for reads and writes by atomic instructions. It need not be aligned.
    unsafe fn compare_exchange(p: *mut Self, old: Self, new: Self) -> Self;
    /// The most significant bit.
    #[inline(always)]
    fn msb(self) -> bool {
        self.zext() >> (Self::BITS - 1) & 1 != 0
    }
}

macro_rules! int {
    ($($t:ty, $s:ty, $class:ident, $a:tt, $modifier:literal);*) => {$(
        impl Int for $t {
            const BITS: u32 = <$t>::BITS;
            #[inline(always)]
            fn from_u64(v: u64) -> Self { v as $t }
            #[inline(always)]
            fn sext(self) -> u64 { self as $s as i64 as u64 }
            #[inline(always)]
            unsafe fn compare_exchange(p: *mut Self, old: Self, new: Self) -> Self {
                let found;
                // The library's atomic types want aligned addresses; the instruction, as the
                // guest's, does not. SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!("lock cmpxchg [{p}], {new", $modifier, "}"),
                        p = in(reg) p,
                        new = in($class) new,
                        inout($a) old => found,
                        options(nostack)
                    );
                }
                found
            }
        }
    )*};
}
int!(u8, i8, reg_byte, "al", ""; u16, i16, reg, "ax", ":x"; u32, i32, reg, "eax", ":e"; u64, i64, reg, "rax", "");
