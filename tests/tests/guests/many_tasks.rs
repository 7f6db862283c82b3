//! Programs with very many processes and threads: their traces are whole, two of them are the same,
//! and `vbts` needs little memory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, TestModule};
use vbts_tests::tasks::Trace;
use vbts_tests::{program_table, programs};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_thousand_short_processes", processes),
            ("two_hundred_threads_at_once", threads),
            ("nine_hundred_threads_that_sleep", sleeping_threads),
            (
                "processes_with_the_kernel_on_two_processors",
                kernel_processes,
            ),
            ("threads_with_the_kernel_on_two_processors", kernel_threads),
            ("two_processes_of_make", make),
            ("much_code_on_eight_processors", much_code),
            ("a_fork_bomb_until_its_end", fork_bomb),
            ("a_fork_bomb_until_a_time_limit", endless_fork_bomb),
        ],
    )
}

const LIMIT: Duration = Duration::from_secs(300);

/// The guest's memory, as an option.
const MEMORY: [&str; 2] = ["--memory", "512M"];
/// Limit of the data of `vbts` in KiB (RLIMIT_DATA): the guest's memory and as much again.
const DATA: u32 = 1 << 20;

/// A command of `vbts`, whose guest has [`MEMORY`], within [`DATA`].
fn limited(vbts: &Command) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("ulimit -d {DATA} && exec \"$@\""), "sh"]);
    machine::append(&mut command, vbts);
    command
}

/// Traces a program, within [`DATA`].
fn trace<S: AsRef<str>>(
    machine: &Machine,
    directory: &Path,
    options: &[&str],
    program: &[S],
) -> Result<(Run, Trace)> {
    let mut vbts = machine.command(["trace", "--accel", machine.accel(), "--format", "json"]);
    vbts.args(MEMORY);
    // Not in the program's directory, whose times would differ in a second run.
    let outside = tempfile::tempdir()?;
    let pipe = outside.path().join("trace");
    let mut command = limited(&vbts);
    command
        .arg("--output")
        .arg(&pipe)
        .args(options)
        .arg("--")
        .args(program.iter().map(AsRef::as_ref))
        .current_dir(directory)
        .stdin(Stdio::null());
    Trace::of(command, &pipe, LIMIT)
}

/// Traces a program twice. The traces must be whole and the same.
fn twice<S: AsRef<str>>(
    machine: &Machine,
    directory: &Path,
    program: &[S],
) -> Result<(Run, Trace)> {
    let whole = || {
        let (run, trace) = trace(machine, directory, &[], program)?;
        let (run, trace) = (run.expect(0)?, trace.expect_whole()?);
        ensure!(trace.untraced.is_empty(), "{:?}", trace.untraced);
        anyhow::Ok((run, trace))
    };
    let (first, second) = (whole()?, whole()?);
    ensure!(
        first.1.digest == second.1.digest && first.0.stdout == second.0.stdout,
        "two runs differ: {} and {}",
        first.1.summary,
        second.1.summary
    );
    Ok(first)
}

fn build(directory: &Path, source: &str) -> Result<String> {
    let file = directory.join("program.c");
    std::fs::write(&file, source)?;
    let flags = ["-O2", "-static", "-pthread", "-Wall"];
    let program = programs::gcc(&file, &directory.join("program"), &flags)?;
    Ok(program.to_str().context("a path")?.to_owned())
}

fn processes(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let script = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
    let (_, trace) = twice(machine, directory.path(), &["/bin/sh", "-c", script])?;
    let executed = |task: &&vbts_tests::tasks::Task| task.executed == ["true"];
    let programs = trace.tasks.iter().filter(executed).count();
    ensure!(
        trace.tasks.len() == 1001 && programs == 1000,
        "{programs} programs: {}",
        trace.summary
    );
    Ok(())
}

/// 200 threads that all run at once.
const THREADS: &str = r#"
#include <pthread.h>

enum { COUNT = 200 };

static pthread_barrier_t barrier;
static volatile int sum;

static void *work(void *unused)
{
	for (int round = 0; round < 4; round++) {
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 10000; i++)
			sum += i & 1 ? i : 3;
	}
	return unused;
}

int main(void)
{
	pthread_t ids[COUNT];

	pthread_barrier_init(&barrier, NULL, COUNT);
	for (int i = 0; i < COUNT; i++)
		pthread_create(&ids[i], NULL, work, NULL);
	for (int i = 0; i < COUNT; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
"#;

fn threads(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), THREADS)?;
    let (_, trace) = twice(machine, directory.path(), &[program])?;
    ensure!(trace.tasks.len() == 201, "{}", trace.summary);
    let least = trace.tasks.iter().map(|task| task.branches).min();
    ensure!(least >= Some(40_000), "a thread has {least:?} branches");
    Ok(())
}

/// One thread records more than the host keeps in memory, while all others sleep.
const SLEEPING: &str = r#"
#include <pthread.h>
#include <unistd.h>

enum { COUNT = 900 };

static void *sleeps(void *unused)
{
	pause();
	return unused;
}

int main(void)
{
	pthread_attr_t small;
	pthread_t id;
	volatile int sum = 0;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 32768);
	for (int i = 0; i < COUNT; i++)
		if (pthread_create(&id, &small, sleeps, NULL))
			return 1;
	for (int i = 0; i < 5000000; i++)
		sum += i;
	return 0;
}
"#;

