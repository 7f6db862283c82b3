//! Inlined functions, compared with the same functions that are called, and with GDB's stack.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{report, tool};

/// `outer` calls `inner` in a loop, and both call `leaf`. With an argument, `inner` calls `fail`.
const SOURCE: &str = r#"
#include <stdlib.h>
static volatile int sum, *nowhere;
__attribute__((noinline)) void fail(int n)
{
    *nowhere = n;
    sum = n;
}
__attribute__((noinline)) int leaf(int n)
{
    sum += n;
    return sum & 3;
}
static inline __attribute__((always_inline)) void inner(int n)
{
    if (leaf(n))
        sum += 2;
    if (n < 0)
        fail(n);
}
static inline __attribute__((always_inline)) int outer(int n)
{
    for (int i = 0; i < n; i++)
        inner(i);
    return leaf(n);
}
__attribute__((noinline)) int work(int n)
{
    int all = 0;
    for (int i = 0; i < 10; i++)
        all += outer(i);
    inner(n);
    return all;
}
int main(int argc, char **argv)
{
    return work(argc > 1 ? -argc : argc) > 1000;
}
"#;
/// Lines of the calls of `fail`, of `inner` in `work`, and of `work` in `main`.
const CALLS: [&str; 3] = ["inlined.c:19)", "inlined.c:32)", "inlined.c:37)"];

fn build(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("inlined.c"), directory.join("inlined"));
    std::fs::write(&source, SOURCE)?;
    programs::gcc(&source, &program, &["-O2", "-g"])?;
    Ok(program)
}

/// Instructions of a stack in folded form, or of all that it is a part of.
fn instructions(folded: &str, stack: &str) -> u64 {
    let lines = folded.lines().filter(|line| line.contains(stack));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Inlined functions call what those call that are not inlined. The function around them executes
/// what it executes without their frames.
pub(super) fn have_frames(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let trace = program.with_extension("btrace");
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[program])?
        .expect(0)?;
    let functions = report(machine, &["functions", "--limit", "10000"], &trace)?;
    let calls = |name: &str| {
        let line = functions
            .lines()
            .find(|line| line.contains(&format!("  {name} (")))?;
        line.split_whitespace().nth(5).map(str::to_owned)
    };
    ensure!(calls("leaf").as_deref() == Some("56"), "{functions}");
    for name in ["inner (inlined)", "outer (inlined)"] {
        ensure!(functions.contains(name), "{functions}");
    }

    let folded = report(machine, &["folded"], &trace)?;
    for stack in [
        ";main;work;outer (inlined);inner (inlined);leaf ",
        ";main;work;outer (inlined);leaf ",
        ";main;work;inner (inlined);leaf ",
    ] {
        ensure!(folded.contains(stack), "{stack}: {folded}");
    }
    ensure!(!folded.contains(";work;leaf "), "{folded}");
    // Each call of the same function executes as much.
    let of_leaf = |stack: &str| instructions(&folded, &format!(";{stack};leaf "));
    let one = of_leaf("work;inner (inlined)");
    ensure!(of_leaf("outer (inlined)") == 10 * one, "{folded}");
    ensure!(
        of_leaf("outer (inlined);inner (inlined)") == 45 * one,
        "{folded}"
    );
    let without = report(machine, &["folded", "--no-inline"], &trace)?;
    ensure!(!without.contains("(inlined)"), "{without}");
    for stack in [";main;work;leaf ", ";main;work"] {
        let (with, without) = (";main;work", instructions(&without, stack));
        let leaf = if stack.ends_with("leaf ") {
            ";leaf "
        } else {
            ""
        };
        let lines = folded.lines().filter(|line| line.contains(leaf));
        let lines: Vec<&str> = lines.collect();
        ensure!(
            instructions(&lines.join("\n"), with) == without,
            "{stack}: {folded}"
        );
    }
    let in_order = report(machine, &["trace", "--function", "work"], &trace)?;
    ensure!(
        in_order.contains("leaf(); /* from inner (inlined), outer (inlined) */"),
        "{in_order}"
    );
    Ok(())
}

