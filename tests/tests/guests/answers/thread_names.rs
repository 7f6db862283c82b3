//! Names that threads have given themselves, compared with `/proc/self/task/*/comm` in the guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Run};
use vbts_tests::programs;

use super::{report, tool};

/// Thread IDs and names.
type Names = BTreeMap<u64, String>;

/// The names that a program has printed.
fn printed(run: &Run) -> Result<Names> {
    let text = str::from_utf8(&run.stdout)?;
    let name = |line: &str| {
        let (id, name) = line.split_once(' ')?;
        Some((id.parse().ok()?, name.to_owned()))
    };
    let names: Option<Names> = text.lines().map(name).collect();
    names.with_context(|| format!("no names: {text}"))
}

/// The names in the rows of `vbts report tasks --json`.
fn of_rows(rows: &str) -> Result<Names> {
    let name = |row: &str| -> Result<(u64, String)> {
        let row: Value = serde_json::from_str(row)?;
        let name = row["name"].as_str().and_then(|name| name.split_once(' '));
        let (id, name) = name.with_context(|| format!("no name: {row}"))?;
        Ok((id.parse()?, name.to_owned()))
    };
    rows.lines().map(name).collect()
}

/// The thread that is called `name`.
fn id_of(names: &Names, name: &str) -> Result<u64> {
    let found = names.iter().find(|(_, other)| *other == name);
    let (id, _) = found.with_context(|| format!("{name}: {names:?}"))?;
    Ok(*id)
}

fn build(directory: &Path) -> Result<PathBuf> {
    let program = directory.join("thread_names");
    programs::gcc(
        &programs::source("thread_names.c"),
        &program,
        &["-O1", "-g", "-pthread"],
    )
}

/// Reports of a trace have the names that the guest's kernel has.
pub(super) fn of_a_c_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let trace = directory.path().join("a.btrace");
    let run = machine.trace("btrace", &trace, &["--epoch", "0"], &[&program])?;
    let names = printed(&run.expect(0)?)?;
    // The program, its five threads, and the child of one.
    ensure!(names.len() == 7, "{names:?}");
    let rows = report(machine, &["tasks", "--json"], &trace)?;
    ensure!(of_rows(&rows)? == names, "{names:?}\n{rows}");
    for (pattern, function, others) in [
        ("acceptor", "accept_work", 1),
        ("store/1*", "store_work", 2),
        ("log*", "log_work", 1),
        ("second", "turn_work", 1),
    ] {
        // Only these tasks execute it.
        let words = [
            "functions",
            "--json",
            "--limit",
            "100000",
            "--task",
            pattern,
        ];
        let functions = report(machine, &words, &trace)?;
        for name in ["accept_work", "store_work", "log_work", "turn_work"] {
            let row = functions
                .lines()
                .find(|row| row.contains(&format!("\"{name}\"")));
            ensure!(
                row.is_some() == (name == function),
                "{pattern}: {functions}"
            );
        }
        let rows = report(machine, &["tasks", "--json", "--task", pattern], &trace)?;
        ensure!(rows.lines().count() == others, "{pattern}: {rows}");
    }
    let (acceptor, logger) = (id_of(&names, "acceptor")?, id_of(&names, "logger")?);
    for (words, expected) in [
        (&["tail"][..], format!("task {acceptor} (acceptor)")),
        (
            &["where", "--task", "logger"],
            format!("task {logger} (logger)"),
        ),
        (&["folded"], "\nacceptor;".to_owned()),
        (&["flamegraph"], "acceptor".to_owned()),
        (&["trace"], format!(" {logger} logger  ")),
        (&["stat"], format!(" {acceptor}  acceptor\n")),
        (&["text"], format!("[task {logger} is named logger]\n")),
        (
            &["json"],
            format!("{{\"kind\":\"thread_name\",\"task\":{logger},\"name\":\"logger\"}}"),
        ),
    ] {
        let text = report(machine, words, &trace)?;
        ensure!(text.contains(&expected), "{words:?}, {expected}: {text}");
    }
    for (kind, expected) in [
        ("timeline", format!("acceptor {acceptor}")),
        ("perf", "acceptor\0".to_owned()),
        ("firefox", "\"acceptor\"".to_owned()),
    ] {
        let mut command = machine.command(["report", kind]);
        command.arg(&trace);
        let output = machine::finish(command)?.expect(0)?.stdout;
        let mut parts = output.windows(expected.len());
        ensure!(parts.any(|part| part == expected.as_bytes()), "{kind}");
    }
    // What a thread executes under its second name is below that.
    let folded = report(machine, &["folded"], &trace)?;
    let of = |root: &str, function: &str| {
        let mut lines = folded.lines();
        lines.any(|line| line.starts_with(root) && line.contains(function))
    };
    ensure!(of("first;", ";work"), "{folded}");
    ensure!(of("second;", ";turn_work;work"), "{folded}");
    ensure!(!of("first;", ";turn_work"), "{folded}");
    // Another name is neither a call nor a return.
    let calls = report(machine, &["trace", "--function", "turner"], &trace)?;
    ensure!(calls.matches("turner() {").count() == 1, "{calls}");
    // A part of the trace begins with the names.
    let last = directory.path().join("last.btrace");
    let options = ["--epoch", "0", "--last", "1000"];
    let run = machine.trace("btrace", &last, &options, &[&program])?;
    let names = printed(&run.expect(0)?)?;
    let mut command = machine.command(["report", "tasks", "--json"]);
    command.arg(&last);
    // The stacks of such a trace begin in the middle.
    let rows = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    for (id, name) in of_rows(&rows)? {
        ensure!(names.get(&id) == Some(&name), "{id}: {names:?}\n{rows}");
    }
    Ok(())
}

