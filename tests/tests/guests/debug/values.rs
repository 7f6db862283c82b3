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
        &[("values_are_those_that_the_program_prints", values)],
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

fn report(machine: &Machine, recorded: &Recorded, arguments: &[&str]) -> Result<Run> {
    let mut command = machine.command(["report"]);
    command.args(arguments).arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", recorded.file("cache"));
    machine::finish(command)
}

fn rows(run: &Run) -> Result<Vec<Value>> {
    let text = run.printed();
    text.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn values(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 0)?;
    let program = std::process::Command::new(recorded.file("program")).output()?;
    let printed = String::from_utf8(program.stdout)?;
    let expressions = "i, squares[i], total";
    let json = ["print", "--at", "program.c:10", "--json", expressions];
    let rows = rows(&report(machine, &recorded, &json)?.expect(0)?)?;
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
