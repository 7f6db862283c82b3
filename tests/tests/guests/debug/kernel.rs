//! The kernel's view: processors as threads, from the first instruction to a panic.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use tempfile::TempDir;
use vbts_tests::machine::{self, Machine, Run, Skip, TestModule};

use super::{GUIDE, Recorded, both, check_order, debug, needs_gdb};
use crate::stock_kernel::file;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_panic_leads_to_its_cause", guide),
            ("the_start_of_a_kernel", start),
            ("breakpoints_in_code_that_was_freed", freed),
            ("processors_are_threads", processors),
            ("a_changed_kernel_has_another_future", changes),
            ("functions_of_a_kernel_are_called", calls),
            ("the_kernel_below_a_program", program),
            ("a_machine_is_recorded_first", record_first),
            ("a_compressed_kernel_has_symbols", compressed),
            ("the_kernels_commands_for_gdb", scripts),
            ("what_the_views_refuse", refused),
        ],
    )
}

/// A machine whose kernel panics, because there is no such first process.
struct Panic {
    directory: TempDir,
}

impl Panic {
    fn new(machine: &Machine, options: &[&str]) -> Result<Self> {
        needs_gdb()?;
        let panic = Self {
            directory: tempfile::tempdir()?,
        };
        // The kernel in the recording is used, not the one at its path.
        let kernel = panic.file("vmlinux");
        fs::copy(machine.kernel(), &kernel)?;
        let mut command = machine.command(["record", "--quiet", "--memory", "256M", "-o"]);
        command.arg(panic.file("panic.vbts")).args(options);
        command.args(["--append", "init=/nonexistent", "--kernel"]);
        command.arg(&kernel);
        let run = machine::finish(command)?.expect(255)?;
        ensure!(run.stderr.contains("panicked"), "{run:?}");
        fs::remove_file(kernel)?;
        Ok(panic)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn gdb(&self, machine: &Machine, commands: &str) -> Result<String> {
        let script = self.file("commands.gdb");
        fs::write(&script, commands)?;
        let run = debug(machine, &[], &self.file("panic.vbts"), &script)?.expect(0)?;
        Ok(both(&run))
    }
}

/// `text` without the digits of addresses, which are others in each kernel.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result += "0x";
        result += part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    result
}

/// The session of the guide.
fn guide(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &[])?;
    let section = GUIDE.split("## The kernel, backwards").nth(1);
    let section = section.and_then(|text| text.split("\n## ").next());
    let session = section.and_then(|text| text.split("vbts debug panic.vbts").nth(1));
    let mut commands = String::new();
    let mut expected = Vec::new();
    // The session ends with its block.
    let lines = session.context("no session")?.lines().skip(1);
    for line in lines.map_while(|line| line.strip_prefix("    ")) {
        match line.strip_prefix("(gdb) ") {
            Some(command) => commands += &format!("{command}\n"),
            None => expected.push(without_addresses(line)),
        }
    }
    ensure!(commands.lines().count() >= 5 && expected.len() >= 5);
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let text = panic.gdb(machine, &commands)?;
    check_order(&without_addresses(&text), &expected)?;
    // Another command of the section.
    let mut command = machine.command(["report", "print", "--at", "kernel_execve"]);
    command.arg("(char *) $rdi").arg(panic.file("panic.vbts"));
    command.env("XDG_CACHE_HOME", "/dev/null");
    let report = machine::finish(command)?.expect(0)?;
    ensure!(report.printed().contains("/nonexistent"), "{report:?}");
    Ok(())
}

/// Memory and registers that are changed, and the way back.
fn changes(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &[])?;
    let commands = "print (int) panic_timeout\nset var *(int *) &panic_timeout = 3
set var $rdi = (long) &linux_banner\nset var $xmm0.v2_double[0] = 2.5\nprint $xmm0.v2_double[0]
continue\ngoto crash\nprint (int) panic_timeout
stepi\nreverse-stepi\ngoto start\nset var *(char *) 0x20000 = 78\nprint *(char *) 0x20000\nwhen
";
    let text = panic.gdb(machine, commands)?;
    let shown = [
        "$1 = -1",
        "$2 = 2.5",
        "No more reverse-execution history.",
        "in panic ()",
        "$3 = -1",
        "$4 = 78",
    ];
    check_order(&text, &shown)?;
    let said = [
        "was changed at",
        "syncing: Linux version",
        "Rebooting in 3 seconds",
        "goes no further",
        "is dropped",
        "was changed at",
    ];
    check_order(&text, &said)?;
    for (command, said) in [
        ("set var $cs = 8", "control registers cannot be changed"),
        ("set var $cr3 = 0", "control registers cannot be changed"),
        ("set var $rip = 1UL << 63", "not canonical"),
        (
            "set var *(char *) 0x100000000000 = 1",
            "Cannot access memory",
        ),
    ] {
        let script = panic.file("commands.gdb");
        fs::write(&script, command)?;
        // gdb ends at an error in a script.
        let text = both(&debug(machine, &[], &panic.file("panic.vbts"), &script)?.expect(1)?);
        check_order(&text, &[said])?;
    }
    Ok(())
}

