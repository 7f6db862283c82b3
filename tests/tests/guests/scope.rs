//! `vbts trace --scope`: the branches of the program, of the kernel on its behalf, or all of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::control_flow::Code;
use vbts_tests::machine::{self, Machine, Run};
use vbts_tests::programs;

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("each_branch_leads_to_the_next", consistent),
            ("the_check_finds_what_is_missing", check_finds),
            ("the_program_is_the_same_in_all", same_program),
            ("the_kernel_alone_is_entered_as_often", kernel_alone),
            ("two_runs_are_the_same", deterministic),
            ("a_small_buffer_loses_nothing", small_buffer),
            ("several_processors_lose_nothing", several_processors),
            ("formats_tell_the_kernel_from_the_program", formats),
            ("a_kernel_without_symbols_is_said_once", no_symbols),
            ("sched_events_come_with_the_kernel", sched),
            ("what_is_lost_is_told", lost),
            ("a_buffer_can_be_too_small", too_small),
            ("what_is_not_traced_is_counted", untraced),
        ],
    )
}

/// 64-bit programs that enter the kernel in every way.
const PROGRAMS: [&str; 4] = ["syscalls.c", "signal.c", "faults.c", "long_calls.c"];

fn build(directory: &Path, source: &str) -> Result<PathBuf> {
    programs::compile(&programs::source(source), &directory.join("program"), &[])
}

/// Traces `program`; the trace, of which nothing may be lost.
fn raw(machine: &Machine, program: &Path, options: &[&str]) -> Result<Vec<Branch>> {
    let output = program.with_extension("raw");
    let run = machine.trace("raw", &output, options, &[program])?;
    ensure!(
        run.stderr.contains("lost: 0, "),
        "status {:?}: {}",
        run.status,
        run.stderr
    );
    branches::parse_raw(&std::fs::read(&output)?)
}

fn consistent(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for source in PROGRAMS {
        let program = build(directory.path(), source)?;
        let code = Code::read(&program, machine.kernel())?;
        let trace = raw(machine, &program, &["--scope", "all"])?;
        code.check(&trace).context(source)?;
        let kernel = trace.iter().filter(|branch| !branch.is_user()).count();
        ensure!(
            kernel > 1000 && kernel < trace.len(),
            "{source}: {kernel} of {} in the kernel",
            trace.len()
        );
    }
    Ok(())
}

/// A trace from which any one branch is missing, or in which one leads elsewhere, is not taken for
/// a whole one.
fn check_finds(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "syscalls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let trace = raw(machine, &program, &["--scope", "all"])?;
    code.check(&trace)?;
    let (mut found, mut tried) = (0, 0);
    for window in trace.windows(3).step_by(trace.len() / 500 + 1) {
        let &[before, this, next] = window else {
            anyhow::bail!("a window of three");
        };
        tried += 1;
        let elsewhere = Branch {
            from: before.from,
            to: this.to,
        };
        // In a tight loop one branch more or less cannot be seen.
        let (missing, wrong) = ([next], [elsewhere, next]);
        let found_in = |rest: &[Branch]| code.check_from(before.to, rest).is_err();
        found += usize::from(found_in(&missing) || found_in(&wrong));
    }
    ensure!(found * 10 > tried * 9, "{found} of {tried} found");
    Ok(())
}

fn is_programs(branch: &&Branch) -> bool {
    branch.is_user()
}

fn same_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for source in PROGRAMS {
        let program = build(directory.path(), source)?;
        let user = raw(machine, &program, &[])?;
        let all = raw(machine, &program, &["--scope", "all"])?;
        let all: Vec<Branch> = all.iter().filter(is_programs).copied().collect();
        let symbols = Symbols::read(&program)?;
        if let Some(difference) = branches::first_difference(&user, &all, &symbols) {
            anyhow::bail!("{source}, --scope user expected, --scope all got: {difference}");
        }
    }
    Ok(())
}

fn deterministic(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    // On KVM time is the host's.
    if machine.accel() != "soft" {
        return Ok(());
    }
    let first = raw(machine, &program, &["--scope", "all"])?;
    let second = raw(machine, &program, &["--scope", "all"])?;
    let symbols = Symbols::read(machine.kernel())?;
    match branches::first_difference(&first, &second, &symbols) {
        Some(difference) => anyhow::bail!(difference),
        None => Ok(()),
    }
}

/// Address of a function of the guest's kernel.
fn kernel_function(machine: &Machine, name: &str) -> Result<u64> {
    use object::{Object, ObjectSymbol};
    let data = std::fs::read(machine.kernel())?;
    let file = object::File::parse(&*data)?;
    let symbol = file.symbol_by_name(name);
    Ok(symbol.with_context(|| format!("no {name}"))?.address())
}

