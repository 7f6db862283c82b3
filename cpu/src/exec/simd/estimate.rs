//! RCPPS, RSQRTPS and their scalar forms (SDM Vol. 2B): estimates with a relative error of at most
//! 1.5 * 2^-12. Processors of different vendors have different ones. These are computed here, so
//! that a recording replays on any host.
//!
//! The result is the exact value, rounded to 12 significant bits: its relative error is at most
//! 2^-12. Neither MXCSR nor its flags have a part.

use super::float::Float;
use super::mxcsr::Masked;
use super::{V, cast};

/// Bits of a fraction that are rounded away: 11 of 23 remain.
const ROUNDED: u32 = 12;
const SIGN: u32 = 1 << 31;
const EXPONENT: u32 = 0xFF << 23;
const QUIET: u32 = 1 << 22;
/// The default QNaN.
const INDEFINITE: u32 = SIGN | EXPONENT | QUIET;

/// The estimate of 1 / `x`.
fn reciprocal(x: u32) -> u32 {
    match special(x) {
        Some(result) => result,
        None => round(1.0 / f64::from(f32::from_bits(x))),
    }
}

/// The estimate of 1 / sqrt(`x`).
fn reciprocal_root(x: u32) -> u32 {
    let is_negative = x & SIGN != 0 && x & EXPONENT != 0;
    match special(x) {
        Some(result) if !is_negative || is_nan(x) => result,
        _ if is_negative => INDEFINITE,
        Some(result) => result,
        None => round(1.0 / f64::from(f32::from_bits(x)).sqrt()),
    }
}

fn is_nan(x: u32) -> bool {
    x & !SIGN > EXPONENT
}

/// The result for a NaN, an infinity, a zero, and a denormal, which counts as zero.
fn special(x: u32) -> Option<u32> {
    match (x & EXPONENT, x & SIGN) {
        _ if is_nan(x) => Some(x | QUIET),
        (EXPONENT, sign) => Some(sign),
        (0, sign) => Some(sign | EXPONENT),
        _ => None,
    }
}

/// Rounds to 12 significant bits. A tiny result becomes zero.
fn round(value: f64) -> u32 {
    let bits = (value as f32).to_bits();
    match bits & EXPONENT {
        0 => bits & SIGN,
        // A carry out of the fraction belongs to the exponent.
        _ => (bits + (1 << (ROUNDED - 1))) & !((1 << ROUNDED) - 1),
    }
}

/// The kernels of the packed forms, and of the scalar ones, which keep the upper elements of the
/// first operand.
macro_rules! estimates {
    ($($packed:ident $scalar:ident = $function:ident)*) => {$(
        pub(super) struct $packed;
        impl Float for $packed {
            fn run(csr: Masked, _: V, b: V) -> (V, u32) {
                let b: [u32; 4] = cast(b);
                (cast(b.map($function)), csr.get())
            }
        }
        pub(super) struct $scalar;
        impl Float for $scalar {
            fn run(csr: Masked, a: V, b: V) -> (V, u32) {
                let ([_, second, third, fourth], [first, ..]): ([u32; 4], [u32; 4]) =
                    (cast(a), cast(b));
                (cast([$function(first), second, third, fourth]), csr.get())
            }
        }
    )*};
}

estimates! {
    Rcpps Rcpss = reciprocal
    Rsqrtps Rsqrtss = reciprocal_root
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error that the manual allows.
    const ERROR: f64 = 1.5 / 4096.0;

    #[test]
    fn estimates_are_within_the_manuals_error() {
        // Fractions of each kind, and all exponents whose results are not tiny.
        for fraction in (0..1 << 23).step_by(997) {
            for exponent in 1..=252 {
                let bits = exponent << 23 | fraction;
                let x = f64::from(f32::from_bits(bits));
                for (estimate, exact) in [
                    (reciprocal(bits), 1.0 / x),
                    (reciprocal_root(bits), 1.0 / x.sqrt()),
                    (reciprocal(bits | SIGN), -1.0 / x),
                ] {
                    let estimate = f64::from(f32::from_bits(estimate));
                    let error = ((estimate - exact) / exact).abs();
                    assert!(error <= ERROR, "{bits:#x}: {estimate} for {exact}");
                }
            }
        }
    }

    #[test]
    fn special_operands_have_the_results_of_the_manual() {
        let infinity = EXPONENT;
        for (x, expected, root) in [
            (0, infinity, infinity),
            (SIGN, SIGN | infinity, SIGN | infinity),
            (1, infinity, infinity),
            (SIGN | 0x7F_FFFF, SIGN | infinity, SIGN | infinity),
            (infinity, 0, 0),
            (SIGN | infinity, SIGN, INDEFINITE),
            (0x7F80_0001, 0x7FC0_0001, 0x7FC0_0001),
            (0xFF80_0001, 0xFFC0_0001, 0xFFC0_0001),
            // 2^127: 1 / 2^127 is tiny.
            (0x7F00_0000, 0, 0x1FB5_0000),
            (0xBF80_0000, 0xBF80_0000, INDEFINITE),
            (0x3F80_0000, 0x3F80_0000, 0x3F80_0000),
            (0x3FFF_FFFF, 0x3F00_0000, 0x3F35_0000),
        ] {
            assert_eq!(reciprocal(x), expected, "1 / {x:#x}");
            assert_eq!(reciprocal_root(x), root, "1 / sqrt({x:#x})");
        }
    }
}
