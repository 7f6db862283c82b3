//! Programs in several languages, of 32 bits, and answers without a file.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{Counts, FUNCTIONS, function_rows, functions, report, tool, traced};

/// Where the linker maps a 32-bit program.
const BASE: u64 = 0x804_8000;

/// The answer of `vbts trace --report` follows the program's output, and is that of `vbts report`.
pub(super) fn at_once(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let kept = report(machine, &["functions"], &traced.trace)?;
    let mut command = machine.command(["trace", "--epoch", "0", "--report", "functions", "--"]);
    command.arg(&traced.program);
    let run = machine::finish(command)?.expect(0)?;
    let output = String::from_utf8(run.stdout)?;
    let alone = machine::finish(Command::new(&traced.program))?.expect(0)?;
    let alone = String::from_utf8(alone.stdout)?;
    ensure!(output.starts_with(&alone), "{output}");
    let answer = output.get(alone.len()..).unwrap_or_default();
    ensure!(answer == kept, "{answer}\nthe kept trace: {kept}");
    Ok(())
}

/// Several reports of one run, with options, and its trace.
pub(super) fn several_reports(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let directory = tempfile::tempdir()?;
    let again = directory.path().join("again.btrace");
    let mut command = machine.command(["trace", "--epoch", "0", "--report", "functions --limit 3"]);
    command
        .args(["--report", "calls --least 10 --output 'the calls'", "-o"])
        .arg(&again)
        .arg("--")
        .arg(&traced.program)
        .current_dir(directory.path());
    let run = machine::finish(command)?.expect(0)?;
    let output = String::from_utf8(run.stdout)?;
    let functions = report(machine, &["functions", "--limit", "3"], &again)?;
    ensure!(output.ends_with(&functions), "{output}\n{functions}");
    let calls = report(machine, &["calls", "--least", "10"], &again)?;
    let written = std::fs::read_to_string(directory.path().join("the calls"))?;
    ensure!(written == calls, "{written}\n{calls}");
    Ok(())
}

/// Rows are sorted by each column that the report has.
pub(super) fn sorted(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    for (key, field) in [
        ("total", "total"),
        ("branches", "branches"),
        ("calls", "calls"),
    ] {
        let words = ["functions", "--json", "--limit", "9999", "--sort", key];
        let answer = report(machine, &words, &traced.trace)?;
        let numbers: Result<Vec<u64>> = answer
            .lines()
            .map(|row| {
                let row: serde_json::Value = serde_json::from_str(row)?;
                row[field].as_u64().context("a number")
            })
            .collect();
        let numbers = numbers?;
        ensure!(
            numbers.len() > 100 && numbers.is_sorted_by(|a, b| a >= b),
            "{key}: {answer}"
        );
    }
    let answer = report(machine, &["modules", "--sort", "name"], &traced.trace)?;
    ensure!(answer.contains("answers"), "{answer}");
    let mut command = machine.command(["report", "tasks", "--sort", "calls"]);
    command.arg(&traced.trace);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("has no such column"), "{}", run.stderr);
    Ok(())
}

/// The functions of a program that was compiled by `compiler`, and its call stacks.
fn of_program(
    machine: &Machine,
    directory: &Path,
    mut compiler: Command,
    source: &str,
) -> Result<(Counts, String)> {
    let program = directory.join("kinds");
    compiler.arg(&program).arg(programs::source(source));
    machine::finish(compiler)?.expect(0)?;
    let trace = directory.join("kinds.btrace");
    let run = machine.trace("btrace", &trace, &["--epoch", "0"], &[&program])?;
    let traced = run.expect(0)?;
    let alone = machine::finish(Command::new(&program))?.expect(0)?;
    ensure!(traced.stdout == alone.stdout, "another result");
    // The libraries of a language can have more than is explained, such as calls of the vDSO.
    let answer = |words: &[&str]| -> Result<String> {
        let mut command = machine.command(["report"]);
        command.args(words).arg(&trace);
        let run = machine::finish(command)?.expect(0)?;
        Ok(String::from_utf8(run.stdout)?)
    };
    Ok((function_rows(&answer(&FUNCTIONS)?)?, answer(&["folded"])?))
}

/// Checks the calls of functions whose names contain these words.
fn calls(functions: &Counts, expected: &[(&str, u64)]) -> Result<()> {
    for (word, count) in expected {
        let found = functions.iter().filter(|(name, _)| name.contains(word));
        let sum: u64 = found.map(|(_, counts)| counts.0).sum();
        ensure!(sum == *count, "{word}: {sum} calls instead of {count}");
    }
    Ok(())
}

/// After an exception, nothing is below the functions that it has left.
fn unwound(folded: &str, left: &str, by: &str) -> Result<()> {
    for line in folded.lines().filter(|line| line.contains(left)) {
        let after = line.rsplit(left).next().unwrap_or_default();
        ensure!(!after.contains(by), "{line}");
    }
    ensure!(folded.contains(left), "no {left}: {folded}");
    Ok(())
}

