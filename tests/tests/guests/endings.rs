//! How a run ends: what a trace has up to there, and what it says about it.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_time_limit_keeps_the_records", timeout),
            ("a_deadlock_ends_the_run_with_all_stacks", deadlock),
            ("a_wait_for_something_outside_is_no_deadlock", no_deadlock),
            ("the_first_signal_is_for_the_program", first_signal),
            ("the_second_signal_ends_the_run", second_signal),
            ("a_crash_has_a_report", crash),
            ("a_file_size_limit_ends_the_trace", file_size_limit),
            (
                "the_program_has_the_file_size_limit",
                program_file_size_limit,
            ),
            ("a_time_limit_ends_an_unread_trace", unread_at_time_limit),
            ("a_signal_ends_an_unread_trace", unread_at_signal),
            ("a_blocked_run_loop_does_not_hold_up_the_end", blocked),
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
    let run = machine.trace("json", &output, &[], &[&program])?;
    let run = run.expect(125)?;
    ensure!(
        run.stderr.matches("in system call 202 (futex) at").count() == 2
            && run.stderr.matches(" lock_both (inlined) ").count() == 2
            && run.stderr.contains(" thread+0x")
            // It has returned before `main` was called.
            && !run.stderr.contains("_dl_non_dynamic_init")
            && run
                .stderr
                .contains("\nvbts: deadlock: all tasks of the program wait"),
        "{}",
        run.stderr
    );
    ensure!(summary(&output)?["end"] == "deadlock");
    let options = ["--wait-forever", "--timeout", "10"];
    let run = machine.trace("text", &output, &options, &[&program])?;
    run.expect(124)?;
    // Of a program that is not a static one, in a language with locks of its own.
    const SCRIPT: &str = "import threading; lock = threading.Lock(); lock.acquire(); \
        thread = threading.Thread(target=lock.acquire); thread.start(); thread.join()";
    let program = ["/usr/bin/python3", "-c", SCRIPT];
    machine
        .trace("raw", &output, &["--follow", "all"], &program)?
        .expect(125)?;
    Ok(())
}

/// A thread that waits without a limit for one that sleeps, that a timer's signal wakes, or that
/// reads its input.
const WAITS: &str = r#"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static sem_t done;

static void handler(int signal)
{
	(void)signal;
	sem_post(&done);
}

static void *thread(void *mode)
{
	char byte;

	if (!strcmp(mode, "sleep"))
		sleep(10);
	else
		read(0, &byte, 1);
	sem_post(&done);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t id;

	(void)argc;
	sem_init(&done, 0, 0);
	if (!strcmp(argv[1], "alarm")) {
		signal(SIGALRM, handler);
		alarm(10);
	} else {
		pthread_create(&id, NULL, thread, argv[1]);
	}
	while (sem_wait(&done))
		;
	return 7;
}
"#;

fn no_deadlock(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), WAITS)?;
    for mode in ["sleep", "alarm"] {
        let output = directory.path().join(mode);
        let run = machine.trace("text", &output, &[], &[&program, mode])?;
        run.expect(7).with_context(|| mode.to_owned())?;
    }
    let mut command = machine.command(["trace", "--format", "text", "--output", "/dev/null", "--"]);
    command.arg(&program).arg("input");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // Longer than what the guest takes for a deadlock.
    std::thread::sleep(Duration::from_secs(6));
    ensure!(child.try_wait()?.is_none(), "the run has ended");
    child.stdin.take().context("no pipe")?.write_all(b"x")?;
    let (status, stderr) = end(&mut child)?;
    ensure!(status == Some(7), "{status:?}: {stderr}");
    Ok(())
}

