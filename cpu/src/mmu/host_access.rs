//! Loads and stores of guest RAM at an address of the host.
//!
//! KVM, other processors of the guest, and threads of devices may access the same bytes at the same
//! time. The language leaves a plain access undefined in that case: the compiler may load a value
//! twice, or store it in pieces, and rely on both being equal. An aligned address, which the
//! library's atomic types need, is the guest's choice. So these accesses are instructions of the
//! host, each of them one `mov` as the guest's own is, which the compiler neither repeats nor
//! splits. Values of 2 to 8 bytes are as atomic as the manual promises the guest (SDM Vol. 3A
//! 9.1.1).

use std::arch::asm;
use std::arch::x86_64::__m128i;

use crate::state::int::Int;

/// A value that one load or store transfers to or from guest RAM.
pub trait HostAccess: Copy {
    /// Loads from `p`.
    ///
    /// # Safety
    /// The bytes of the value at `p` are guest RAM. The address need not be aligned.
    unsafe fn load(p: *const u8) -> Self;
    /// Stores at `p`.
    ///
    /// # Safety
    /// As for [`Self::load`].
    unsafe fn store(self, p: *mut u8);
}

impl<T: Int> HostAccess for T {
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        let value: u64;
        // SAFETY: the caller's promise.
        unsafe {
            match T::BYTES {
                1 => asm!("movzx {v:e}, byte ptr [{p}]", p = in(reg) p, v = lateout(reg) value,
                    options(nostack, preserves_flags, readonly)),
                2 => asm!("movzx {v:e}, word ptr [{p}]", p = in(reg) p, v = lateout(reg) value,
                    options(nostack, preserves_flags, readonly)),
                4 => asm!("mov {v:e}, [{p}]", p = in(reg) p, v = lateout(reg) value,
                    options(nostack, preserves_flags, readonly)),
                _ => asm!("mov {v}, [{p}]", p = in(reg) p, v = lateout(reg) value,
                    options(nostack, preserves_flags, readonly)),
            }
        }
        T::from_u64(value)
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        let value = self.zext();
        // SAFETY: the caller's promise.
        unsafe {
            match T::BYTES {
                1 => asm!("mov [{p}], {v}", p = in(reg) p, v = in(reg_byte) value as u8,
                    options(nostack, preserves_flags)),
                2 => asm!("mov [{p}], {v:x}", p = in(reg) p, v = in(reg) value,
                    options(nostack, preserves_flags)),
                4 => asm!("mov [{p}], {v:e}", p = in(reg) p, v = in(reg) value,
                    options(nostack, preserves_flags)),
                _ => asm!("mov [{p}], {v}", p = in(reg) p, v = in(reg) value,
                    options(nostack, preserves_flags)),
            }
        }
    }
}

impl HostAccess for u128 {
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        let value: __m128i;
        // SAFETY: the caller's promise.
        unsafe {
            asm!("movdqu {v}, [{p}]", p = in(reg) p, v = lateout(xmm_reg) value,
                options(nostack, preserves_flags, readonly));
            std::mem::transmute::<__m128i, u128>(value)
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: both types have 16 bytes, and any bytes are a value of each. For the rest, the
        // caller's promise.
        unsafe {
            let value: __m128i = std::mem::transmute::<u128, __m128i>(self);
            asm!("movdqu [{p}], {v}", p = in(reg) p, v = in(xmm_reg) value,
                options(nostack, preserves_flags));
        }
    }
}

/// An XMM or a YMM register: each half is a value of its own, as on processors before AVX.
impl<const L: usize> HostAccess for [u128; L] {
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's promise.
        std::array::from_fn(|i| unsafe { u128::load(p.add(16 * i)) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        for (i, half) in self.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { half.store(p.add(16 * i)) };
        }
    }
}

