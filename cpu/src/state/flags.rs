//! RFLAGS. The six arithmetic flags are kept as two words and evaluated when they are read.
//!
//! `res` is the sign-extended result: ZF, SF and PF follow from it. `aux` holds what does not: the
//! carry out of the most significant bit (CF, bit 63), the carry into it XORed out of CF to give OF
//! (bit 62), the carry out of bit 3 (AF, bit 3), and corrections to PF (bits 15:8, XORed into the
//! low byte of the result) and SF (bit 0), for flags that no result could give, as after POPF.
//!
//! Computing the carries takes longer than the sum, and most are overwritten before they are read.
//! So an addition or subtraction of up to 32 bits leaves in `aux` what they are computed from: its
//! second operand (bits 63:32) and its width, as the shift that moves its most significant bit to
//! bit 63 (bits 21:16).

use super::int::Int;
use super::rflags;

const CF: u64 = 1 << 63;
/// Carry into the most significant bit: OF is its XOR with CF.
const PO: u64 = 1 << 62;
const AF: u64 = 1 << 3;
const SD: u64 = 1;
/// The carries are not computed yet: those of an addition, or with [`SUBTRACTED`] of a subtraction.
const DEFERRED: u64 = 1 << 1;
const SUBTRACTED: u64 = 1 << 2;
/// First bit of the shift that moves the carry out of the most significant bit to bit 63.
const SHIFT: u32 = 16;
/// First bit of the second operand.
const OPERAND: u32 = 32;

/// The carries out of each bit of `r = a + b`, and of such a sum with a carry into it.
#[inline(always)]
fn added(a: u64, b: u64, r: u64) -> u64 {
    (a & b) | ((a | b) & !r)
}

/// The borrows of `r = a - b`.
#[inline(always)]
fn subtracted(a: u64, b: u64, r: u64) -> u64 {
    (!a & b) | ((!a | b) & r)
}

/// The arithmetic flags, not yet evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lazy {
    res: u64,
    aux: u64,
}

impl Lazy {
    /// Returns the flags of the result `r`. `carries` has the carry out of each bit.
    #[inline(always)]
    fn from_carries<T: Int>(r: T, carries: u64) -> Self {
        Self {
            res: r.sext(),
            aux: Self::carry_bits(carries, 64 - T::BITS),
        }
    }

    /// Returns the bits of `aux` that a vector of carries gives. `shift` moves the carry out of the
    /// most significant bit to bit 63.
    #[inline(always)]
    fn carry_bits(carries: u64, shift: u32) -> u64 {
        ((carries << shift) & (CF | PO)) | (carries & AF)
    }

    /// Defers the computation of the carries. `r` is the result and `b` the second operand.
    /// `operation` is [`SUBTRACTED`], or 0 after an addition.
    #[inline(always)]
    fn deferred<T: Int>(b: T, r: T, operation: u64) -> Self {
        let shift = u64::from(64 - T::BITS);
        Self {
            res: r.sext(),
            aux: b.zext() << OPERAND | shift << SHIFT | DEFERRED | operation,
        }
    }

    /// Returns `aux` with the carry bits computed.
    #[inline(always)]
    fn aux(self) -> u64 {
        if self.aux & DEFERRED == 0 {
            return self.aux;
        }
        // Bits above the operands' width do not matter: carries go upwards only.
        let (r, b) = (self.res, self.aux >> OPERAND);
        let carries = if self.aux & SUBTRACTED == 0 {
            added(r.wrapping_sub(b), b, r)
        } else {
            subtracted(r.wrapping_add(b), b, r)
        };
        Self::carry_bits(carries, (self.aux >> SHIFT) as u32 & 63)
    }

    /// The flags after `r = a + b + carry`.
    #[inline(always)]
    pub fn adc<T: Int>(a: T, b: T, r: T) -> Self {
        Self::from_carries(r, added(a.zext(), b.zext(), r.zext()))
    }

    /// The flags after `r = a - b - borrow`.
    #[inline(always)]
    pub fn sbb<T: Int>(a: T, b: T, r: T) -> Self {
        Self::from_carries(r, subtracted(a.zext(), b.zext(), r.zext()))
    }

    /// The flags after `r = a + b`.
    #[inline(always)]
    pub fn add<T: Int>(a: T, b: T, r: T) -> Self {
        match T::BITS {
            64 => Self::adc(a, b, r),
            _ => Self::deferred(b, r, 0),
        }
    }

