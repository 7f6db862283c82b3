//! Parts of the suite in runs of their own, and one report of theirs.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use vbts_tests::machine::{self, Machine};

use super::{command, names};

/// Each case is in one part, and in the merged report, which is a success only with all parts.
pub fn parts(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut reports: Vec<PathBuf> = Vec::new();
    for (part, index) in [("auto", "0"), ("2/2", "5")] {
        let report = directory.path().join(format!("{index}.xml"));
        let options = ["--filter", "basic", "--shard", part];
        let mut command = command(machine, directory.path(), kernel, &options)?;
        command.args(["--report", "junit", "--output"]).arg(&report);
        command.env("JOB_COMPLETION_INDEX", index);
        command.env("JOB_COMPLETIONS", "2");
        machine::finish(command)?.expect(0)?;
        reports.push(report);
    }
    let merge = |reports: &[PathBuf]| {
        let mut command = machine.command(["test", "--merge"]);
        command.args(reports);
        machine::finish(command)
    };
    let run = merge(&reports[..1])?.expect(1)?;
    let missing = "parts without a report: 2/2";
    ensure!(run.stderr.contains(missing), "{}", run.stderr);
    let run = merge(&reports)?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let names = names("new")?;
    let basic: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix("basic."))
        .collect();
    for name in &basic {
        let case = format!("<testcase name=\"{name}\" classname=\"ptrace_bts.basic\"");
        ensure!(text.matches(&case).count() == 1, "{name} in:\n{text}");
    }
    ensure!(text.matches("<testcase ").count() == basic.len(), "{text}");
    Ok(())
}

/// The cases run on each machine of a matrix, and the report names it.
pub fn matrix(machine: &Machine, kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("matrix.json");
    let kernel = kernel.display();
    let text = format!(r#"{{"kernels": ["{kernel}"], "cpus": ["core2", "nehalem"], "smp": [2]}}"#);
    std::fs::write(&file, text)?;
    let mut command = machine.command(["test", "--accel", machine.accel(), "--matrix"]);
    command
        .arg(&file)
        .args(["--filter", "basic.[cw]*", "--console"]);
    command.arg(directory.path().join("console"));
    let suite = machine::find("VBTS_SUITE", "guest/ptrace_bts")?;
    command.env("VBTS_SUITE", suite);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    for line in [
        "1..2".to_owned(),
        format!("ok 1 basic ({kernel}, core2, 2)"),
        format!("ok 2 basic ({kernel}, nehalem, 2)"),
    ] {
        ensure!(
            text.lines().any(|found| found == line),
            "{line} in:\n{text}"
        );
    }
    Ok(())
}