/// So have reports of a recording, and the debugger.
pub(super) fn of_a_recording(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let recording = directory.path().join("a.vbts");
    let mut command = machine.command(["record", "--quiet", "--output"]);
    command.arg(&recording).arg("--").arg(&program);
    let names = printed(&machine::finish(command)?.expect(0)?)?;
    let mut command = machine.command(["report", "tasks", "--json"]);
    command.arg(&recording);
    let rows = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    ensure!(of_rows(&rows)? == names, "{names:?}\n{rows}");
    let script = directory.path().join("gdb.commands");
    std::fs::write(&script, "break closedir\ncontinue\ninfo threads\n")?;
    tool("gdb", &[])?;
    let mut command = machine.command(["debug", "--batch", "-x"]);
    command.arg(&script).arg(&recording);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    for name in ["acceptor", "store/1 of a lo", "logger", "second"] {
        ensure!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
    }
    Ok(())
}

/// A runtime names its own threads, too.
pub(super) fn of_a_java_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut compiler = tool("javac", &["-d"])?;
    compiler
        .arg(directory.path())
        .arg(programs::source("ThreadNames.java"));
    machine::finish(compiler)?.expect(0)?;
    let trace = directory.path().join("a.btrace");
    let class_path = directory.path().to_str().context("a path")?;
    let words = [
        "java",
        "-Xint",
        "-XX:+UseSerialGC",
        "-cp",
        class_path,
        "ThreadNames",
    ];
    let run = machine.trace("btrace", &trace, &["--memory", "1G"], &words)?;
    let names = printed(&run.expect(0)?)?;
    ensure!(names.len() > 6, "{names:?}");
    let mut command = machine.command(["report", "tasks", "--json", "--limit", "1000"]);
    command.arg(&trace);
    let rows = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let reported = of_rows(&rows)?;
    for (id, name) in &names {
        ensure!(reported.get(id) == Some(name), "{id} {name}: {reported:?}");
    }
    for i in 0..3 {
        id_of(&reported, &format!("pool-1-thread-{i}"))?;
    }
    Ok(())
}