/// The sleeping threads are drained often enough for the order of time.
fn sleeping_threads(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), SLEEPING)?;
    let (run, trace) = trace(machine, directory.path(), &[], &[program])?;
    run.expect(0)?;
    let trace = trace.expect_whole()?;
    ensure!(
        trace.tasks.len() == 901 && trace.summary["unordered"].is_null(),
        "{}",
        trace.summary
    );
    Ok(())
}

/// Each of eight processors executes 160000 functions.
const CODE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

enum { PROCESSORS = 8, SIZE = 40000 * 4096, DISTANCE = 1024 };

static unsigned char *code;

static void *work(void *processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((long)processor, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		return code;
	for (int at = 0; at < SIZE; at += DISTANCE)
		((void (*)(void))(code + at))();
	return 0;
}

int main(void)
{
	pthread_t ids[PROCESSORS];
	void *failed = 0;

	code = mmap(0, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return 1;
	for (int at = 0; at < SIZE; at += DISTANCE)
		code[at] = 0xC3;
	for (long i = 0; i < PROCESSORS; i++)
		pthread_create(&ids[i], 0, work, (void *)i);
	for (int i = 0; i < PROCESSORS && !failed; i++)
		pthread_join(ids[i], &failed);
	return failed != 0;
}
"#;

/// The processors share the memory for decoded code.
fn much_code(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), CODE)?;
    let mut vbts = machine.command(["trace", "--accel", machine.accel(), "--smp", "8"]);
    vbts.args(MEMORY)
        .args(["--last", "1", "--format", "raw", "--output", "/dev/null"])
        .args(["--", &program]);
    machine::finish_within(limited(&vbts), LIMIT)?.expect(0)?;
    Ok(())
}

/// Executes itself 200 times.
const EXECUTES: &str = r#"
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count > 1)
		return 0;
	for (int i = 0; i < 200; i++) {
		if (vfork() == 0) {
			execl(arguments[0], arguments[0], "child", NULL);
			_exit(1);
		}
		wait(NULL);
	}
	return 0;
}
"#;

/// Traces a program with the kernel's branches on two processors: nothing is lost.
fn with_kernel(machine: &Machine, source: &str, tasks: usize) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = [build(directory.path(), source)?];
    let run = |options: &[&str]| {
        let (run, trace) = trace(machine, directory.path(), options, &program)?;
        run.expect(0)?;
        let trace = trace.expect_whole()?;
        ensure!(
            trace.tasks.len() == tasks && trace.summary["unordered"].is_null(),
            "{}",
            trace.summary
        );
        anyhow::Ok(trace)
    };
    let all = run(&["--smp", "2", "--scope", "all"])?;
    let user = run(&["--smp", "2"])?;
    let branches = |trace: &Trace| trace.tasks.iter().map(|task| task.branches).sum::<u64>();
    ensure!(
        branches(&all) > branches(&user) + 100 * tasks as u64,
        "{} and {}",
        all.summary,
        user.summary
    );
    Ok(())
}

fn kernel_processes(machine: &Machine) -> Result<()> {
    with_kernel(machine, EXECUTES, 201)
}

fn kernel_threads(machine: &Machine) -> Result<()> {
    let source = THREADS.replace("COUNT = 200", "COUNT = 50");
    with_kernel(machine, &source, 51)
}

fn make(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let makefile = program_table::directory().join("Makefile");
    std::fs::copy(makefile, directory.path().join("Makefile"))?;
    let (_, trace) = twice(machine, directory.path(), &["/usr/bin/make", "-j2"])?;
    let ran = |name: &str| {
        let executed = trace.tasks.iter().flat_map(|task| &task.executed);
        executed.filter(|file| file.contains(name)).count()
    };
    ensure!(
        ran("cc1") == 4 && ran("-as") == 4 && ran("collect2") == 1,
        "{:#?}",
        trace.tasks
    );
    Ok(())
}

/// Each process forks in a loop, until the kernel refuses. Then all of them end.
const FORK_BOMB: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
	int error;
	int processes;
};

int main(void)
{
	struct shared volatile *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
					      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t first = getpid();

	while (!shared->error) {
		pid_t pid = fork();

		if (pid < 0)
			shared->error = errno;
		else if (pid == 0)
			__atomic_add_fetch(&shared->processes, 1, __ATOMIC_RELAXED);
	}
	while (wait(NULL) > 0)
		;
	if (getpid() == first)
		printf("%d\n", shared->processes);
	return shared->error != EAGAIN && shared->error != ENOMEM;
}
"#;

fn fork_bomb(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), FORK_BOMB)?;
    let (run, trace) = twice(machine, directory.path(), &[program])?;
    let processes: usize = String::from_utf8(run.stdout)?.trim().parse()?;
    ensure!(
        processes > 1000 && trace.tasks.len() == processes + 1,
        "{processes} processes: {}",
        trace.summary
    );
    // An instruction takes a nanosecond: the agent's work for a process does not depend on their
    // number.
    let most = 1_000_000 * processes as u64;
    ensure!(trace.time < most, "it took {} ns", trace.time);
    Ok(())
}

/// It has no end of its own. Where the guest cannot hand over its buffers in time, the trace says
/// so.
fn endless_fork_bomb(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = [
        "/bin/bash",
        "-c",
        ":() { : | : & }; :; wait; read < /dev/zero",
    ];
    let options = ["--timeout", "10"];
    let (run, trace) = trace(machine, directory.path(), &options, &program)?;
    run.expect(124)?;
    ensure!(
        trace.summary["end"] == "timeout" && trace.summary["lost"] == 0 && trace.tasks.len() > 100,
        "{}",
        trace.summary
    );
    Ok(())
}
