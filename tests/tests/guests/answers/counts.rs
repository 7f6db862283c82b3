//! Counts of functions, and the call tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};

use super::{FUNCTIONS, functions, report, tool, traced};

/// Maximum number of instructions by which the start of a program differs.
const MAX_DIFFERENCE: u64 = 200;

/// Calls and instructions of each function, from the output file of callgrind.
fn callgrind_functions(text: &str) -> Result<HashMap<String, (u64, u64)>> {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut functions: HashMap<String, (u64, u64)> = HashMap::new();
    // A name is given once; later its number stands for it.
    let mut name = |field: &str| -> String {
        match field.split_once(' ') {
            Some((number, name)) => {
                names.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
            None => names.get(field).cloned().unwrap_or_default(),
        }
    };
    // A recursive function has a name for each depth, if it was asked for.
    let plain = |name: String| name.split('\'').next().unwrap_or_default().to_owned();
    let (mut current, mut called) = (String::new(), String::new());
    let mut is_call = false;
    for line in text.lines() {
        if let Some(field) = line.strip_prefix("fn=") {
            current = plain(name(field));
        } else if let Some(field) = line.strip_prefix("cfn=") {
            called = plain(name(field));
        } else if let Some(fields) = line.strip_prefix("calls=") {
            let count = fields.split(' ').next().context("no count")?;
            functions.entry(called.clone()).or_default().0 += count.parse::<u64>()?;
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && !std::mem::take(&mut is_call)
        {
            let cost = line.split(' ').nth(1).unwrap_or("0");
            functions.entry(current.clone()).or_default().1 += cost.parse::<u64>()?;
        }
    }
    Ok(functions)
}

/// The functions of the program itself have the calls and instructions that callgrind counts. The
/// start of a program under valgrind differs, so that others do not.
pub(super) fn callgrind(machine: &Machine) -> Result<()> {
    for flags in [&["-O2", "-g", "-static"][..], &["-O0", "-g", "-static"]] {
        let traced = traced(machine, flags, &[])?;
        let output = traced.directory.path().join("callgrind");
        let option = format!("--callgrind-out-file={}", output.display());
        let mut command = tool("valgrind", &["--tool=callgrind", &option])?;
        machine::finish({
            command.arg(&traced.program);
            command
        })?
        .expect(0)?;
        let theirs = callgrind_functions(&std::fs::read_to_string(&output)?)?;
        let ours = functions(machine, &traced.trace)?;
        for name in [
            "fib", "is_even", "is_odd", "insert", "depth", "choose", "leaf", "main",
        ] {
            let (ours, theirs) = (ours.get(name), theirs.get(name));
            ensure!(
                theirs.is_some_and(|counts| counts.1 > 0),
                "{name}: {theirs:?}"
            );
            ensure!(
                ours == theirs,
                "{flags:?} {name}: {ours:?}, callgrind: {theirs:?}"
            );
        }
    }
    Ok(())
}

/// What a file in callgrind's format says about source lines.
#[derive(Default)]
struct CallgrindLines {
    /// Instructions by function, file name and line.
    costs: BTreeMap<(String, String, u32), u64>,
    /// Caller, callee and line of calls.
    calls: BTreeSet<(String, String, u32)>,
}

impl CallgrindLines {
    /// Reads a file whose names and positions are not compressed.
    fn of(text: &str) -> Result<Self> {
        let mut this = Self::default();
        let (mut function, mut file, mut callee) = (String::new(), String::new(), String::new());
        let mut is_call = false;
        // A number in front of a name, and the depth of a recursion behind it.
        let name = |field: &str| {
            let name = field.rsplit(") ").next().unwrap_or_default();
            name.split('\'').next().unwrap_or_default().to_owned()
        };
        for line in text.lines() {
            match line.split_once('=') {
                Some(("fn", field)) => function = name(field),
                Some(("cfn", field)) => callee = name(field),
                Some(("fl" | "fi" | "fe", field)) => {
                    field
                        .rsplit('/')
                        .next()
                        .unwrap_or_default()
                        .clone_into(&mut file);
                }
                Some(("calls", _)) => is_call = true,
                None if line.starts_with(|c: char| c.is_ascii_digit()) => {
                    let mut fields = line.split(' ');
                    let number = fields.next().context("no line")?.parse()?;
                    if std::mem::take(&mut is_call) {
                        this.calls
                            .insert((function.clone(), callee.clone(), number));
                    } else {
                        let place = (function.clone(), file.clone(), number);
                        let cost: u64 = fields.next().context("no cost")?.parse()?;
                        *this.costs.entry(place).or_default() += cost;
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }
}

/// Our file in callgrind's format has the instructions of each source line of the program, also of
/// functions that are inlined, and the lines of its calls, as callgrind has them.
pub(super) fn callgrind_lines(machine: &Machine) -> Result<()> {
    for flags in [&["-O2", "-g", "-static"][..], &["-O0", "-g"]] {
        let traced = traced(machine, flags, &[])?;
        let output = traced.directory.path().join("callgrind");
        let option = format!("--callgrind-out-file={}", output.display());
        let plain = ["--compress-strings=no", "--compress-pos=no"];
        let mut command = tool(
            "valgrind",
            &["--tool=callgrind", &option, plain[0], plain[1]],
        )?;
        command.arg(&traced.program);
        machine::finish(command)?.expect(0)?;
        let theirs = CallgrindLines::of(&std::fs::read_to_string(&output)?)?;
        let text = report(machine, &["callgrind", "--no-inline"], &traced.trace)?;
        let ours = CallgrindLines::of(&text)?;
        let of_program = |place: &&(String, String, u32)| place.1 == "answers.c";
        let mut compared = 0;
        for place in theirs.costs.keys().filter(of_program) {
            // The names of parts that the compiler has moved away differ.
            if [
                "fib", "is_even", "insert", "depth", "choose", "leaf", "main",
            ]
            .contains(&place.0.as_str())
            {
                let (ours, theirs) = (ours.costs.get(place), theirs.costs.get(place));
                ensure!(ours == theirs, "{place:?}: {ours:?}, callgrind: {theirs:?}");
                compared += 1;
            }
        }
        ensure!(compared > 25, "{flags:?}: {compared} lines");
        for (caller, callee) in [("main", "insert"), ("main", "depth"), ("main", "fib")] {
            let of = |lines: &CallgrindLines| -> Vec<u32> {
                let calls = lines.calls.iter();
                calls
                    .filter(|call| call.0 == caller && call.1 == callee)
                    .map(|call| call.2)
                    .collect()
            };
            let (ours, theirs) = (of(&ours), of(&theirs));
            ensure!(
                ours == theirs,
                "{caller}, {callee}: {ours:?}, callgrind: {theirs:?}"
            );
        }
    }
    Ok(())
}

/// Our file in callgrind's format has the counts of the report of functions, and callgrind_annotate
/// reads it: it shows the same totals, and a function with its callees.
pub(super) fn callgrind_report(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g", "-static"], &[])?;
    let text = report(
        machine,
        &["callgrind", "--raw-frames", "--no-inline"],
        &traced.trace,
    )?;
    let in_file = callgrind_functions(&text)?;
    let all = functions(machine, &traced.trace)?;
    for (name, counts) in &all {
        // The parser takes the part before an apostrophe, as for a name of callgrind.
        let name = name.split('\'').next().unwrap_or_default();
        ensure!(in_file.get(name) == Some(counts), "{name}: {counts:?}");
    }
    ensure!(all.len() > 50, "{} functions", all.len());
    let path = traced.directory.path().join("callgrind.out");
    std::fs::write(&path, &text)?;
    // Its own --version is no success, and it comes with this tool.
    tool("valgrind", &[])?;
    let mut command = Command::new("callgrind_annotate");
    command.args(["--auto=no", "--inclusive=yes"]).arg(&path);
    let shown = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let first_number = |line: &str| -> Option<u64> {
        line.split_whitespace()
            .next()?
            .replace(',', "")
            .parse()
            .ok()
    };
    let of = |end: &str| shown.lines().find(|line| line.contains(end));
    let whole: u64 = all.values().map(|(_, instructions)| instructions).sum();
    let total = of("PROGRAM TOTALS").and_then(first_number);
    ensure!(total == Some(whole), "{whole} instructions: {shown}");
    let rows = report(machine, &FUNCTIONS, &traced.trace)?;
    let rows = rows.lines().map(serde_json::from_str);
    let rows: Vec<Value> = rows.collect::<Result<_, _>>()?;
    let main = rows.iter().find(|row| row["name"] == "main");
    let main = main.and_then(|row| row["total"].as_u64());
    ensure!(
        main.is_some() && of(":main [").and_then(first_number) == main,
        "{main:?}: {shown}"
    );
    Ok(())
}

/// Instructions of each file, from the output file of callgrind.
fn callgrind_files(text: &str) -> HashMap<String, u64> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut files: HashMap<String, u64> = HashMap::new();
    let (mut current, mut is_call) = ("", false);
    for line in text.lines() {
        let (kind, field) = line.split_once('=').unwrap_or((line, ""));
        if let "ob" | "cob" = kind {
            // A name is given once; later its number stands for it.
            let (number, name) = field.split_once(' ').unwrap_or((field, ""));
            let name = match name {
                "" => names.get(number).copied().unwrap_or_default(),
                name => name,
            };
            names.insert(number, name);
            current = if kind == "ob" { name } else { current };
        } else if kind == "calls" {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && !std::mem::take(&mut is_call)
        {
            let cost = line
                .split(' ')
                .nth(1)
                .and_then(|cost| cost.parse::<u64>().ok());
            *files.entry(current.to_owned()).or_default() += cost.unwrap_or(0);
        }
    }
    files
}

/// Programs of this machine execute as many instructions as callgrind counts. The start of a
/// program depends on the number of its environment variables and on the addresses of its buffers,
/// by some instructions; the C library has other functions for another processor.
pub(super) fn callgrind_of_programs(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (input, output) = (
        directory.path().join("input"),
        directory.path().join("callgrind"),
    );
    let numbers: Vec<String> = (0..5000_u32)
        .map(|n| n.wrapping_mul(n).to_string())
        .collect();
    std::fs::write(&input, numbers.join("\n"))?;
    let input = input.to_str().context("a path")?;
    // The program, its arguments, and the file that does the work.
    for (program, option, file) in [
        ("gzip", "-9c", "/gzip"),
        ("bzip2", "-c", "/libbz2.so"),
        ("md5sum", "-b", "/md5sum"),
    ] {
        tool(program, &[])?;
        let out = format!("--callgrind-out-file={}", output.display());
        let mut command = tool("valgrind", &["--tool=callgrind", &out])?;
        command.args([program, option, input]);
        machine::finish(command)?.expect(0)?;
        let theirs = callgrind_files(&std::fs::read_to_string(&output)?);
        let trace = directory.path().join("trace.btrace");
        let words = [program, option, input];
        machine
            .trace("btrace", &trace, &["--epoch", "0"], &words)?
            .expect(0)?;
        let mut command = machine.command(["report", "modules", "--json"]);
        command.arg(&trace);
        let rows = machine::finish(command)?.expect(0)?.stdout;
        let ours = super::function_rows(str::from_utf8(&rows)?)?;
        let theirs = theirs.iter().find(|(name, _)| name.contains(file));
        let (_, theirs) = theirs.with_context(|| format!("callgrind: no {file}"))?;
        let ours = ours.iter().find(|(name, _)| name.contains(file));
        let (_, (_, ours)) = ours.with_context(|| format!("no {file}"))?;
        ensure!(
            ours.abs_diff(*theirs) <= MAX_DIFFERENCE && *ours > 100_000,
            "{program}: {ours} instructions, callgrind: {theirs}"
        );
    }
    Ok(())
}

/// Signals, longjmp, threads, forks and functions that jump to each other.
pub(super) fn kinds_of_calls(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O2", "-g", "-static", "-pthread"], &["k"])?;
    let ours = functions(machine, &traced.trace)?;
    let calls = |name: &str| ours.get(name).map_or(0, |counts| counts.0);
    // choose: 3; handler: 10; thread: 50; child: 30.
    ensure!(calls("leaf") == 93, "leaf: {}", calls("leaf"));
    ensure!(calls("deep") == 21 && calls("handler") == 10, "{ours:?}");
    let folded = report(machine, &["folded"], &traced.trace)?;
    for stack in [
        ";[signal];handler;leaf ",
        ";main;kinds;leaf ",
        "thread;leaf ",
        ";main;kinds;deep;deep;deep",
        ";main;is_even;is_odd ",
    ] {
        ensure!(folded.contains(stack), "no {stack}:\n{folded}");
    }
    // What comes after a longjmp is not below it, and nothing is below functions that have ended.
    ensure!(!folded.contains("deep;pthread_create"), "{folded}");
    ensure!(
        !folded.contains("is_odd;is_even;is_odd;is_even"),
        "{folded}"
    );
    let sum: u64 = folded
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    let tasks = report(machine, &["tasks", "--json"], &traced.trace)?;
    let rows: Vec<Value> = tasks
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let total: u64 = rows
        .iter()
        .filter_map(|row| row["instructions"].as_u64())
        .sum();
    ensure!(
        rows.len() == 3 && sum == total,
        "{sum} instructions, tasks: {tasks}"
    );
    Ok(())
}
