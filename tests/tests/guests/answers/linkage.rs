//! Calls through the procedure linkage table. The first one of each function leads through the
//! dynamic linker's resolver, if the program asks for that.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{report, tool};

/// `work` calls functions of the C library, of which the first calls bind names.
const SOURCE: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    __attribute__((noinline)) int work(int n)
    {
        char text[64];
        snprintf(text, sizeof(text), "%d", n);
        return atoi(text) + strlen(text);
    }
    int main(void)
    {
        int sum = 0;
        for (int i = 0; i < 3; i++)
            sum += work(i);
        return sum > 100;
    }
"#;

/// Parts of the names of what is between a call and the function.
const LINKAGE: [&str; 4] = ["@plt", ".plt", "_dl_runtime_resolve", "_dl_fixup"];

fn has_linkage(text: &str) -> bool {
    LINKAGE.iter().any(|name| text.contains(name))
}

fn build(directory: &Path, binding: &str) -> Result<PathBuf> {
    let (source, program) = (directory.join("bind.c"), directory.join("bind"));
    std::fs::write(&source, SOURCE)?;
    let binding = format!("-Wl,-z,{binding}");
    programs::gcc(&source, &program, &["-O2", "-fno-builtin", &binding])?;
    Ok(program)
}

fn trace(machine: &Machine, program: &Path, name: &str) -> Result<PathBuf> {
    let trace = program.with_file_name(name);
    let options = ["--epoch", "0"];
    machine
        .trace("btrace", &trace, &options, &[program])?
        .expect(0)?;
    Ok(trace)
}

/// Stacks have the functions that were called, by those that have called them.
pub(super) fn is_no_caller(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "lazy")?;
    let lazy = trace(machine, &program, "lazy.btrace")?;
    let text = report(machine, &["folded"], &lazy)?;
    ensure!(!has_linkage(&text), "{text}");
    let raw = report(machine, &["folded", "--raw-frames"], &lazy)?;
    ensure!(raw.contains(";work;snprintf@plt "), "{raw}");
    ensure!(!raw.contains("_dl_runtime_resolve_xsavec;snprintf"));
    let sum = |text: &str| -> u64 {
        let counts = text.lines().filter_map(|line| line.rsplit(' ').next());
        counts.filter_map(|count| count.parse::<u64>().ok()).sum()
    };
    ensure!(sum(&text) == sum(&raw), "{} {}", sum(&text), sum(&raw));
    let calls = report(machine, &["calls", "--least", "0"], &lazy)?;
    ensure!(!has_linkage(&calls), "{calls}");
    let line = calls
        .lines()
        .find(|line| line.trim_end().ends_with("snprintf"));
    let count = line.and_then(|line| line.split_whitespace().nth(3));
    ensure!(count == Some("3"), "{calls}");
    // Each report of stacks leaves them out, and shows them on demand.
    for kind in ["flamegraph", "firefox"] {
        let text = report(machine, &[kind], &lazy)?;
        ensure!(!text.contains("_dl_fixup"), "{kind}");
        ensure!(text.contains("snprintf"), "{kind}");
        let raw = report(machine, &[kind, "--raw-frames"], &lazy)?;
        ensure!(raw.contains("_dl_fixup"), "{kind} --raw-frames");
    }
    // A call and the stack at that moment, in the resolver.
    let steps = ["tail", "--steps", "10000"];
    let tail = report(machine, &steps, &lazy)?;
    ensure!(!has_linkage(&tail), "{tail}");
    let is_call = |line: &&str| line.contains(" call work+") && line.contains("snprintf+0x0");
    ensure!(tail.lines().filter(is_call).count() == 3, "{tail}");
    Ok(())
}

/// The dynamic linker without symbols: what the header of the table leads to is the resolver.
pub(super) fn of_a_stripped_linker(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "lazy")?;
    let linker = directory.path().join("ld.so");
    let mut strip = tool("strip", &["-o"])?;
    strip.arg(&linker).arg("/lib64/ld-linux-x86-64.so.2");
    machine::finish(strip)?.expect(0)?;
    let trace = directory.path().join("stripped.btrace");
    let words = [linker.as_path(), &program];
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &words)?
        .expect(0)?;
    let text = report(machine, &["folded"], &trace)?;
    ensure!(text.contains(";main;work;"), "{text}");
    let is_called = |line: &&str| line.contains("work;") && line.contains("snprintf ");
    let line = text.lines().find(is_called).context("no snprintf")?;
    ensure!(
        !line.contains("ld.so+") || line.find("ld.so+") < line.find("main"),
        "{line}"
    );
    Ok(())
}

/// Two runs do not part where one has bound a name before.
pub(super) fn is_no_difference(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "lazy")?;
    let lazy = trace(machine, &program, "lazy.btrace")?;
    let other = tempfile::tempdir()?;
    let now = trace(machine, &build(other.path(), "now")?, "now.btrace")?;
    let mut command = machine.command(["report", "diff"]);
    command.arg(&lazy).arg(&now);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8(run.stdout)?;
    let same = "the calls of the program's own functions are the same, in order";
    ensure!(text.lines().any(|line| line == same), "{text}");
    Ok(())
}
