//! Power series in fixed point, and tables that are computed when this is compiled. The error of
//! each is a few units of 2^-126.

use super::real::{Real, high};

/// 1 in units of 2^-127.
const ONE: u128 = 1 << 127;

/// Pi.
pub(super) const PI: Real = Real::new(false, 0xC90F_DAA2_2168_C234_C4C6_628B_80DC_1CD1, 1);
/// ln 2, in units of 2^-128.
const LN_2: u128 = 0xB172_17F7_D1CF_79AB_C9E3_B398_03F2_F6AF;
/// log2 e, in units of 2^-127.
const LOG2_E: u128 = 0xB8AA_3B29_5C17_F0BB_BE87_FED0_691D_3E89;

/// The tables have arguments in steps of 1/32.
pub(super) const STEPS: u32 = 32;
/// The arguments of [`log2_step`]: from about sqrt(1/2) to sqrt(2).
pub(super) const LOG2_STEPS: std::ops::RangeInclusive<u32> = 22..=45;

/// 1 / `n`!, in units of 2^-128.
const fn inverse_factorial(n: u128) -> u128 {
    let (mut value, mut k) = (u128::MAX, 2);
    while k <= n {
        value /= k;
        k += 1;
    }
    value
}

/// 1 / (`FIRST` + `STEP` * i)!, in units of 2^-128.
const fn inverse_factorials<const FIRST: u128, const STEP: u128, const N: usize>() -> [u128; N] {
    let (mut table, mut i) = ([0; N], 0);
    while i < N {
        table[i] = inverse_factorial(FIRST + STEP * i as u128);
        i += 1;
    }
    table
}

/// `value` * `n` / `d`, where `n` <= `d` < 2^64.
const fn scale(value: u128, n: u128, d: u128) -> u128 {
    value / d * n + value % d * n / d
}

/// c0 - x (c1 - x (c2 - ...)), in units of 2^-128.
fn alternating(coefficients: &[u128], x: u128) -> u128 {
    let terms = coefficients.iter().rev();
    terms.fold(0, |sum, coefficient| coefficient - high(x, sum))
}

/// 1 - `part`, which is below 1, in units of 2^-128. The result is below 1.
fn one_minus(part: u128) -> Real {
    let value = match part {
        0 => u128::MAX,
        _ => part.wrapping_neg(),
    };
    Real::new(false, value, -1)
}

/// The sine of `x`, whose absolute value is at most pi/4.
pub(super) fn sine(x: Real) -> Real {
    const COEFFICIENTS: [u128; 13] = inverse_factorials::<3, 2, 13>();
    let square = high(x.fraction(), x.fraction());
    x.times(one_minus(high(square, alternating(&COEFFICIENTS, square))))
}

/// The cosine of `x`, whose absolute value is at most pi/4.
pub(super) fn cosine(x: Real) -> Real {
    const COEFFICIENTS: [u128; 13] = inverse_factorials::<2, 2, 13>();
    let square = high(x.fraction(), x.fraction());
    one_minus(high(square, alternating(&COEFFICIENTS, square)))
}

/// Terms of the series of [`arctangent`] and [`area_tangent`], whose arguments are small.
const TERMS: usize = 11;

/// 1 / 3, 1 / 5, ..., in units of 2^-128.
const ODD: [u128; TERMS] = {
    let (mut table, mut i) = ([0; TERMS], 0);
    while i < TERMS {
        table[i] = u128::MAX / (2 * i as u128 + 3);
        i += 1;
    }
    table
};

/// The arctangent of `x`, whose absolute value is at most 1/60.
pub(super) fn arctangent(x: Real) -> Real {
    let square = high(x.fraction(), x.fraction());
    x.times(one_minus(high(square, alternating(&ODD, square))))
}

/// The area hyperbolic tangent of `x`, whose absolute value is at most 1/60.
fn area_tangent(x: Real) -> Real {
    let square = high(x.fraction(), x.fraction());
    let terms = ODD.iter().rev();
    let sum = terms.fold(0, |sum, coefficient| coefficient + high(square, sum));
    x.times(Real::new(false, ONE + (high(square, sum) >> 1), 0))
}