fn kernel_alone(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "syscalls.c")?;
    let entry = kernel_function(machine, "entry_SYSCALL_64")?;
    let calls = |trace: &[Branch]| trace.iter().filter(|branch| branch.to == entry).count();
    let kernel = raw(machine, &program, &["--scope", "kernel"])?;
    let all = raw(machine, &program, &["--scope", "all"])?;
    ensure!(
        kernel.iter().all(|branch| branch.to >> 63 != 0),
        "a branch of the program is in the kernel's trace"
    );
    ensure!(
        calls(&kernel) == calls(&all) && calls(&all) > 300,
        "{} system calls alone, {} among all",
        calls(&kernel),
        calls(&all)
    );
    let back = all.iter().filter(|b| b.from >> 63 != 0 && b.to >> 63 == 0);
    // The last one does not return; interrupts and page faults do, too.
    let back = back.count();
    ensure!(
        back + 1 >= calls(&all),
        "{back} returns for {} calls",
        calls(&all)
    );
    Ok(())
}

/// The smallest buffer, which single system calls overrun many times.
fn small_buffer(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let trace = raw(machine, &program, &["--scope", "all", "--buffer", "96K"])?;
    let gaps = code.check(&trace)?;
    ensure!(
        gaps > 20,
        "only {gaps} gaps in {} records: the buffer was never full",
        trace.len()
    );
    let user = raw(machine, &program, &[])?;
    let programs: Vec<Branch> = trace.iter().filter(is_programs).copied().collect();
    ensure!(user == programs, "the program's branches are others");
    Ok(())
}

fn several_processors(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let options = ["--scope", "all", "--smp", "2", "--buffer", "128K"];
    code.check(&raw(machine, &program, &options)?)?;
    Ok(())
}

/// Runs with a trace in a file, and returns that as well.
fn trace(
    machine: &Machine,
    format: &str,
    options: &[&str],
    program: &Path,
) -> Result<(Run, String)> {
    let output = program.with_extension("trace");
    let run = machine
        .trace(format, &output, options, &[program])?
        .expect(0)?;
    Ok((run, std::fs::read_to_string(output)?))
}

fn formats(machine: &Machine) -> Result<()> {
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
    ensure!(into.count() > 300, "no way into the kernel");
    // On KVM time is the host's: no two runs have the same interrupts.
    ensure!(
        machine.accel() != "soft" || json.lines().count() == text.lines().count(),
        "{} lines of JSON, {} of text",
        json.lines().count(),
        text.lines().count()
    );
    Ok(())
}

fn no_symbols(machine: &Machine) -> Result<()> {
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
    ensure!(said == 1, "said {said} times: {}", run.stderr);
    let text = std::fs::read_to_string(&output)?;
    let named = text
        .lines()
        .find(|line| line.contains("+0x") && line.ends_with("[kernel]"));
    ensure!(text.contains(" [kernel]\n"), "nothing of the kernel");
    ensure!(
        !text.contains("entry_SYSCALL_64"),
        "a name from nowhere: {named:?}"
    );
    Ok(())
}

fn sched(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let program = ["/bin/sleep", "0.05"];
    for scope in ["kernel", "all"] {
        machine
            .trace("json", &output, &["--scope", scope, "--sched"], &program)?
            .expect(0)?;
        let text = std::fs::read_to_string(&output)?;
        let mut on_processor = false;
        let mut arrivals = 0;
        for line in text.lines() {
            let kind: serde_json::Value = serde_json::from_str(line)?;
            match kind["kind"].as_str() {
                Some("arrive") => {
                    ensure!(!on_processor, "two arrivals");
                    on_processor = true;
                    arrivals += 1;
                }
                Some("depart") => {
                    ensure!(on_processor, "two departures");
                    on_processor = false;
                }
                Some("branch") => ensure!(on_processor, "a branch while off the processor"),
                _ => {}
            }
        }
        ensure!(arrivals >= 2, "--scope {scope}: {arrivals} arrivals");
    }
    Ok(())
}

/// One system call with more branches than there is memory for.
fn lost(machine: &Machine) -> Result<()> {
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
        "no number of lost records"
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

fn too_small(machine: &Machine) -> Result<()> {
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

/// Processes, a thread, and the tasks that these start themselves, which are not counted.
fn untraced(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("family.c");
    std::fs::write(&source, FAMILY)?;
    let program = programs::gcc(
        &source,
        &directory.path().join("program"),
        &["-O2", "-static", "-pthread"],
    )?;
    for scope in ["user", "all"] {
        let (_, json) = trace(machine, "json", &["--scope", scope], &program)?;
        let summary: serde_json::Value =
            serde_json::from_str(json.lines().last().context("no summary")?)?;
        ensure!(
            summary["untraced"] == 4 && summary["lost"] == 0,
            "--scope {scope}: {summary}"
        );
    }
    let (run, text) = trace(machine, "text", &[], &program)?;
    let said = ", processes and threads not traced: 4";
    ensure!(
        text.contains(said) && run.stderr.contains(said),
        "{}",
        run.stderr
    );
    ensure!(run.stdout == b"all well\n", "the program: {:?}", run.stdout);

    let program = build(directory.path(), "syscalls.c")?;
    let (_, json) = trace(machine, "json", &[], &program)?;
    ensure!(!json.contains("untraced"), "there is nothing else");
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
