//! `vbts report`: answers from a trace, compared with those of other tools about the same program,
//! and with what is known of it (`programs/answers.c`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip};
use vbts_tests::programs;

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("callgrind", callgrind),
            ("gcov", gcov),
            ("genhtml", genhtml),
            ("kinds_of_calls", kinds_of_calls),
            ("two_runs", two_runs),
            ("moments", moments),
            ("hostile_names", hostile_names),
            ("optimised", optimised),
        ],
    )
}

/// A program, and a trace of it.
struct Traced {
    directory: tempfile::TempDir,
    program: PathBuf,
    trace: PathBuf,
}

/// Compiles the program with `flags` and traces it with `arguments`.
fn traced(machine: &Machine, flags: &[&str], arguments: &[&str]) -> Result<Traced> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("answers");
    programs::gcc(&programs::source("answers.c"), &program, flags)?;
    let trace = directory.path().join("answers.btrace");
    let words = [&[program.to_str().context("a path")?], arguments].concat();
    let options = ["--epoch", "0"];
    machine
        .trace("btrace", &trace, &options, &words)?
        .expect(0)?;
    Ok(Traced {
        directory,
        program,
        trace,
    })
}

/// The output of `vbts report`, which must have nothing to complain of.
fn report(machine: &Machine, words: &[&str], trace: &Path) -> Result<String> {
    let mut command = machine.command(["report"]);
    command.args(words).arg(trace);
    let run = machine::finish(command)?.expect(0)?;
    ensure!(run.stderr.is_empty(), "{words:?}: {}", run.stderr);
    Ok(String::from_utf8(run.stdout)?)
}

/// A tool of the host, if it is there.
fn tool(name: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null());
    let found = Command::new(name).arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!(Skip(format!("{name} is not installed")));
    }
    Ok(command)
}

/// Calls and instructions of each function, by its name.
fn functions(machine: &Machine, trace: &Path) -> Result<HashMap<String, (u64, u64)>> {
    let words = ["functions", "--json", "--limit", "1000000"];
    let mut functions: HashMap<String, (u64, u64)> = HashMap::new();
    for line in report(machine, &words, trace)?.lines() {
        let row: Value = serde_json::from_str(line)?;
        let number = |name: &str| row[name].as_u64().context("no number");
        let name = row["name"].as_str().context("no name")?;
        let sum = functions.entry(name.to_owned()).or_default();
        *sum = (sum.0 + number("calls")?, sum.1 + number("instructions")?);
    }
    Ok(functions)
}

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
fn callgrind(machine: &Machine) -> Result<()> {
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

/// The counts of lines in the format of gcov.
fn line_counts(text: &str) -> HashMap<u32, u64> {
    let mut counts = HashMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').map(str::trim);
        let (Some(count), Some(number)) = (fields.next(), fields.next()) else {
            continue;
        };
        let count = match count.trim_end_matches('*') {
            "#####" => Some(0),
            count => count.parse().ok(),
        };
        if let (Some(count), Ok(number)) = (count, number.parse()) {
            counts.insert(number, count);
        }
    }
    counts
}

