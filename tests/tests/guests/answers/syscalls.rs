//! The system calls of a program, and what the kernel has executed for them.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

/// Makes three system calls of one kind, one of another, and ends.
const SOURCE: &str = "
    .globl _start
    _start:
    mov $3, %ebx
    1: mov $110, %eax; syscall
    dec %ebx
    jnz 1b
    mov $102, %eax; syscall
    mov $231, %eax; xor %edi, %edi; syscall
    .section .note.GNU-stack, \"\", @progbits
";

fn report(machine: &Machine, words: &[&str], trace: &Path) -> Result<String> {
    let mut command = machine.command(["report"]);
    command.args(words).arg(trace);
    Ok(String::from_utf8(
        machine::finish(command)?.expect(0)?.stdout,
    )?)
}

pub(super) fn are_counted(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("calls.S"), SOURCE)?;
    let flags = ["-nostdlib", "-static", "-no-pie"];
    let program = programs::gcc(&path("calls.S"), &path("calls"), &flags)?;
    let trace = path("trace.btrace");
    machine
        .trace("btrace", &trace, &["--scope", "all"], &[&program])?
        .expect(0)?;
    let rows = report(machine, &["syscalls", "--json"], &trace)?;
    let row = |name: &str| -> Result<Value> {
        let parsed = rows.lines().map(serde_json::from_str::<Value>);
        let parsed = parsed.collect::<Result<Vec<Value>, _>>()?;
        let found = parsed.into_iter().find(|row| row["name"] == name);
        found.with_context(|| format!("no {name}: {rows}"))
    };
    for (name, count) in [("getppid", 3), ("getuid", 1)] {
        let row = row(name)?;
        let number = |field: &str| row[field].as_u64().context("a number");
        ensure!(number("calls")? == count, "{row}");
        let (all, longest) = (number("instructions")?, number("longest")?);
        ensure!(
            longest >= 2 && all >= longest && all <= count * longest,
            "{row}"
        );
    }
    // A branch is where the call was made.
    let at = row("getuid")?["longest_branch"]
        .as_u64()
        .context("a number")?;
    let to = (at + 1).to_string();
    let stack = report(machine, &["where", "--to", &to], &trace)?;
    ensure!(stack.contains("getuid"), "{stack}");
    let text = report(machine, &["syscalls"], &trace)?;
    ensure!(
        text.lines().any(|line| line.ends_with("  getppid")),
        "{text}"
    );
    // Without the kernel's branches, a line says what to do.
    let user = path("user.btrace");
    machine
        .trace("btrace", &user, &[], &[&program])?
        .expect(0)?;
    let text = report(machine, &["syscalls"], &user)?;
    ensure!(text.contains("--scope all"), "{text}");
    let mut command = machine.command(["report", "syscalls", "--limit", "3"]);
    command.arg(&trace);
    machine::finish(command)?.expect(125)?;
    Ok(())
}
