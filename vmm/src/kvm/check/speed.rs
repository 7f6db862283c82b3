//! Measures the speed of KVM at CPL 0 and CPL 3, and probes whether it can single-step. No check
//! depends on the results.

use std::fmt;
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, kvm_guest_debug};

use super::exit::Exit;
use super::guest::Mode;
use super::scratch::Scratch;
use crate::kvm::{KvmError, Named};

/// Instructions a second.
pub type Speed = u64;

/// A speed in millions of instructions a second.
#[derive(Debug, Clone, Copy)]
pub struct Millions(pub Speed);

impl fmt::Display for Millions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 as f64 / 1e6 {
            millions if millions < 10.0 => write!(f, "{millions:.1}"),
            millions => write!(f, "{millions:.0}"),
        }
    }
}

/// `1: dec rcx; add rax, rcx; xor rdx, rax; test rcx, rcx; jnz 1b`
pub const LOOP: &[u8] = &[
    0x48, 0xFF, 0xC9, 0x48, 0x01, 0xC8, 0x48, 0x31, 0xC2, 0x48, 0x85, 0xC9, 0x75, 0xF2,
];
/// Instructions in one round of [`LOOP`].
const ROUND: u64 = 5;
/// Rounds of the first try. Later tries take more, until one lasts for [`ENOUGH`].
const ROUNDS: u64 = 1 << 10;
/// Time that a loop must take to be measured.
const ENOUGH: Duration = Duration::from_millis(2);

/// Measures the speed in [`LOOP`] at the CPL of `mode`.
///
/// # Errors
/// The guest does not reach the end of the loop.
pub fn measure(scratch: &mut Scratch, mode: Mode) -> Result<Speed, KvmError> {
    let (last, end) = mode.end();
    let code = [LOOP, last].concat();
    let mut rounds = ROUNDS;
    loop {
        scratch.start(mode, &code)?;
        let mut regs = scratch.regs()?;
        regs.rcx = rounds;
        scratch.set_regs(&regs)?;
        let began = Instant::now();
        let exit = scratch.run(None)?;
        let took = began.elapsed();
        if exit != end {
            return Err(KvmError {
                what: "a loop",
                source: std::io::Error::other(exit.to_string()),
            });
        }
        if took >= ENOUGH {
            return Ok((ROUND as f64 * rounds as f64 / took.as_secs_f64()) as Speed);
        }
        rounds *= 4;
    }
}

/// Probes whether each of three single-stepped NOPs exits, at the CPL of `mode`.
///
/// # Errors
/// The exit that happens instead.
pub fn single_step(scratch: &mut Scratch, mode: Mode) -> Result<(), String> {
    let outcome = step(scratch, mode);
    let off = kvm_guest_debug::default();
    let restored = scratch.vcpu().set_guest_debug(&off);
    outcome?;
    restored
        .named("KVM_SET_GUEST_DEBUG")
        .map_err(|e| e.to_string())
}

fn step(scratch: &mut Scratch, mode: Mode) -> Result<(), String> {
    let text = |error: KvmError| error.to_string();
    let place = mode.layout().0;
    scratch.start(mode, &[0x90; 8]).map_err(text)?;
    for step in 1..=3 {
        let debug = kvm_guest_debug {
            control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP,
            ..Default::default()
        };
        scratch
            .vcpu()
            .set_guest_debug(&debug)
            .named("KVM_SET_GUEST_DEBUG")
            .map_err(text)?;
        let exit = scratch.run(None).map_err(text)?;
        if !matches!(exit, Exit::Debug(_)) {
            return Err(format!("{exit} instead of a debug exit"));
        }
        let rip = scratch.regs().map_err(text)?.rip;
        if rip != place + step {
            return Err(format!("at {rip:#x} instead of {:#x}", place + step));
        }
    }
    Ok(())
}
