//! How a run ends: what a trace has up to there, and what it says about it.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_time_limit_keeps_the_records", timeout),
            ("a_deadlock_shows_where_each_thread_stands", deadlock),
            ("the_first_signal_is_for_the_program", first_signal),
            ("the_second_signal_ends_the_run", second_signal),
            ("a_crash_has_a_report", crash),
        ],
    )
}

/// A buffer that a debug build of `vbts` drains well within the time that it gives the guest.
const BUFFER: [&str; 2] = ["--buffer", "64K"];

fn summary(output: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(output)?;
    let last = text.lines().last().context("no summary")?;
    Ok(serde_json::from_str(last)?)
}

fn timeout(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    for program in [
        &["/bin/sleep", "1000000000"][..],
        &["/bin/sh", "-c", "while :; do :; done"],
    ] {
        let options = [&["--timeout", "10"], &BUFFER[..]].concat();
        let run = machine.trace("json", &output, &options, program)?;
        let run = run.expect(124)?;
        let summary = summary(&output)?;
        ensure!(
            summary["end"] == "timeout"
                && summary["exit"].is_null()
                && summary["lost"] == 0
                && summary["undrained_at_most"].is_null()
                && summary["records"].as_u64() > Some(1000),
            "{program:?}: {summary}"
        );
        ensure!(
            run.stderr.contains("where each task stands"),
            "{}",
            run.stderr
        );
        // Nothing is wrong with the guest's kernel, so its console is not shown.
        ensure!(
            run.stderr
                .ends_with("\nvbts: timeout: the guest was still running after 10 s\n")
                && !run.stderr.contains("console"),
            "{}",
            run.stderr
        );
    }
    Ok(())
}

/// Two threads that each wait for the other's mutex.
const DEADLOCK: &str = r#"
#include <pthread.h>

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;

static void lock_both(pthread_mutex_t *first, pthread_mutex_t *second)
{
	pthread_mutex_lock(first);
	pthread_barrier_wait(&barrier);
	pthread_mutex_lock(second);
}

static void *thread(void *unused)
{
	lock_both(&b, &a);
	return unused;
}

int main(void)
{
	pthread_t id;

	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&id, NULL, thread, NULL);
	lock_both(&a, &b);
	return 0;
}
"#;

fn build(directory: &Path, text: &str) -> Result<String> {
    let source = directory.join("program.c");
    std::fs::write(&source, text)?;
    let options = ["-g", "-O1", "-static", "-pthread"];
    let program = programs::gcc(&source, &directory.join("program"), &options)?;
    Ok(program.to_str().context("a path")?.into())
}

fn deadlock(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), DEADLOCK)?;
    let output = directory.path().join("trace");
    let run = machine.trace("text", &output, &["--timeout", "10"], &[program])?;
    let run = run.expect(124)?;
    let futex = run.stderr.matches("in system call 202 (futex) at").count();
    ensure!(futex == 2, "{}", run.stderr);
    ensure!(
        run.stderr.contains("its last 8 branches:"),
        "{}",
        run.stderr
    );
    Ok(())
}

/// Runs `script` in a shell, and sends `vbts` SIGTERM each time it prints a line, `count` times.
/// Returns the exit status, the summary, and what was printed on standard error.
fn terminated(machine: &Machine, script: &str, count: usize) -> Result<(i32, Value, String)> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--format", "json"]);
    command.arg("--output").arg(&output).args(BUFFER);
    command.args(["--", "/bin/sh", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let stdout = child.stdout.as_mut().context("no pipe")?;
    for _ in 0..count {
        let mut line = [0; 2];
        stdout.read_exact(&mut line)?;
        kill(pid, Signal::SIGTERM)?;
    }
    let status = machine::wait(&mut child, Duration::from_secs(60));
    if status.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let mut stderr = String::new();
    let pipe = child.stderr.as_mut().context("no pipe")?;
    pipe.read_to_string(&mut stderr)?;
    let status = status?.with_context(|| format!("killed by a signal: {stderr}"))?;
    Ok((status, summary(&output)?, stderr))
}

fn first_signal(machine: &Machine) -> Result<()> {
    let (status, summary, stderr) = terminated(machine, "echo a; while :; do :; done", 1)?;
    ensure!(
        status == 128 + 15 && summary["end"] == "signal" && summary["signal"] == 15,
        "{status}: {summary}\n{stderr}"
    );
    let script = "trap 'exit 3' TERM; echo a; while :; do :; done";
    let (status, summary, stderr) = terminated(machine, script, 1)?;
    ensure!(
        status == 3 && summary["end"] == "exited" && summary["exit"] == 3,
        "{status}: {summary}\n{stderr}"
    );
    Ok(())
}

fn second_signal(machine: &Machine) -> Result<()> {
    let script = "trap 'echo b' TERM; echo a; while :; do :; done";
    let (status, summary, stderr) = terminated(machine, script, 2)?;
    ensure!(
        status == 128 + 15
            && summary["end"] == "interrupted"
            && summary["lost"] == 0
            && summary["undrained_at_most"].is_null(),
        "{status}: {summary}\n{stderr}"
    );
    ensure!(stderr.contains("interrupted by SIGTERM"), "{stderr}");
    Ok(())
}

const CRASH: &str = r#"
static int *volatile address = (int *)16;

static void __attribute__((noinline)) follow(int *to)
{
	*to = 1;
}

int main(void)
{
	follow(address);
	return 0;
}
"#;

fn crash(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), CRASH)?;
    for format in ["text", "json", "raw"] {
        let output = directory.path().join("trace");
        let run = machine.trace(format, &output, &[], &[&program])?;
        let run = run.expect(128 + 11)?;
        for wanted in [
            "(program) crashed: SIGSEGV at address 0x10 (nothing is mapped there)",
            "follow+0x0 (",
            ": mov dword ptr [rdi],0x1\n",
            "rdi    0000000000000010",
            "its last 32 branches:",
            "main+0x",
        ] {
            ensure!(run.stderr.contains(wanted), "no {wanted}: {}", run.stderr);
        }
    }
    Ok(())
}
