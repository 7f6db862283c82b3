//! The transcendental instructions (SDM Vol. 1 8.3.7 to 8.3.10). Processors of different vendors
//! have different last bits. These are computed here in integers, so that a recording replays on
//! any host: results have 128 significant bits, of which some twenty are inexact, and are rounded
//! once, to the nearest number with 64 bits except in about one of 2^40 cases.
//!
//! Where the manual leaves the result undefined, as for operands out of range, it is that of AMD's
//! processors.
//!
//! | module | contents |
//! |---|---|
//! | `real` | numbers with 128 significant bits, rounding |
//! | `series` | power series and tables |
//! | `functions` | functions of ordinary operands |

mod functions;
mod real;
mod series;
#[cfg(test)]
mod tests;

use super::control::summarize;
use super::{C1, C2, DE, EXCEPTIONS, IE, PE, SF, TOP, ZE};
use crate::state::X87State;
use functions::{Angle, arctangent_of, exp2_less_1, log2, log2_of_1_plus};
use real::{Real, SIGN};
use series::PI;

/// An instruction, by its ModRM byte after D9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    F2xm1 = 0xF0,
    Fyl2x = 0xF1,
    Fptan = 0xF2,
    Fpatan = 0xF3,
    Fyl2xp1 = 0xF9,
    Fsincos = 0xFB,
    Fsin = 0xFE,
    Fcos = 0xFF,
}

impl Operation {
    pub(super) const ALL: [Self; 8] = [
        Self::F2xm1,
        Self::Fyl2x,
        Self::Fptan,
        Self::Fpatan,
        Self::Fyl2xp1,
        Self::Fsincos,
        Self::Fsin,
        Self::Fcos,
    ];

    /// The instruction with this ModRM byte.
    pub(super) fn of(modrm: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|operation| *operation as u8 == modrm)
    }
}

const INFINITY: u128 = 0x7FFF << 64 | 1 << 63;
/// The default NaN.
const INDEFINITE: u128 = 0xFFFF << 64 | 3 << 62;
const ONE: u128 = 0x3FFF << 64 | 1 << 63;
/// The bit of a significand that makes a NaN quiet.
const QUIET: u128 = 1 << 62;

/// A kind of operand (SDM Vol. 1 tables 4-3, 8-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Zero,
    Finite,
    Denormal,
    Infinity,
    Nan,
    Unsupported,
}

fn kind(bits: u128) -> Kind {
    let (exponent, significand) = ((bits >> 64) as u16 & 0x7FFF, bits as u64);
    match (exponent, significand >> 63 != 0, significand << 1 != 0) {
        (0, false, false) => Kind::Zero,
        (0, ..) => Kind::Denormal,
        (_, false, _) => Kind::Unsupported,
        (0x7FFF, _, false) => Kind::Infinity,
        (0x7FFF, _, true) => Kind::Nan,
        _ => Kind::Finite,
    }
}

/// The outcome for one operand or two.
enum Outcome {
    /// It is rounded.
    Number(Real),
    /// It is exact.
    Exact(u128),
    /// The operand, which is out of range.
    Operand(u128),
    Invalid,
    /// An infinity, which comes from a finite operand.
    ZeroDivide(u128),
}

/// Executes an instruction. No exception is pending.
pub(super) fn execute(x87: &mut X87State, operation: Operation) {
    x87.fsw &= !C1;
    match operation {
        Operation::F2xm1 => one_operand(x87, power),
        Operation::Fyl2x => two_operands(x87, logarithm),
        Operation::Fyl2xp1 => two_operands(x87, logarithm_of_1_plus),
        Operation::Fpatan => two_operands(x87, angle),
        Operation::Fptan | Operation::Fsincos | Operation::Fsin | Operation::Fcos => {
            trigonometry(x87, operation);
        }
    }
    summarize(x87);
}

fn is_empty(x87: &X87State, i: usize) -> bool {
    x87.ftw >> ((x87.top() + i) & 7) & 1 == 0
}

/// Writes ST(`i`), which is not empty then.
fn put(x87: &mut X87State, i: usize, value: u128) {
    x87.set_st(i, value);
    x87.ftw |= 1 << ((x87.top() + i) & 7);
}

fn push(x87: &mut X87State, value: u128) {
    x87.fsw = x87.fsw & !TOP | ((x87.top() + 7) as u16 & 7) << 11;
    put(x87, 0, value);
}

/// Empties ST(0), after the result is in ST(1).
fn pop(x87: &mut X87State) {
    x87.ftw &= !(1 << x87.top());
    x87.fsw = x87.fsw & !TOP | ((x87.top() + 1) as u16 & 7) << 11;
}

/// Sets the flags. Returns whether the exceptions are masked, so that there is a result.
fn raise(x87: &mut X87State, flags: u16) -> bool {
    x87.fsw |= flags;
    flags & !x87.fcw & EXCEPTIONS == 0
}

