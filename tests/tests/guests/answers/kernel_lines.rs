//! Source lines of the guest's kernel, if it was built with debugging information.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use vbts_tests::machine::{self, Machine, Skip};
use vbts_tests::{guest_program, programs};

use super::tool;

/// Where `guest-kernel/build --debug-info` leaves its results.
pub(super) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest-debug-info")
}

/// The kernel, and its sources.
fn kernel() -> Result<(PathBuf, PathBuf)> {
    let Ok(directory) = directory().canonicalize() else {
        bail!(Skip(
            "there is no target/guest-debug-info: guest-kernel/build --debug-info makes it".into()
        ));
    };
    Ok((directory.join("vmlinux"), directory.join("linux")))
}

/// The output of `vbts report`, which may have something to say about the kernel's stacks.
fn report(machine: &Machine, words: &[&str], kernel: &Path, trace: &Path) -> Result<String> {
    let mut command = machine.command(["report"]);
    command.args(words).arg("--kernel").args([kernel, trace]);
    let run = machine::finish(command)?.expect(0)?;
    Ok(String::from_utf8(run.stdout)?)
}

/// Counts by line, in gcov's format: `None` is a line that was not executed.
fn counts(text: &str) -> HashMap<u32, u64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').map(str::trim);
        let (count, number) = (fields.next()?, fields.next()?.parse().ok()?);
        match count {
            "-" => None,
            "#####" => Some((number, 0)),
            count => Some((number, count.parse().ok()?)),
        }
    };
    text.lines().filter_map(of_line).collect()
}

/// The lines of `file` in which binutils' addr2line sees the instructions of a function, with the
/// largest of their counts.
fn of_instructions(assembly: &str, kernel: &Path, file: &Path) -> Result<HashMap<u32, u64>> {
    let instruction = |line: &str| -> Option<(String, u64)> {
        let mut words = line.split_whitespace();
        let count = words.next()?.parse().ok()?;
        let address = words.next()?;
        u64::from_str_radix(address, 16).ok()?;
        Some((address.to_owned(), count))
    };
    let all: Vec<(String, u64)> = assembly.lines().filter_map(instruction).collect();
    let mut command = Command::new("addr2line");
    command
        .arg("-e")
        .arg(kernel)
        .args(all.iter().map(|(at, _)| at));
    let output = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    ensure!(output.lines().count() == all.len(), "{output}");
    let mut lines = HashMap::new();
    for (place, (_, count)) in output.lines().zip(&all) {
        let place = place.split(' ').next().unwrap_or_default();
        let (path, line) = place.rsplit_once(':').context("no line")?;
        if Path::new(path) == file
            && let Ok(line) = line.parse()
        {
            let most = lines.entry(line).or_default();
            *most = (*count).max(*most);
        }
    }
    Ok(lines)
}

/// The lines of a system call have the counts of their instructions, whose lines addr2line says.
pub(super) fn system_call(machine: &Machine) -> Result<()> {
    let (kernel, source) = kernel()?;
    tool("addr2line", &[])?;
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("events");
    programs::gcc(&programs::source("events.c"), &program, &["-O1", "-static"])?;
    let trace = directory.path().join("events.btrace");
    let mut command = machine.command(["trace", "--scope", "kernel", "--output"]);
    command
        .arg(&trace)
        .arg("--kernel")
        .arg(&kernel)
        .arg("--")
        .arg(&program);
    machine::finish(command)?.expect(0)?;
    let file = source.join("fs/eventfd.c");
    let name = file.to_str().context("a path")?;
    let lines = report(machine, &["lines", "--source", name], &kernel, &trace)?;
    let lines = counts(&lines);
    let mut equal = 0;
    for function in ["eventfd_write", "eventfd_read"] {
        let words = ["assembly", "--function", function];
        let assembly = report(machine, &words, &kernel, &trace)?;
        // Other lines are those of functions that are also inlined elsewhere.
        for (line, count) in of_instructions(&assembly, &kernel, &file)? {
            let ours = lines
                .get(&line)
                .with_context(|| format!("no line {line}"))?;
            let text = std::fs::read_to_string(&file)?;
            let text = text.lines().nth(line as usize - 1).unwrap_or_default();
            ensure!(
                *ours >= count,
                "{function}: {line}: {ours}, not {count}: {text}"
            );
            equal += u32::from(*ours == count);
        }
    }
    ensure!(equal > 20, "{equal} lines are equal");
    let executed = |word: &str, expected: u64| -> Result<()> {
        let text = std::fs::read_to_string(&file)?;
        let found = (1_u32..)
            .zip(text.lines())
            .find(|(_, text)| text.contains(word));
        let (line, _) = found.with_context(|| format!("no {word}"))?;
        let count = lines.get(&line);
        ensure!(count == Some(&expected), "{word}: {count:?}");
        Ok(())
    };
    // What events.c does.
    executed("if (ULLONG_MAX - ctx->count > ucnt)", 5)?;
    executed("ctx->count += ucnt;", 5)?;
    executed("return sizeof(ucnt);", 1)?;
    executed("return -EAGAIN;", 1)?;
    executed("return -EINVAL;", 0)
}

/// The lines that a boot has executed.
pub(super) fn boot(machine: &Machine) -> Result<()> {
    let (kernel, source) = kernel()?;
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    std::fs::write(at.join("end.S"), ".globl _start\n_start: ud2\n")?;
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = programs::gcc(&at.join("end.S"), &at.join("end"), &flags)?;
    let mut command = guest_program::command(machine, "soft", &kernel, &program, "")?;
    let trace = at.join("boot.btrace");
    command.arg("--record").arg(&trace);
    // The kernel panics when PID 1 ends.
    machine::finish(command)?.expect(255)?;
    let file = source.join("init/main.c");
    let words = ["lcov", "--source", file.to_str().context("a path")?];
    let info = report(machine, &words, &kernel, &trace)?;
    for function in ["start_kernel", "kernel_init", "run_init_process"] {
        let record = format!("FNDA:1,{function}");
        ensure!(
            info.lines().any(|line| line == record),
            "no {record}: {info}"
        );
    }
    Ok(())
}
