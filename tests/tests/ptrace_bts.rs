//! The guest kernel's `ptrace` BTS API, tested by a program inside the guest (guest-kernel/tests/ptrace_bts.c), which
//! runs as its only process, a guest for each test.

use std::path::Path;

use anyhow::{Result, ensure};
use vbts::boot::cpio::Cpio;
use vbts_tests::machine::{self, Machine, Test};
use vbts_tests::programs;

const TESTS: [&str; 13] = [
    "errors",
    "every_branch",
    "wrap",
    "overflow",
    "overflow_undrained",
    "two_tasks",
    "fork",
    "exec",
    "detach",
    "tracer_death",
    "perf",
    "compat",
    "unprivileged",
];

fn main() {
    let mut tests: Vec<(String, Test)> = TESTS
        .iter()
        .map(|&name| {
            (
                name.to_owned(),
                Box::new(move |machine: &Machine| run(machine, name)) as Test,
            )
        })
        .collect();
    tests.push(("no_bts".to_owned(), Box::new(no_bts) as Test));
    machine::main(tests);
}

/// Boots the program as PID 1.
fn boot(machine: &Machine, options: &[&str], argument: &str) -> Result<machine::Run> {
    let directory = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests/ptrace_bts.c");
    let program = programs::gcc(
        &source,
        &directory.path().join("ptrace_bts"),
        &["-O2", "-Wall", "-Wextra", "-Werror", "-static"],
    )?;
    let mut archive = Cpio::new();
    archive.file("init", 0o755, &std::fs::read(program)?);
    archive.directory("dev", 0o755);
    archive.character_device("dev/console", 0o600, (5, 1));
    let initrd = directory.path().join("initrd");
    std::fs::write(&initrd, archive.finish())?;

    let mut command = machine.command(["run", "--accel", "soft", "--timeout", "120", "--kernel"]);
    command
        .arg(machine.kernel())
        .arg("--initrd")
        .arg(initrd)
        .args(options)
        .args(["--append", &format!("quiet -- {argument}")]);
    machine::finish(command)
}

fn run(machine: &Machine, name: &str) -> Result<()> {
    let run = boot(machine, &[], name)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    let passed = format!(" {name}\r\n");
    ensure!(
        output
            .split_inclusive('\n')
            .any(|line| line.starts_with("ok ") && line.ends_with(&passed)),
        "{name} was not run:\n{output}"
    );
    Ok(())
}

/// With `--bts off` the guest's processor has no Branch Trace Store, and the kernel says so.
fn no_bts(machine: &Machine) -> Result<()> {
    let run = boot(machine, &["--bts", "off"], "")?.expect(2)?;
    let output = String::from_utf8_lossy(&run.stdout);
    ensure!(
        output.contains("SKIP no branch trace store: Operation not supported"),
        "{output}"
    );
    Ok(())
}
