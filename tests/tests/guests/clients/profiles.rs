//! Profiles for BOLT and for compilers, from `perf record -b` in a guest.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{Guest, run};
use crate::answers::bolt::{Bolt, number_after};
use crate::answers::{option, tool};
use crate::stock_kernel::file;

/// perf2bolt finds no branch that the program does not have, llvm-bolt makes a program of the
/// profile that does the same with fewer taken branches, and create_llvm_prof makes a profile that
/// names a function.
pub(super) fn profiles(machine: &Machine, guest: Guest) -> Result<()> {
    file("root")?;
    let bolt = Bolt::find()?;
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

    let (fdata, faster) = (path("fdata"), path("faster"));
    let output = bolt.convert(&[], &data, &program, &fdata)?;
    let samples = number_after(&output, "PERF2BOLT: read ").context(output.clone())?;
    ensure!(samples > 50, "{output}");
    bolt.optimise(&program, &fdata, &faster)?;
    let again = machine::finish(Command::new(&faster))?.expect(0)?;
    ensure!(again.stdout == alone.stdout, "another result");

    let profile = path("profile");
    let mut create = tool("create_llvm_prof", &["--format=text"])?;
    create
        .arg(option("--binary", &program))
        .arg(option("--profile", &data))
        .arg(option("--out", &profile));
    machine::finish(create)?.expect(0)?;
    let profile = std::fs::read_to_string(profile)?;
    let mut lines = profile.lines();
    ensure!(lines.any(|line| line.starts_with("insert:")), "{profile}");
    Ok(())
}
