//! `vbts report strace` lists the system calls that strace sees in the same guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("the_calls_are_those_of_strace", same),
            ("a_trace_has_no_arguments", needs_recording),
        ],
    )
}

/// Files, memory, signals, sockets, times, and a process that ends by a signal.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
	char text[64] = { 0 };
	int pair[2], status;
	struct stat data;
	struct timespec moment = { 0, 1000 };
	int file = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
	read(file, text, sizeof(text));
	lseek(file, 0, SEEK_SET);
	fstat(file, &data);
	close(file);
	open("/nonexistent", O_RDWR);
	mkdir("/tmp/a \"directory\"\n1", 0750);
	rmdir("/tmp/a \"directory\"\n1");
	access("/etc/passwd", R_OK);
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
	write(pair[0], "\1\0012\xff\n", 5);
	read(pair[1], text, sizeof(text));
	struct pollfd polled[] = { { pair[0], POLLIN | POLLOUT }, { -1, POLLIN }, { pair[1], POLLPRI } };
	poll(polled, 3, 100);
	poll(polled + 2, 1, 1);
	ppoll(polled, 3, 0, 0);
	int number = 1, word = 5;
	socklen_t size = sizeof(number);
	struct linger linger = { 1, 2 };
	setsockopt(pair[0], SOL_SOCKET, SO_REUSEADDR, &number, size);
	setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &number, size);
	getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &number, &size);
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 4, 0);
	syscall(SYS_futex, &word, FUTEX_WAKE, 1);
	syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 4, &moment, 0, -1);
	syscall(SYS_futex, &word, FUTEX_CMP_REQUEUE_PRIVATE, 1, 2, &number, 6);
	syscall(SYS_futex, &word, FUTEX_WAKE_OP, 1, 2, &number, 0x10001003);
	char *memory = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(memory, 4096, PROT_READ);
	munmap(memory, 8192);
	nanosleep(&moment, 0);
	signal(SIGUSR1, SIG_IGN);
	raise(SIGUSR1);
	if (fork() == 0) {
		close(pair[0]);
		*(volatile int *)8 = 1;
	}
	wait4(-1, &status, 0, 0);
	getcwd(text, sizeof(text));
	return 7;
}
"#;

/// What a task does, in order: the name of a call, or of a signal, with its arguments and result.
fn happenings(text: &str, task: u32) -> Vec<(String, Vec<String>, String)> {
    let lines = text.lines().filter_map(|line| {
        // Numbers of tasks differ, because strace is one, too.
        let line = with_task(line, task);
        if let Some(signal) = line.strip_prefix("--- ") {
            let signal = signal.split(", si_").next()?;
            return Some((signal.to_owned(), Vec::new(), String::new()));
        }
        if line.starts_with("+++ ") {
            let end = line.replace(" (core dumped)", "");
            return Some((end, Vec::new(), String::new()));
        }
        let (name, rest) = line.split_once('(')?;
        let (arguments, result) = rest.rsplit_once(" = ")?;
        let arguments = arguments.trim_end().strip_suffix(')')?;
        Some((name.to_owned(), split(arguments), result.to_owned()))
    });
    lines.collect()
}

/// A line in which the number of its task has a name.
fn with_task(line: &str, task: u32) -> String {
    let task = task.to_string();
    let words = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(|word| match word.strip_prefix(&task) {
        Some(rest) if rest.len() <= 1 && !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            format!("TASK{rest}")
        }
        _ => word.to_owned(),
    });
    words.collect()
}

/// The arguments in a text, which are separated by commas outside of brackets and strings.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut is_quoted, mut is_escaped) =
        (vec![String::new()], 0, false, false);
    for c in text.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '{' | '[' | '(' if !is_quoted => depth += 1,
            '}' | ']' | ')' if !is_quoted => depth -= 1,
            ',' if !is_quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

/// Whether our text of an argument says what strace's says. An address alone stands for what is
/// there, and some commands have no names.
fn is_same(ours: &str, theirs: &str) -> bool {
    let is_address = |text: &str| text.starts_with("0x");
    let environment = |text: &str| text.split(" /* ").nth(1).map(str::to_owned);
    match environment(ours) {
        Some(count) => environment(theirs) == Some(count),
        None => {
            is_address(ours)
                || ours == theirs
                || ours.parse::<u64>().is_ok() && !theirs.starts_with('"')
        }
    }
}

