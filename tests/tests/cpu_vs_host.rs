//! Random instructions on the software CPU and on the host CPU.
//!
//! `VBTS_FUZZ_SECONDS` is the time for each group (2 by default), `VBTS_FUZZ_SEED` the first seed.
//! A failure prints the seed and the number of a case, which reproduce it. With
//! `VBTS_FUZZ_REPORT=FILE`, files whose names begin with FILE have all differences.

#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use vbts_tests::differential::Mode;
use vbts_tests::differential::compare::{describe, difference};
use vbts_tests::differential::generate::{Generator, Group};
use vbts_tests::differential::native::Host;
use vbts_tests::differential::soft::Soft;
use vbts_tests::differential::vendor::Vendor;

/// Number of differences that a failure prints.
const SHOWN: usize = 12;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn compare(group: Group, mode: Mode) {
    let directory = tempfile::tempdir().unwrap();
    let vendor = Vendor::host().unwrap();
    let mut host = Host::new(directory.path()).unwrap();
    let mut soft = Soft::new().unwrap();
    let time = Duration::from_secs(setting("VBTS_FUZZ_SECONDS", 2));
    let seed = setting("VBTS_FUZZ_SEED", 1);
    let mut generator = Generator::new(group, mode, vendor, seed);
    let start = Instant::now();
    let mut cases = 0u64;
    // The number of cases and an example, by the instructions of the case.
    let mut found: BTreeMap<String, (u64, String)> = BTreeMap::new();
    while start.elapsed() < time {
        let case = generator.case();
        cases += 1;
        let theirs = host.run(&case.code, &case.state).unwrap();
        let text = match soft.run(&case.code, &case.state) {
            Ok(ours) => difference(vendor, &case, &theirs, &ours),
            Err(error) => {
                soft = Soft::new().unwrap();
                Some(format!("    {error:#}\n"))
            }
        };
        if let Some(text) = text {
            let names: Vec<String> = case
                .instructions
                .iter()
                .map(|i| format!("{:?}", i.code()))
                .collect();
            let report = format!("seed {seed}, case {cases}\n{}{text}", describe(&case));
            let entry = found.entry(names.join(" ")).or_insert((0, report));
            entry.0 += 1;
        }
    }
    println!(
        "{group:?} {mode:?} ({vendor:?}): {cases} cases, {} differ",
        found.len()
    );
    if found.is_empty() {
        return;
    }
    let mut all = String::new();
    // Differences of single instructions are the most useful ones, so they come first.
    let mut sorted: Vec<_> = found.into_iter().collect();
    sorted.sort_by_key(|(name, _)| name.split(' ').count());
    for (name, (count, report)) in &sorted {
        let _ = writeln!(all, "{name}: {count}\n{report}");
    }
    if let Ok(path) = std::env::var("VBTS_FUZZ_REPORT") {
        std::fs::write(format!("{path}.{group:?}.{mode:?}"), &all).unwrap();
    }
    let shown: Vec<String> = sorted
        .iter()
        .take(SHOWN)
        .map(|(name, (count, report))| format!("{name}: {count}\n{report}"))
        .collect();
    panic!(
        "{} kinds of difference in {cases} cases:\n{}",
        sorted.len(),
        shown.join("\n")
    );
}

#[test]
fn integer() {
    compare(Group::Integer, Mode::Bits64);
}

#[test]
fn integer_32() {
    compare(Group::Integer, Mode::Bits32);
}

#[test]
fn vector() {
    compare(Group::Vector, Mode::Bits64);
}

#[test]
fn vector_32() {
    compare(Group::Vector, Mode::Bits32);
}

#[test]
fn x87() {
    compare(Group::X87, Mode::Bits64);
}

#[test]
fn x87_32() {
    compare(Group::X87, Mode::Bits32);
}

#[test]
fn bytes() {
    compare(Group::Bytes, Mode::Bits64);
}

#[test]
fn bytes_32() {
    compare(Group::Bytes, Mode::Bits32);
}