/// The arctangent of `step` / 32, up to 1.
pub(super) fn arctangent_step(step: u32) -> Real {
    const TABLE: [u128; STEPS as usize + 1] = {
        let (mut table, mut step) = ([0; STEPS as usize + 1], 0);
        while step <= STEPS as u128 {
            // Euler's series: its terms have the ratio 2k / (2k + 1) * x^2 / (1 + x^2).
            let one = (STEPS * STEPS) as u128 + step * step;
            let mut term = scale(ONE, STEPS as u128 * step, one);
            let (mut sum, mut k) = (0, 1);
            while term != 0 {
                sum += term;
                term = scale(term, step * step * 2 * k, one * (2 * k + 1));
                k += 1;
            }
            table[step as usize] = sum;
            step += 1;
        }
        table
    };
    Real::new(false, TABLE[step.min(STEPS) as usize], 0)
}

/// The binary logarithm of (1 + `x`) / (1 - `x`), where the absolute value of `x` is at most 1/60.
pub(super) fn log2_of_ratio(x: Real) -> Real {
    const TWO_LOG2_E: Real = Real::new(false, LOG2_E, 1);
    area_tangent(x).times(TWO_LOG2_E)
}

/// The binary logarithm of `step` / 32, which is one of [`LOG2_STEPS`].
pub(super) fn log2_step(step: u32) -> Real {
    const FIRST: u32 = *LOG2_STEPS.start();
    const COUNT: usize = (*LOG2_STEPS.end() - FIRST) as usize + 1;
    // The absolute values, in units of 2^-127.
    const TABLE: [u128; COUNT] = {
        let (mut table, mut i) = ([0; COUNT], 0);
        while i < COUNT {
            // ln c = 2 artanh x, x = (c - 1) / (c + 1).
            let step = FIRST + i as u32;
            let (n, d) = (step.abs_diff(STEPS) as u128, (step + STEPS) as u128);
            let (mut power, mut sum, mut k) = (scale(ONE, n, d), 0, 1);
            while power != 0 {
                sum += power / k;
                power = scale(power, n * n, d * d);
                k += 2;
            }
            // Twice the sum, times log2 e: the product is in units of 2^-126.
            table[i] = high(sum, LOG2_E) << 2;
            i += 1;
        }
        table
    };
    let value = TABLE.get(step.wrapping_sub(FIRST) as usize);
    Real::new(step < STEPS, value.copied().unwrap_or(0), 0)
}

/// 2^`x` - 1, where the absolute value of `x` is at most 1/60.
pub(super) fn exp2_minus_1(x: Real) -> Real {
    // (e^z - 1) / z = 1 + z/2! + z^2/3! + ..., the terms after the first in units of 2^-128.
    const COEFFICIENTS: [u128; 14] = inverse_factorials::<2, 1, 14>();
    const LN_2_REAL: Real = Real::new(false, LN_2, -1);
    let z = x.times(LN_2_REAL);
    let fraction = z.fraction();
    let terms = COEFFICIENTS.iter().rev();
    let part = match z.is_negative {
        false => terms.fold(0, |sum, coefficient| coefficient + high(fraction, sum)),
        true => alternating(&COEFFICIENTS, fraction),
    };
    let part = high(fraction, part) >> 1;
    let factor = if z.is_negative {
        ONE - part
    } else {
        ONE + part
    };
    z.times(Real::new(false, factor, 0))
}

/// 2^(`step` / 32) - 1, where the absolute value of `step` is at most 32.
pub(super) fn exp2_step_minus_1(step: i32) -> Real {
    const COUNT: usize = 2 * STEPS as usize + 1;
    /// 1 in units of 2^-126.
    const ONE: u128 = 1 << 126;
    // The powers, in units of 2^-126.
    const TABLE: [u128; COUNT] = {
        let (mut table, mut i) = ([0; COUNT], 0);
        while i < COUNT {
            let distance = i.abs_diff(STEPS as usize) as u128;
            let z = scale(LN_2, distance, STEPS as u128);
            let (mut term, mut even, mut odd, mut k) = (ONE, 0, 0, 1);
            while term != 0 {
                if k % 2 == 1 {
                    even += term;
                } else {
                    odd += term;
                }
                term = high(term, z) / k;
                k += 1;
            }
            let is_negative = i < STEPS as usize;
            table[i] = if is_negative { even - odd } else { even + odd };
            i += 1;
        }
        table
    };
    let index = usize::try_from(step + STEPS as i32).ok();
    let power = index.and_then(|i| TABLE.get(i)).copied().unwrap_or(ONE);
    Real::new(power < ONE, power.abs_diff(ONE), 1)
}
