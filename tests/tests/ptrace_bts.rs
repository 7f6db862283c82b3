//! The guest kernel's `ptrace` BTS API, tested by a program inside the guest (guest-kernel/tests), which runs as its only
//! process. A guest for each group of its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts::boot::cpio::Cpio;
use vbts_tests::machine::{self, Machine, Test};
use vbts_tests::programs;

/// The groups of tests that need no more than one processor.
const GROUPS: [&str; 5] = ["basic", "signal", "virtual", "kernel", "task"];

fn main() {
    let mut tests: Vec<(String, Test)> = GROUPS
        .iter()
        .map(|&group| {
            (
                group.to_owned(),
                Box::new(move |machine: &Machine| run(machine, group)) as Test,
            )
        })
        .collect();
    tests.push(("no_bts".to_owned(), Box::new(no_bts) as Test));
    machine::main(tests);
}

/// Compiles the program.
fn build(directory: &Path) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests");
    let others: Vec<String> = ["bts", "basic", "signal", "virtual", "kernel", "task", "smp"]
        .iter()
        .map(|name| sources.join(name).with_extension("c").display().to_string())
        .collect();
    let mut flags = vec!["-O2", "-Wall", "-Wextra", "-Werror", "-static"];
    flags.extend(others.iter().map(String::as_str));
    programs::gcc(
        &sources.join("ptrace_bts.c"),
        &directory.join("ptrace_bts"),
        &flags,
    )
}

/// Boots the program as PID 1.
fn boot(
    machine: &Machine,
    program: &Path,
    options: &[&str],
    argument: &str,
) -> Result<machine::Run> {
    let mut archive = Cpio::new();
    archive.file("init", 0o755, &std::fs::read(program)?);
    archive.directory("dev", 0o755);
    archive.character_device("dev/console", 0o600, (5, 1));
    let initrd = program.with_extension("initrd");
    std::fs::write(&initrd, archive.finish())?;

    let mut command = machine.command(["run", "--accel", "soft", "--timeout", "240", "--kernel"]);
    command
        .arg(machine.kernel())
        .arg("--initrd")
        .arg(initrd)
        .args(options)
        .args(["--append", &format!("quiet -- {argument}")]);
    machine::finish(command)
}

fn run(machine: &Machine, group: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let pattern = format!("{group}.*");
    let list = Command::new(&program)
        .args(["--list", &pattern])
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let names = String::from_utf8(list.stdout)?;
    ensure!(!names.is_empty(), "{pattern} has no tests");

    let run = boot(machine, &program, &[], &pattern)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    for name in names.lines() {
        let passed = format!(" {name}\r\n");
        ensure!(
            output
                .split_inclusive('\n')
                .any(|line| line.starts_with("ok ") && line.ends_with(&passed)),
            "{name} was not run:\n{output}"
        );
    }
    Ok(())
}

/// With `--bts off` the guest's processor has no Branch Trace Store, and the kernel says so.
fn no_bts(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path())?;
    let run = boot(machine, &program, &["--bts", "off"], "")?.expect(2)?;
    let output = String::from_utf8_lossy(&run.stdout);
    ensure!(
        output.contains("SKIP no branch trace store: Operation not supported"),
        "{output}"
    );
    Ok(())
}
