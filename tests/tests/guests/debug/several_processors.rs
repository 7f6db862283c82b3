//! Programs whose threads run on several processors, in turn.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("threads_take_turns", turns)])
}

const PARALLEL: &str = "
#include <pthread.h>
int counter;
int ready;
static void add(int i)
{
	__atomic_fetch_add(&counter, i, __ATOMIC_SEQ_CST);
}
static void *work(void *arg)
{
	__atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < 3)
		;
	for (int i = 0; i < 20000; i++)
		add(i);
	return arg;
}
int main(void)
{
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], 0, work, 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	return counter == 599970000 ? 3 : 4;
}
";

/// Lines of `text` that begin with `name`, without spaces in a row.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(name)).collect()
}

/// A thread that has its turn and one that waits for it go forward and back by steps.
fn turns(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, PARALLEL, &["--smp", "4"], 3)?;
    let show = "info registers rip rax rsp";
    let mut commands = "break add if i == 10000\ncontinue\ncontinue\ndelete\n".to_owned();
    for thread in [2, 3, 4] {
        commands += &format!(
            "thread {thread}\n{show}\nstepi 3\n{show}\nreverse-stepi 3\n{show}\n\
             stepi 3\n{show}\n"
        );
    }
    commands += "print counter\nwatch counter\ncontinue\nreverse-continue\nprint counter\ndelete
continue\nwhen\ngoto start\ncontinue\nwhen\n";
    let text = recorded.gdb(machine, &commands)?;
    for name in ["rip", "rax", "rsp"] {
        let values = values(&text, name);
        ensure!(values.len() == 12, "{name}: {values:?} {text}");
        for thread in values.chunks(4) {
            ensure!(thread[0] == thread[2], "{name}: {thread:?} {text}");
            ensure!(thread[1] == thread[3], "{name}: {thread:?} {text}");
            ensure!(name != "rip" || thread[0] != thread[1], "{thread:?} {text}");
        }
    }
    check_order(
        &text,
        &[
            "add (i=10000)",
            "add (i=10000)",
            "$1 =",
            "Old value",
            "Old value",
        ],
    )?;
    let of = |number| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(number))
    };
    ensure!(
        of("$1 = ").is_some() && of("$1 = ") == of("$2 = "),
        "{text}"
    );
    let ends: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("virtual time"))
        .collect();
    ensure!(
        ends.first() == ends.last() && ends.len() == 3,
        "{ends:?} {text}"
    );
    Ok(())
}
