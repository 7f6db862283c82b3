//! The options that keep a part of a trace, compared with the whole trace of the same command.

mod last;
mod reports;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, TestModule};

/// Line 6 is in a loop, and is reached without a branch at its beginning.
const SOURCE: &str = r#"#include <signal.h>
static volatile int total;
__attribute__((noinline)) static int leaf(int n)
{
	for (int i = 0; i < n; i++) {
		total += i; if (total & 1)
			total++;
	}
	return total;
}
__attribute__((noinline)) static int work(int n)
{
	return leaf(n) + 1;
}
static void handler(int signal) { total += signal; }
int main(void)
{
	signal(SIGUSR1, handler);
	for (int i = 0; i < 5; i++)
		work(i);
	raise(SIGUSR1);
	work(3);
	return 0;
}
"#;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("points", points),
            ("objects", objects),
            ("inlined_functions", inlined_functions),
            ("limits", limits),
            ("formats", formats),
            ("mistakes", mistakes),
            ("the_last_branches_of_a_task", last::of_a_task),
            ("the_last_branches_of_several_tasks", last::of_tasks),
            ("the_last_branches_however_it_ends", last::ends),
            ("reports_of_a_task", reports::of_a_task),
            ("reports_of_several_tasks", reports::of_tasks),
        ],
    )
}

/// A program, and the branches of its whole trace.
struct Sample {
    directory: tempfile::TempDir,
    program: PathBuf,
    all: Vec<Branch>,
}

/// A branch in text: from and to, each with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Branch {
    from: String,
    to: String,
}

impl Branch {
    /// Whether it leads to the first instruction of a function.
    fn leads_to(&self, function: &str) -> bool {
        self.to.contains(&format!(" {function}+0x0 "))
    }

    /// Whether it begins or ends in a function.
    fn touches(&self, function: &str) -> bool {
        let label = format!(" {function}+0x");
        self.from.contains(&label) || self.to.contains(&label)
    }
}

impl Sample {
    fn new(machine: &Machine) -> Result<Self> {
        Self::of(machine, SOURCE)
    }

    fn of(machine: &Machine, text: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let program = directory.path().join("sample");
        let source = directory.path().join("sample.c");
        std::fs::write(&source, text)?;
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-g", "-O0", "-o"])
            .arg(&program)
            .arg(&source);
        ensure!(compiler.status()?.success(), "gcc");
        let mut sample = Self {
            directory,
            program,
            all: Vec::new(),
        };
        sample.all = branches(&sample.trace(machine, "text", &[])?.0);
        ensure!(sample.all.len() > 1000, "{} branches", sample.all.len());
        Ok(sample)
    }

    /// The trace with `options`, and standard error.
    fn trace(&self, machine: &Machine, format: &str, options: &[&str]) -> Result<(String, String)> {
        self.trace_with_status(machine, format, options, 0)
    }

    /// As [`Self::trace`] for a `vbts` that ends with `status`.
    fn trace_with_status(
        &self,
        machine: &Machine,
        format: &str,
        options: &[&str],
        status: i32,
    ) -> Result<(String, String)> {
        let output = self.directory.path().join("trace");
        let program = self.program.to_str().context("a path")?;
        let options = [&["--epoch", "0"], options].concat();
        let run = machine.trace(format, &output, &options, &[program])?;
        let run = run.expect(status)?;
        Ok((std::fs::read_to_string(&output)?, run.stderr))
    }

    /// Checks that the trace with `options` has `expected`, and tells how many others there were.
    fn check(&self, machine: &Machine, options: &[&str], expected: &[Branch]) -> Result<()> {
        let (text, _) = self.trace(machine, "text", options)?;
        let found = branches(&text);
        ensure!(
            found == expected,
            "{options:?}: {} branches instead of {}",
            found.len(),
            expected.len()
        );
        let filtered = self.all.len() - expected.len();
        let last = format!(
            "records: {}, filtered: {filtered}, lost: 0, exit: 0",
            expected.len()
        );
        ensure!(text.lines().last() == Some(&last), "no {last}: {text}");
        Ok(())
    }

    /// Indices of the branches that lead to a function.
    fn calls(&self, function: &str) -> Vec<usize> {
        let all = self.all.iter().enumerate();
        let calls = all.filter(|(_, branch)| branch.leads_to(function));
        calls.map(|(at, _)| at).collect()
    }
}

fn branches(text: &str) -> Vec<Branch> {
    let branch = |line: &str| {
        let (from, to) = line.split_once(" -> ")?;
        Some(Branch {
            from: format!("{from} "),
            to: format!("{to} "),
        })
    };
    text.lines().filter_map(branch).collect()
}

