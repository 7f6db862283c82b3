//! Numbers with 128 significant bits, and their rounding to the 64 bits of the FPU.

use crate::exec::x87::{EXCEPTIONS, OE, PE, UE};

/// What the exponent field of a register adds to the exponent.
const BIAS: i32 = 0x3FFF;
/// The exponent field of infinities and NaNs.
const MAX_EXPONENT: i32 = 0x7FFF;
/// What is added to the exponent of a result that underflows, if the exception is unmasked, and is
/// subtracted from one that overflows (SDM Vol. 1 8.5.4, 8.5.5).
const ADJUSTMENT: i32 = 24_576;
/// The sign in a register.
pub(super) const SIGN: u128 = 1 << 79;
/// The significant bits that a register does not have.
const EXCESS: u32 = 64;

/// A number: `significand` * 2^(`exponent` - 127), with the most significant bit set; or zero,
/// whose significand is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Real {
    pub(super) is_negative: bool,
    pub(super) exponent: i32,
    pub(super) significand: u128,
}

/// A result, rounded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounded {
    /// The register.
    pub(super) bits: u128,
    /// The exceptions.
    pub(super) flags: u16,
    /// The significand was rounded up.
    pub(super) is_up: bool,
}

/// The upper half of the product.
pub(super) const fn high(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (ah, al, bh, bl) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let (mid, other) = (ah * bl, al * bh);
    let carry = ((al * bl) >> 64) + (mid & LOW) + (other & LOW);
    ah * bh + (mid >> 64) + (other >> 64) + (carry >> 64)
}

/// `n` * 2^128 / `d`, where `n` < `d`, and `d` has its most significant bit set.
fn divide(n: u128, d: u128) -> u128 {
    let (dh, dl) = (d >> 64, u128::from(d as u64));
    // One digit of 64 bits (Knuth, The Art of Computer Programming, 4.3.1, algorithm D), and the
    // remainder.
    let digit = |n: u128| {
        let mut quotient = (n / dh).min(u64::MAX.into());
        let mut rest = n - quotient * dh;
        while rest >> 64 == 0 && quotient * dl > rest << 64 {
            quotient -= 1;
            rest += dh;
        }
        (quotient, (rest << 64).wrapping_sub(quotient * dl))
    };
    let (first, rest) = digit(n);
    let (second, _) = digit(rest);
    first << 64 | second
}

impl Real {
    /// `value` * 2^(`exponent` - 127).
    pub(super) const fn new(is_negative: bool, value: u128, exponent: i32) -> Self {
        let shift = match value {
            0 => 0,
            _ => value.leading_zeros(),
        };
        Self {
            is_negative,
            exponent: exponent - shift as i32,
            significand: value << shift,
        }
    }

    /// An integer.
    pub(super) fn integer(value: i32) -> Self {
        Self::new(value < 0, value.unsigned_abs().into(), 127)
    }

    /// The finite number in a register.
    pub(super) fn of_register(bits: u128) -> Self {
        let exponent = (bits >> 64) as i32 & MAX_EXPONENT;
        let significand = u128::from(bits as u64) << EXCESS;
        Self::new(bits & SIGN != 0, significand, exponent.max(1) - BIAS)
    }

    /// The absolute value in units of 2^-128, if it is below 1.
    pub(super) fn fraction(self) -> u128 {
        let shift = u32::try_from(-1 - self.exponent).unwrap_or(0);
        self.significand.checked_shr(shift).unwrap_or(0)
    }

    pub(super) fn abs(self) -> Self {
        self.with_sign(false)
    }

    pub(super) fn with_sign(self, is_negative: bool) -> Self {
        Self {
            is_negative,
            ..self
        }
    }

    /// Returns whether the absolute value is below that of `other`.
    pub(super) fn is_smaller(self, other: Self) -> bool {
        (self.exponent, self.significand) < (other.exponent, other.significand)
    }

    pub(super) fn times(self, other: Self) -> Self {
        let product = high(self.significand, other.significand);
        let exponent = self.exponent + other.exponent + 1;
        Self::new(self.is_negative ^ other.is_negative, product, exponent)
    }

