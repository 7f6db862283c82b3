//! Random programs in the interpreter and in native code, in lock step (`vbts_testkit::lockstep`).
//!
//! Without variables, a fixed range of seeds runs. `VBTS_LOCKSTEP_SECONDS` is a time for each
//! family instead, and `VBTS_LOCKSTEP_SEED` the first seed. With `VBTS_LOCKSTEP_SHOW`, each seed is
//! printed before it runs, for programs that end this process. A failure prints a reduced program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::io::Write;
use std::time::{Duration, Instant};

use vbts_testkit::lockstep::{Family, Ran, Recipe, check, reduce};

/// Seeds of each family.
const SEEDS: u64 = 200;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap())
}

/// Runs programs of a family. Returns what they have done.
fn run(family: Family) -> Ran {
    let seconds = setting("VBTS_LOCKSTEP_SECONDS").map(Duration::from_secs);
    let first = setting("VBTS_LOCKSTEP_SEED").unwrap_or(1);
    let show = setting("VBTS_LOCKSTEP_SHOW").is_some();
    let start = Instant::now();
    let mut all = Ran::default();
    let goes_on = |seed: &u64| match seconds {
        Some(time) => start.elapsed() < time,
        None => *seed < first + SEEDS,
    };
    let mut programs = 0;
    for seed in (first..).take_while(goes_on) {
        if show {
            // Not through the test harness, which hides it when the process ends.
            let _ = writeln!(std::io::stderr(), "{family:?} {seed}");
        }
        match check(&Recipe::of_seed(family, seed)) {
            Ok(ran) => all += ran,
            Err(difference) => {
                let time = start.elapsed();
                panic!(
                    "{family:?}, seed {seed}, after {time:?}: {}",
                    reduce(difference)
                )
            }
        }
        programs += 1;
    }
    println!("{family:?}: {programs} programs, {all:?}");
    all
}

#[test]
fn integers() {
    assert!(run(Family::Integers).blocks > 0);
}

#[test]
fn vectors() {
    assert!(run(Family::Vectors).blocks > 0);
}

#[test]
fn mappings() {
    assert!(run(Family::Mappings).flushes > 0);
}

#[test]
fn stale_mappings() {
    assert!(run(Family::StaleMappings).flushes > 0);
}

#[test]
fn code_changes() {
    assert!(run(Family::CodeChanges).blocks > 0);
}

#[test]
fn processors() {
    assert!(run(Family::Processors).blocks > 0);
}

#[test]
fn events() {
    assert!(run(Family::Events).blocks > 0);
}