/// Stores a branch record at `p`, with one address for its words: it is stored at each branch.
///
/// # Safety
/// As for [`HostAccess::store`].
#[inline(always)]
pub(crate) unsafe fn store_record([from, to, flags]: [u64; 3], p: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("mov [{p}], {from}", "mov [{p} + 8], {to}", "mov [{p} + 16], {flags}", p = in(reg) p,
            from = in(reg) from, to = in(reg) to, flags = in(reg) flags,
            options(nostack, preserves_flags));
    }
}

/// Loads `bytes.len()` bytes from `p`.
///
/// # Safety
/// They are guest RAM, to which no Rust reference exists.
pub(crate) unsafe fn load_bytes(p: *const u8, bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let tail = 8 * words.len();
    // SAFETY: the caller's promise.
    unsafe {
        for (i, word) in words.iter_mut().enumerate() {
            *word = u64::load(p.add(8 * i)).to_le_bytes();
        }
        for (i, byte) in rest.iter_mut().enumerate() {
            *byte = u8::load(p.add(tail + i));
        }
    }
}

/// Stores `bytes` at `p`.
///
/// # Safety
/// As for [`load_bytes`].
pub(crate) unsafe fn store_bytes(p: *mut u8, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail = 8 * words.len();
    // SAFETY: the caller's promise.
    unsafe {
        for (i, word) in words.iter().enumerate() {
            u64::from_le_bytes(*word).store(p.add(8 * i));
        }
        for (i, byte) in rest.iter().enumerate() {
            byte.store(p.add(tail + i));
        }
    }
}

/// Values up to which a loop is faster than the start of a repeated string instruction.
const SHORT: usize = 32;

/// Copies `n` values from `from` to `to`, one after the other with ascending addresses: REP MOVS.
///
/// # Safety
/// Both ranges are guest RAM. They need not be aligned, and may overlap.
pub(crate) unsafe fn copy<T: Int>(to: *mut u8, from: *const u8, n: usize) {
    // SAFETY: the caller's promise. The direction flag is clear, as everywhere between functions.
    unsafe {
        if n <= SHORT {
            for i in 0..n {
                T::load(from.add(T::BYTES * i)).store(to.add(T::BYTES * i));
            }
            return;
        }
        match T::BYTES {
            1 => asm!("rep movsb", inout("rcx") n => _, inout("rsi") from => _,
                inout("rdi") to => _, options(nostack, preserves_flags)),
            2 => asm!("rep movsw", inout("rcx") n => _, inout("rsi") from => _,
                inout("rdi") to => _, options(nostack, preserves_flags)),
            4 => asm!("rep movsd", inout("rcx") n => _, inout("rsi") from => _,
                inout("rdi") to => _, options(nostack, preserves_flags)),
            _ => asm!("rep movsq", inout("rcx") n => _, inout("rsi") from => _,
                inout("rdi") to => _, options(nostack, preserves_flags)),
        }
    }
}

