//! Programs built for x86-64-v3 print in the guest what they print on the host.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip};
use vbts_tests::programs;

const MODEL: &str = "x86-64-v3";

/// Compiler options.
const OPTIONS: [&[&str]; 2] = [
    &["-O3", "-march=x86-64-v3"],
    &["-O2", "-march=x86-64-v3", "-ffast-math", "-ftree-vectorize"],
];

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("the_output_is_the_hosts", |machine| {
                output(machine, "vectors.c", &OPTIONS)
            }),
            ("linux_saves_avx_state", |machine| {
                output(machine, "xstate.c", &OPTIONS[..1])
            }),
        ],
    )
}

/// Compares what a program prints, built with each of `options`.
fn output(machine: &Machine, source: &str, options: &[&[&str]]) -> Result<()> {
    let model = vbts_cpu::model(MODEL);
    let missing = model.map_or_else(Vec::new, vbts_cpu::Model::missing_on_host);
    if !missing.is_empty() {
        bail!(Skip(format!("the host lacks {}", missing.join(", "))));
    }
    let directory = tempfile::tempdir()?;
    for options in options {
        let program = directory.path().join("program");
        build(source, options, &program)?;
        let host = Command::new(&program).output()?;
        ensure!(host.status.success(), "on the host: {}", host.status);
        let trace = directory.path().join("trace");
        let run = machine
            .trace("raw", &trace, &["--cpu", MODEL], &[&program])?
            .expect(0)?;
        ensure!(
            run.stdout == host.stdout,
            "{source} {options:?}: the guest printed\n{}and the host\n{}",
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&host.stdout)
        );
    }
    Ok(())
}

fn build(source: &str, options: &[&str], program: &Path) -> Result<()> {
    let status = Command::new("cc")
        .args(options)
        .arg("-o")
        .arg(program)
        .arg(programs::source(source))
        .arg("-lm")
        .status()?;
    ensure!(status.success(), "cc: {status}");
    Ok(())
}