/// The kernel's functions, which return to the stack, where no code can be executed. Breakpoints
/// are hit in them, and the machine is as before when they have returned.
fn calls(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &["--smp", "2"])?;
    let commands = "set $before = $sp
print (unsigned long) int_sqrt(1522756UL)
print (unsigned long) strlen((char *) &linux_banner) > 13
print (int) _printk((char *) &linux_banner) > 13
print $sp == $before
break *int_pow
python
try:
    gdb.execute('print (unsigned long) int_pow(3UL, 5U)')
except gdb.error as error:
    print(error)
end
info registers rdi
finish
print $sp == $before
goto crash
print $sp == $before
";
    let text = panic.gdb(machine, commands)?;
    let shown = [
        "in panic ()",
        "$1 = 1234",
        "$2 = 1",
        "$3 = 1",
        "$4 = 1",
        "stopped while in a function called from GDB",
        "rdi 0x3",
        "$5 = 1",
        "$6 = 1",
    ];
    check_order(&text, &shown)?;
    ensure!(text.matches("Breakpoint 1, ").count() == 1, "{text}");
    let said = ["was changed at", "Linux version", "is dropped"];
    check_order(&text, &said)
}

/// Breakpoints from the first instruction on, and what was there before paging.
fn start(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &[])?;
    let commands = "goto start\nprint $pc < 0x10000000\nstepi\nreverse-stepi
hbreak *start_kernel\nbreak *rest_init if $sp != 0\nbreak *parse_args if $sp == 0
continue\nprint $cr3 != 0\ncontinue\nstepi 3\nreverse-stepi 3\nreverse-continue\nreverse-continue
goto record 100000\nrecords 1\nprint $pc
delete\nwatch *(int *) &system_state\ncontinue\nreverse-continue\ngoto crash\nrecords 1
record btrace bts\nrecord function-call-history -\nrecord stop\ndelete\ncontinue\nwhen";
    let text = panic.gdb(machine, commands)?;
    let expected = [
        "panic ()",
        "$1 = 1",
        "Breakpoint 1, 0x",
        "start_kernel ()",
        "$2 = 1",
        "Breakpoint 2, 0x",
        "rest_init ()",
        "Breakpoint 1, 0x",
        "start_kernel ()",
        "No more reverse-execution history.",
        "$3 = ",
        "Old value = 0",
        "New value = 1",
        "Old value = 1",
        "New value = 0",
        "panic ()",
        "kernel_init",
        "No more reverse-execution history.",
    ];
    check_order(&text, &expected)?;
    // The last branch leads to where the processor is.
    let target = text.lines().find_map(|line| line.split(" -> ").nth(1));
    let target = target.context("no record")?;
    let place = text.lines().find(|line| line.starts_with("$3 = "));
    ensure!(
        place.is_some_and(|place| place.contains(target)),
        "{target} {text}"
    );
    Ok(())
}

/// A breakpoint in code that the kernel has overwritten with INT3 is none of the kernel's own.
fn freed(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &[])?;
    let commands =
        "break *start_kernel\nreverse-continue\nstepi\nreverse-stepi\nprint $pc\ncontinue\nwhen";
    let text = panic.gdb(machine, commands)?;
    let expected = [
        "panic ()",
        "Breakpoint 1, 0x",
        "start_kernel ()",
        "start_kernel ()",
        "$1 = ",
        "<start_kernel>",
        "No more reverse-execution history.",
    ];
    check_order(&text, &expected)
}

/// Each processor goes forward and back, also one that has not started and one that is halted.
fn processors(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &["--smp", "3"])?;
    let show = "info registers rip rsp cs";
    let mut commands = "goto start\ntbreak *start_secondary\ncontinue\ninfo threads\n".to_owned();
    for thread in [1, 2, 3] {
        commands += &format!(
            "thread {thread}\n{show}\nstepi 2\n{show}\nreverse-stepi 2\n{show}\n\
             stepi 2\n{show}\n"
        );
    }
    commands += "goto crash\ninfo threads\nthread 3\nstepi\nreverse-stepi\nwho-called\n";
    let text = panic.gdb(machine, &commands)?;
    for name in ["rip", "rsp", "cs"] {
        let values: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
        ensure!(values.len() == 12, "{name}: {values:?} {text}");
        for thread in values.chunks(4) {
            ensure!(thread[0] == thread[2], "{name}: {thread:?} {text}");
            ensure!(thread[1] == thread[3], "{name}: {thread:?} {text}");
            ensure!(name != "rip" || thread[0] != thread[1], "{thread:?} {text}");
        }
    }
    let expected = [
        "Thread 2 \"CPU 1\" hit Temporary breakpoint 1",
        "start_secondary ()",
        "\"CPU 0\" (in task swapper/0)",
        "\"CPU 1\" (in task swapper/1)",
        "\"CPU 2\" (halted)",
        "\"CPU 0\" (in task swapper/0)",
        "panic ()",
        "\"CPU 1\" (halted)",
        "has called",
    ];
    check_order(&text, &expected)
}

