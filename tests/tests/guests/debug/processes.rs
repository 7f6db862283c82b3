//! Runs of several processes: each of them can be debugged.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, TestModule};

use super::{Recorded, both, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("each_process_can_be_debugged", each)])
}

const FORKS: &str = "
#include <stdio.h>
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
	snprintf(other, sizeof(other), \"%s.other\", argv[0]);
	if (argc > 1)
		return add(atoi(argv[1]));
	add(1);
	if (fork() == 0)
		_exit(add(20));
	wait(NULL);
	if (fork() == 0) {
		execl(other, other, \"7\", NULL);
		_exit(99);
	}
	wait(NULL);
	add(2);
	if (fork() == 0) {
		add(100);
		*(volatile int *)8 = 0;
	}
	wait(NULL);
	return add(4);
}
";

/// What gdb prints of a process.
fn session(recorded: &Recorded, machine: &Machine, process: &[&str], gdb: &str) -> Result<String> {
    Ok(both(&run(recorded, machine, process, gdb)?.expect(0)?))
}

fn run(recorded: &Recorded, machine: &Machine, process: &[&str], gdb: &str) -> Result<Run> {
    let script = recorded.file("commands.gdb");
    fs::write(&script, gdb)?;
    let mut command = machine.command(["debug", "--batch", "-x"]);
    command.arg(&script).args(process);
    command.arg(recorded.file("run.vbts"));
    machine::finish(command)
}

/// Numbers of the processes in a table.
fn numbers(text: &str) -> Vec<&str> {
    let table = text.lines().skip_while(|line| !line.contains("parent"));
    let lines = table.map(|line| line.trim_start_matches('*'));
    let words = lines.filter_map(|line| line.split_whitespace().next());
    words
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

fn each(machine: &Machine) -> Result<()> {
    let recorded = Recorded::prepare(FORKS)?;
    fs::copy(recorded.file("program"), recorded.file("program.other"))?;
    recorded.record(machine, &[], 7)?;

    // The one that has crashed.
    let text = session(
        &recorded,
        machine,
        &[],
        "p counter\nwatch counter\nreverse-continue\nbt",
    )?;
    check_order(
        &text,
        &[
            "*(volatile int *)8 = 0;",
            "$1 = 103",
            "Old value = 103",
            "New value = 3",
            "add (n=100)",
        ],
    )?;
    ensure!(text.contains("one of 4:"), "{text}");

    let text = session(&recorded, machine, &[], "processes")?;
    let numbers = numbers(&text);
    let [first, forked, other, crashed] = *numbers.as_slice() else {
        anyhow::bail!("{numbers:?} {text}");
    };
    let line = |number: &str| {
        let mut lines = text.lines();
        let found = lines.find(|line| line[1..].trim_start().starts_with(number));
        found.with_context(|| format!("no {number} in {text}"))
    };
    ensure!(line(first)?.contains("status 7"), "{text}");
    ensure!(line(forked)?.contains("status 21"), "{text}");
    ensure!(line(other)?.contains("program.other"), "{text}");
    ensure!(line(crashed)?.contains("crashed") && line(crashed)?.starts_with('*'));

    // The first one is at main, and a fork is no part of it.
    let text = session(
        &recorded,
        machine,
        &["--process", first],
        "bt 1\nbreak add\ncontinue\np n\ncontinue\np n\ncontinue\np n\ncontinue\ninfo inferiors",
    )?;
    check_order(
        &text,
        &[
            "main (",
            "$1 = 1",
            "$2 = 2",
            "$3 = 4",
            "No more reverse-execution history.",
        ],
    )?;
    ensure!(text.contains(&format!("process {first}")), "{text}");

    // A child that executes nothing begins behind fork.
    let text = session(
        &recorded,
        machine,
        &["--process", forked],
        "p counter\nbreak add\ncontinue\nbt\nfinish\ndelete\ncontinue\nreverse-continue\np counter",
    )?;
    check_order(
        &text,
        &[
            "$1 = 1",
            "add (n=20)",
            "main (",
            "Value returned is $2 = 21",
            "_exit",
            "No more reverse-execution history.",
            "$3 = 1",
        ],
    )?;

    // One that executes another program begins with it.
    let text = session(
        &recorded,
        machine,
        &["--process", "program.other"],
        "bt 1\nbreak add\ncontinue\np n\ngoto start",
    )?;
    check_order(&text, &["main (", "$1 = 7", "_start ()"])?;

    let run = run(&recorded, machine, &["--process", "no-such-program"], "")?.expect(125)?;
    ensure!(
        run.stderr.contains("no process 'no-such-program'"),
        "{run:?}"
    );
    ensure!(run.stderr.contains("program.other"), "{run:?}");
    Ok(())
}
