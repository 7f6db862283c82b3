//! Random numbers (SDM Vol. 1 7.3.17, Vol. 2B "RDRAND—Read Random Number").
//!
//! On virtual time they are the same on every run: the `n`th number of processor `p` follows from
//! `n` and `p`, and the processor's state has `n`. On the host's time they come from the host's
//! processor. If that has no RDRAND, no number is ever ready, for which programs are prepared.

use std::arch::x86_64::_rdrand64_step;

use iced_x86::Code;

use crate::exec::table::{Backend, Table};
use crate::insn::{Exec, Flow, Insn};
use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::state::flags::Lazy;
use crate::state::int::Int;
use crate::state::rflags;

/// The `n`th number of a sequence: SplitMix64, of which each seed gives another sequence.
fn number(seed: u64, n: u64) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |mut x: u64| {
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    };
    mix(mix(STEP.wrapping_mul(seed + 1)).wrapping_add(STEP.wrapping_mul(n)))
}

/// A number of the host's processor, if one is ready.
fn of_host() -> Option<u64> {
    #[target_feature(enable = "rdrand")]
    fn read() -> Option<u64> {
        let mut value = 0;
        (_rdrand64_step(&mut value) == 1).then_some(value)
    }
    // SAFETY: the host has the instruction.
    is_x86_feature_detected!("rdrand")
        .then(|| unsafe { read() })
        .flatten()
}

fn next(cpu: &mut Cpu) -> Option<u64> {
    match cpu.clock {
        Clock::Instructions => {
            cpu.random_numbers = cpu.random_numbers.wrapping_add(1);
            Some(number(cpu.topology.id.into(), cpu.random_numbers))
        }
        Clock::Host(_) => of_host(),
    }
}

/// RDRAND: CF is set if a number is ready. Otherwise the destination is zero.
fn rdrand<T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let value = next(cpu);
    cpu.w(insn.dst, T::from_u64(value.unwrap_or(0)));
    cpu.flags = Lazy::from_bits(if value.is_some() { rflags::CF } else { 0 });
    Ok(Flow::Next)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([Rdrand_r16], rdrand::<u16>);
    t.handler([Rdrand_r32], rdrand::<u32>);
    t.handler([Rdrand_r64], rdrand::<u64>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_sequences_of_their_own() {
        let mut all: Vec<u64> = (0..8)
            .flat_map(|seed| (1..1000).map(move |n| number(seed, n)))
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