    /// The flags after `r = a - b`.
    #[inline(always)]
    pub fn sub<T: Int>(a: T, b: T, r: T) -> Self {
        match T::BITS {
            64 => Self::sbb(a, b, r),
            _ => Self::deferred(b, r, SUBTRACTED),
        }
    }

    /// The flags after a logical instruction: CF, OF and (undefined) AF are clear.
    #[inline(always)]
    pub fn logic<T: Int>(r: T) -> Self {
        Self {
            res: r.sext(),
            aux: 0,
        }
    }

    /// Replaces CF by that of `old`: INC and DEC keep it.
    #[inline(always)]
    pub fn keep_cf(self, old: Lazy) -> Self {
        // OF is CF ^ PO: flipping CF must flip PO with it.
        let aux = self.aux();
        let flip = (aux ^ old.aux()) & CF;
        Self {
            res: self.res,
            aux: aux ^ flip ^ (flip >> 1),
        }
    }

    /// The flags after a shift or a multiplication: SF, ZF and PF of the result, the given CF and
    /// OF, and AF (undefined) clear.
    #[inline(always)]
    pub fn result<T: Int>(r: T, cf: bool, of: bool) -> Self {
        Self {
            res: r.sext(),
            aux: (u64::from(cf) << 63) | (u64::from(cf ^ of) << 62),
        }
    }

    /// Replaces CF and OF: rotates change only these.
    #[inline(always)]
    pub fn with_cf_of(self, cf: bool, of: bool) -> Self {
        Self {
            res: self.res,
            aux: (self.aux() & !(CF | PO)) | (u64::from(cf) << 63) | (u64::from(cf ^ of) << 62),
        }
    }

    /// Replaces CF.
    #[inline(always)]
    pub fn with_cf(self, cf: bool) -> Self {
        self.with_cf_of(cf, self.of())
    }

    /// Replaces ZF.
    pub fn with_zf(self, zf: bool) -> Self {
        let bits = self.bits() & !rflags::ZF;
        Self::from_bits(bits | if zf { rflags::ZF } else { 0 })
    }

    /// Returns the arithmetic flags of an RFLAGS image.
    #[inline]
    pub fn from_bits(f: u64) -> Self {
        let bit = |mask: u64| u64::from(f & mask != 0);
        // The result is zero or, for ZF = 0, 0x100. Both are positive and have even parity.
        let res = (1 - bit(rflags::ZF)) << 8;
        let cf = bit(rflags::CF);
        let po = cf ^ bit(rflags::OF);
        let aux = (cf << 63)
            | (po << 62)
            | (bit(rflags::AF) << 3)
            | ((1 - bit(rflags::PF)) << 8)
            | bit(rflags::SF);
        Self { res, aux }
    }

    /// CF.
    #[inline(always)]
    pub fn cf(self) -> bool {
        (self.aux() as i64) < 0
    }
    /// ZF.
    #[inline(always)]
    pub fn zf(self) -> bool {
        self.res == 0
    }
    /// SF.
    #[inline(always)]
    pub fn sf(self) -> bool {
        ((self.res >> 63) ^ self.aux) & SD != 0
    }
    /// OF.
    #[inline(always)]
    pub fn of(self) -> bool {
        let aux = self.aux();
        ((aux ^ (aux << 1)) as i64) < 0
    }
    /// AF.
    #[inline(always)]
    pub fn af(self) -> bool {
        self.aux() & AF != 0
    }
    /// PF.
    #[inline(always)]
    pub fn pf(self) -> bool {
        ((self.res ^ (self.aux >> 8)) as u8).count_ones() & 1 == 0
    }

    /// The arithmetic bits of RFLAGS.
    #[inline]
    pub fn bits(self) -> u64 {
        u64::from(self.cf())
            | u64::from(self.pf()) << 2
            | u64::from(self.af()) << 4
            | u64::from(self.zf()) << 6
            | u64::from(self.sf()) << 7
            | u64::from(self.of()) << 11
    }

