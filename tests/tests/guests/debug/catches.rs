//! What GDB catches besides breakpoints, forward and backward: system calls, forks, signals and
//! exceptions; and an interrupt by the user.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process_group};
use vbts_tests::machine::{self, Machine, TestModule};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("calls_forks_and_signals", events),
            ("exceptions", exceptions),
            ("children_and_execs", children),
            ("ctrl_c_stops_the_program", interrupt),
        ],
    )
}

const SOURCE: &str = "#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int handled;
static void handle(int number)
{
	handled = number;
}
int main(void)
{
	signal(SIGUSR1, handle);
	write(1, \"one\\n\", 4);
	if (fork() == 0)
		_exit(3);
	wait(0);
	raise(SIGUSR1);
	if (vfork() == 0)
		_exit(4);
	wait(0);
	write(1, \"two\\n\", 4);
	return handled == SIGUSR1 ? 5 : 6;
}
";

fn events(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 5)?;
    let catches = "catch syscall write\ncatch fork\ncatch vfork\ncatch signal SIGUSR1\n";
    let forward = [
        "Catchpoint 1 (call to syscall write)",
        "Catchpoint 1 (returned from syscall write)",
        "Catchpoint 2 (forked process",
        "Catchpoint 4 (signal SIGUSR1)",
        "Catchpoint 3 (vforked process",
        "Catchpoint 1 (call to syscall write)",
        "Catchpoint 1 (returned from syscall write)",
    ];
    let mut commands = catches.to_owned();
    commands += &"continue\n".repeat(forward.len());
    // A breakpoint is there after the vfork.
    commands += "tbreak program.c:20\ntbreak program.c:10\n";
    commands += &"reverse-continue\n".repeat(forward.len());
    commands += "delete\ngoto start\nbreak handle\ncontinue\ncontinue\nprint handled\n";
    let text = recorded.gdb(machine, &commands)?;
    let mut backward = forward;
    backward.reverse();
    let (last, others) = (&backward[1..2], &backward[2..]);
    let end = ["Breakpoint 7, handle (number=10)", "$1 = 0"];
    let expected = [&forward[..], last, &["breakpoint 5, main"], others, &end].concat();
    check_order(&text, &expected)?;
    // All system calls.
    let all = "catch syscall\ncontinue\ncontinue\ncontinue\n";
    let expected = [
        "Catchpoint 1 (call to syscall rt_sigaction)",
        "Catchpoint 1 (returned from syscall rt_sigaction)",
        "Catchpoint 1 (call to syscall write)",
    ];
    check_order(&recorded.gdb(machine, all)?, &expected)
}

const CHILDREN: &str = "#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
volatile int counter;
static int add(int n)
{
	counter += n;
	return counter;
}
int main(int argc, char **argv)
{
	char other[4096];
	if (argc > 2) {
		add(7);
		execl(argv[1], argv[1], \"8\", NULL);
	}
	if (argc > 1)
		return add(8);
	add(1);
	snprintf(other, sizeof(other), \"%s.other\", argv[0]);
	if (fork() == 0)
		_exit(add(20));
	wait(NULL);
	if (vfork() == 0) {
		execl(other, other, argv[0], \"7\", NULL);
		_exit(99);
	}
	wait(NULL);
	return add(2);
}
";

/// The client follows a child, to programs that it executes, and back.
fn children(machine: &Machine) -> Result<()> {
    let recorded = Recorded::prepare(CHILDREN)?;
    fs::copy(recorded.file("program"), recorded.file("program.other"))?;
    recorded.record(machine, &[], 3)?;
    let began = "No more reverse-execution history.";

    // The parent is left at the fork.
    let commands = "break add\ncontinue\nset follow-fork-mode child\ncontinue\nprint counter
info inferiors\nfinish\nreverse-continue\nreverse-continue\nprint counter\ncontinue\nprint n
delete\ncontinue\nset follow-fork-mode parent\n";
    let expected = [
        "add (n=1)",
        "add (n=20)",
        "$1 = 1",
        "Value returned is $2 = 21",
        "add (n=20)",
        began,
        "$3 = 1",
        "add (n=20)",
        "$4 = 20",
        began,
    ];
    check_order(&recorded.gdb(machine, commands)?, &expected)?;

    // By a vfork, to two programs.
    let commands = "catch vfork\ncontinue\nset follow-fork-mode child\ncatch exec\ncontinue
break add\ncontinue\nbt\ncontinue\ninfo inferiors\ncontinue\nprint n\ngoto start
reverse-continue\nreverse-continue\nbt\nprint counter\nreverse-continue\nbt 1\nprint counter
reverse-continue\nreverse-continue\n";
    let expected = [
        "Catchpoint 1 (vforked process",
        "Catchpoint 2 (exec'd",
        "program.other)",
        "add (n=7)",
        "main (argc=3",
        "Catchpoint 2 (exec'd",
        "program)",
        "add (n=8)",
        "$1 = 8",
        "Catchpoint 2 (exec'd",
        "program.other)",
        "add (n=7)",
        "main (argc=3",
    ];
    check_order(&recorded.gdb(machine, commands)?, &expected)?;

    // From the first one of these on.
    let commands = "bt\ncatch exec\ncontinue\nbreak add\ncontinue\ngoto start\n";
    let text = recorded.gdb_with(machine, &["--process", "program.other"], commands)?;
    let expected = [
        "main (",
        "Catchpoint 1 (exec'd",
        "add (n=8)",
        "the process executes another program then",
    ];
    check_order(&text, &expected)
}

const EXCEPTIONS: &str = "#include <stdexcept>
static void fail(int i)
{
	if (i == 2)
		throw std::runtime_error(\"two\");
}
int main()
{
	int caught = 0;
	for (int i = 0; i < 4; i++)
		try {
			fail(i);
		} catch (const std::exception &) {
			caught++;
		}
	return caught;
}
";

fn exceptions(machine: &Machine) -> Result<()> {
    let recorded = Recorded::compile(EXCEPTIONS, "g++", "program.cc")?;
    recorded.record(machine, &[], 1)?;
    let commands = "catch throw\ncatch catch\ncontinue\nup 2\nprint i\ncontinue\nup 1\nprint caught
reverse-continue\ntbreak program.cc:10\nreverse-continue\n";
    let expected = [
        "Catchpoint 1 (exception thrown)",
        "$1 = 2",
        "Catchpoint 2 (exception caught)",
        "$2 = 0",
        "Catchpoint 1 (exception thrown)",
        "main () at",
    ];
    check_order(&recorded.gdb(machine, commands)?, &expected)
}

const LONG: &str = "long sum;
int main(void)
{
	for (long i = 0; i < 20000000; i++)
		sum += i;
	return 5;
}
";

/// The user interrupts gdb, as a terminal does: the whole group of processes.
fn interrupt(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LONG, &[], 5)?;
    let script = recorded.file("commands.gdb");
    // The condition makes it last.
    fs::write(
        &script,
        "break program.c:5 if i == -1\necho running\\n\ncontinue\nprint i > 0 && i < 19000000\n",
    )?;
    let mut command: Command = machine.command(["debug", "--batch", "-x"]);
    command.arg(&script).arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", "/dev/null");
    command.stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut text = String::new();
    for line in lines.by_ref() {
        let line = line?;
        text += &line;
        text.push('\n');
        if line == "running" {
            // GDB has to have resumed the program.
            std::thread::sleep(std::time::Duration::from_millis(500));
            kill_process_group(group, Signal::INT)?;
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status} {text}");
    check_order(&text, &["received signal SIGINT", "$1 = 1"])
}
