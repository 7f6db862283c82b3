//! Random cases: instructions, and states in which they have something to do.

use iced_x86::{Code, Instruction};

use super::compare::{reads_string_registers, repeats_with_32_bits, undefined_after};
use super::layout::{CODE, CODE_LEN, DATA, MEMORY_LEN};
use super::random::Random;
use super::vendor::{Behaviour, Vendor};
use super::{FloatState, Mode, State};
use codes::needs_initial_state;
use operands::Draft;

mod codes;
mod implicit;
mod memory;
mod mutate;
mod operands;

pub use codes::Group;

/// Instructions, and the state they start from.
#[derive(Clone, Debug)]
pub struct Case {
    /// The instructions, as decoded from `code`.
    pub instructions: Vec<Instruction>,
    /// The code page: the instructions at its start, INT3 everywhere else.
    pub code: Box<[u8; CODE_LEN]>,
    /// The state before the first instruction.
    pub state: State,
}

/// Makes cases of one group, for one size of code.
#[derive(Debug)]
pub struct Generator {
    group: Group,
    mode: Mode,
    vendor: Vendor,
    random: Random,
    codes: Vec<Code>,
    next: usize,
    memory: Vec<u8>,
}

/// How long the code of a case may get, in bytes.
const MAX_CODE: usize = 0x60;

impl Generator {
    /// The cases that `seed` gives, for a host of a vendor.
    #[must_use]
    pub fn new(group: Group, mode: Mode, vendor: Vendor, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let codes = codes::codes(group, mode, vendor);
        let next = random.below(codes.len() as u64) as usize;
        let mut memory = Vec::with_capacity(MEMORY_LEN);
        while memory.len() < MEMORY_LEN {
            memory.extend(random.integer().to_le_bytes());
        }
        Self {
            group,
            mode,
            vendor,
            random,
            codes,
            next,
            memory,
        }
    }

    /// Makes a case whose first instruction is the next of the group's.
    pub fn case(&mut self) -> Case {
        loop {
            let first = self.codes[self.next % self.codes.len()];
            self.next += 1;
            let case = match self.group {
                Group::Bytes => self.try_case(first).and_then(|case| self.mutate(case)),
                _ => self.try_case(first),
            };
            if let Some(case) = case {
                return case;
            }
        }
    }

    fn try_case(&mut self, first: Code) -> Option<Case> {
        let length = if self.group == Group::Bytes || self.random.chance(60) {
            1
        } else {
            2 + self.random.below(3)
        };
        let picks: Vec<Code> = (1..length).map(|_| self.random.pick(&self.codes)).collect();
        let state = initial_state(&mut self.random, self.mode, &self.memory);
        let mut draft = Draft {
            random: &mut self.random,
            vendor: self.vendor,
            state,
            // RSP, and what the mode does not have.
            fixed: 1 << 4
                | u16::MAX
                    .checked_shl(self.mode.registers() as u32)
                    .unwrap_or(0),
        };
        let mut bytes = Vec::new();
        let mut instructions = Vec::new();
        let mut undefined = 0;
        // The upper halves of RCX, RSI and RDI may be other ones on the host.
        let mut halves_differ = false;
        for code in std::iter::once(first).chain(picks) {
            if !instructions.is_empty() && needs_initial_state(code) {
                break;
            }
            let Some((instruction, encoded)) = draft.instruction(code, CODE + bytes.len() as u64)
            else {
                break;
            };
            if instruction.rflags_read() & undefined != 0
                || halves_differ && reads_string_registers(&instruction)
                || bytes.len() + encoded.len() > MAX_CODE
            {
                break;
            }
            undefined = undefined_after(&instruction, undefined);
            halves_differ |= self.vendor.may_differ(Behaviour::UpperHalvesOfRepeat)
                && repeats_with_32_bits(&instruction);
            bytes.extend(encoded);
            instructions.push(instruction);
        }
        if instructions.is_empty() {
            return None;
        }
        let state = draft.state;
        let mut code = Box::new([0xCC; CODE_LEN]);
        code[..bytes.len()].copy_from_slice(&bytes);
        Some(Case {
            instructions,
            code,
            state,
        })
    }
}