    /// Condition `C` as Jcc, SETcc and CMOVcc encode it in four bits (SDM Vol. 1 appendix B).
    #[inline(always)]
    pub fn cond<const C: u8>(self) -> bool {
        let v = match C >> 1 {
            0 => self.of(),
            1 => self.cf(),
            2 => self.zf(),
            3 => self.cf() | self.zf(),
            4 => self.sf(),
            5 => self.pf(),
            6 => self.sf() != self.of(),
            _ => self.zf() | (self.sf() != self.of()),
        };
        v != (C & 1 != 0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Operands around which flags change.
    pub(crate) fn edges() -> Vec<u64> {
        let edges = [7, 8, 15, 16, 31, 32, 63].into_iter().flat_map(|n| {
            let v = 1u64 << n;
            [v - 1, v, v + 1, v.wrapping_neg(), !v]
        });
        edges.chain([0, 1, 2, 15, 16, u64::MAX]).collect()
    }

    #[test]
    fn every_combination_survives_a_round_trip() {
        for i in 0..64u64 {
            let f = (i & 1)
                | ((i & 2) << 1)
                | ((i & 4) << 2)
                | ((i & 8) << 3)
                | ((i & 16) << 3)
                | ((i & 32) << 6);
            assert_eq!(Lazy::from_bits(f).bits(), f);
        }
    }

    /// The textbook definitions, evaluated eagerly in 128 bits.
    fn expect(sub: bool, a: u8, b: u8, c: u8) -> (u8, u64) {
        let (wide, signed, nibble) = if sub {
            (
                i32::from(a) - i32::from(b) - i32::from(c),
                i32::from(a as i8) - i32::from(b as i8) - i32::from(c),
                i32::from(a & 15) - i32::from(b & 15) - i32::from(c),
            )
        } else {
            (
                i32::from(a) + i32::from(b) + i32::from(c),
                i32::from(a as i8) + i32::from(b as i8) + i32::from(c),
                i32::from(a & 15) + i32::from(b & 15) + i32::from(c),
            )
        };
        let r = wide as u8;
        let mut f = 0;
        if !(0..256).contains(&wide) {
            f |= rflags::CF;
        }
        if r.count_ones().is_multiple_of(2) {
            f |= rflags::PF;
        }
        if !(0..16).contains(&nibble) {
            f |= rflags::AF;
        }
        if r == 0 {
            f |= rflags::ZF;
        }
        if r & 0x80 != 0 {
            f |= rflags::SF;
        }
        if !(-128..128).contains(&signed) {
            f |= rflags::OF;
        }
        (r, f)
    }

    #[test]
    fn byte_addition_and_subtraction_are_exact() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                for c in 0..=1 {
                    let (r, f) = expect(false, a, b, c);
                    assert_eq!(Lazy::adc(a, b, r).bits(), f, "{a} + {b} + {c}");
                    if c == 0 {
                        assert_eq!(Lazy::add(a, b, r).bits(), f, "{a} + {b}");
                    }
                    let (r, f) = expect(true, a, b, c);
                    assert_eq!(Lazy::sbb(a, b, r).bits(), f, "{a} - {b} - {c}");
                    if c == 0 {
                        assert_eq!(Lazy::sub(a, b, r).bits(), f, "{a} - {b}");
                    }
                }
            }
        }
    }

    /// A sum whose carries are deferred has the flags of one whose carries are not.
    fn check_deferred<T: Int>(a: u64, b: u64) {
        let (a, b) = (T::from_u64(a), T::from_u64(b));
        let sum = T::from_u64(a.zext().wrapping_add(b.zext()));
        let difference = T::from_u64(a.zext().wrapping_sub(b.zext()));
        for (later, now) in [
            (Lazy::add(a, b, sum), Lazy::adc(a, b, sum)),
            (Lazy::sub(a, b, difference), Lazy::sbb(a, b, difference)),
        ] {
            assert_eq!(later.bits(), now.bits(), "{a:?}, {b:?}");
            assert_eq!(later.with_cf(true), now.with_cf(true), "{a:?}, {b:?}");
            assert_eq!(now.keep_cf(later), now, "{a:?}, {b:?}");
        }
    }

    #[test]
    fn deferred_carries_equal_computed_carries() {
        let values = edges();
        for &a in &values {
            for &b in &values {
                check_deferred::<u8>(a, b);
                check_deferred::<u16>(a, b);
                check_deferred::<u32>(a, b);
                check_deferred::<u64>(a, b);
            }
        }
    }

    #[test]
    fn keeping_the_carry_keeps_overflow() {
        for old in [0, rflags::CF, rflags::CF | rflags::OF] {
            for a in 0..=255u8 {
                let inc = Lazy::add(a, 1, a.wrapping_add(1));
                let kept = inc.keep_cf(Lazy::from_bits(old));
                assert_eq!(kept.cf(), old & rflags::CF != 0);
                assert_eq!(kept.of(), inc.of());
                assert_eq!(kept.zf(), inc.zf());
            }
        }
    }
}
