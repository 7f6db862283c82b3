//! Every test program traced in the guest must give, branch for branch, what single-stepping it on the host gives.

use anyhow::{Result, bail, ensure};
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::machine::{self, Machine, Test};
use vbts_tests::{oracle, programs};

/// The smallest buffer in use: 682 records, which the longest program fills more than a hundred times.
const BUFFER: &str = "16K";

fn main() {
    let mut tests: Vec<(String, Test)> = Vec::new();
    for &program in programs::ALL {
        tests.push((
            program.name().to_owned(),
            Box::new(move |machine| compare(machine, program, &["--buffer", BUFFER])),
        ));
    }
    let recursion = programs::ALL[0];
    tests.push((
        "default_buffer".to_owned(),
        Box::new(move |machine| compare(machine, recursion, &[])),
    ));
    machine::main(tests);
}

fn compare(machine: &Machine, program: programs::Program, options: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = program.build(directory.path())?;
    let expected = oracle::trace(&path)?;
    ensure!(
        expected.status == program.status,
        "the oracle's own run exited with {}",
        expected.status
    );

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
    println!("{}: {} branches, all equal", program.name(), got.len());
    Ok(())
}