fn points(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    let (work, leaf) = (sample.calls("work"), sample.calls("leaf"));
    ensure!((work.len(), leaf.len()) == (6, 6), "{work:?} {leaf:?}");
    let all = &sample.all;
    sample.check(machine, &["--start", "work"], &all[work[0]..])?;
    sample.check(machine, &["--stop", "work#2"], &all[..=work[1]])?;
    let options = ["--start", "work#2", "--stop", "leaf#3"];
    sample.check(machine, &options, &all[work[1]..=leaf[3]])?;
    let options = ["--start", "leaf", "--stop", "leaf"];
    sample.check(machine, &options, &all[leaf[0]..=leaf[1]])?;
    // The address of the call, and its offset in the file.
    let address = all[work[0]].to.split(' ').next().context("no address")?;
    let options = ["--start", &format!("0x{address}#3")];
    sample.check(machine, &options, &all[work[2]..])?;
    let page = u64::from_str_radix(address, 16)? & 0xFFF;
    let options = ["--start", &format!("sample+{:#x}", 0x1000 + page)];
    sample.check(machine, &options, &all[work[0]..])?;
    // The straight line leads from the branch to line 5 to the second instruction of it, and to
    // line 9 when the loop ends.
    let first = all
        .iter()
        .position(|branch| branch.from.contains("sample.c:10)"));
    let first = first.context("no return")?;
    sample.check(machine, &["--start", "sample.c:10"], &all[first..])?;
    let body = all.iter().enumerate();
    let body: Vec<usize> = body
        .filter(|(_, branch)| branch.to.contains("(/") && branch.to.contains("sample.c:6)"))
        .map(|(at, _)| at)
        .collect();
    sample.check(machine, &["--start", "sample.c:6#4"], &all[body[3]..])?;
    // A program with the name of one of its functions.
    let program = sample.program.with_file_name("work");
    std::fs::copy(&sample.program, &program)?;
    let namesake = Sample { program, ..sample };
    let (text, _) = namesake.trace(machine, "text", &["--start", "work"])?;
    let first = branches(&text).into_iter().next();
    ensure!(
        first.is_some_and(|branch| branch.leads_to("work")),
        "{text}"
    );
    Ok(())
}

fn objects(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    let all = sample.all.iter().cloned();
    let of = |names: &[&str]| -> Vec<Branch> {
        let all = all.clone();
        all.filter(|branch| names.iter().any(|name| branch.touches(name)))
            .collect()
    };
    sample.check(machine, &["--only", "leaf"], &of(&["leaf"]))?;
    let options = ["--only", "leaf", "--only", "main"];
    sample.check(machine, &options, &of(&["leaf", "main"]))?;
    let inside = |branch: &Branch| {
        [&branch.from, &branch.to]
            .iter()
            .all(|end| end.contains(" leaf+0x"))
    };
    let outside: Vec<Branch> = all.clone().filter(|branch| !inside(branch)).collect();
    sample.check(machine, &["--skip", "leaf"], &outside)?;
    let program = |end: &str| end.starts_with("55555555");
    let own: Vec<Branch> = all
        .clone()
        .filter(|branch| program(&branch.from) || program(&branch.to))
        .collect();
    sample.check(machine, &["--only", "sample"], &own)?;
    let path = sample.program.to_str().context("a path")?;
    sample.check(machine, &["--only", path], &own)?;
    let options = ["--only", "0x555555550000-0x555555560000"];
    sample.check(machine, &options, &own)
}

/// The program has no function `inner`: its code is in `outer` alone, behind the loop there.
const INLINED: &str = r#"static volatile int total;
static inline __attribute__((always_inline)) void inner(int n)
{
	for (int i = 0; i < n; i++)
		total += i;
}
__attribute__((noinline)) static void outer(int n)
{
	for (int i = 0; i < 4; i++)
		total ^= i;
	inner(n);
	for (int i = 0; i < 4; i++)
		total ^= i;
}
int main(void)
{
	outer(3);
	outer(5);
	return 0;
}
"#;

/// A function that is only inlined is a point at its inlined calls, and an object.
fn inlined_functions(machine: &Machine) -> Result<()> {
    let sample = Sample::of(machine, INLINED)?;
    let is_inner = |end: &str| end.contains("sample.c:4)") || end.contains("sample.c:5)");
    let all = &sample.all;
    // Its loop begins with a jump to the condition.
    let starts = all.windows(2).enumerate().filter(|(_, pair)| {
        let [before, branch] = pair else {
            return false;
        };
        !is_inner(&before.from) && is_inner(&branch.from)
    });
    let starts: Vec<usize> = starts.map(|(at, _)| at + 1).collect();
    let [first, second] = starts.as_slice() else {
        bail!("{starts:?}");
    };
    sample.check(machine, &["--start", "inner"], &all[*first..])?;
    sample.check(machine, &["--stop", "inner#2"], &all[..*second])?;
    let only = all.iter().filter(|b| is_inner(&b.from) || is_inner(&b.to));
    let only: Vec<Branch> = only.cloned().collect();
    ensure!(!only.is_empty(), "no branches");
    sample.check(machine, &["--only", "inner"], &only)
}

