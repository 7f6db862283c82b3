//! `vbts report writes`: all writes to a variable, with its values and the places.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{Machine, TestModule, trials_of};

use super::Recorded;
use super::values::{report, rows};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    trials_of(module, &[("each_write_has_its_place", places)])
}

const SOURCE: &str = "#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
static double total = 0.5;
static int last = 3;
static char text[4];
static int *heap;
static void add(int i)
{
	total += i;
	last = 7;
	if (i == 2)
		*(volatile int *) &last = 7;
}
int main(void)
{
	int ends[2];
	heap = malloc(sizeof(*heap));
	*heap = 1;
	for (int i = 0; i < 4; i++)
		add(i);
	*heap = 2;
	if (pipe(ends) || write(ends[1], \"abc\", 3) != 3 || read(ends[0], text, 3) != 3)
		return 1;
	return *(volatile int *) 0;
}
";

/// The writes as (before, after, function, place).
fn writes(machine: &Machine, recorded: &Recorded, arguments: &[&str]) -> Result<Vec<[String; 4]>> {
    let arguments = [&["writes", "--json"], arguments].concat();
    let rows = rows(&report(machine, recorded, &arguments)?.expect(0)?)?;
    let times: Vec<u64> = rows.iter().filter_map(|row| row["time"].as_u64()).collect();
    ensure!(times.is_sorted_by(|a, b| a < b), "{rows:?}");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(rows
        .iter()
        .map(|row| {
            let values = &row["values"];
            [
                &values["before"],
                &values["after"],
                &row["function"],
                &row["place"],
            ]
            .map(text)
        })
        .collect())
}

fn places(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 139)?;
    let of = |arguments: &[&str]| writes(machine, &recorded, arguments);
    let add = |before: &str, after: &str, line: u32| {
        [before, after, "add", &format!("program.c:{line}")].map(str::to_owned)
    };
    let expected = [
        add("3", "7", 11),
        add("7", "7", 11),
        add("7", "7", 11),
        add("7", "7", 13),
        add("7", "7", 11),
    ];
    let all = of(&["last"])?;
    ensure!(all == expected, "{all:?}");
    let expected = [
        ("0.5", "0.5"),
        ("0.5", "1.5"),
        ("1.5", "3.5"),
        ("3.5", "6.5"),
    ];
    let found = of(&["total"])?;
    ensure!(
        found == expected.map(|(before, after)| add(before, after, 10)),
        "{found:?}"
    );
    // Where the session opens, the pointer has its last value. The memory exists later.
    let heap = of(&["*heap"])?;
    let at = |n: usize| {
        heap.get(heap.len() - n)
            .map(|row| (row[1].as_str(), row[3].as_str()))
    };
    ensure!(
        heap.len() >= 2
            && at(2) == Some(("1", "program.c:19"))
            && at(1) == Some(("2", "program.c:22")),
        "{heap:?}"
    );
    let text = of(&["text"])?;
    ensure!(
        text.len() == 1 && text[0][1].contains("abc") && text[0][3] == "in the kernel",
        "{text:?}"
    );
    // As a table, with a limit.
    let run = report(machine, &recorded, &["writes", "--limit", "2", "last"])?.expect(0)?;
    let table = String::from_utf8_lossy(&run.stdout);
    ensure!(table.lines().count() == 3, "{run:?}");
    ensure!(run.stderr.contains("the first 2"), "{run:?}");
    for (variable, message) in [("nothing", "nothing"), ("1 + 1", "1 + 1")] {
        let run = report(machine, &recorded, &["writes", variable])?.expect(125)?;
        ensure!(run.stderr.contains(message), "{run:?}");
    }
    Ok(())
}
