//! Changes to a recorded program: memory, registers, and calls of its functions. What the program
//! does then is its own, up to where it needs the host, and is dropped when time moves.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

use super::{Recorded, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_changed_program_has_another_future", futures),
            ("a_program_on_several_processors_is_changed", on_several),
            ("a_program_of_32_bits_is_changed", narrow),
            ("functions_are_called", calls),
            ("a_crash_is_repaired", crash),
        ],
    )
}

const SOURCE: &str = "#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int limit = 3, reads;
static int untouched[8192];
static int square(int i)
{
	return i * i;
}
static int count(void)
{
	return untouched[5000];
}
int main(void)
{
	const char *text = \"seven c\";
	int sum = 0;
	for (int i = 0; i < limit; i++)
		sum += square(i);
	printf(\"sum %d\\n\", sum);
	fflush(stdout);
	if (reads) {
		FILE *file = fopen(\"/etc/ld.so.cache\", \"r\");
		sum = fgetc(file);
	}
	return sum + count();
}
";

fn futures(machine: &Machine) -> Result<()> {
    check_futures(machine, &Recorded::new(machine, SOURCE, &[], 5)?)
}

/// On several processors.
fn on_several(machine: &Machine) -> Result<()> {
    check_futures(
        machine,
        &Recorded::new(machine, SOURCE, &["--smp", "2"], 5)?,
    )
}

/// A program of 32 bits.
fn narrow(machine: &Machine) -> Result<()> {
    let recorded = super::narrow::recorded(machine, SOURCE, &["-U_FORTIFY_SOURCE"], 5)?;
    check_futures(machine, &recorded)?;
    let commands = "tbreak square\ncontinue\nprint square(7)\nprint (int) strlen(\"hello\")
set var $esi = 77\nprint $esi\nprint $eip == square\nfinish\nreverse-stepi\n";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "square (i=0)",
        "$1 = 49",
        "$2 = 5",
        "$3 = 77",
        "Value returned is",
    ];
    check_order(&text, &expected)
}

fn check_futures(machine: &Machine, recorded: &Recorded) -> Result<()> {
    let commands = "break program.c:21
set var limit = 3
monitor when
set var limit = 5
continue
print sum
continue
goto start
continue
print sum
set var sum = 1000
set var untouched[5000] = 7
print count()
reverse-continue
continue
print sum
print count()
delete
set var reads = 1
continue
monitor goto end
";
    let text = recorded.gdb(machine, commands)?;
    // gdb shows what the server says on its standard error.
    let expected = [
        "Breakpoint 1, main",
        "$1 = 30",
        "No more reverse-execution history",
        "Breakpoint 1, main",
        "$2 = 5",
        "$3 = 7",
        "No more reverse-execution history",
        "Breakpoint 1, main",
        "$4 = 5",
        "$5 = 0",
        "No more reverse-execution history",
        "was changed at",
        "sum 30",
        "it exits here",
        "is dropped",
        "was changed at",
        "is dropped",
        "was changed at",
        "asks the host for what the recording does not have",
        "is dropped",
        "ns of virtual time",
    ];
    check_order(&text, &expected)?;
    // A write of the same value is no change.
    let first = text.find("was changed").unwrap_or_default();
    let when = text.find("ns of virtual time").unwrap_or_default();
    ensure!(when < first, "{text}");
    Ok(())
}

fn calls(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, SOURCE, &[], 5)?;
    let commands = "tbreak square
continue
print square(7)
print (int) strlen(\"hello\")
up
print (int) strlen(text)
down
print (int) getpid() == $_inferior_thread_dummy
print (long) write(1, \"called\\n\", 7)
set var $rbx = 77
print $rbx
set var $xmm3.v2_double[0] = 2.5
print $xmm3.v2_double[0]
finish
print i
reverse-stepi
";
    let commands = commands.replace("$_inferior_thread_dummy", "$pid");
    let commands = format!(
        "python pid = gdb.selected_inferior().pid\npython gdb.set_convenience_variable('pid', pid)\n{commands}"
    );
    let text = recorded.gdb(machine, &commands)?;
    let expected = [
        "Temporary breakpoint 1, square (i=0)",
        "$1 = 49",
        "$2 = 5",
        "$3 = 7",
        "$4 = 1",
        "$6 = 77",
        "$7 = 2.5",
        "Value returned is",
        "$9 = 0",
        "was changed at",
        "called",
        "is dropped",
    ];
    check_order(&text, &expected)
}

const CRASH: &str = "static int there, *where;
static int twice(int i)
{
	return 2 * i;
}
int main(void)
{
	*where = 5;
	return twice(there);
}
";

fn crash(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, CRASH, &[], 139)?;
    let commands = "print twice(21)
print where
set var $rax = &there
handle SIGSEGV nopass
tbreak twice
continue
print i
goto crash
print there
continue
";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "$1 = 42",
        "$2 = (int *) 0x0",
        "Temporary breakpoint 1, twice (i=5)",
        "$3 = 5",
        "*where = 5",
        "$4 = 0",
        "No more reverse-execution history",
        "was changed at",
        "is dropped",
    ];
    check_order(&text, &expected)
}
