//! A report with filters is that of a trace that was kept with them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};

use super::last::TASKS;
use super::{Sample, last};

/// What `vbts report` prints with `options`.
fn report(machine: &Machine, what: &str, file: &Path, options: &[&str]) -> Result<Vec<u8>> {
    let mut command = machine.command(["report", what]);
    command.args(options).arg(file);
    Ok(machine::finish(command)?.expect(0)?.stdout)
}

/// Traces `program` with `options`. Returns the trace.
fn direct(
    machine: &Machine,
    format: &str,
    options: &[&str],
    program: &[&str],
) -> Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join(format!("trace.{format}"));
    let options = [&["--epoch", "0"], options].concat();
    machine
        .trace(format, &output, &options, program)?
        .expect(0)?;
    Ok((directory, output))
}

/// Checks that `options` mean the same for a trace of `program` and for reports of `whole`.
fn same(machine: &Machine, whole: &Path, options: &[&str], program: &[&str]) -> Result<()> {
    for format in ["text", "json"] {
        let (_directory, output) = direct(machine, format, options, program)?;
        let expected = std::fs::read(output)?;
        let shown = report(machine, format, whole, options)?;
        ensure!(
            shown == expected,
            "{format} {options:?}:\n{}\ninstead of\n{}",
            end(&shown),
            end(&expected)
        );
    }
    Ok(())
}

/// The end of a text.
fn end(text: &[u8]) -> String {
    let start = text.len().saturating_sub(1000);
    String::from_utf8_lossy(text.get(start..).unwrap_or_default()).into_owned()
}

pub fn of_a_task(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    let program = [sample.program.to_str().context("a path")?];
    let (_directory, whole) = direct(machine, "btrace", &[], &program)?;
    let options: &[&[&str]] = &[
        &["--start", "work#2", "--stop", "leaf#3"],
        &["--start", "sample.c:6#4", "--max-records", "20"],
        &["--only", "leaf", "--only", "main", "--last", "30"],
        &["--skip", "libc.so.6"],
        &["--last", "1000"],
    ];
    for options in options {
        same(machine, &whole, options, &program)?;
    }
    let options = ["--only", "sample", "--start", "work"];
    let (_directory, raw) = direct(machine, "raw", &options, &program)?;
    let (_directory, kept) = direct(machine, "btrace", &options, &program)?;
    let shown = report(machine, "raw", &whole, &options)?;
    ensure!(shown == std::fs::read(raw)?, "raw");
    for what in ["functions", "calls", "folded", "lcov"] {
        let expected = report(machine, what, &kept, &[])?;
        let shown = report(machine, what, &whole, &options)?;
        ensure!(shown == expected, "{what}: {}", end(&shown));
    }
    // A part of a part.
    let raw = |options: &[&str]| -> Result<Vec<u8>> { report(machine, "raw", &whole, options) };
    let all = raw(&[])?;
    let shown = raw(&["--from", "1000", "--to", "2000", "--max-records", "7"])?;
    ensure!(shown == all[24 * 1000..24 * 1007], "--from");
    let shown = raw(&["--to", "2000", "--last", "7"])?;
    ensure!(shown == all[24 * 1993..24 * 2000], "--last");
    ensure!(
        raw(&["--last", "100"])? == all[all.len() - 24 * 100..],
        "--last"
    );
    // What a kept trace has left out is still missing.
    let json = report(machine, "json", &kept, &["--last", "1"])?;
    let (branches, gaps) = last::gaps(&json)?;
    ensure!(
        branches + gaps == sample.all.len() as u64,
        "{gaps}: {}",
        end(&json)
    );
    mistakes(machine, &whole)
}

/// Names that are not found, and points that cannot be in the trace.
fn mistakes(machine: &Machine, whole: &Path) -> Result<()> {
    for (point, status, message) in [
        (
            "nothing",
            125,
            "no file that was mapped has such a function",
        ),
        ("work#7", 0, "has reached it only 6 times"),
        ("0xffffffff81000000", 125, "--scope user does not record"),
    ] {
        let mut command = machine.command(["report", "json", "--start", point]);
        command.arg(whole);
        let run = machine::finish(command)?.expect(status)?;
        ensure!(run.stderr.contains(message), "{point}: {}", run.stderr);
    }
    // An answer about what is not there is none.
    for (words, message) in [
        (&["functions", "--task", "999999"][..], "There are "),
        (&["text", "--task", "no_such*"], "There are "),
        (&["raw", "--from", "99999999999"], " branches"),
        (&["json", "--only", "nothing"], "--only nothing: no file"),
        (&["assembly", "--function", "wrok"], "Similar: work"),
    ] {
        let mut command = machine.command(["report"]);
        command.args(words).arg(whole);
        let run = machine::finish(command)?.expect(125)?;
        ensure!(run.stderr.contains(message), "{words:?}: {}", run.stderr);
        ensure!(run.stdout.is_empty(), "{words:?}");
    }
    // A task by its number, and by the name of its program.
    let tasks = |words: &[&str]| -> Result<Vec<u8>> {
        let mut command = machine.command(["report", "functions", "--json"]);
        command.args(words).arg(whole);
        Ok(machine::finish(command)?.expect(0)?.stdout)
    };
    ensure!(tasks(&["--task", "*am*le"])? == tasks(&[])?, "by name");
    Ok(())
}

pub fn of_tasks(machine: &Machine) -> Result<()> {
    let program = ["/bin/sh", "-c", TASKS];
    let (_directory, whole) = direct(machine, "btrace", &[], &program)?;
    for options in [
        &["--last", "10"][..],
        &["--last", "30000"],
        &["--skip", "libc.so.6", "--last", "5000"],
    ] {
        same(machine, &whole, options, &program)?;
    }
    Ok(())
}