/// The result for a NaN or an operand in a format that is not supported, if one is there, and
/// whether it is an invalid operation (SDM Vol. 1 table 4-7).
fn not_a_number(operands: &[u128]) -> Option<(u128, bool)> {
    if operands.iter().any(|bits| kind(*bits) == Kind::Unsupported) {
        return Some((INDEFINITE, true));
    }
    let nans = operands.iter().filter(|bits| kind(**bits) == Kind::Nan);
    let is_signaling = |bits: u128| bits & QUIET == 0;
    let is_invalid = nans.clone().any(|bits| is_signaling(*bits));
    // Quiet ones precede others, larger significands smaller ones, and then positive ones.
    let rank = |bits: &&u128| (!is_signaling(**bits), **bits as u64, **bits & SIGN == 0);
    let nan = nans.max_by_key(rank)?;
    Some((nan | QUIET, is_invalid))
}

/// Rounds a result, and sets its flags. C1 is that of the first result.
fn rounded(x87: &mut X87State, result: Real, sets_c1: bool) -> u128 {
    let rounded = result.round(x87.fcw);
    raise(x87, rounded.flags);
    if sets_c1 && rounded.is_up {
        x87.fsw |= C1;
    }
    rounded.bits
}

/// The result that replaces an operand; `None` if an unmasked exception prevents it.
fn result(x87: &mut X87State, operands: &[u128], f: impl FnOnce() -> Outcome) -> Option<u128> {
    if let Some((nan, is_invalid)) = not_a_number(operands) {
        let flags = if is_invalid { IE } else { 0 };
        return raise(x87, flags).then_some(nan);
    }
    let outcome = f();
    let is_denormal = operands.iter().any(|bits| kind(*bits) == Kind::Denormal);
    let denormal = match outcome {
        Outcome::Invalid => return raise(x87, IE).then_some(INDEFINITE),
        Outcome::ZeroDivide(infinity) => return raise(x87, ZE).then_some(infinity),
        _ if is_denormal => DE,
        _ => 0,
    };
    if !raise(x87, denormal) {
        return None;
    }
    match outcome {
        Outcome::Number(number) => Some(rounded(x87, number, true)),
        Outcome::Operand(bits) => {
            raise(x87, PE);
            Some(bits)
        }
        Outcome::Exact(bits) | Outcome::ZeroDivide(bits) => Some(bits),
        Outcome::Invalid => None,
    }
}

fn one_operand(x87: &mut X87State, f: fn(u128) -> Outcome) {
    let operand = x87.st(0);
    let result = match is_empty(x87, 0) {
        true => raise(x87, IE | SF).then_some(INDEFINITE),
        false => result(x87, &[operand], || f(operand)),
    };
    if let Some(result) = result {
        put(x87, 0, result);
    }
}

/// Computes with ST(1) and ST(0), and pops.
fn two_operands(x87: &mut X87State, f: fn(u128, u128) -> Outcome) {
    let (y, x) = (x87.st(1), x87.st(0));
    let result = match is_empty(x87, 0) || is_empty(x87, 1) {
        true => raise(x87, IE | SF).then_some(INDEFINITE),
        false => result(x87, &[y, x], || f(y, x)),
    };
    if let Some(result) = result {
        put(x87, 1, result);
        pop(x87);
    }
}

/// FSIN, FCOS, FSINCOS and FPTAN. The last two push a second result.
fn trigonometry(x87: &mut X87State, operation: Operation) {
    /// Exponents from here on are out of range.
    const LIMIT: u128 = 0x3FFF + 63;
    let pushes = matches!(operation, Operation::Fsincos | Operation::Fptan);
    x87.fsw &= !C2;
    let operand = x87.st(0);
    let is_zero = kind(operand) == Kind::Zero;
    let results = if is_empty(x87, 0) || pushes && !is_empty(x87, 7) {
        let overflow = if is_empty(x87, 0) { 0 } else { C1 };
        raise(x87, IE | SF | overflow).then_some((INDEFINITE, INDEFINITE))
    } else if matches!(kind(operand), Kind::Finite) && operand >> 64 & 0x7FFF >= LIMIT {
        x87.fsw |= C2;
        return;
    } else if matches!(kind(operand), Kind::Finite | Kind::Denormal) {
        let angle = Angle::new(Real::of_register(operand));
        let flags = match kind(operand) {
            Kind::Denormal => DE,
            _ => 0,
        };
        raise(x87, flags).then(|| match operation {
            Operation::Fcos => (rounded(x87, angle.cosine(), true), 0),
            Operation::Fsincos => {
                let sine = rounded(x87, angle.sine(), true);
                (sine, rounded(x87, angle.cosine(), false))
            }
            Operation::Fptan => (rounded(x87, angle.tangent(), true), ONE),
            _ => (rounded(x87, angle.sine(), true), 0),
        })
    } else {
        let invalid_or_zero = || match (is_zero, operation) {
            (false, _) => Outcome::Invalid,
            (true, Operation::Fcos) => Outcome::Exact(ONE),
            (true, _) => Outcome::Exact(operand),
        };
        let first = result(x87, &[operand], invalid_or_zero);
        first.map(|first| (first, if is_zero { ONE } else { first }))
    };
    if let Some((first, second)) = results {
        put(x87, 0, first);
        if pushes {
            push(x87, second);
        }
    }
}