fn initial_state(random: &mut Random, mode: Mode, memory: &[u8]) -> State {
    let mut gpr = std::array::from_fn(|_| random.integer() & mode.mask());
    // Enough of the stack on both sides.
    gpr[4] = DATA
        + 0x1000
        + random.below(64) * 8
        + if random.chance(15) {
            random.below(8)
        } else {
            0
        };
    let arithmetic = 0x8D5;
    let direction = if random.chance(30) { 1 << 10 } else { 0 };
    // A trap after the first instruction.
    let trap = if random.chance(5) { 1 << 8 } else { 0 };
    State {
        mode,
        gpr,
        rip: CODE,
        rflags: random.bits() & arithmetic | direction | trap | 0x202,
        float: float_state(random),
        memory: memory.to_vec(),
    }
}

fn float_state(random: &mut Random) -> FloatState {
    let mut float = FloatState::default();
    for half in float.xmm.iter_mut().chain(&mut float.ymm_high) {
        *half = vector(random);
    }
    for st in &mut float.st {
        *st = random.extended();
    }
    // Rounding and precision at random; the exceptions masked, mostly. Precision control 01 is
    // reserved.
    let precision = random.pick(&[0u16, 2, 3, 3]);
    let unmasked = if random.chance(10) {
        random.below(64) as u16
    } else {
        0
    };
    float.fcw = 0x40 | (0x3F & !unmasked) | precision << 8 | (random.below(4) as u16) << 10;
    // Condition codes, TOP, and flags of masked exceptions alone: none is pending.
    float.fsw = (random.bits() as u16) & (0x7F00 | 0x3F & float.fcw);
    float.ftw = if random.chance(70) {
        0xFF
    } else {
        random.bits() as u8
    };
    let unmasked = if random.chance(10) {
        random.below(64) as u32
    } else {
        0
    };
    let mode = if random.chance(30) {
        (random.bits() as u32) & 0x8040
    } else {
        0
    };
    float.mxcsr =
        (0x3F & !unmasked) << 7 | (random.below(4) as u32) << 13 | mode | (random.below(64) as u32);
    float
}

/// A vector register's worth of singles, doubles or integers.
fn vector(random: &mut Random) -> u128 {
    // Four letters, for comparisons of strings.
    const LETTERS: u64 = 0x0303_0303_0303_0303;
    match random.below(5) {
        0 => (0..4).fold(0, |wide, _| wide << 32 | u128::from(random.single())),
        1 => (0..2).fold(0, |wide, _| wide << 64 | u128::from(random.double())),
        2 => (0..2).fold(0, |wide, _| wide << 64 | u128::from(random.bits())),
        3 => (0..2).fold(0, |wide, _| {
            wide << 64 | u128::from(random.bits() & LETTERS)
        }),
        _ => (0..2).fold(0, |wide, _| wide << 64 | u128::from(random.integer())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases in which an instruction reads RCX, RSI or RDI after a repeat with 32-bit addressing.
    fn reads_after_repeat(mode: Mode, vendor: Vendor) -> usize {
        let mut generator = Generator::new(Group::Integer, mode, vendor, 1);
        let cases = (0..50_000).map(|_| generator.case());
        cases
            .filter(|case| {
                let mut rest = case.instructions.iter();
                rest.any(repeats_with_32_bits) && rest.any(reads_string_registers)
            })
            .count()
    }

    #[test]
    fn upper_halves_that_may_differ_are_not_read() {
        assert_eq!(reads_after_repeat(Mode::Bits64, Vendor::Amd), 0);
        assert_ne!(reads_after_repeat(Mode::Bits64, Vendor::Intel), 0);
    }
}
