//! A recording whose program is no longer on the host, or is another one there: gdb gets its files
//! from the recording.

use std::fs;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{Machine, TestModule, trials_of};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    trials_of(
        module,
        &[
            ("a_program_that_was_removed", removed),
            ("a_program_that_was_changed", changed),
            ("files_of_the_host_that_are_the_same", unchanged),
        ],
    )
}

const SOURCE: &str = "static int count;
__attribute__((noinline)) static void add(int n)
{
	count += n;
}
int main(void)
{
	for (int i = 1; i < 4; i++)
		add(i);
	return count == 6 ? *(volatile int *) 0 : 1;
}
";
const COMMANDS: &str = "info symbol main\nbacktrace\nwatch count\nreverse-continue\nbacktrace\n\
    info sharedlibrary\ninfo symbol puts\n";
/// Output of gdb for them. The last function is one of the C library.
const EXPECTED: [&str; 7] = [
    "main in section .text",
    "#0 ",
    "main () at ",
    "Hardware watchpoint 1: count",
    "#0 ",
    "add (n=3) at ",
    "in section .text of ",
];

/// Debugs the recording, and checks that gdb knows the program and the C library.
fn check(machine: &Machine, recorded: &Recorded) -> Result<String> {
    let text = recorded.gdb(machine, COMMANDS)?;
    check_order(&text, &EXPECTED)?;
    Ok(text)
}

fn removed(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 139)?;
    fs::remove_file(recorded.file("program"))?;
    let text = check(machine, &recorded)?;
    ensure!(text.contains("from the recording"), "{text}");
    ensure!(text.contains("target:/"), "{text}");
    let text = recorded.gdb(machine, "info proc mappings\n")?;
    ensure!(text.contains("/program"), "{text}");
    Ok(())
}

fn changed(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 139)?;
    let other = Recorded::prepare(&SOURCE.replace("count", "number"))?;
    fs::copy(other.file("program"), recorded.file("program"))?;
    let text = check(machine, &recorded)?;
    ensure!(text.contains("from the recording"), "{text}");
    Ok(())
}

fn unchanged(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 139)?;
    let text = check(machine, &recorded)?;
    ensure!(!text.contains("target:"), "{text}");
    ensure!(!text.contains("from the recording"), "{text}");
    Ok(())
}
