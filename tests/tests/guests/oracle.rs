//! The trace of each test program in the guest must have the same branches as single-stepping it on
//! the host.
//!
//! With `VBTS_ORACLE=DIR` the test keeps the programs and the results of single-stepping in this
//! directory, and uses those that it finds there. A machine with an emulated processor needs the
//! results of another machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::machine::{self, Machine, Test};
use vbts_tests::{oracle, programs};

/// The smallest buffer in use: 682 records, which the longest program fills more than a hundred
/// times.
const BUFFER: &str = "16K";

pub fn trials(module: &str) -> Vec<Trial> {
    let mut tests: Vec<(&str, programs::Program, &[&str])> = programs::ALL
        .iter()
        .map(|&program| (program.name(), program, ["--buffer", BUFFER].as_slice()))
        .collect();
    tests.push(("default_buffer", programs::ALL[0], &[]));
    machine::trials(
        module,
        tests
            .into_iter()
            .map(|(name, program, options)| {
                let test: Test = Box::new(move |machine| compare(machine, name, program, options));
                (name.to_owned(), test)
            })
            .collect(),
    )
}

fn compare(
    machine: &Machine,
    name: &str,
    program: programs::Program,
    options: &[&str],
) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (path, expected) = match std::env::var_os("VBTS_ORACLE") {
        Some(kept) => kept_expectation(&Path::new(&kept).join(name), program)?,
        None => expectation(directory.path(), program)?,
    };

    let output = directory.path().join("trace");
    let run = machine
        .trace("raw", &output, options, &[&path])?
        .expect(program.status)?;
    ensure!(
        run.stdout == expected.stdout,
        "the output differs from that on the host:\n{}",
        String::from_utf8_lossy(&run.stdout)
    );
    ensure!(
        run.stderr.contains("lost: 0"),
        "records were lost: {}",
        run.stderr
    );
    let mut got = branches::parse_raw(&std::fs::read(&output)?)?;
    got.retain(Branch::is_user);
    if let Some(text) = branches::first_difference(&expected.branches, &got, &Symbols::read(&path)?)
    {
        bail!("{text}");
    }
    println!("{name}: {} branches, all equal", got.len());
    Ok(())
}

/// The expected output and branches of a program.
struct Expected {
    stdout: Vec<u8>,
    branches: Vec<Branch>,
}

/// Builds a program in `directory`, and runs it on the host.
fn expectation(directory: &Path, program: programs::Program) -> Result<(PathBuf, Expected)> {
    let path = program.build(directory)?;
    let trace = oracle::trace(&path)?;
    ensure!(
        trace.status == program.status,
        "the program exited with {} on the host",
        trace.status
    );
    let expected = Expected {
        stdout: trace.stdout,
        branches: trace.branches,
    };
    Ok((path, expected))
}

/// Uses the program and the results in `directory`. If there are none, it builds the program there,
/// runs it on the host, and keeps the results.
fn kept_expectation(directory: &Path, program: programs::Program) -> Result<(PathBuf, Expected)> {
    let (stdout, branches) = (directory.join("stdout"), directory.join("branches"));
    // This file is written last.
    if branches.exists() {
        let read = |path: &Path| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let expected = Expected {
            stdout: read(&stdout)?,
            branches: branches::parse_raw(&read(&branches)?)?,
        };
        return Ok((directory.join(program.name()), expected));
    }
    std::fs::create_dir_all(directory)?;
    let (path, expected) = expectation(directory, program)?;
    std::fs::write(&stdout, &expected.stdout)?;
    std::fs::write(&branches, branches::to_raw(&expected.branches))?;
    Ok((path, expected))
}