/// Lines have the counts of gcov, if the compiler's table of lines has instructions of them: not
/// the head of a function, whose first line is that of the brace, and not a label.
fn gcov(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let directory = traced.directory.path();
    let source = programs::source("answers.c");
    let mut command = tool("gcov", &[])?;
    let covered = directory.join("covered");
    let flags = ["-O0", "-g", "--coverage", "-fprofile-abs-path"];
    programs::gcc(&source, &covered, &flags)?;
    machine::finish(Command::new(&covered))?.expect(0)?;
    command
        .args(["--stdout", "covered-answers.gcda"])
        .current_dir(directory);
    let theirs = machine::finish(command)?.expect(0)?;
    let theirs = line_counts(&String::from_utf8(theirs.stdout)?);
    let words = ["lines", "--source", source.to_str().context("a path")?];
    let ours = line_counts(&report(machine, &words, &traced.trace)?);
    ensure!(theirs.len() > 50, "gcov knows {} lines", theirs.len());
    let text = std::fs::read_to_string(&source)?;
    let text: Vec<&str> = text.lines().collect();
    let mut different = Vec::new();
    let mut equal = 0;
    for (line, count) in &theirs {
        let text = text.get(*line as usize - 1).unwrap_or(&"").trim();
        match ours.get(line) {
            Some(ours) if ours == count => equal += 1,
            // No instruction belongs to these, but gcov counts the block that begins there.
            None if text.ends_with(')') && !text.ends_with(";") => {}
            None if text.starts_with("case ") || text == "default:" => {}
            ours => different.push(format!("{line}: {ours:?}, gcov: {count}: {text}")),
        }
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    ensure!(equal > 50, "{equal} lines are equal");
    Ok(())
}

/// genhtml of lcov accepts the tracefile, and counts as we do.
fn genhtml(machine: &Machine) -> Result<()> {
    let traced = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let source = programs::source("answers.c");
    let words = ["lcov", "--source", source.to_str().context("a path")?];
    let text = report(machine, &words, &traced.trace)?;
    ensure!(text.contains("FNDA:0,never\n"), "{text}");
    ensure!(text.contains("FNDA:465,fib\n"), "{text}");
    // `n < 2` of `fib`: taken, not taken.
    let line = "BRDA:26,0,0,";
    ensure!(text.contains(line), "{text}");
    let tracefile = traced.directory.path().join("answers.info");
    std::fs::write(&tracefile, &text)?;
    let mut command = tool("genhtml", &["--branch-coverage", "--output-directory"])?;
    command
        .arg(traced.directory.path().join("html"))
        .arg(&tracefile);
    let run = machine::finish(command)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout).into_owned() + &run.stderr;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    for (hit, found, what) in [("LH:", "LF:", "lines"), ("FNH:", "FNF:", "functions")] {
        let (hit, found) = (value(hit).context("hit")?, value(found).context("found")?);
        ensure!(
            output.contains(&format!("({hit} of {found} {what}")),
            "{what}: {output}"
        );
    }
    Ok(())
}

/// Signals, longjmp, threads, forks and functions that jump to each other.
fn kinds_of_calls(machine: &Machine) -> Result<()> {
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

fn two_runs(machine: &Machine) -> Result<()> {
    let flags = ["-O2", "-g", "-pthread"];
    let (plain, kinds) = (
        traced(machine, &flags, &[])?,
        traced(machine, &flags, &["k"])?,
    );
    let other = kinds.trace.to_str().context("a path")?;
    let mut command = machine.command(["report", "diff", "--limit", "1000"]);
    command.arg(&plain.trace).arg(other);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8(run.stdout)?;
    let line = |name: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.contains(&format!("  {name} (answers)")))
            .unwrap_or_default()
    };
    // The first one ends where the second one calls `kinds`.
    let part = text
        .lines()
        .find(|line| line.starts_with("  second"))
        .unwrap_or_default();
    ensure!(
        part.ends_with("-> kinds") && part.contains("answers.c:"),
        "{text}"
    );
    ensure!(text.contains("-> choose\n"), "{text}");
    ensure!(line("deep").ends_with("only in the second"), "{text}");
    ensure!(
        line("leaf").trim_start().starts_with("3         93 "),
        "{text}"
    );
    ensure!(line("fib").is_empty(), "{text}");
    Ok(())
}

fn moments(machine: &Machine) -> Result<()> {
    let flags = ["-O0", "-g", "-static"];
    let traced = traced(machine, &flags, &[])?;
    let text = report(machine, &["text"], &traced.trace)?;
    let inside = text
        .lines()
        .position(|line| line.contains("-> ") && line.contains("choose+0x0"));
    let to = (inside.context("choose is not called")? + 1).to_string();
    let words = ["where", "--to", &to];
    let stack = report(machine, &words, &traced.trace)?;
    let frames: Vec<&str> = stack
        .lines()
        .filter(|line| line.starts_with("     "))
        .collect();
    ensure!(
        frames.first().is_some_and(|f| f.contains("0  choose+0x0")),
        "{stack}"
    );
    ensure!(
        frames.get(1).is_some_and(|f| f.contains("1  main+")),
        "{stack}"
    );
    ensure!(frames[1].contains("answers.c:"), "{stack}");
    // The program ends after all branches, and nothing is before its start.
    let json = report(machine, &["json"], &traced.trace)?;
    let event = |kind: &str| -> Result<String> {
        let line = json
            .lines()
            .find(|line| line.contains(kind))
            .context("no event")?;
        let event: Value = serde_json::from_str(line)?;
        Ok(event["time"].as_u64().context("no time")?.to_string())
    };
    let (start, end) = (event("\"start\"")?, event("\"kind\":\"end\"")?);
    let at = |time: &str| report(machine, &["where", "--time", time], &traced.trace);
    ensure!(at(&start)?.is_empty(), "{}", at(&start)?);
    ensure!(at(&end)?.contains("__run_exit_handlers+"), "{}", at(&end)?);
    let tail = report(machine, &["tail", "--steps", "5"], &traced.trace)?;
    ensure!(tail.contains("xit+0x0"), "{tail}");
    Ok(())
}