const EXITS: &str = "
int value;
int main(void)
{
	value = 5;
	return value;
}
";

/// A recorded program and its kernel are one machine.
fn program(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, EXITS, &["--smp", "2"], 5)?;
    let script = recorded.file("commands.gdb");
    fs::write(
        &script,
        "break *do_group_exit if $rdi == 0x500\ncontinue\ninfo threads\nwho-called
print $cs\nreverse-stepi 2\n",
    )?;
    let mut command = machine.command(["debug", "--view", "kernel", "--batch", "-x"]);
    command.arg(&script).arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", "/dev/null");
    let text = both(&machine::finish(command)?.expect(0)?);
    let expected = [
        "start_kernel ()",
        "hit Breakpoint 1",
        "do_group_exit ()",
        "(in task program)",
        "$1 = 16",
        "has called",
    ];
    check_order(&text, &expected)
}

fn record_first(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let directory = tempfile::tempdir()?;
    let script = directory.path().join("commands.gdb");
    fs::write(&script, "info threads\nwho-called\n")?;
    let mut command = machine.command(["debug", "--batch", "--memory", "256M", "--smp", "2"]);
    command.arg("-x").arg(&script);
    command.args(["--append", "init=/nonexistent", "--kernel"]);
    command.arg(machine.kernel());
    let text = both(&machine::finish(command)?.expect(0)?);
    check_order(
        &text,
        &["panic ()", "CPU 1", "kernel_init ()", "has called"],
    )
}

/// A bzImage has its symbols in memory, at an address of its choice.
fn compressed(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let kernel = file("vmlinuz")?;
    let directory = tempfile::tempdir()?;
    let script = directory.path().join("commands.gdb");
    let recording = directory.path().join("run.vbts");
    let mut command = machine.command(["record", "--quiet", "--memory", "512M", "-o"]);
    command.arg(&recording).arg("--kernel").arg(kernel);
    machine::finish(command)?.expect(255)?;
    fs::write(
        &script,
        "who-called\nbreak do_filp_open\nreverse-continue\ngoto start\nx/i $pc\nstepi
reverse-stepi\nbreak *start_kernel\ncontinue\n",
    )?;
    let text = both(&debug(machine, &[], &recording, &script)?.expect(0)?);
    let expected = [
        "panic ()",
        "in mount_root",
        "Breakpoint 1, 0x",
        "do_filp_open ()",
        "=> 0x",
        "Breakpoint 2, 0x",
        "start_kernel ()",
    ];
    check_order(&text, &expected)
}

/// The kernel with debugging information and its own commands for GDB, if it was built.
fn scripts(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let directory = "guest-debug-info-gdb-scripts/build";
    let found = machine::find("VBTS_GDB_SCRIPTS", &format!("{directory}/vmlinux-gdb.py"));
    let Ok(commands) = found else {
        let why =
            format!("there is no {directory}/vmlinux-gdb.py: docs/guide/debug-a-recording.md");
        return Err(Skip(why).into());
    };
    let directory = tempfile::tempdir()?;
    let script = directory.path().join("commands.gdb");
    fs::write(
        &script,
        format!(
            "source {}\nbt 2\nprint init_task.comm\nlx-cmdline\nlx-ps\nlx-dmesg
print $lx_current().comm\nbreak do_filp_open\nreverse-continue\ninfo args\nnext\nreverse-next
finish\nreverse-finish\nup\n",
            commands.display()
        ),
    )?;
    let mut command = machine.command(["debug", "--batch", "--memory", "256M", "-x"]);
    command.arg(&script).args(["--append", "init=/nonexistent"]);
    command
        .arg("--kernel")
        .arg(commands.with_file_name("vmlinux"));
    let text = both(&machine::finish(command)?.expect(0)?);
    let expected = [
        "panic (fmt=",
        "kernel_init",
        "$1 = \"swapper",
        "init=/nonexistent",
        "COMM",
        "swapper/0",
        "Linux version",
        "$2 = \"swapper/0",
        "Breakpoint 1, do_filp_open",
        "pathname =",
        "Value returned",
        "do_filp_open",
    ];
    check_order(&text, &expected)
}

fn refused(machine: &Machine) -> Result<()> {
    let panic = Panic::new(machine, &[])?;
    let script = panic.file("commands.gdb");
    fs::write(&script, "when\n")?;
    let ask = |options: &[&str]| -> Result<Run> {
        let mut command = machine.command(["debug", "--batch", "-x"]);
        command.arg(&script).args(options);
        command.arg(panic.file("panic.vbts"));
        machine::finish(command)?.expect(125)
    };
    let run = ask(&["--view", "program"])?;
    ensure!(run.stderr.contains("is of a machine"), "{run:?}");
    let run = ask(&["--process", "init"])?;
    ensure!(run.stderr.contains("--process"), "{run:?}");
    Ok(())
}
