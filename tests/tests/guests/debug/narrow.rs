//! Programs of 32 bits on the 64-bit kernel.

use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_crash_and_its_threads", crash),
            ("calls_of_the_kernel", calls),
        ],
    )
}

const CRASHES: &str = "
#include <pthread.h>
#include <string.h>
#include <unistd.h>
int counter;
static struct item { struct item *next; int n; } *list;
static char text[64];
static void add(int i)
{
	counter += i;
}
static void *work(void *arg)
{
	for (int i = 0; i < 100; i++)
		add(i);
	pause();
	return arg;
}
int main(void)
{
	pthread_t t[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], 0, work, 0);
	usleep(1000);
	memset(text, 'x', sizeof(text) - 1);
	list = (struct item *)0x10;
	return list->n;
}
";

/// Skips a test if gcc has no C library for programs of 32 bits.
fn needs_narrow_library() -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-m32",
        "-fsyntax-only",
        "-include",
        "stdio.h",
        "-xc",
        "/dev/null",
    ]);
    match machine::finish(gcc)?.status {
        Some(0) => Ok(()),
        _ => Err(Skip("there is no C library of 32 bits: install gcc-multilib".into()).into()),
    }
}

pub(super) fn recorded(
    machine: &Machine,
    source: &str,
    options: &[&str],
    status: i32,
) -> Result<Recorded> {
    needs_narrow_library()?;
    let recorded = Recorded::prepare(source)?;
    let options = [&["-m32", "-g", "-O0", "-pthread"], options].concat();
    let (source, program) = (recorded.file("program.c"), recorded.file("program"));
    programs::gcc(&source, &program, &options)?;
    recorded.record(machine, &[], status)?;
    Ok(recorded)
}

fn crash(machine: &Machine) -> Result<()> {
    let recorded = recorded(machine, CRASHES, &[], 139)?;
    let commands = "print $_siginfo._sifields._sigfault.si_addr\ninfo auxv\nlast-write list
goto start\nbreak add if i == 50\ncontinue\nprint i\nprint sizeof(list)\nwho-called\ncontinue
delete\nwatch counter\ncontinue\nreverse-continue\ndelete\ngoto crash
thread apply all -s -q frame function work\nrecord btrace bts\nrecord function-call-history -";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "return list->n;",
        "$1 = (void *) 0x14",
        "AT_ENTRY",
        "AT_NULL",
        "list = (struct item *)0x10;",
        "add (i=50)",
        "$2 = 50",
        "$3 = 4",
        "in work (",
        "New value = 1275",
        "New value = 1225",
        "work (arg=0x0)",
        "work (arg=0x0)",
        "pause",
    ];
    check_order(&text, &expected)
}

const CALLS: &str = "
int main(void)
{
	int result;
	__asm__ volatile(\"int $0x80\" : \"=a\"(result) : \"a\"(20));
	result = result > 0 ? 5 : 6;
	return result;
}
";

/// A step over a call goes to behind it, and back to the instruction.
fn calls(machine: &Machine) -> Result<()> {
    let recorded = recorded(machine, CALLS, &["-static"], 5)?;
    let show = "info registers eip eax esp cs";
    let mut commands = "break 5\ncontinue\nstepi\n".to_owned();
    for step in ["stepi", "reverse-stepi", "stepi", "stepi", "reverse-stepi"] {
        commands += &format!("{show}\n{step}\n");
    }
    commands += show;
    let text = recorded.gdb(machine, &commands)?;
    for name in ["eip", "eax", "esp", "cs"] {
        let values: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
        let [first, behind, back, again, _, last] = *values else {
            anyhow::bail!("{name}: {values:?} {text}");
        };
        ensure!(first == back && behind == again, "{name}: {text}");
        ensure!(last == behind, "{name}: {text}");
        ensure!(name != "eip" || first != behind, "{text}");
    }
    Ok(())
}
