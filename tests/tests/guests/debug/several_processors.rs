//! Programs whose threads run on several processors, in turn.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("threads_take_turns", turns),
            ("no_step_is_lost_at_the_end_of_a_turn", steps),
        ],
    )
}

/// Three threads besides the first one. The loop of one of them has three instructions. The others
/// work for several ticks of the kernel's scheduler (10 ms): a step of a thread that has no
/// processor can take as long.
const PARALLEL: &str = "
#include <pthread.h>
long counter;
volatile int ready, stop;
static void add(int i)
{
	__atomic_fetch_add(&counter, i, __ATOMIC_SEQ_CST);
}
static void *spin(void *arg)
{
	__asm__ volatile(\"spinning: mov %0, %%eax; test %%eax, %%eax; je spinning\"
			 : : \"m\"(stop) : \"rax\");
	return arg;
}
static void *work(void *arg)
{
	__atomic_fetch_add(&ready, 1, __ATOMIC_SEQ_CST);
	while (ready < 2)
		;
	for (int n = 0; n < 100; n++)
		for (int i = 0; i < 20000; i++)
			add(i);
	return arg;
}
int main(void)
{
	pthread_t t[3];
	pthread_create(&t[0], 0, spin, 0);
	for (int i = 1; i < 3; i++)
		pthread_create(&t[i], 0, work, 0);
	for (int i = 1; i < 3; i++)
		pthread_join(t[i], 0);
	stop = 1;
	pthread_join(t[0], 0);
	return counter == 39998000000 ? 3 : 4;
}
";

/// Lines of `text` that begin with `name`.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(name)).collect()
}

/// The virtual times that `when` and `goto` have printed.
fn times(text: &str) -> Vec<u64> {
    let lines = text.lines().filter(|line| line.contains("of virtual time"));
    let words = lines.filter_map(|line| line.split_whitespace().next());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// A thread that has its turn and one that waits for it go forward and back by steps.
fn turns(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, PARALLEL, &["--smp", "4"], 3)?;
    let show = "info registers rip rax rsp";
    let mut commands = "break add if i == 10000\ncontinue\ncontinue\ndelete\n".to_owned();
    for thread in [2, 3, 4] {
        commands += &format!(
            "thread {thread}\n{show}\nstepi 4\n{show}\nreverse-stepi 4\n{show}\n\
             stepi 4\n{show}\n"
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
    let expected = [
        "add (i=10000)",
        "add (i=10000)",
        "$1 =",
        "Old value",
        "Old value",
    ];
    check_order(&text, &expected)?;
    let of = |number| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(number))
    };
    ensure!(
        of("$1 = ").is_some() && of("$1 = ") == of("$2 = "),
        "{text}"
    );
    let times = times(&text);
    ensure!(times.first() == times.last(), "{times:?} {text}");
    Ok(())
}

/// Places at which a thread steps, and their distance in ns. Turns have 20000.
const PLACES: u64 = 30;
const DISTANCE: u64 = 1733;
/// The offsets of the instructions of the loop.
const OFFSETS: [u64; 3] = [0, 6, 8];
const STEPS: usize = 4;

/// The loop tells how many instructions a thread has executed, wherever the turns are.
fn steps(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, PARALLEL, &["--smp", "4"], 3)?;
    // Threads get their numbers in the order in which GDB learns of them.
    let begin = "break add if i == 10000\ncontinue\nwhen\ninfo threads\ndelete\n";
    let text = recorded.gdb(machine, begin)?;
    let start = *times(&text).first().context("no time")?;
    let spinning = text.lines().find(|line| line.contains(" spin (arg="));
    let words = spinning.map(|line| line.trim_start_matches(['*', ' ']).split(' '));
    let thread = words.and_then(|mut words| words.next());
    let thread = thread.with_context(|| format!("no thread spins: {text}"))?;
    let show = "print /u (long)$pc - (long)&spinning";
    let mut commands = begin.to_owned();
    for place in 0..PLACES {
        let time = start + place * DISTANCE;
        writeln!(
            commands,
            "goto time {time}\nthread {thread}\n{show}\nstepi {STEPS}\n{show}\n\
             reverse-stepi {STEPS}\n{show}"
        )?;
    }
    let text = recorded.gdb(machine, &commands)?;
    let offsets: Vec<usize> = values(&text, "$")
        .iter()
        .filter_map(|line| line.split(" = ").nth(1)?.parse::<u64>().ok())
        .filter_map(|offset| OFFSETS.iter().position(|known| *known == offset))
        .collect();
    ensure!(offsets.len() as u64 == 3 * PLACES, "{offsets:?} {text}");
    for (place, steps) in offsets.chunks(3).enumerate() {
        let [first, after, back] = *steps else {
            continue;
        };
        let expected = (first + STEPS) % OFFSETS.len();
        ensure!(after == expected, "place {place}: {steps:?} {text}");
        ensure!(back == first, "place {place}: {steps:?} {text}");
    }
    Ok(())
}
