//! What vbts reports about a trace: names of kernel functions, lost records, and tasks that were
//! not traced.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{build, trace};

pub(super) fn formats(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "syscalls.c")?;
    let (run, text) = trace(machine, "text", &["--scope", "all"], &program)?;
    ensure!(!run.stderr.contains("symbols"), "{}", run.stderr);
    for wanted in [
        "syscalls.c:",
        " entry_SYSCALL_64+0x0 [kernel]\n",
        " __x64_sys_rt_sigprocmask+0x0 [kernel]\n",
        " asm_exc_page_fault+0x0 [kernel]\n",
    ] {
        ensure!(text.contains(wanted), "no `{wanted}` in the trace");
    }
    for line in text.lines().filter(|line| line.contains(" -> ")) {
        for end in line.split(" -> ") {
            let kernel = end.starts_with("ffffffff") && end.find(' ') == Some(16);
            ensure!(kernel == end.contains("[kernel]"), "{line}");
        }
    }
    let (_, json) = trace(machine, "json", &["--scope", "all"], &program)?;
    let into = json
        .lines()
        .filter(|line| line.contains("\"from\":\"0x40") && line.contains("\"to\":\"0xffffffff8"));
    ensure!(into.count() > 300, "too few branches into the kernel");
    // On KVM time is the host's, so two runs have different interrupts.
    let branches = |trace: &str, mark| trace.lines().filter(|line| line.contains(mark)).count();
    ensure!(
        machine.accel() != "soft"
            || branches(&json, r#""kind":"branch""#) == branches(&text, " -> "),
        "{} lines of JSON, {} of text",
        json.lines().count(),
        text.lines().count()
    );
    Ok(())
}

pub(super) fn no_symbols(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "straight.S")?;
    let stripped = directory.path().join("vmlinux");
    let strip = Command::new("strip")
        .arg("-o")
        .args([&stripped, machine.kernel()])
        .status()?;
    ensure!(strip.success(), "strip failed");
    let output = directory.path().join("trace");
    let kernel = ["--kernel".as_ref(), stripped.as_os_str()];
    let mut command = machine.command(["trace", "--accel", "soft", "--scope", "all", "--output"]);
    command.arg(&output).args(kernel).arg("--").arg(&program);
    let run = machine::finish(command)?.expect(131)?;
    let said = run.stderr.matches("has no symbols").count();
    ensure!(said == 1, "reported {said} times: {}", run.stderr);
    let text = std::fs::read_to_string(&output)?;
    let named = text
        .lines()
        .find(|line| line.contains("+0x") && line.ends_with("[kernel]"));
    ensure!(text.contains(" [kernel]\n"), "no address of the kernel");
    ensure!(
        !text.contains("entry_SYSCALL_64"),
        "a kernel without symbols has names: {named:?}"
    );
    Ok(())
}

/// One system call takes more branches than fit in memory.
pub(super) fn lost(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("endless.c");
    std::fs::write(&source, ENDLESS)?;
    let program = programs::gcc(
        &source,
        &directory.path().join("program"),
        &["-O2", "-static"],
    )?;
    let options = ["--scope", "all", "--memory", "48M", "--buffer", "96K"];
    let (run, json) = trace(machine, "json", &options, &program)?;
    let summary: serde_json::Value =
        serde_json::from_str(json.lines().last().context("no summary")?)?;
    ensure!(
        summary["lost"].as_u64() >= Some(1) && summary["lost_at_least"] == true,
        "{summary}"
    );
    ensure!(
        run.stderr.contains("branches were lost; more --memory"),
        "{}",
        run.stderr
    );
    let (run, text) = trace(machine, "text", &options, &program)?;
    ensure!(
        text.contains(", lost: at least "),
        "the number of lost records is missing"
    );
    ensure!(run.stderr.contains(", lost: at least "), "{}", run.stderr);
    let output = directory.path().join("raw");
    let run = machine
        .trace("raw", &output, &options, &[&program])?
        .expect(0)?;
    ensure!(run.stderr.contains(", lost: at least "), "{}", run.stderr);
    Ok(())
}

const ENDLESS: &str = r#"
#include <fcntl.h>
#include <sys/uio.h>

static char buffer[64 << 10];

int main(void)
{
	struct iovec part[64];

	for (int i = 0; i < 64; i++)
		part[i] = (struct iovec){ buffer, sizeof(buffer) };
	return readv(open("/dev/urandom", O_RDONLY), part, 64) != 64 * sizeof(buffer);
}
"#;

pub(super) fn too_small(machine: &Machine) -> Result<()> {
    let run = machine
        .run([
            "trace",
            "--accel",
            "soft",
            "--scope",
            "all",
            "--buffer",
            "23K",
            "--",
            "/bin/true",
        ])?
        .expect(125)?;
    ensure!(
        run.stderr
            .contains("a trace buffer of 23552 bytes is too small"),
        "{}",
        run.stderr
    );
    Ok(())
}

/// The children and the thread of the traced program are counted. Tasks that those start are not.
pub(super) fn untraced(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("family.c");
    std::fs::write(&source, FAMILY)?;
    let program = programs::gcc(
        &source,
        &directory.path().join("program"),
        &["-O2", "-static", "-pthread"],
    )?;
    for scope in ["user", "all"] {
        let options = ["--follow", "none", "--scope", scope];
        let (_, json) = trace(machine, "json", &options, &program)?;
        let summary: serde_json::Value =
            serde_json::from_str(json.lines().last().context("no summary")?)?;
        ensure!(
            summary["untraced"] == 4 && summary["lost"] == 0,
            "--scope {scope}: {summary}"
        );
    }
    let (run, text) = trace(machine, "text", &["--follow", "none"], &program)?;
    let said = ", processes and threads not traced: 4";
    ensure!(
        text.contains(said) && run.stderr.contains(said),
        "{}",
        run.stderr
    );
    ensure!(run.stdout == b"all well\n", "the program: {:?}", run.stdout);

    let program = build(directory.path(), "syscalls.c")?;
    let (_, json) = trace(machine, "json", &[], &program)?;
    ensure!(
        !json.contains("untraced"),
        "a task is counted, and the program has no other"
    );
    Ok(())
}

const FAMILY: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread(void *unused)
{
	return system("exit 7") == 7 << 8 ? NULL : unused;
}

int main(void)
{
	int status, good = 0;
	pthread_t id;
	void *result;
	pid_t pid;

	for (int i = 0; i < 2; i++) {
		pid = fork();
		if (!pid)
			_exit(fork() ? 5 : 6);
		good += waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5;
	}
	pid = vfork();
	if (!pid)
		_exit(3);
	good += waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3;
	if (!pthread_create(&id, NULL, thread, &id) && !pthread_join(id, &result))
		good += !result;
	puts(good == 4 ? "all well" : "not well");
	return 0;
}
"#;