/// The stack of a fault in an inlined function is that of GDB.
pub(super) fn are_in_the_stack(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let mut gdb = tool(
        "gdb",
        &["-nx", "-batch", "-ex", "run x", "-ex", "backtrace"],
    )?;
    gdb.arg(&program);
    let gdb = machine::finish(gdb)?;
    let gdb = String::from_utf8_lossy(&gdb.stdout).into_owned();
    let stack = gdb.lines().filter(|line| line.starts_with('#'));
    let name = |line: &str| {
        let before = line.split(" (").next()?;
        Some(before.split_whitespace().last()?.to_owned())
    };
    let expected: Vec<String> = stack.filter_map(name).collect();
    ensure!(expected == ["fail", "inner", "work", "main"], "{gdb}");

    let trace = directory.path().join("fault.btrace");
    let words = [program.as_path(), Path::new("x")];
    let run = machine.trace("btrace", &trace, &["--epoch", "0"], &words)?;
    let run = run.expect(139)?;
    // The report of the crash has these frames, too.
    let lines = run.stderr.lines();
    let crash = lines.skip_while(|line| !line.contains("crashed:")).skip(1);
    let crash = crash.filter(|line| !line.contains("called from:"));
    let name = |line: &str| {
        let label = line.split_whitespace().nth(1)?;
        Some(label.split('+').next()?.to_owned())
    };
    let names: Vec<String> = crash.take(expected.len()).filter_map(name).collect();
    ensure!(names == expected, "{}", run.stderr);
    let text = report(machine, &["where"], &trace)?;
    let frames = text
        .lines()
        .skip_while(|line| !line.contains("stack:"))
        .skip(1);
    let frames: Vec<&str> = frames.take(expected.len()).collect();
    let name = |line: &&str| {
        let name = line.split_whitespace().nth(1)?;
        Some(name.split('+').next()?.to_owned())
    };
    let names: Vec<String> = frames.iter().filter_map(name).collect();
    ensure!(names == expected, "{text}");
    let is_marked = |frame: &&str| frame.contains("inner (inlined) (");
    ensure!(frames.iter().any(is_marked), "{text}");
    for (frame, line) in frames.iter().skip(1).zip(CALLS) {
        ensure!(frame.ends_with(line), "{frame}: {line}");
    }
    Ok(())
}

/// Functions of one file have no linkage name. Their scopes are around their entries, or around
/// those of their declarations.
const SCOPES: &str = r#"
#define INLINED static inline __attribute__((always_inline))
static volatile int sum;
namespace outer {
    namespace inner { INLINED void parse(int n) { if (n & 1) sum += n; } }
    namespace { INLINED void hidden(int n) { if (n & 2) sum += n; } }
    namespace {
        struct Reader {
            inline __attribute__((always_inline)) void read(int n) { if (n & 4) sum += n; }
        };
    }
    __attribute__((noinline)) void work(int n)
    {
        Reader reader;
        for (int i = 0; i < n; i++) {
            inner::parse(i);
            hidden(i);
            reader.read(i);
        }
    }
}
int main() { outer::work(100); }
"#;

pub(super) fn have_scopes(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (source, program) = (
        directory.path().join("scopes.cpp"),
        directory.path().join("scopes"),
    );
    std::fs::write(&source, SCOPES)?;
    let mut compiler = tool("g++", &["-O2", "-g", "-o"])?;
    compiler.arg(&program).arg(&source);
    machine::finish(compiler)?.expect(0)?;
    let trace = program.with_extension("btrace");
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[program])?
        .expect(0)?;
    let folded = report(machine, &["folded"], &trace)?;
    for name in [
        "outer::inner::parse",
        "outer::(anonymous namespace)::hidden",
        "outer::(anonymous namespace)::Reader::read",
    ] {
        let inlined = folded
            .lines()
            .filter(|line| line.contains(";outer::work(int);"));
        let mut names = inlined.map(|line| line.rsplit(';').next().unwrap_or_default());
        ensure!(
            names.any(|last| last.starts_with(name) && last.contains("(inlined)")),
            "{name}: {folded}"
        );
    }
    Ok(())
}

/// Split debugging information has no inlined functions for us, and the report says so once.
pub(super) fn that_are_split(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (source, program) = (
        directory.path().join("inlined.c"),
        directory.path().join("inlined"),
    );
    std::fs::write(&source, SOURCE)?;
    let trace = program.with_extension("btrace");
    for version in ["-gdwarf-5", "-gdwarf-4"] {
        let mut compiler = tool("gcc", &["-O2", "-g", "-gsplit-dwarf", version, "-o"])?;
        compiler.arg(&program).arg(&source);
        machine::finish(compiler)?.expect(0)?;
        let run = machine.trace("btrace", &trace, &["--epoch", "0"], &[&program])?;
        run.expect(0)?;
        let mut command = machine.command(["report", "functions"]);
        command.arg(&trace);
        let run = machine::finish(command)?.expect(0)?;
        let said = run.stderr.matches("debugging information is split").count();
        ensure!(said == 1, "{version}: {}", run.stderr);
    }
    Ok(())
}