    /// The quotient of two numbers that are not zero.
    pub(super) fn over(self, other: Self) -> Self {
        let (n, d) = (self.significand, other.significand);
        let exponent = self.exponent - other.exponent;
        let (significand, exponent) = match n.checked_sub(d) {
            Some(rest) => (1 << 127 | divide(rest, d) >> 1, exponent),
            None => (divide(n, d), exponent - 1),
        };
        Self::new(self.is_negative ^ other.is_negative, significand, exponent)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let (large, small) = match (self.significand, other.significand) {
            (_, 0) => return self,
            (0, _) => return other,
            _ if self.is_smaller(other) => (other, self),
            _ => (self, other),
        };
        let shift = (large.exponent - small.exponent) as u32;
        let small_part = small.significand.checked_shr(shift).unwrap_or(0);
        let sign = large.is_negative;
        if sign != small.is_negative {
            return Self::new(sign, large.significand - small_part, large.exponent);
        }
        match large.significand.overflowing_add(small_part) {
            (sum, false) => Self::new(sign, sum, large.exponent),
            (sum, true) => Self::new(sign, 1 << 127 | sum >> 1, large.exponent + 1),
        }
    }

    /// Rounds a result, which counts as inexact, as the control word says (SDM Vol. 1 8.5.4 to
    /// 8.5.6). Precision control has no part in transcendental instructions (8.1.5.2).
    pub(super) fn round(self, fcw: u16) -> Rounded {
        let (kept, is_up) = self.rounded(EXCESS, fcw);
        let carry = kept >> 64 != 0;
        let before = self.exponent + BIAS;
        let biased = before + i32::from(carry);
        let significand = if carry { kept >> 1 } else { kept };
        let sign = if self.is_negative { SIGN } else { 0 };
        let normal = |biased: i32| sign | (biased as u128) << 64 | significand;
        let unmasked = EXCEPTIONS & !fcw;
        let (bits, flags, is_up) = match biased {
            ..=0 if unmasked & UE != 0 => (normal(biased + ADJUSTMENT), UE, is_up),
            _ if before <= 0 => {
                let (kept, is_up) = self.rounded(EXCESS + 1 + before.unsigned_abs(), fcw);
                // A carry makes the smallest normal number.
                let bits = sign | (kept >> 63) << 64 | kept;
                (bits, if biased <= 0 { UE } else { 0 }, is_up)
            }
            MAX_EXPONENT.. if unmasked & OE != 0 => (normal(biased - ADJUSTMENT), OE, is_up),
            MAX_EXPONENT.. => match self.rounds_up(u128::MAX, false, fcw) {
                true => (sign | (MAX_EXPONENT as u128) << 64 | 1 << 63, OE, true),
                false => {
                    let largest = (MAX_EXPONENT as u128 - 1) << 64 | u128::from(u64::MAX);
                    (sign | largest, OE, false)
                }
            },
            _ => (normal(biased), 0, is_up),
        };
        Rounded {
            bits,
            flags: flags | PE,
            is_up,
        }
    }

    /// The significand without its `excess` last bits, rounded, and whether it was rounded up.
    fn rounded(self, excess: u32, fcw: u16) -> (u128, bool) {
        let (kept, rest) = match excess {
            ..128 => (
                self.significand >> excess,
                self.significand << (128 - excess),
            ),
            128 => (0, self.significand),
            _ => (0, 1),
        };
        let is_up = self.rounds_up(rest, kept & 1 != 0, fcw);
        (kept + u128::from(is_up), is_up)
    }

    /// Returns whether `rest`, in units of 2^-128 of the last bit, is rounded up (SDM Vol. 1
    /// 8.1.5.3).
    fn rounds_up(self, rest: u128, is_odd: bool, fcw: u16) -> bool {
        const HALF: u128 = 1 << 127;
        match fcw >> 10 & 3 {
            0 => rest > HALF || rest == HALF && is_odd,
            1 => self.is_negative && rest != 0,
            2 => !self.is_negative && rest != 0,
            _ => false,
        }
    }
}