/// Names in a file can be anything. In a document they stay text.
fn hostile_names(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("a<b>&'\"\u{202e}.c");
    std::fs::write(
        &source,
        "__attribute__((noinline)) int f(int x) { __asm__ volatile(\"\"); return x; }\n\
         int main(void) { return f(0); }\n",
    )?;
    let program = directory.path().join("a<b>&'\"");
    programs::gcc(&source, &program, &["-O1", "-g", "-static", "-no-pie"])?;
    let mut rename = tool("objcopy", &["--redefine-sym"])?;
    rename.arg("f=<script>&\"'\x1b]]>;\n</svg>").arg(&program);
    machine::finish(rename)?.expect(0)?;
    let trace = directory.path().join("a.btrace");
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[&program])?
        .expect(0)?;
    for (words, is_xml) in [
        (&["flamegraph"][..], true),
        (&["cobertura"], true),
        (&["html"], false),
        (&["timeline"], false),
        (&["functions"], false),
        (&["calls", "--least", "0"], false),
        (&["lcov"], false),
        (&["folded"], false),
        (&["tail"], false),
        (&["assembly"], false),
    ] {
        let text = report(machine, words, &trace)?;
        let plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        ensure!(text.chars().all(plain), "{words:?}: {text}");
        if is_xml || words == ["html"] {
            ensure!(!text.contains("<script>&"), "{words:?}: {text}");
        }
        if is_xml {
            let file = directory.path().join("document.xml");
            std::fs::write(&file, text)?;
            let script = "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])";
            let mut command = tool("python3", &["-c", script])?;
            command.arg(&file);
            machine::finish(command)?.expect(0)?;
        }
    }
    Ok(())
}

/// perf2bolt finds the profile without mismatches.
fn optimised(machine: &Machine) -> Result<()> {
    // By another name, it is another program.
    let path = |version: u32| format!("/usr/lib/llvm-{version}/bin/perf2bolt");
    let Some(name) = (14..40)
        .rev()
        .map(path)
        .find(|path| Path::new(path).exists())
    else {
        bail!(Skip("perf2bolt is not installed".to_owned()));
    };
    let mut command = Command::new(name);
    command.arg("--pa");
    let flags = ["-O2", "-g", "-Wl,--emit-relocs", "-pthread"];
    let traced = traced(machine, &flags, &["k"])?;
    let profile = traced.directory.path().join("preaggregated");
    let program = traced.program.to_str().context("a path")?;
    let mut ours = machine.command(["report", "bolt", "--output"]);
    ours.arg(&profile).arg(&traced.trace);
    machine::finish(ours)?.expect(0)?;
    command
        .arg("-p")
        .arg(&profile)
        .arg("-o")
        .arg(traced.directory.path().join("fdata"));
    command.arg(program);
    let run = machine::finish(command)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout).into_owned() + &run.stderr;
    for bad in ["mismatching", "out of range"] {
        let line = output.lines().find(|line| line.contains(bad));
        let is_none = line.is_none_or(|line| line.contains(" 0 ") || line.contains("(0.0%)"));
        ensure!(is_none, "{output}");
    }
    ensure!(output.contains("PERF2BOLT: wrote "), "{output}");
    ensure!(output.contains("mismatching"), "{output}");
    Ok(())
}
