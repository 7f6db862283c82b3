//! Profiles for BOLT and for compilers, from `perf record -b` in a guest.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{Guest, run};
use crate::answers::profiles::llvm;
use crate::answers::tool;
use crate::stock_kernel::file;

/// perf2bolt finds no branch that the program does not have, llvm-bolt makes a program of the
/// profile that does the same, and create_llvm_prof makes a profile that names a function.
pub(super) fn profiles(machine: &Machine, guest: Guest) -> Result<()> {
    file("root")?;
    let (perf2bolt, bolt) = (llvm("perf2bolt")?, llvm("llvm-bolt")?);
    tool("perf", &[])?;
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let program = programs::gcc(
        &programs::source("answers.c"),
        &path("answers"),
        // create_llvm_prof knows no later version of DWARF.
        &[
            "-O2",
            "-gdwarf-4",
            "-static",
            "-Wl,--emit-relocs,--build-id",
        ],
    )?;
    let results = run(
        machine,
        guest,
        directory.path(),
        "echo 0 >/proc/sys/kernel/perf_cpu_time_max_percent
         perf record -q -N -o results/data -j any,u -e branches:u -c 97 -- ./answers \
            >results/output 2>results/errors",
        &[("answers", &program)],
    )?;
    let alone = machine::finish(Command::new(&program))?.expect(0)?;
    ensure!(
        results.bytes("output")? == alone.stdout,
        "{}",
        results.read("errors")?
    );
    let data = results.directory.join("data");

    let fdata = path("fdata");
    let mut convert = Command::new(perf2bolt);
    convert.arg("-p").arg(&data).arg("-o").arg(&fdata);
    convert.arg(&program);
    let output = output(convert)?;
    let samples = number_after(&output, "PERF2BOLT: read ").context(output.clone())?;
    ensure!(samples > 50, "{output}");
    for problem in [
        "traces mismatching disassembled function contents: ",
        "out of range traces involving unknown regions: ",
    ] {
        ensure!(
            number_after(&output, problem) == Some(0),
            "{problem}: {output}"
        );
    }

    let faster = path("faster");
    let mut optimise = Command::new(bolt);
    optimise.arg(&program).arg("-o").arg(&faster);
    optimise.arg("-data").arg(&fdata);
    optimise.args(["-reorder-blocks=ext-tsp", "-dyno-stats"]);
    let output = self::output(optimise)?;
    ensure!(output.contains("taken branches"), "{output}");
    let again = machine::finish(Command::new(&faster))?.expect(0)?;
    ensure!(again.stdout == alone.stdout, "another result");

    let profile = path("profile");
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let mut create = tool("create_llvm_prof", &["--format=text"])?;
    create
        .arg(option("binary", &program))
        .arg(option("profile", &data))
        .arg(option("out", &profile));
    machine::finish(create)?.expect(0)?;
    let profile = std::fs::read_to_string(profile)?;
    let mut lines = profile.lines();
    ensure!(lines.any(|line| line.starts_with("insert:")), "{profile}");
    Ok(())
}

/// What a command prints, on both outputs.
fn output(command: Command) -> Result<String> {
    let run = machine::finish(command)?.expect(0)?;
    Ok(String::from_utf8_lossy(&run.stdout).into_owned() + &run.stderr)
}

/// The number that follows `before` in a text.
fn number_after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest.get(..digits.unwrap_or(rest.len()))?.parse().ok()
}
