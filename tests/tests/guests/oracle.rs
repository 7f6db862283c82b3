//! Every test program traced in the guest must give, branch for branch, what single-stepping it on
//! the host gives.
//!
//! With `VBTS_ORACLE=DIR` programs and what single-stepping gave are kept there, and taken from
//! there: for a machine whose own processor is an emulated one.

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
        "other output than on the host:\n{}",
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

/// What the guest is to print, and the branches that it is to take.
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
        "the oracle's own run exited with {}",
        trace.status
    );
    let expected = Expected {
        stdout: trace.stdout,
        branches: trace.branches,
    };
    Ok((path, expected))
}

/// Likewise, if that has not been done before.
fn kept_expectation(directory: &Path, program: programs::Program) -> Result<(PathBuf, Expected)> {
    let (stdout, branches) = (directory.join("stdout"), directory.join("branches"));
    // Written last.
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
