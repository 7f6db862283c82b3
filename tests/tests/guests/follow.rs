//! The processes and threads that a traced program starts: all of them have records, in the order
//! of time, in each format.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::tasks::Trace;
use vbts_tests::{branches, programs};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("every_command_of_a_pipeline_is_traced", pipeline),
            ("processes_and_threads_have_their_records", family),
            ("a_thread_replaces_its_leader_at_once", replaced),
            ("tasks_that_hide_from_a_tracer_are_traced", hidden),
            ("a_task_can_ask_for_another_tracer", traceme),
            ("a_directory_has_a_file_for_each_task", directory),
            ("text_names_the_task_that_continues", text),
            ("many_short_processes_are_whole", many_processes),
            ("many_threads_are_whole", many_threads),
        ],
    )
}

const PIPELINE: [&str; 3] = ["/bin/sh", "-c", "ls / | sort | head -n 3"];

fn json(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Traces `program`, and checks its trace ([`Trace`]).
fn tasks(machine: &Machine, options: &[&str], program: &[&str]) -> Result<Trace> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let options = [options, &["--sched"]].concat();
    machine
        .trace("json", &output, &options, program)?
        .expect(0)?;
    Trace::open(&output)?.expect_whole()
}

fn pipeline(machine: &Machine) -> Result<()> {
    let Trace { tasks, summary, .. } = tasks(machine, &[], &PIPELINE)?;
    ensure!(summary["untraced"].is_null(), "{summary}");
    let executed: BTreeSet<&str> = tasks
        .iter()
        .flat_map(|task| task.executed.iter().map(String::as_str))
        .collect();
    for name in ["ls", "sort", "head"] {
        ensure!(executed.contains(name), "{executed:?}");
    }
    if machine.accel() != "soft" {
        return Ok(());
    }
    // On virtual time, a run has one order.
    let directory = tempfile::tempdir()?;
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    for output in [&first, &second] {
        machine.trace("json", output, &[], &PIPELINE)?.expect(0)?;
    }
    ensure!(std::fs::read(first)? == std::fs::read(second)?);
    Ok(())
}

fn build(directory: &Path, text: &str) -> Result<PathBuf> {
    let source = directory.join("program.c");
    std::fs::write(&source, text)?;
    programs::gcc(
        &source,
        &directory.join("program"),
        &["-O2", "-static", "-pthread"],
    )
}

/// A thread, a process, one that it starts, a vfork, and a thread that executes a program.
const FAMILY: &str = r#"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int sum;

static void *work(void *unused)
{
	for (int i = 0; i < 1000; i++)
		sum += i & 1 ? i : 3;
	return unused;
}

static void *replace(void *program)
{
	execl(program, program, "thread", NULL);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t id;
	int status;
	pid_t pid;

	if (argc > 1)
		return !!*argv[1] - 1;
	pthread_create(&id, NULL, work, NULL);
	pthread_join(id, NULL);
	pid = fork();
	if (!pid) {
		pid = fork();
		if (!pid)
			_exit(0);
		waitpid(pid, &status, 0);
		pthread_create(&id, NULL, replace, argv[0]);
		pause();
	}
	waitpid(pid, &status, 0);
	pid = vfork();
	if (!pid)
		_exit(3);
	waitpid(pid, &status, 0);
	return 0;
}
"#;

fn family(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), FAMILY)?;
    let program = [program.to_str().context("a path")?];
    for (options, traced, untraced) in [
        (&[][..], 6, 0),
        (&["--smp", "2"], 6, 0),
        (&["--scope", "all"], 6, 0),
        (&["--follow", "threads"], 2, 2),
        (&["--follow", "none"], 1, 3),
    ] {
        let Trace { tasks, summary, .. } = tasks(machine, options, &program)?;
        ensure!(
            tasks.len() == traced && summary["untraced"].as_u64().unwrap_or(0) == untraced,
            "{options:?}: {summary}"
        );
    }
    Ok(())
}

/// Threads that execute a program before the agent runs again after it has resumed them: they are
/// real-time tasks, and the program is in memory. Each kills its leader, which is in the stop of
/// its clone, and waits for it.
const REPLACED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int copy;

static void *replace(void *unused)
{
	char *args[] = { "copy", "end", NULL };

	fexecve(copy, args, environ);
	_exit(1);
}

int main(int argc, char **argv)
{
	const struct sched_param param = { .sched_priority = 1 };
	struct stat stat;
	pthread_t id;
	int self, status;

	if (argc > 1)
		return 0;
	self = open("/proc/self/exe", O_RDONLY);
	copy = memfd_create("copy", MFD_CLOEXEC);
	if (self < 0 || fstat(self, &stat) ||
	    sendfile(copy, self, NULL, stat.st_size) != stat.st_size)
		return 2;
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		return 3;
	for (int i = 0; i < 10; i++) {
		if (!fork()) {
			pthread_create(&id, NULL, replace, NULL);
			pause();
		}
		wait(&status);
		if (status)
			return 4;
	}
	return 0;
}
"#;

fn replaced(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), REPLACED)?;
    let program = [program.to_str().context("a path")?];
    for options in [&[][..], &["--smp", "2"]] {
        let Trace { tasks, summary, .. } = tasks(machine, options, &program)?;
        ensure!(tasks.len() == 21, "{options:?}: {summary}");
    }
    Ok(())
}

/// A process and a thread that are started with CLONE_UNTRACED.
const HIDDEN: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[1 << 16];
static volatile int ended;

static int child(void *unused)
{
	if (!unused)
		_exit(0);
	ended = 1;
	return 0;
}

