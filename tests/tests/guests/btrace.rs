//! Kept traces: `vbts report` shows what `vbts trace` shows, and so does a reader that is written
//! from docs/trace-format.md alone.

mod mapped;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

/// What is traced: several tasks, and one that crashes.
const SCRIPT: &str = "ls / | sort | head -n 3; (kill -SEGV $BASHPID); exit 7";

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("same_as_direct", same_as_direct),
            ("one_task_as_raw", one_task_as_raw),
            ("parts", parts),
            ("another_reader", another_reader),
            ("damaged", damaged),
            ("mapped_later", mapped::mapped_later),
        ],
    )
}

/// Traces the script with `options` into `output`.
fn trace(machine: &Machine, options: &[&str], output: &Path) -> Result<()> {
    let mut command = machine.command(["trace", "--accel", "soft", "--epoch", "0"]);
    command.args(options).arg("--output").arg(output);
    command.args(["--", "/bin/bash", "-c", SCRIPT]);
    machine::finish(command)?.expect(7)?;
    Ok(())
}

/// The output of `vbts report`.
fn report(machine: &Machine, words: &[&str], file: &Path) -> Result<Vec<u8>> {
    let mut command = machine.command(["report"]);
    command.args(words).arg(file);
    Ok(machine::finish(command)?.expect(0)?.stdout)
}

fn same_as_direct(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (kept, direct) = (
        directory.path().join("a.btrace"),
        directory.path().join("b"),
    );
    for options in [&[][..], &["--sched", "--scope", "all"]] {
        trace(machine, options, &kept)?;
        for format in ["text", "json"] {
            trace(machine, &[options, &["--format", format]].concat(), &direct)?;
            let direct = std::fs::read(&direct)?;
            let shown = report(machine, &[format], &kept)?;
            ensure!(shown == direct, "{format} {options:?}: another trace");
            let size = std::fs::metadata(&kept)?.len();
            ensure!(size < direct.len() as u64 / 50, "{size} bytes");
        }
    }
    Ok(())
}

fn one_task_as_raw(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = programs::ALL[0].build(directory.path())?;
    let (kept, direct) = (
        directory.path().join("a.btrace"),
        directory.path().join("b"),
    );
    for (format, output) in [("btrace", &kept), ("raw", &direct)] {
        let options = ["--epoch", "0"];
        machine
            .trace(format, output, &options, &[&program])?
            .expect(0)?;
    }
    let shown = report(machine, &["raw"], &kept)?;
    ensure!(shown == std::fs::read(&direct)?, "other records");
    Ok(())
}

fn parts(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kept = directory.path().join("a.btrace");
    trace(machine, &[], &kept)?;
    let branches = |words: &[&str]| -> Result<Vec<String>> {
        let text = String::from_utf8(report(machine, words, &kept)?)?;
        let lines = text.lines().filter(|line| line.contains("\"branch\""));
        Ok(lines.map(str::to_owned).collect())
    };
    let all = branches(&["json"])?;
    ensure!(all.len() > 1000, "{} branches", all.len());
    ensure!(
        branches(&["json", "--last", "10"])? == all[all.len() - 10..],
        "--last"
    );
    let some = branches(&["json", "--from", "500", "--to", "600"])?;
    ensure!(some == all[500..600], "--from, --to");
    let last: Value = serde_json::from_str(all.last().context("no branch")?)?;
    let task = last["task"].to_string();
    let of_task = all
        .iter()
        .filter(|line| line.ends_with(&format!(":{task}}}")));
    let one = branches(&["json", "--task", &task])?;
    ensure!(one.iter().eq(of_task), "--task");
    let raw = report(machine, &["raw", "--task", &task], &kept)?;
    ensure!(raw.len() == 24 * one.len(), "{} bytes", raw.len());
    // Raw records do not tell tasks.
    let mut command = machine.command(["report", "raw"]);
    command.arg(&kept);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("--task"), "{}", run.stderr);
    Ok(())
}

/// tests/btrace.py prints what the JSON of vbts has.
fn another_reader(machine: &Machine) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("btrace.py");
    let python = |arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(arguments).stdin(Stdio::null());
        command
    };
    if !python(&["-c", "import zstandard"])
        .output()?
        .status
        .success()
    {
        bail!(Skip("python3-zstandard is not installed".to_owned()));
    }
    let directory = tempfile::tempdir()?;
    let kept = directory.path().join("a.btrace");
    trace(machine, &["--sched"], &kept)?;
    let mut command = python(&[]);
    command.arg(script).arg(&kept);
    let run = machine::finish(command)?.expect(0)?;
    let theirs = String::from_utf8(run.stdout)?;
    let ours = String::from_utf8(report(machine, &["json"], &kept)?)?;
    let (mut theirs, mut ours) = (theirs.lines(), ours.lines());
    loop {
        let (theirs, ours) = match (theirs.next(), ours.next()) {
            (Some(theirs), Some(ours)) => (theirs, ours),
            (None, None) => return Ok(()),
            other => bail!("one ends before the other: {other:?}"),
        };
        let (theirs, ours): (Value, Value) =
            (serde_json::from_str(theirs)?, serde_json::from_str(ours)?);
        if ours["kind"] == "summary" {
            ensure!(theirs["records"] == ours["records"], "{theirs} {ours}");
        } else {
            ensure!(theirs == ours, "{theirs} instead of {ours}");
        }
    }
}

fn damaged(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kept = directory.path().join("a.btrace");
    trace(machine, &[], &kept)?;
    let whole = std::fs::read(&kept)?;
    let run = |bytes: &[u8]| {
        std::fs::write(&kept, bytes)?;
        let mut command = machine.command(["report", "text"]);
        command.arg(&kept);
        machine::finish(command)
    };
    let cut = run(&whole[..whole.len() - 1])?.expect(0)?;
    ensure!(cut.stderr.contains("has no end"), "{}", cut.stderr);
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let changed = run(&changed)?.expect(125)?;
    ensure!(changed.stderr.contains("damaged"), "{}", changed.stderr);
    let other = run(b"#!/bin/sh\n")?.expect(125)?;
    ensure!(other.stderr.contains("no btrace file"), "{}", other.stderr);
    Ok(())
}