fn record(machine: &Machine, directory: &Path, program: &Path) -> Result<PathBuf> {
    let recording = directory.join("calls.vbts");
    let mut command = machine.command(["record", "--quiet", "--output"]);
    command.arg(&recording).arg("--").arg(program);
    command.current_dir(directory);
    machine::finish(command)?.expect(7)?;
    Ok(recording)
}

fn same(machine: &Machine) -> Result<()> {
    if Command::new("strace").arg("-V").output().is_err() {
        return Err(Skip::program("strace is not installed".into()));
    }
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("calls.c"), PROGRAM)?;
    let program = programs::gcc(&path("calls.c"), &path("calls"), &["-O1", "-w"])?;
    let recording = record(machine, directory.path(), &program)?;
    let mut command = machine.command(["report", "strace"]);
    command.arg(&recording);
    let ours = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    // strace writes a file for each process.
    std::fs::create_dir(path("strace"))?;
    let share = format!("{}:rw", path("strace").display());
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--share", &share]);
    command
        .args([
            "--quiet",
            "--output",
            "/dev/null",
            "--",
            "strace",
            "-ff",
            "-o",
        ])
        .arg(path("strace/of"))
        .arg(&program)
        .current_dir(directory.path());
    machine::finish(command)?.expect(7)?;
    let files = std::fs::read_dir(path("strace"))?;
    let mut theirs = files
        .map(|file| {
            let file = file?.path();
            let task = file
                .extension()
                .and_then(|task| task.to_str())
                .context("no number")?;
            Ok((task.parse()?, std::fs::read_to_string(&file)?))
        })
        .collect::<Result<Vec<(u32, String)>>>()?;
    theirs.sort_unstable();
    let mut tasks: Vec<u32> = Vec::new();
    for line in ours.lines() {
        let task = line.split(' ').next().context("no task")?.parse()?;
        if !tasks.contains(&task) {
            tasks.push(task);
        }
    }
    ensure!(tasks.len() == 2 && theirs.len() == 2, "{tasks:?}: {ours}");
    for (task, (their_task, theirs)) in tasks.into_iter().zip(theirs) {
        let prefix = format!("{task} ");
        let lines = ours.lines().filter_map(|line| line.strip_prefix(&prefix));
        let lines: Vec<&str> = lines.collect();
        let (found, expected) = (
            happenings(&lines.join("\n"), task),
            happenings(&theirs, their_task),
        );
        ensure!(found.len() == expected.len(), "{ours}\n{theirs}");
        for (found, expected) in found.iter().zip(&expected) {
            ensure!(found.0 == expected.0, "{found:?}, not {expected:?}");
            // A result with a number of a child, or an address.
            let is_same_result = found.2 == expected.2
                || ["clone", "wait4", "brk", "mmap"].contains(&found.0.as_str());
            ensure!(is_same_result, "{found:?}, not {expected:?}");
            // strace shows this when the call begins.
            if found.0 == "wait4" {
                continue;
            }
            let pairs = found.1.iter().zip(&expected.1);
            ensure!(
                found.1.len() == expected.1.len() && pairs.into_iter().all(|(a, b)| is_same(a, b)),
                "{found:?}, not {expected:?}"
            );
        }
    }
    // JSON has the same calls, with their times.
    let mut command = machine.command(["report", "strace", "--json"]);
    command.arg(&recording);
    let json = String::from_utf8(machine::finish(command)?.expect(0)?.stdout)?;
    let rows: Vec<Value> = json
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    ensure!(rows.len() == ours.lines().count());
    ensure!(
        rows.iter()
            .all(|row| row["time"].as_u64().is_some_and(|time| time > 0))
    );
    Ok(())
}

/// A trace has branches, and no arguments: the message says what has them.
fn needs_recording(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("true.btrace");
    machine
        .trace("btrace", &trace, &[], &["/bin/true"])?
        .expect(0)?;
    let mut command = machine.command(["report", "strace"]);
    command.arg(&trace);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("vbts record"), "{}", run.stderr);
    Ok(())
}
