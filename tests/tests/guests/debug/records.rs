//! Branches of a recorded run in GDB, and what is searched by them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("numbers_are_those_of_the_trace", numbers),
            ("gdb_has_a_branch_trace", branch_trace),
            ("a_branch_trace_begins_with_the_command", trace_from_here),
            ("a_call_is_found_without_a_stack", caller),
            ("conditions_hold_forward_and_backward", conditions),
        ],
    )
}

const CALLS: &str = "
#include <string.h>
#include <unistd.h>
volatile long sum;
static void add(long i)
{
	sum += i;
}
static void inner(long last)
{
	for (long i = 1; i <= last; i++) {
		add(i);
		if (i % 100 == 0)
			usleep(1);
	}
	/* No debugger finds a way back by the stack. */
	memset(__builtin_frame_address(0), 0, 16);
	_exit(sum == 500500 ? 5 : 6);
}
static void outer(void)
{
	inner(1000);
}
int main(void)
{
	outer();
	return 0;
}
";

/// The branches that `records` has printed.
fn printed(text: &str) -> Vec<(u64, u64)> {
    let parse = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let lines = text.lines();
    lines
        .filter_map(|line| {
            let (from, to) = line.split_once(" -> ")?;
            Some((parse(from)?, parse(to)?))
        })
        .collect()
}

fn numbers(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CALLS, &[], 5)?;
    let raw = recorded.file("raw");
    let options = [
        "replay", "--quiet", "--format", "raw", "--follow", "none", "-o",
    ];
    let mut command = machine.command(options);
    command.arg(&raw).arg(recorded.file("run.vbts"));
    machine::finish(command)?.expect(5)?;
    let bytes = fs::read(raw)?;
    let (records, rest) = bytes.as_chunks::<24>();
    ensure!(rest.is_empty() && records.len() > 5000);
    let word = |record: &[u8; 24], n: usize| {
        u64::from_le_bytes(std::array::from_fn(|byte| record[8 * n + byte]))
    };
    let records = records.iter();
    let records: Vec<_> = records.map(|r| (word(r, 0), word(r, 1))).collect();
    let count = records.len();
    let wanted = [1, 2, 1000, count / 2, count - 1, count];
    let mut commands = String::new();
    for number in wanted {
        commands += &format!("goto record {number}\nrecords 1\nprint/x $pc\n");
    }
    commands += &format!(
        "goto record {count}\nrecords 5000\nmonitor goto record {}\n",
        count + 1
    );
    let text = recorded.gdb(machine, &commands)?;
    let mut expected: Vec<_> = wanted.iter().map(|number| records[number - 1]).collect();
    expected.extend(&records[count - 5000..]);
    ensure!(printed(&text) == expected, "{expected:x?} {text}");
    for (n, number) in wanted.iter().enumerate() {
        let program_counter = format!("${} = {:#x}", n + 1, records[number - 1].1);
        ensure!(text.contains(&program_counter), "{program_counter} {text}");
    }
    check_order(&text, &[&format!("has no record {}", count + 1)])
}

fn branch_trace(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CALLS, &[], 5)?;
    let commands = "tbreak add if i == 300\ncontinue\nrecord btrace bts
record function-call-history /c 1,+4\ninfo record\nrecord instruction-history\nrecord goto begin
record goto end\nreverse-stepi\nreverse-finish\nstepi\nrecord goto end\nprint i\nrecord stop
tbreak add if i == 310\ncontinue\nrecord btrace bts\nrecord function-call-history /cl -\nprint i";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "Temporary breakpoint 1, add (i=300)",
        "_dl_relocate_object",
        "Active record target: record-btrace",
        "Recording format: Branch Trace Store.",
        "<add+4>:",
        "$1 = 300",
        "Temporary breakpoint 2, add (i=310)",
        "inner",
        "add",
        "$2 = 310",
    ];
    check_order(&text, &expected)?;
    let instructions = text
        .lines()
        .find_map(|line| line.strip_prefix("Recorded "))
        .and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
    ensure!(instructions.context("no count")? > 10_000, "{text}");
    ensure!(!text.contains("decode error"), "{text}");
    Ok(())
}

/// A trace begins where it is asked for, also the second one, and has nothing before that. Read
/// again after a jump in time, it has the same instructions.
fn trace_from_here(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CALLS, &[], 5)?;
    let commands = "break add if i == 300 || i == 301 || i == 400\ncontinue\nprint/x $pc
branch-trace from-here\nrecord btrace bts\ninfo record\ncontinue\ninfo record
record instruction-history 1,1\nrecord function-call-history /c 1,2
monitor goto start\nmaintenance flush register-cache\ninfo record
continue\ncontinue\ninfo record\nrecord instruction-history 1,1
record stop\nrecord btrace bts\ninfo record\ncontinue\ninfo record
record function-call-history /c 1,3
record stop\nbranch-trace from-start\nrecord btrace bts\ninfo record";
    let text = recorded.gdb(machine, commands)?;
    let value = text.lines().find_map(|line| line.strip_prefix("$1 = 0x"));
    let address = u64::from_str_radix(value.context("no address")?, 16)?;
    let first = format!("1\t=> {address:#018x} <add+");
    let expected = [
        "add (i=300)",
        "add (i=301)",
        &first,
        "1\t  add\n2\tinner\n",
        "add (i=300)",
        "add (i=301)",
        &first,
        "add (i=400)",
        "1\t  add\n2\tinner\n3\t  add\n",
    ];
    check_order(&text, &expected)?;
    let counts: Vec<u64> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("Recorded ")?
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    let &[0, round, 0, again, 0, rounds, all] = &counts[..] else {
        anyhow::bail!("{counts:?} {text}");
    };
    ensure!(
        (1..1000).contains(&round) && again == round && rounds > 99 * 10 && all > 10_000,
        "{counts:?} {text}"
    );
    Ok(())
}

fn caller(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CALLS, &[], 5)?;
    let commands = "tbreak _exit\ncontinue\nwho-called\nwho-called\nwho-called\nwho-called";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "inner (last=",
        "_exit(sum",
        "outer () at",
        "inner(1000);",
        "main () at",
        "outer();",
    ];
    check_order(&text, &expected)?;
    ensure!(text.matches(" has called ").count() == 4, "{text}");
    Ok(())
}

/// The target evaluates the conditions, and GDB does.
fn conditions(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CALLS, &[], 5)?;
    let mut places = Vec::new();
    for side in ["target", "host"] {
        let commands = format!(
            "set breakpoint condition-evaluation {side}\nbreak add if i == 250 || i == 750
continue\nprint i\nwhen\ncontinue\nprint i\nwhen\ntbreak _exit\ncontinue\nreverse-continue
print i\nwhen\nreverse-continue\nprint i\nwhen\ninfo breakpoints"
        );
        let text = recorded.gdb(machine, &commands)?;
        check_order(&text, &["$1 = 250", "$2 = 750", "$3 = 750", "$4 = 250"])?;
        ensure!(
            text.contains("(target evals)") == (side == "target"),
            "{text}"
        );
        let times = text.lines().filter(|line| line.contains("virtual time"));
        places.push(times.map(str::to_owned).collect::<Vec<_>>());
    }
    ensure!(places[0] == places[1] && places[0].len() == 4, "{places:?}");
    Ok(())
}
