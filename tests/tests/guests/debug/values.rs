//! `vbts report print`: the values are those that the program has printed.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Run, TestModule};

use super::Recorded;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("values_are_those_that_the_program_prints", values),
            ("values_of_a_task_from_a_branch_on", parts),
        ],
    )
}

const SOURCE: &str = "#include <stdio.h>
static long total;
static int squares[8];
static int last = 7;
static int add(int i)
{
	squares[i] = i * i;
	total += squares[i];
	last = 7;
	printf(\"%d %d %ld\\n\", i, squares[i], total);
	return i;
}
int main(void)
{
	for (int i = 0; i < 6; i++)
		add(i);
	return 0;
}
";

pub(super) fn report(machine: &Machine, recorded: &Recorded, arguments: &[&str]) -> Result<Run> {
    let mut command = machine.command(["report"]);
    command.args(arguments).arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", recorded.file("cache"));
    machine::finish(command)
}

pub(super) fn rows(run: &Run) -> Result<Vec<Value>> {
    let text = String::from_utf8_lossy(&run.stdout);
    text.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn rows_of(machine: &Machine, recorded: &Recorded, arguments: &[&str]) -> Result<Vec<Value>> {
    rows(&report(machine, recorded, arguments)?.expect(0)?)
}

fn values(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 0)?;
    let program = std::process::Command::new(recorded.file("program")).output()?;
    let printed = String::from_utf8(program.stdout)?;
    let expressions = "i, squares[i], total";
    let json = ["print", "--at", "program.c:10", "--json", expressions];
    let rows = rows_of(machine, &recorded, &json)?;
    let mut found = String::new();
    let mut times = Vec::new();
    for row in &rows {
        let value = |name: &str| row["values"][name].as_str().unwrap_or_default();
        found += &format!(
            "{} {} {}\n",
            value("i"),
            value("squares[i]"),
            value("total")
        );
        ensure!(
            row["place"] == "program.c:10" && row["function"] == "add",
            "{row}"
        );
        times.push(row["time"].as_u64().context("a time")?);
    }
    ensure!(found == printed && rows.len() == 6, "{found}{printed}");
    ensure!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    // As a table, at a function, with a limit.
    let table = ["print", "--at", "add", "--limit", "2", "i, i + 1"];
    let run = report(machine, &recorded, &table)?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let last: Vec<&str> = text
        .lines()
        .last()
        .context("a row")?
        .split_whitespace()
        .collect();
    ensure!(
        text.lines().count() == 3 && last.ends_with(&["1", "2"]),
        "{text}"
    );
    ensure!(run.stderr.contains("the first 2"), "{run:?}");
    for (arguments, message) in [
        (&["print", "--at", "nowhere", "i"][..], "nowhere"),
        (&["print", "--at", "add", "nothing"], "nothing"),
        (&["print", "i"], "--at"),
    ] {
        let run = report(machine, &recorded, arguments)?.expect(125)?;
        ensure!(run.stderr.contains(message), "{run:?}");
    }
    Ok(())
}

const TASKS: &str = "#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static int add(int i)
{
	return i + 1;
}
int main(void)
{
	if (fork() == 0) {
		for (int i = 100; i < 103; i++)
			add(i);
		_exit(0);
	}
	wait(0);
	for (int i = 0; i < 6; i++)
		add(i);
	return 0;
}
";

/// Numbers of branches are those of the reports of the trace.
fn parts(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, TASKS, &[], 0)?;
    let values = |arguments: &[&str]| -> Result<Vec<String>> {
        let options = [&["print", "--json", "--at", "add"], arguments, &["i"]].concat();
        let rows = rows_of(machine, &recorded, &options)?;
        let value = |row: &Value| row["values"]["i"].as_str().map(str::to_owned);
        Ok(rows.iter().filter_map(value).collect())
    };
    let all = ["0", "1", "2", "3", "4", "5"];
    ensure!(values(&[])? == all);
    // The calls in the trace of all tasks.
    let run = report(machine, &recorded, &["text"])?.expect(0)?;
    let text = String::from_utf8_lossy(&run.stdout);
    let branches = text.lines().filter(|line| line.contains(" -> "));
    let calls = branches.enumerate().filter(|(_, line)| {
        let to = line.split(" -> ").nth(1);
        to.is_some_and(|to| to.contains(" add+0x0"))
    });
    let numbers: Vec<String> = calls.map(|(n, _)| n.to_string()).collect();
    ensure!(numbers.len() == 9, "{numbers:?}");
    let (third, last) = (&numbers[5], &numbers[8]);
    ensure!(values(&["--from", third, "--to", last])? == all[2..5]);
    ensure!(values(&["--from", last])? == all[5..]);
    // The task is one of another process.
    let rows = rows_of(machine, &recorded, &["print", "--json", "--at", "add", "i"])?;
    let parent = rows[0]["task"].as_u64().context("a task")?;
    let child = (parent + 1).to_string();
    ensure!(values(&["--task", &child])? == ["100", "101", "102"]);
    let run = report(
        machine,
        &recorded,
        &["print", "--at", "add", "--task", "999", "i"],
    )?;
    ensure!(run.expect(125)?.stderr.contains("no process '999'"));
    Ok(())
}
