//! Random programs of Csmith: their traces in the guest must have the same branches as
//! single-stepping them on the host.
//!
//! `VBTS_RANDOM_SECONDS` is the time to go on for, `VBTS_RANDOM_SEED` the first seed. Without them,
//! the test runs one program. A difference is reported with the seed that reproduces it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::machine::{self, Machine, Skip, TestModule, setting};
use vbts_tests::oracle::{self, TooManySteps, Trace};
use vbts_tests::programs;

/// Compiler options. The seed selects one row.
const OPTIONS: [&[&str]; 8] = [
    &["-O0"],
    &["-O1"],
    &["-O2"],
    &["-O3"],
    &["-Os"],
    &["-O2", "-fno-jump-tables", "-fno-inline"],
    &["-O2", "-mindirect-branch=thunk", "-mfunction-return=thunk"],
    &["-O1", "-falign-functions=1", "-fno-omit-frame-pointer"],
];

/// Csmith, in Debian's package of that name.
const CSMITH: &str = "/usr/bin/csmith";

/// Directory of Csmith's headers, in Debian's package libcsmith-dev.
const HEADERS: &str = "/usr/include/csmith";

/// Steps of a program. Its body runs as many rounds as fit.
const STEPS: u64 = 500_000;

/// Steps that a program can have, because not every round takes as many.
const MOST_STEPS: u64 = 4 * STEPS;

/// Time that a program has on the host. Some run for ever.
const LIMIT: Duration = Duration::from_secs(1);

/// So many programs in a row can be unfit: they crash, do not end, or take too many steps.
const UNFIT: u32 = 50;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("oracle", oracle)])
}

fn oracle(machine: &Machine) -> Result<()> {
    if !Path::new(HEADERS).is_dir() || !Path::new(CSMITH).is_file() {
        bail!(Skip("csmith or libcsmith-dev is not installed".to_owned()));
    }
    let time = Duration::from_secs(setting("VBTS_RANDOM_SECONDS")?.unwrap_or(0));
    let first = setting("VBTS_RANDOM_SEED")?.unwrap_or(1);
    let start = Instant::now();
    let (mut programs, mut records, mut unfit) = (0u64, 0, 0);
    for seed in first.. {
        match compare(machine, seed).with_context(|| format!("VBTS_RANDOM_SEED={seed}"))? {
            Some(count) => {
                (programs, records, unfit) = (programs + 1, records + count, 0);
                if start.elapsed() >= time {
                    break;
                }
            }
            None => unfit += 1,
        }
        ensure!(unfit < UNFIT, "{UNFIT} unfit programs up to seed {seed}");
    }
    println!("{programs} programs, {records} records, all equal");
    Ok(())
}

/// Makes the program of a seed, and compares its branches. Returns their number, or `None` if the
/// program is unfit.
fn compare(machine: &Machine, seed: u64) -> Result<Option<usize>> {
    let directory = tempfile::tempdir()?;
    let once = build(directory.path(), seed, 1)?;
    let Some(round) = single_step(&once, STEPS)? else {
        return Ok(None);
    };
    let program = build(directory.path(), seed, (STEPS / round.steps).max(1))?;
    let Some(expected) = single_step(&program, MOST_STEPS)? else {
        return Ok(None);
    };
    let output = directory.path().join("trace");
    let run = machine
        .trace("raw", &output, &["--buffer", "64K"], &[&program])?
        .expect(0)?;
    ensure!(
        run.stdout == expected.stdout,
        "other output than on the host"
    );
    ensure!(run.stderr.contains("lost: 0"), "lost: {}", run.stderr);
    let mut got = branches::parse_raw(&std::fs::read(&output)?)?;
    got.retain(Branch::is_user);
    match branches::first_difference(&expected.branches, &got, &Symbols::read(&program)?) {
        Some(text) => bail!("{text}"),
        None => Ok(Some(got.len())),
    }
}

/// Builds the program of a seed, which runs its body `rounds` times.
fn build(directory: &Path, seed: u64, rounds: u64) -> Result<PathBuf> {
    let source = directory.join("csmith.c");
    let status = Command::new(CSMITH)
        .args(["--seed", &seed.to_string(), "--no-argc", "--output"])
        .arg(&source)
        // Csmith writes platform.info there.
        .current_dir(directory)
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "csmith: {status}");
    let own = [
        format!("-I{HEADERS}"),
        format!("-DCSMITH=\"{}\"", source.display()),
        format!("-DROUNDS={rounds}"),
        // Functions of Csmith's headers that no program calls need the mathematical library.
        "-ffunction-sections".to_owned(),
        "-Wl,--gc-sections".to_owned(),
        "-w".to_owned(),
    ];
    let row = usize::try_from(seed % OPTIONS.len() as u64)?;
    let mut flags = OPTIONS.get(row).context("no such row")?.to_vec();
    flags.extend(own.iter().map(String::as_str));
    let program = directory.join(format!("random_{seed}"));
    programs::compile(&programs::source("random.c"), &program, &flags)
}

/// Single-steps a program on the host. Returns `None` if it is unfit.
fn single_step(program: &Path, steps: u64) -> Result<Option<Trace>> {
    if !ends_well(program)? {
        return Ok(None);
    }
    match oracle::trace_within(program, steps) {
        Ok(trace) => Ok(Some(trace)),
        Err(error) if error.root_cause().is::<TooManySteps>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the program ends on the host, with status 0.
fn ends_well(program: &Path) -> Result<bool> {
    let mut child = Command::new(program)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(machine::wait(&mut child, LIMIT).is_ok_and(|status| status == Some(0)))
}