fn limits(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    sample.check(machine, &["--max-records", "100"], &sample.all[..100])?;
    let work = sample.calls("work")[0];
    let options = ["--start", "work", "--max-records", "7"];
    sample.check(machine, &options, &sample.all[work..work + 7])?;
    let handler = sample.calls("handler");
    ensure!(handler.is_empty(), "a branch leads to the handler");
    // The signal arrives while the program is in the system call of `raise`, or just after it.
    let first = sample
        .all
        .iter()
        .position(|branch| branch.touches("handler"));
    let first = first.context("the handler has no branch")?;
    sample.check(machine, &["--until-signal", "USR1"], &sample.all[..first])
}

/// All formats are filtered alike, and a kept trace shows what a direct one does.
fn formats(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    let options = [
        "--only",
        "leaf",
        "--start",
        "work#2",
        "--until-signal",
        "10",
    ];
    let output = sample.directory.path().join("kept.btrace");
    let program = sample.program.to_str().context("a path")?;
    let all_options = [&["--epoch", "0"][..], &options].concat();
    machine
        .trace("btrace", &output, &all_options, &[program])?
        .expect(0)?;
    for format in ["text", "json"] {
        let (direct, _) = sample.trace(machine, format, &options)?;
        let (again, _) = sample.trace(machine, format, &options)?;
        ensure!(direct == again, "{format}: two runs differ");
        ensure!(
            report(machine, format, &output)? == direct.as_bytes(),
            "{format}"
        );
    }
    let (json, _) = sample.trace(machine, "json", &options)?;
    let (mut kept, mut gaps) = (0, 0);
    for line in json.lines() {
        let event: Value = serde_json::from_str(line)?;
        match event["kind"].as_str() {
            Some("branch") => kept += 1,
            Some("filtered") => gaps += event["branches"].as_u64().unwrap_or(0),
            Some("summary") => {
                ensure!(
                    event["records"] == kept && event["filtered"] == gaps,
                    "{line}"
                );
            }
            _ => {}
        }
    }
    ensure!(kept + gaps == sample.all.len() as u64, "{kept} and {gaps}");
    let raw = sample.directory.path().join("raw");
    machine
        .trace("raw", &raw, &all_options, &[program])?
        .expect(0)?;
    let raw = std::fs::read(&raw)?;
    ensure!(raw == report(machine, "raw", &output)?, "raw");
    ensure!(raw.len() as u64 == 24 * kept, "{} bytes", raw.len());
    // What was left out is no straight line: each iteration of the functions counts as it was.
    let functions = String::from_utf8(report(machine, "functions", &output)?)?;
    ensure!(functions.contains("leaf"), "{functions}");
    Ok(())
}

fn report(machine: &Machine, what: &str, file: &Path) -> Result<Vec<u8>> {
    let mut command = machine.command(["report", what]);
    command.arg(file);
    Ok(machine::finish(command)?.expect(0)?.stdout)
}

fn mistakes(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    for (options, status, message) in [
        (
            &["--start", "nothing"][..],
            125,
            "--start nothing: no file that was mapped has such a function",
        ),
        (&["--only", "libc.so"], 125, "--only libc.so: no file"),
        (&["--start", "sample.c:1000"], 125, "has code of this line"),
        (&["--start", "work#7"], 0, "has reached it only 6 times"),
        (&["--stop", "main#2"], 0, "has reached it only once"),
        (&["--skip", "nothing"], 0, "--skip nothing: no file"),
    ] {
        let (_, stderr) = sample.trace_with_status(machine, "text", options, status)?;
        ensure!(stderr.contains(message), "{options:?}: {stderr}");
    }
    for (options, message) in [
        (["--start", "main#0"], "from 1 on"),
        (["--stop", "0xfoo"], "no hexadecimal number"),
        (
            ["--start", "0xffffffff81000000"],
            "--scope user does not record",
        ),
        (["--only", "0x1000"], "0xFIRST-0xEND"),
        (["--max-records", "0"], "--max-records"),
        (["--until-signal", "NOTHING"], "no signal of Linux"),
    ] {
        let mut command = machine.command(["trace"]);
        command.args(options).args(["--", "/bin/true"]);
        let run = machine::finish(command)?.expect(125)?;
        ensure!(run.stderr.contains(message), "{options:?}: {}", run.stderr);
    }
    Ok(())
}