int main(void)
{
	const int thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;

	if (clone(child, stack + sizeof(stack), CLONE_UNTRACED | SIGCHLD, NULL) < 0)
		return 1;
	if (wait(NULL) < 0)
		return 2;
	if (clone(child, stack + sizeof(stack), CLONE_UNTRACED | thread, stack) < 0)
		return 3;
	while (!ended)
		sched_yield();
	return 0;
}
"#;

fn hidden(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), HIDDEN)?;
    let program = [program.to_str().context("a path")?];
    for (options, traced, untraced) in [(&[][..], 3, 0), (&["--follow", "none"], 1, 2)] {
        let Trace { tasks, summary, .. } = tasks(machine, options, &program)?;
        ensure!(
            tasks.len() == traced && summary["untraced"].as_u64().unwrap_or(0) == untraced,
            "{options:?}: {summary}"
        );
    }
    Ok(())
}

fn directory(machine: &Machine) -> Result<()> {
    let parent = tempfile::tempdir()?;
    let output = parent.path().join("trace");
    let named = format!("{}/", output.display());
    machine
        .trace("raw", Path::new(&named), &[], &PIPELINE)?
        .expect(0)?;
    let mut index = json(&output.join("index.json"))?;
    let summary = index.pop().context("no summary")?;
    let mut records = 0;
    let mut tasks = 0;
    for line in index.iter().filter(|line| line["kind"] == "start") {
        let file = output.join(format!("{}.raw", line["task"]));
        let branches = branches::parse_raw(&std::fs::read(&file)?)?;
        ensure!(!branches.is_empty(), "{}", file.display());
        records += branches.len();
        tasks += 1;
    }
    ensure!(
        summary["records"] == records && summary["tasks"] == tasks && tasks >= 4,
        "{records} records of {tasks} tasks: {summary}"
    );
    // One file has one task, or an explanation.
    let run = machine.trace(
        "raw",
        &parent.path().join("x"),
        &["--follow", "all"],
        &PIPELINE,
    )?;
    ensure!(run.expect(125)?.stderr.contains("--output DIR/"));
    let run = machine.trace("text", parent.path(), &[], &PIPELINE)?;
    ensure!(run.expect(125)?.stderr.contains("--format raw"));
    Ok(())
}

fn text(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    machine.trace("text", &output, &[], &PIPELINE)?.expect(0)?;
    let text = std::fs::read_to_string(&output)?;
    for wanted in [
        " starts, from ",
        " executes ",
        "(sort)]\n",
        " ends: status 0]",
    ] {
        ensure!(text.contains(wanted), "no `{wanted}` in the trace");
    }
    let summary = text.lines().last().context("no summary")?;
    ensure!(
        summary.contains("lost: 0, tasks: ") && summary.contains("exit: 0"),
        "{summary}"
    );
    machine
        .trace("text", &output, &[], &["/bin/true"])?
        .expect(0)?;
    let text = std::fs::read_to_string(&output)?;
    ensure!(!text.contains("[task"), "a single task has no name");
    Ok(())
}

/// A child and the program itself ask for their parents as tracers.
const TRACEME: &str = r#"
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	int status;

	if (!fork())
		_exit(ptrace(PTRACE_TRACEME, 0, 0, 0) ? 1 : 2);
	wait(&status);
	return ptrace(PTRACE_TRACEME, 0, 0, 0) ? 3 : WEXITSTATUS(status) + 4;
}
"#;

fn traceme(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), TRACEME)?;
    let output = directory.path().join("trace");
    let run = machine
        .trace("text", &output, &[], &[&program])?
        .expect(6)?;
    let text = std::fs::read_to_string(&output)?;
    let first = text.lines().find_map(|line| line.split(", from ").nth(1));
    let first = first.and_then(|rest| rest.split([']', ',']).next());
    let first = first.context("no task starts another one")?;
    for reason in [
        &format!("traced by task {first}"),
        "it wants to be traced by its parent, which is outside of the guest",
    ] {
        ensure!(run.stderr.contains(reason), "no `{reason}`: {}", run.stderr);
    }
    Ok(())
}

fn many_processes(machine: &Machine) -> Result<()> {
    let script = "i=0; while [ $i -lt 200 ]; do (:); i=$((i+1)); done";
    let Trace { tasks, summary, .. } = tasks(machine, &[], &["/bin/sh", "-c", script])?;
    ensure!(
        tasks.len() == 201 && summary["untraced"].is_null(),
        "{summary}"
    );
    Ok(())
}

/// 100 threads that all run at once.
const THREADS: &str = r#"
#include <pthread.h>

static pthread_barrier_t barrier;
static volatile int sum;

static void *work(void *unused)
{
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 10000; i++)
		sum += i & 1 ? i : 3;
	pthread_barrier_wait(&barrier);
	return unused;
}

int main(void)
{
	pthread_t ids[100];

	pthread_barrier_init(&barrier, NULL, 100);
	for (int i = 0; i < 100; i++)
		pthread_create(&ids[i], NULL, work, NULL);
	for (int i = 0; i < 100; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
"#;

fn many_threads(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), THREADS)?;
    let program = [program.to_str().context("a path")?];
    for processors in ["1", "4"] {
        let Trace { tasks, summary, .. } = tasks(machine, &["--smp", processors], &program)?;
        ensure!(
            tasks.len() == 101 && summary["untraced"].is_null(),
            "{summary}"
        );
        let least = tasks.iter().map(|task| task.branches).min();
        ensure!(least >= Some(10_000), "a thread has {least:?} branches");
    }
    Ok(())
}