/// Stores `value` `n` times from `p` on: REP STOS.
///
/// # Safety
/// The range is guest RAM. It need not be aligned.
pub(crate) unsafe fn fill<T: Int>(p: *mut u8, value: T, n: usize) {
    // SAFETY: as in `copy`.
    unsafe {
        if n <= SHORT {
            for i in 0..n {
                value.store(p.add(T::BYTES * i));
            }
            return;
        }
        match T::BYTES {
            1 => asm!("rep stosb", inout("rcx") n => _, inout("rdi") p => _,
                in("rax") value.zext(), options(nostack, preserves_flags)),
            2 => asm!("rep stosw", inout("rcx") n => _, inout("rdi") p => _,
                in("rax") value.zext(), options(nostack, preserves_flags)),
            4 => asm!("rep stosd", inout("rcx") n => _, inout("rdi") p => _,
                in("rax") value.zext(), options(nostack, preserves_flags)),
            _ => asm!("rep stosq", inout("rcx") n => _, inout("rdi") p => _,
                in("rax") value.zext(), options(nostack, preserves_flags)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HostAccess, copy, fill, load_bytes, store_bytes, store_record};
    use crate::state::int::Int;

    /// Bytes that all differ.
    fn pattern() -> [u8; 160] {
        std::array::from_fn(|i| i as u8 + 1)
    }

    /// Stores and loads a value at each alignment, and looks at the bytes around it.
    fn round_trip<T: HostAccess + PartialEq + std::fmt::Debug, const N: usize>(
        value: T,
        bytes: [u8; N],
    ) {
        for at in 0..16 {
            let mut memory = pattern();
            let mut expected = pattern();
            expected[at..at + N].copy_from_slice(&bytes);
            let p = memory[at..].as_mut_ptr();
            // SAFETY: the value lies inside of `memory`.
            let loaded = unsafe {
                value.store(p);
                T::load(p)
            };
            assert_eq!(loaded, value);
            assert_eq!(memory, expected);
        }
    }

    #[test]
    fn a_value_is_stored_and_loaded_at_any_address() {
        round_trip(0xF1_u8, [0xF1]);
        round_trip(0xF2F1_u16, [0xF1, 0xF2]);
        round_trip(0xF4F3_F2F1_u32, [0xF1, 0xF2, 0xF3, 0xF4]);
        let quadword = 0xF8F7_F6F5_F4F3_F2F1_u64;
        round_trip(quadword, quadword.to_le_bytes());
        let wide = u128::from(quadword) << 64 | 0x0123;
        round_trip(wide, wide.to_le_bytes());
        let mut both = [0; 32];
        both[..16].copy_from_slice(&wide.to_le_bytes());
        both[16..].copy_from_slice(&(!wide).to_le_bytes());
        round_trip([wide, !wide], both);
    }

    #[test]
    fn a_record_has_three_words() {
        let mut memory = pattern();
        let words = [0xF8F7_F6F5_F4F3_F2F1_u64, 2, 3];
        let mut expected = pattern();
        for (word, bytes) in words.iter().zip(expected[5..].chunks_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // SAFETY: the record lies inside of `memory`.
        unsafe { store_record(words, memory[5..].as_mut_ptr()) };
        assert_eq!(memory, expected);
    }

    #[test]
    fn any_number_of_bytes_is_stored_and_loaded() {
        for len in 0..40 {
            let mut memory = [0; 160];
            let mut loaded = vec![0; len];
            // SAFETY: the bytes lie inside of `memory`.
            unsafe {
                store_bytes(memory[3..].as_mut_ptr(), &pattern()[..len]);
                load_bytes(memory[3..].as_ptr(), &mut loaded);
            }
            assert_eq!(loaded, pattern()[..len]);
            assert_eq!(memory[3..3 + len], pattern()[..len]);
            assert!(memory[3 + len..].iter().all(|&b| b == 0));
        }
    }

    /// Copies and fills with both methods, and compares with a loop over values.
    fn strings<T: Int>() {
        for n in [0, 1, 7, 32, 33, 80] {
            let n = n.min(80 / T::BYTES);
            for (to, from) in [(80, 0), (0, 80), (0, 3), (5, 5)] {
                let (mut memory, mut expected) = (pattern(), pattern());
                for i in 0..n * T::BYTES {
                    expected[to + i] = expected[from + i];
                }
                let p = memory.as_mut_ptr();
                // SAFETY: both ranges lie inside of `memory`.
                unsafe { copy::<T>(p.add(to), p.add(from), n) };
                assert_eq!(memory, expected, "{n} from {from} to {to}");
            }
            let value = 0xF8F7_F6F5_F4F3_F2F1_u64;
            let (mut memory, mut expected) = (pattern(), pattern());
            for chunk in expected[9..9 + n * T::BYTES].chunks_mut(T::BYTES) {
                chunk.copy_from_slice(&value.to_le_bytes()[..T::BYTES]);
            }
            // SAFETY: the range lies inside of `memory`.
            unsafe { fill(memory[9..].as_mut_ptr(), T::from_u64(value), n) };
            assert_eq!(memory, expected, "{n}");
        }
    }

    #[test]
    fn strings_are_copied_and_filled_in_ascending_order() {
        strings::<u8>();
        strings::<u16>();
        strings::<u32>();
        strings::<u64>();
    }
}
