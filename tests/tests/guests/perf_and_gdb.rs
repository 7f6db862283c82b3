//! perf and GDB of the host, on our kernel, while they and all their tasks are traced. A trace
//! keeps them from the Branch Trace Store, and from nothing else. `clients` runs them alone.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("perf_test", perf_test),
            ("perf_has_no_branch_trace_store", perf_record),
            ("gdb_has_no_branch_trace_store", gdb),
        ],
    )
}

/// Time limit of a guest on a slow and busy machine.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Tests of perf that use the kernel and the processor, without tracepoints, which our kernel does
/// not have. "Number of exit events of a simple workload" fails on it, with a trace and without: it
/// calls poll() 1000 times after the child's event has ended, and gives up if the child has not.
const PERF_TESTS: [&str; 19] = [
    "PERF_RECORD_* events & perf_sample fields",
    "Breakpoint overflow signal handler",
    "Breakpoint overflow sampling",
    "Breakpoint accounting",
    "Write Only Watchpoint",
    "Read / Write Watchpoint",
    "Modify Watchpoint",
    "Software clock events period values",
    "Use a dummy software event to keep tracking",
    "Track with sched_switch",
    "Lookup mmap thread",
    "Thread map",
    "Session topology",
    "Event times",
    "TSC support",
    "Perf time to TSC",
    "Sigtrap",
    "x86 bp modify",
    "x86 Sample parsing",
];

/// Runs a shell script in a traced guest.
fn run(machine: &Machine, needed: &str, directory: &Path, script: &str) -> Result<Run> {
    if Command::new(needed).arg("--version").output().is_err() {
        return Err(Skip(format!("{needed} is not installed")).into());
    }
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--memory", "1G"]);
    command
        .args(["--last", "1000", "--output"])
        .arg(directory.join("trace"))
        .args(["--", "sh", "-c", script])
        .current_dir(directory);
    machine::finish_within(command, TIMEOUT)
}

/// Checks that the trace exists, and that nothing of it was lost.
fn check_trace(run: &Run, directory: &Path) -> Result<()> {
    ensure!(run.stderr.contains(" lost: 0,"), "{run:?}");
    ensure!(fs::metadata(directory.join("trace"))?.len() > 0, "no trace");
    Ok(())
}

/// A shell script that runs perf's own tests.
pub fn perf_tests() -> String {
    let mut script = "export LC_ALL=C HOME=/tmp\n".to_owned();
    for name in PERF_TESTS {
        script += &format!("echo '@{name}'; timeout 100 perf test '{name}' </dev/null 2>&1\n");
    }
    script
}

/// Checks that perf's tests have passed: counters, samples, breakpoints, the time-stamp counter.
///
/// # Errors
/// A test has not passed; the message has its output.
pub fn check_perf_tests(output: &str) -> Result<()> {
    for name in PERF_TESTS {
        let (_, rest) = output.split_once(&format!("@{name}\n")).unwrap_or_default();
        let result = rest.split('@').next().unwrap_or_default();
        ensure!(
            result.contains(": Ok") && !result.contains("FAILED"),
            "{name}:\n{result}"
        );
    }
    Ok(())
}

/// perf's own tests pass as without a trace.
fn perf_test(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let script = format!("cd /tmp; {}", perf_tests());
    let run = run(machine, "perf", directory.path(), &script)?.expect(0)?;
    check_trace(&run, directory.path())?;
    check_perf_tests(&String::from_utf8_lossy(&run.stdout))
}

/// An event that needs the Branch Trace Store is refused, and its program does not run.
fn perf_record(machine: &Machine) -> Result<()> {
    const SCRIPT: &str = "cd /tmp; export LC_ALL=C HOME=/tmp
        perf record -q -N -B -o data --per-thread -e intel_bts//u -- touch run 2>&1
        echo status: $?
        test -e run || echo not run
        perf stat -e task-clock -- true 2>&1 && echo others work";
    let directory = tempfile::tempdir()?;
    let run = run(machine, "perf", directory.path(), SCRIPT)?.expect(0)?;
    check_trace(&run, directory.path())?;
    let output = String::from_utf8_lossy(&run.stdout);
    for text in [
        "Device or resource busy",
        "status: 255",
        "not run",
        "others work",
    ] {
        ensure!(output.contains(text), "no {text:?} in\n{output}");
    }
    Ok(())
}

/// `record btrace bts` is refused, and GDB can debug the program otherwise.
fn gdb(machine: &Machine) -> Result<()> {
    // GDB ends if a command of a file fails, except in Python.
    const COMMANDS: &str = "\
set confirm off
set startup-with-shell off
starti
python
try:
    gdb.execute('record btrace bts')
except gdb.error as error:
    print('refused:', error)
end
break *finish
continue
print 40 + 2
kill
";
    let directory = tempfile::tempdir()?;
    let source = programs::source("history.S");
    programs::compile(&source, &directory.path().join("history"), &[])?;
    fs::write(directory.path().join("commands"), COMMANDS)?;
    let script = "exec gdb -nx -q -batch -x commands ./history 2>&1";
    let run = run(machine, "gdb", directory.path(), script)?.expect(0)?;
    check_trace(&run, directory.path())?;
    let output = String::from_utf8_lossy(&run.stdout);
    for text in [
        "refused: ",
        "Device or resource busy",
        "Breakpoint 1, ",
        "$1 = 42",
    ] {
        ensure!(output.contains(text), "no {text:?} in\n{output}");
    }
    Ok(())
}