/// F2XM1 (SDM Vol. 2A table 3-15).
fn power(x: u128) -> Outcome {
    let is_negative = x & SIGN != 0;
    match kind(x) {
        Kind::Infinity if is_negative => Outcome::Exact(ONE | SIGN),
        Kind::Infinity | Kind::Zero => Outcome::Exact(x),
        _ => {
            let number = Real::of_register(x);
            match (number.exponent, number.significand) {
                (..0, _) => Outcome::Number(exp2_less_1(number)),
                (0, significand) if significand == 1 << 127 => {
                    Outcome::Number(Real::new(is_negative, 1 << 127, -i32::from(is_negative)))
                }
                _ => Outcome::Operand(x),
            }
        }
    }
}

/// An infinity or a zero, `bits`, with a sign.
fn signed(bits: u128, is_negative: bool) -> u128 {
    bits | if is_negative { SIGN } else { 0 }
}

/// FPATAN (SDM Vol. 2A table 3-30).
fn angle(y: u128, x: u128) -> Outcome {
    let (y_is_negative, x_is_negative) = (y & SIGN != 0, x & SIGN != 0);
    match (kind(y), kind(x)) {
        (Kind::Infinity, Kind::Infinity) => {
            let one = Real::integer(1);
            let x = one.with_sign(x_is_negative);
            Outcome::Number(arctangent_of(one.with_sign(y_is_negative), x))
        }
        (Kind::Zero, _) | (_, Kind::Infinity) if !x_is_negative => {
            Outcome::Exact(signed(0, y_is_negative))
        }
        (Kind::Zero, _) | (_, Kind::Infinity) => Outcome::Number(PI.with_sign(y_is_negative)),
        (Kind::Infinity, _) | (_, Kind::Zero) => {
            Outcome::Number(Real::new(y_is_negative, PI.significand, PI.exponent - 1))
        }
        _ => Outcome::Number(arctangent_of(Real::of_register(y), Real::of_register(x))),
    }
}

/// FYL2X (SDM Vol. 2A table 3-48).
fn logarithm(y: u128, x: u128) -> Outcome {
    let y_is_negative = y & SIGN != 0;
    let (y_kind, x_kind) = (kind(y), kind(x));
    let is_below_1 = x < ONE;
    match (y_kind, x_kind) {
        (Kind::Zero, Kind::Zero | Kind::Infinity) => Outcome::Invalid,
        (Kind::Infinity, Kind::Zero) => Outcome::Exact(signed(INFINITY, !y_is_negative)),
        (_, Kind::Zero) => Outcome::ZeroDivide(signed(INFINITY, !y_is_negative)),
        _ if x & SIGN != 0 => Outcome::Invalid,
        (Kind::Infinity, _) if x == ONE => Outcome::Invalid,
        _ if x == ONE => Outcome::Exact(signed(0, y_is_negative)),
        (Kind::Infinity, _) | (_, Kind::Infinity) => {
            Outcome::Exact(signed(INFINITY, y_is_negative ^ is_below_1))
        }
        (Kind::Zero, _) => Outcome::Exact(signed(0, y_is_negative ^ is_below_1)),
        _ => Outcome::Number(Real::of_register(y).times(log2(Real::of_register(x)))),
    }
}

/// FYL2XP1 (SDM Vol. 2A table 3-49).
fn logarithm_of_1_plus(y: u128, x: u128) -> Outcome {
    let x_is_negative = x & SIGN != 0;
    let is_negative = (y & SIGN != 0) ^ x_is_negative;
    match (kind(y), kind(x)) {
        (Kind::Infinity, Kind::Zero) | (Kind::Zero, Kind::Infinity) => Outcome::Invalid,
        (_, Kind::Infinity) if x_is_negative => Outcome::Invalid,
        (Kind::Infinity, _) | (_, Kind::Infinity) => Outcome::Exact(signed(INFINITY, is_negative)),
        (Kind::Zero, _) | (_, Kind::Zero) => Outcome::Exact(signed(0, is_negative)),
        _ if x >= ONE | SIGN => Outcome::Operand(x),
        _ => Outcome::Number(Real::of_register(y).times(log2_of_1_plus(Real::of_register(x)))),
    }
}