pub(super) fn cpp(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let compiler = tool("g++", &["-O2", "-g", "-static", "-o"])?;
    let (functions, folded) = of_program(machine, directory.path(), compiler, "kinds.cpp")?;
    calls(
        &functions,
        &[
            ("Square::area(long) const", 20),
            ("Line::area(long) const", 10),
            ("refuse_odd(int)", 10),
            ("twice<long>(long)", 2),
            ("twice<int>(int)", 1),
        ],
    )?;
    unwound(&folded, ";refuse_odd(int)", ";is_odd(int)")
}

pub(super) fn rust(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let flags = ["--edition=2021", "-Copt-level=2", "-g", "-o"];
    let compiler = tool("rustc", &flags)?;
    let (functions, folded) = of_program(machine, directory.path(), compiler, "kinds.rs")?;
    calls(
        &functions,
        &[
            ("Square as kinds::Shape>::area", 21),
            ("Line as kinds::Shape>::area", 10),
            ("kinds::refuse_odd", 10),
            ("kinds::is_odd", 10),
        ],
    )?;
    unwound(&folded, ";kinds::refuse_odd", ";kinds::is_odd")
}

pub(super) fn go(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    // Its `--version` is a command.
    let mut compiler = Command::new("go");
    if compiler.arg("version").output().is_err() {
        anyhow::bail!(machine::Skip("go is not installed".to_owned()));
    }
    let mut compiler = Command::new("go");
    compiler
        .env("GOCACHE", directory.path().join("cache"))
        .args(["build", "-o"]);
    let (functions, folded) = of_program(machine, directory.path(), compiler, "kinds.go")?;
    calls(
        &functions,
        &[
            ("main.square.area", 20),
            ("main.line.area", 10),
            ("main.refuseOdd", 10),
        ],
    )?;
    // The runtime starts a goroutine on a stack of its own, and calls it from nowhere.
    let workers = || folded.lines().filter(|line| line.contains("main.worker"));
    let begins = |line: &str| line.starts_with("kinds;main.");
    ensure!(workers().count() > 0 && workers().all(begins), "{folded}");
    ensure!(folded.contains("kinds;runtime.main;main.main;"), "{folded}");
    let is_called = |line: &str| line.contains("gogo;main.");
    ensure!(!folded.lines().any(is_called), "{folded}");
    unwound(&folded, ";main.refuseOdd", ";main.isOdd;main.refuseOdd")
}

/// Coroutines are on stacks of their own, also if they switch at the same place.
pub(super) fn coroutines(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let compiler = tool("gcc", &["-O1", "-g", "-o"])?;
    let (functions, folded) = of_program(machine, directory.path(), compiler, "coroutines.c")?;
    for (name, count) in [("one", 1), ("two", 1), ("yield", 6)] {
        let calls = functions.get(name).map(|(calls, _)| *calls);
        ensure!(calls == Some(count), "{name}: {calls:?}");
    }
    for stack in [
        "one;leaf",
        "one;yield;leaf",
        "one;yield;swapcontext",
        "two;leaf",
        "two;yield;leaf",
    ] {
        ensure!(
            folded.contains(&format!("kinds;{stack} ")),
            "{stack}: {folded}"
        );
    }
    ensure!(folded.contains(";main;leaf "), "{folded}");
    ensure!(!folded.contains("swapcontext;one") && !folded.contains("swapcontext;two"));
    Ok(())
}

/// The instructions of a 32-bit program follow from its branches.
pub(super) fn ia32(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("ia32");
    programs::compile(&programs::source("ia32.c"), &program, &["-m32"])?;
    let trace = directory.path().join("ia32.btrace");
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[&program])?
        .expect(5)?;
    let functions = functions(machine, &trace)?;
    let mut dump = tool("objdump", &["-d"])?;
    dump.arg(&program);
    let dump = String::from_utf8(machine::finish(dump)?.expect(0)?.stdout)?;
    ensure!(functions.len() > 2, "{functions:?}");
    for name in functions.keys() {
        ensure!(
            dump.contains(&format!("<{name}>:")),
            "{name}: {functions:?}"
        );
    }
    let text = report(machine, &["assembly"], &trace)?;
    // Each instruction of our listing is one of objdump's.
    let addresses = |text: &str| -> Vec<String> {
        let words = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        words
            .map(|word| word.trim_end_matches(':').to_owned())
            .collect()
    };
    let theirs: HashSet<String> = addresses(&dump).into_iter().collect();
    let mut count = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(executed), Some(address)) = (words.next(), words.next()) else {
            continue;
        };
        if executed.parse::<u64>().is_ok_and(|executed| executed > 0)
            && let Ok(offset) = u64::from_str_radix(address, 16)
        {
            ensure!(
                theirs.contains(&format!("{:x}", BASE + offset)),
                "{line} is not in objdump's listing"
            );
            count += 1;
        }
    }
    ensure!(count > 20, "{count} instructions: {text}");
    Ok(())
}
