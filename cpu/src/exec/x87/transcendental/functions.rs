//! The functions of finite operands that are not zero: reduction of the argument, and the series.

use super::real::Real;
use super::series::{
    LOG2_STEPS, PI, STEPS, arctangent, arctangent_step, cosine, exp2_minus_1, exp2_step_minus_1,
    log2_of_ratio, log2_step, sine,
};

/// Pi as the FPU has it for the reduction of an argument, 66 bits, in units of 2^-64 (SDM Vol. 1
/// 8.3.8). The results near a multiple of pi follow from this.
const PI_66: u128 = 0x3_243F_6A88_85A3_08D3;

/// An angle, reduced: the nearest multiple of pi/2, and the rest, whose absolute value is at most
/// pi/4.
pub(super) struct Angle {
    /// The multiple, modulo 4.
    quadrant: u8,
    rest: Real,
    is_negative: bool,
}

impl Angle {
    /// Reduces `x`, whose absolute value is below 2^63.
    pub(super) fn new(x: Real) -> Self {
        // It has 64 significant bits.
        let shift = match x.exponent {
            exponent @ -1..=62 => exponent + 2,
            _ => {
                return Self {
                    quadrant: 0,
                    rest: x.abs(),
                    is_negative: x.is_negative,
                };
            }
        };
        // In units of 2^-65, of which pi/2 has `PI_66`.
        let value = (x.significand >> 64) << shift;
        let (count, rest) = (value / PI_66, value % PI_66);
        let is_above = rest > PI_66 / 2;
        let distance = if is_above { PI_66 - rest } else { rest };
        Self {
            quadrant: (count + u128::from(is_above)) as u8 & 3,
            rest: Real::new(is_above, distance, 127 - 65),
            is_negative: x.is_negative,
        }
    }

    pub(super) fn sine(&self) -> Real {
        let value = match self.quadrant & 1 {
            0 => sine(self.rest),
            _ => cosine(self.rest),
        };
        value.with_sign(value.is_negative ^ (self.quadrant & 2 != 0) ^ self.is_negative)
    }

    pub(super) fn cosine(&self) -> Real {
        let value = match self.quadrant & 1 {
            0 => cosine(self.rest),
            _ => sine(self.rest),
        };
        value.with_sign(value.is_negative ^ matches!(self.quadrant, 1 | 2))
    }

    pub(super) fn tangent(&self) -> Real {
        if self.quadrant == 0 && self.rest.exponent < -63 {
            // It is a little above the angle, by less than its last bit.
            return Real {
                significand: self.rest.significand | 1,
                ..self.rest
            }
            .with_sign(self.is_negative);
        }
        self.sine().over(self.cosine())
    }
}

/// The angle of the point (`x`, `y`).
pub(super) fn arctangent_of(y: Real, x: Real) -> Real {
    const HALF_PI: Real = Real::new(false, PI.significand, 0);
    let is_steep = x.is_smaller(y);
    let (n, d) = if is_steep { (x, y) } else { (y, x) };
    let acute = arctangent_of_ratio(n.abs(), d.abs());
    let acute = if is_steep {
        HALF_PI.plus(acute.with_sign(true))
    } else {
        acute
    };
    let angle = if x.is_negative {
        PI.plus(acute.with_sign(true))
    } else {
        acute
    };
    angle.with_sign(y.is_negative)
}

/// The arctangent of `n` / `d`, which is positive and at most 1. Both have 64 significant bits.
fn arctangent_of_ratio(n: Real, d: Real) -> Real {
    /// Upper bits that are left free for sums.
    const FREE: u32 = 8;
    let shift = (d.exponent - n.exponent) as u32;
    // No bit is lost.
    let (d_bits, n_bits) = (
        d.significand >> FREE,
        n.significand >> (FREE + shift.min(7)),
    );
    let (dh, nh) = (d_bits >> 64, n_bits >> 64);
    let step = match shift {
        ..=6 => (nh * u128::from(STEPS) + dh / 2) / dh,
        _ => 0,
    };
    if step == 0 {
        return arctangent(n.over(d));
    }
    // tan(a - b) = (tan a - tan b) / (1 + tan a tan b), with tan b = step / 32.
    let (n, d) = (n_bits * u128::from(STEPS), d_bits * u128::from(STEPS));
    let (n_part, d_part) = (d_bits * step, n_bits * step);
    let rest = Real::new(n < n_part, n.abs_diff(n_part), 0);
    let near = arctangent_step(step as u32);
    match rest.significand {
        0 => near,
        _ => near.plus(arctangent(rest.over(Real::new(false, d + d_part, 0)))),
    }
}

/// The binary logarithm of `x`, which is positive.
pub(super) fn log2(x: Real) -> Real {
    // x = 2^exponent * m, with m from about sqrt(1/2) to sqrt(2), in units of 2^-126.
    let step = ((x.significand >> 121) as u32 + 1) >> 1;
    let (exponent, m) = match step {
        step if LOG2_STEPS.contains(&step) => (x.exponent, x.significand >> 1),
        _ => (x.exponent + 1, x.significand >> 2),
    };
    let step = ((m >> 120) as u32 + 1) >> 1;
    let near = u128::from(step) << 121;
    let whole = Real::integer(exponent).plus(log2_step(step));
    match m.abs_diff(near) {
        0 => whole,
        distance => {
            let distance = Real::new(m < near, distance, 0);
            whole.plus(log2_of_ratio(distance.over(Real::new(false, m + near, 0))))
        }
    }
}

/// The binary logarithm of 1 + `x`, where `x` is above -1.
pub(super) fn log2_of_1_plus(x: Real) -> Real {
    match x.exponent {
        // 1 + x = (1 + y) / (1 - y), y = x / (2 + x).
        ..-6 => log2_of_ratio(x.over(Real::integer(2).plus(x))),
        _ => log2(Real::integer(1).plus(x)),
    }
}

/// 2^`x` - 1, where the absolute value of `x` is below 1.
pub(super) fn exp2_less_1(x: Real) -> Real {
    let fraction = x.fraction();
    let step = ((fraction >> 122) as u32 + 1) >> 1;
    if step == 0 {
        return exp2_minus_1(x);
    }
    let near = u128::from(step) << 123;
    // A step of 32 is 1, which is 2^128.
    let (rest, is_below) = match step {
        STEPS => (fraction.wrapping_neg(), true),
        _ => (fraction.abs_diff(near), fraction < near),
    };
    let power = exp2_step_minus_1(if x.is_negative {
        -(step as i32)
    } else {
        step as i32
    });
    if rest == 0 {
        return power;
    }
    // 2^(a + b) - 1 = (2^a - 1) (2^b - 1) + (2^a - 1) + (2^b - 1).
    let rest = exp2_minus_1(Real::new(is_below ^ x.is_negative, rest, -1));
    power.times(rest).plus(rest).plus(power)
}