/// Waits for the end of `vbts`. Returns its exit status and what it has printed on standard error.
fn end(child: &mut Child) -> Result<(Option<i32>, String)> {
    let status = machine::wait(child, Duration::from_secs(120));
    let mut stderr = String::new();
    let pipe = child.stderr.as_mut().context("no pipe")?;
    pipe.read_to_string(&mut stderr)?;
    Ok((status.with_context(|| stderr.clone())?, stderr))
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
    let (status, stderr) = end(&mut child)?;
    let status = status.with_context(|| format!("killed by a signal: {stderr}"))?;
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

/// A debugger stops the thread that runs the guest, as a call of the host that blocks does. Another
/// thread ends the trace. The debugger may stop the thread while it holds a lock, which no call of
/// the host does. Then the trace has no end, and the run is repeated.
fn blocked(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    for _ in 0..3 {
        let mut command = machine.command(["trace", "--accel", machine.accel()]);
        command.args(["--format", "json", "--output"]).arg(&output);
        command.args(BUFFER).args(["--timeout", "20", "--"]);
        command.args(["/bin/sh", "-c", "echo a; while :; do :; done"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.as_mut().context("no pipe")?;
        stdout.read_exact(&mut [0; 2])?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        ptrace::seize(pid, ptrace::Options::empty())?;
        ptrace::interrupt(pid)?;
        waitpid(pid, None)?;
        let (status, stderr) = end(&mut child)?;
        ensure!(
            status == Some(124) && stderr.contains("a thread that runs the guest does not answer"),
            "{status:?}: {stderr}"
        );
        if stderr.contains("holds up the end of the output") {
            continue;
        }
        let summary = summary(&output)?;
        ensure!(
            summary["end"] == "timeout" && summary["records"].as_u64() > Some(1000),
            "{summary}\n{stderr}"
        );
        return Ok(());
    }
    bail!("no trace has its end")
}

/// `command`, started by a shell that permits files of `kib` KiB.
fn limited(command: &Command, kib: u32) -> Command {
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &format!("ulimit -f {kib} && exec \"$@\""), "bash"]);
    machine::append(&mut shell, command);
    shell
}

/// What the message about an incomplete trace says: the bytes that were written, and whether there
/// may be more, and the branches that they have at least.
fn written(stderr: &str) -> Result<(u64, bool, u64)> {
    let message = stderr
        .split_once("the trace is incomplete: only its first ")
        .with_context(|| stderr.to_owned())?
        .1;
    let mut words = message.split_whitespace();
    let bytes = words.next().context("no size")?.parse()?;
    let more = words.nth(1) == Some("or");
    let records = message
        .split_once("were written, which have ")
        .context("no number of records")?
        .1;
    let records = records.split_whitespace().next().context("no records")?;
    Ok((bytes, more, records.parse()?))
}

/// Checks that the first bytes of `trace`, as many as the message in `stderr` says, have the
/// branches that it says, and, unless they are in btrace blocks, not many more.
fn check_written(trace: &[u8], format: &str, stderr: &str) -> Result<()> {
    let (bytes, more, least) = written(stderr)?;
    let len = trace.len() as u64;
    ensure!(bytes == len || more && bytes < len, "{len} bytes: {stderr}");
    let trace = &trace[..usize::try_from(bytes)?];
    let lines = |part: &[u8]| {
        let lines = trace.split(|byte| *byte == b'\n');
        let has = |line: &&[u8]| line.windows(part.len()).any(|window| window == part);
        lines.filter(has).count() as u64
    };
    let count = match format {
        "json" => lines(b"\"branch\""),
        "text" => lines(b" -> "),
        "raw" => len / 24,
        _ => vbts_trace::Reader::new(std::io::Cursor::new(trace))?.records(),
    };
    // So many are formatted at a time.
    let most = least + if format == "btrace" { 0 } else { 4096 };
    ensure!(
        (least..=most).contains(&count),
        "{format}: {count} branches: {stderr}"
    );
    Ok(())
}

/// The trace ends with a whole line or record, and the message says why.
fn file_size_limit(machine: &Machine) -> Result<()> {
    for (format, to_stdout) in [
        ("json", false),
        ("json", true),
        ("text", false),
        ("raw", false),
        ("btrace", false),
    ] {
        let directory = tempfile::tempdir()?;
        let output = directory.path().join("trace");
        let mut command = machine.command(["trace", "--accel", machine.accel()]);
        command.args(["--format", format]);
        if !to_stdout {
            command.arg("--output").arg(&output);
        }
        command.args(["--", "/bin/true"]);
        let kib = if format == "btrace" { 2 } else { 10 };
        let mut command = limited(&command, kib);
        if to_stdout {
            command.stdout(std::fs::File::create(&output)?);
        }
        let run = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        let stderr = String::from_utf8_lossy(&run.stderr);
        ensure!(
            run.status.code() == Some(125)
                && stderr.contains("the trace is incomplete")
                && stderr.contains("the file size limit is reached (ulimit -f"),
            "{format}: {}\n{stderr}",
            run.status
        );
        let trace = std::fs::read(&output)?;
        check_written(&trace, format, &stderr)?;
        let whole = match format {
            "raw" => trace.len() % 24 == 0,
            "btrace" => true,
            _ => trace.ends_with(b"\n"),
        };
        ensure!(
            whole && trace.len() >= (kib as usize - 1) << 10,
            "{format}: {} bytes",
            trace.len()
        );
        if format == "json" {
            for line in std::str::from_utf8(&trace)?.lines() {
                serde_json::from_str::<Value>(line)?;
            }
        }
    }
    Ok(())
}

/// A program whose file becomes too large gets SIGXFSZ, or EFBIG if it ignores that, as on the
/// host.
fn program_file_size_limit(machine: &Machine) -> Result<()> {
    let script = "ulimit -f; head -c 20000 /dev/zero > \"$0\"; echo $?; \
                  trap '' XFSZ; head -c 20000 /dev/zero >> \"$0\"; echo $?; \
                  wc -c < \"$0\"; head -c 20000 /dev/zero; kill -XFSZ $$";
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("file");
    let result = |mut command: Command| -> Result<_> {
        let stdout = tempfile::NamedTempFile::new()?;
        command.stdout(stdout.reopen()?).stdin(Stdio::null());
        let run = command.stderr(Stdio::piped()).output()?;
        // A shell of the host that is killed has no status of its own.
        let status = run.status.code().unwrap_or(128 + 25);
        Ok((status, std::fs::read(stdout.path())?))
    };
    let mut host = Command::new("/bin/bash");
    host.args(["-c", script]).arg(&file);
    let host = result(limited(&host, 8))?;
    std::fs::remove_file(&file)?;
    let mut guest = machine.command(["trace", "--accel", machine.accel(), "--format", "raw"]);
    guest.args(["--output", "/dev/null", "--", "/bin/bash", "-c", script]);
    guest.arg(&file);
    let guest = result(limited(&guest, 8))?;
    ensure!(
        guest == host && host.1.starts_with(b"8\n153\n"),
        "{} and {} bytes, on the host {} and {}\n{}",
        guest.0,
        guest.1.len(),
        host.0,
        host.1.len(),
        String::from_utf8_lossy(&guest.1)
    );
    Ok(())
}

/// Bytes that a pipe takes at least.
const PIPE: u64 = 60 << 10;

/// Traces a program whose trace is read slowly, until `vbts` ends; `act` gets its process ID. The
/// program has ended before. Returns the exit status, the bytes of the trace, and standard error.
fn unread(
    machine: &Machine,
    options: &[&str],
    act: impl Fn(Pid) -> Result<()>,
) -> Result<(Option<i32>, Vec<u8>, String)> {
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--format", "json"]);
    command.args(options).args(["--", "/bin/true"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().context("no pipe")?;
    // The trace is longer than a pipe, and begins before the program ends.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) && rustix::io::ioctl_fionread(&stdout)? < PIPE {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(1));
    act(Pid::from_raw(i32::try_from(child.id())?))?;
    let reader = std::thread::spawn(move || {
        let (mut trace, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = stdout.read(&mut bytes) {
            trace.extend_from_slice(&bytes[..n]);
            std::thread::sleep(Duration::from_millis(20));
        }
        trace
    });
    let (status, stderr) = end(&mut child)?;
    let trace = reader.join().ok().context("the reader has failed")?;
    Ok((status, trace, stderr))
}

fn check_unread(
    (status, trace, stderr): (Option<i32>, Vec<u8>, String),
    expected: i32,
    message: &str,
) -> Result<()> {
    ensure!(
        status == Some(expected)
            && stderr.ends_with(&format!("\nvbts: {message}\n"))
            && stderr.contains("the trace is incomplete"),
        "{status:?}: {stderr}"
    );
    check_written(&trace, "json", &stderr)?;
    let text = std::str::from_utf8(&trace)?;
    ensure!(
        text.ends_with('\n') && !text.contains("summary"),
        "{} bytes",
        text.len()
    );
    for line in text.lines() {
        serde_json::from_str::<Value>(line)?;
    }
    Ok(())
}

fn unread_at_time_limit(machine: &Machine) -> Result<()> {
    let run = unread(machine, &["--timeout", "3"], |_| Ok(()))?;
    let message = "timeout: the trace was not written within 3 s";
    check_unread(run, 124, message)
}

fn unread_at_signal(machine: &Machine) -> Result<()> {
    let run = unread(machine, &[], |pid| Ok(kill(pid, Signal::SIGTERM)?))?;
    check_unread(run, 128 + 15, "interrupted by SIGTERM")
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
            "its last 12 branches:",
            "  called from:\n",
            "main+0x",
        ] {
            ensure!(run.stderr.contains(wanted), "no {wanted}: {}", run.stderr);
        }
    }
    Ok(())
}
