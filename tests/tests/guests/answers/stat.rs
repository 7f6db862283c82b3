//! `vbts stat`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Run};
use vbts_tests::programs;

use super::{function_rows, report};

fn stat(machine: &Machine, options: &[&str], program: &Path, argument: &str) -> Result<Run> {
    let mut command = machine.command(["stat"]);
    command.args(options).arg("--").arg(program).arg(argument);
    machine::finish(command)
}

/// The counts are those of a trace of the program, and two runs have the same.
pub(super) fn counts(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("answers");
    programs::gcc(
        &programs::source("answers.c"),
        &program,
        &["-O1", "-pthread"],
    )?;
    let file = directory.path().join("base.json");
    let base = file.to_str().context("a path")?;
    let to_file = ["--json", "--output", base];
    stat(machine, &to_file, &program, "")?.expect(0)?;
    let text = std::fs::read_to_string(&file)?;
    let json: Value = serde_json::from_str(&text)?;
    let number = |value: &Value| value.as_u64().context("no number");
    let sum = |rows: &Value| -> Result<u64> {
        let rows = rows.as_array().context("no rows")?;
        rows.iter().map(|row| number(&row["instructions"])).sum()
    };
    let user = number(&json["user"]["instructions"])?;
    ensure!(user == sum(&json["functions"])? && user == sum(&json["tasks"])?);
    let trace = directory.path().join("answers.btrace");
    let words = [program.to_str().context("a path")?, ""];
    machine.trace("btrace", &trace, &[], &words)?.expect(0)?;
    let rows = report(machine, &super::FUNCTIONS, &trace)?;
    let rows = function_rows(&rows)?;
    ensure!(rows.values().map(|(_, count)| count).sum::<u64>() == user);
    let main = json["functions"].as_array().context("no rows")?;
    let main = main.iter().find(|row| row["name"] == "main");
    let main = main.context("no main")?;
    ensure!(rows["main"] == (number(&main["calls"])?, number(&main["instructions"])?));
    // A second run has equal counts. With another argument the program executes more.
    let gate = ["--against", base, "--fail-above", "0"];
    let same = stat(machine, &gate, &program, "")?.expect(0)?;
    ensure!(same.stderr.contains(" +0  instructions"), "{}", same.stderr);
    let more = stat(machine, &gate, &program, "k")?.expect(1)?;
    ensure!(
        more.stderr.contains("more instructions than before"),
        "{}",
        more.stderr
    );
    ensure!(
        more.stderr.contains(" calls\n") && more.stderr.contains(" (answers)\n"),
        "{}",
        more.stderr
    );
    let more = stat(machine, &["--against", base], &program, "k")?;
    more.expect(0)?;
    // The status of the program counts more.
    let mut command = machine.command(["stat", "--against", base, "--fail-above", "0"]);
    command.args(["--", "/bin/sh", "-c", "exit 3"]);
    machine::finish(command)?.expect(3)?;
    for (options, message) in [
        (&["--fail-above", "1"][..], "--against"),
        (&["--against", base, "--fail-above", "-1"], "between"),
        (&["--against", "/no/such"], "Cannot open /no/such"),
        (
            &["--against", "/etc/passwd"],
            "no counts of vbts stat --json",
        ),
    ] {
        let run = stat(machine, options, &program, "")?.expect(125)?;
        ensure!(run.stderr.contains(message), "{options:?}: {}", run.stderr);
    }
    Ok(())
}
