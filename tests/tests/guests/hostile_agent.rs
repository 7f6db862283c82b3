//! A guest whose kernel is not ours, and writes to the agent's port what no agent writes:
//! guest-kernel/tests/hostile_agent.c. `vbts trace` ends with an error that says what is wrong, or
//! at its time limit, with the trace of what it was told, and takes no memory without bound.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, Test, TestModule};
use vbts_tests::programs;

/// Attacks that end the run, and what the error says.
const REFUSED: [(&str, &str); 12] = [
    ("reserved_bytes", "has a non-zero reserved byte"),
    (
        "giant_length",
        "a frame has 4294967295 bytes, more than 4194304",
    ),
    ("unknown_kind", "malformed message"),
    ("names_beyond_the_frame", "malformed message"),
    ("outside_of_memory", "outside of the guest's memory"),
    ("in_a_device", "outside of the guest's memory"),
    ("around_the_address_space", "outside of the guest's memory"),
    ("too_many_records", "malformed message"),
    ("never_announced", "task 9, which is not traced"),
    ("ended_before", "task 1, which is not traced"),
    ("starts", "more than 65536 tasks at once"),
    ("mappings_without_records", "too many mappings"),
];

/// Attacks that go on until the time limit.
const ENDLESS: [&str; 13] = [
    "starts_and_ends",
    "names",
    "untraced_later",
    "events_later",
    "records_later",
    "mappings",
    "crashes",
    "standing",
    "notes",
    "wants",
    "code",
    "build_ids",
    "signals_and_ends",
];

/// Time limit of an endless attack, in seconds. The guest gets two more to drain its buffers.
const TIMEOUT: &str = "3";
/// Memory of the guest.
const MEMORY: &str = "64M";
/// Limit of the data of `vbts` in KiB (RLIMIT_DATA): what docs/security.md allows beside 64 MiB of
/// the guest's memory.
const DATA: u32 = 1 << 20;
/// Time for which a run may last on a slow and busy machine: there is a time limit, and what waits
/// to be written at the end is written.
const PATIENCE: Duration = Duration::from_secs(120);

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let refused = REFUSED.into_iter().map(|(attack, message)| {
        let test: Test = Box::new(move |machine| refused(machine, attack, message));
        (attack.to_owned(), test)
    });
    let endless = ENDLESS.into_iter().map(|attack| {
        let test: Test = Box::new(move |machine| endless(machine, attack));
        (attack.to_owned(), test)
    });
    let mut all: Vec<_> = refused.chain(endless).collect();
    all.push((
        "taken_out_of_order".into(),
        Box::new(taken_out_of_order) as Test,
    ));
    machine::trials(module, all)
}

fn kernel(directory: &Path, attack: &str) -> Result<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests/hostile_agent.c");
    let attack_option = format!("-DATTACK={attack}");
    programs::gcc(
        &source,
        &directory.join(attack),
        &[
            &attack_option,
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-fno-pie",
            "-fno-stack-protector",
            "-mno-red-zone",
            "-mgeneral-regs-only",
            "-Wl,-Ttext-segment=0x1000000,--build-id=none",
        ],
    )
}

/// Traces a program in a guest with this kernel, within [`DATA`]. The trace goes to `output`.
fn trace(machine: &Machine, attack: &str, timeout: &str, output: &Path) -> Result<Run> {
    let directory = tempfile::tempdir()?;
    let kernel = kernel(directory.path(), attack)?;
    // Native code and KVM do nothing else for these guests.
    let mut vbts = machine.command(["trace", "--accel", "soft", "--memory", MEMORY]);
    vbts.env("VBTS_KERNEL", kernel);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("ulimit -d {DATA} && exec \"$@\""), "sh"]);
    machine::append(&mut command, &vbts)
        .args(["--timeout", timeout, "--format", "raw", "--output"])
        .arg(output)
        .args(["--", "/bin/true"]);
    machine::finish_within(command, PATIENCE)
}

fn refused(machine: &Machine, attack: &str, message: &str) -> Result<()> {
    let run = trace(machine, attack, "100", Path::new("/dev/null"))?.expect(125)?;
    ensure!(run.stderr.contains("the guest's agent"), "{}", run.stderr);
    ensure!(run.stderr.contains(message), "{}", run.stderr);
    Ok(())
}

fn endless(machine: &Machine, attack: &str) -> Result<()> {
    let run = trace(machine, attack, TIMEOUT, Path::new("/dev/null"))?.expect(124)?;
    let limit = format!("timeout: the guest was still running after {TIMEOUT} s");
    ensure!(run.stderr.contains(&limit), "{}", run.stderr);
    // What the guest says has no control characters, and is cut.
    let lines = run.stderr.lines();
    let longest = lines.map(str::len).max().unwrap_or(0);
    ensure!(longest < 64 << 10, "a line has {longest} bytes");
    ensure!(!run.stderr.contains('\u{1b}'), "{}", run.stderr);
    Ok(())
}

/// The guest stores other records while the host reads them: the trace has what was in memory at
/// some time, and the summary counts what the trace has.
fn taken_out_of_order(machine: &Machine) -> Result<()> {
    const RECORD: u64 = 24;
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let run = trace(machine, "taken_out_of_order", TIMEOUT, &output)?.expect(124)?;
    let counted = run.stderr.split("records: ").nth(1);
    let counted = counted.and_then(|rest| rest.split(',').next());
    let counted: u64 = counted.context("no summary")?.parse()?;
    let written = fs::metadata(&output)?.len();
    ensure!(
        counted > 400_000 && written == counted * RECORD,
        "{written} bytes: {}",
        run.stderr
    );
    Ok(())
}
