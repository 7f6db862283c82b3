//! A trace of any length. The number of branches of the program, guest-kernel/tests/long_trace.c,
//! is known.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine, TestModule, setting};

/// Time limit for a million steps on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const OTHERS: [&str; 2] = ["walk.c", "bts.c"];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("native", native), ("guest", guest)])
}

/// The program takes the expected branches when the host's processor single-steps it.
fn native(_: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = guest_program::compile(directory.path(), "long_trace.c", &OTHERS)?;
    for steps in ["1", "1000"] {
        let run = Command::new(&program).args(["--step", steps]).output()?;
        let output = String::from_utf8_lossy(&run.stdout);
        ensure!(
            run.status.success() && output.contains("\nok 1 single_step"),
            "{steps} steps: {output}"
        );
    }
    Ok(())
}

/// No record is lost with PTRACE_BTS_O_SIGNAL or with PTRACE_BTS_O_VIRTUAL. `VBTS_LONG_TRACE` is
/// the number of steps.
fn guest(machine: &Machine) -> Result<()> {
    let count: u32 = setting("VBTS_LONG_TRACE")?.unwrap_or(2_000_000);
    let steps = count.to_string();
    let directory = tempfile::tempdir()?;
    let program = guest_program::compile(directory.path(), "long_trace.c", &OTHERS)?;
    let command =
        guest_program::command(machine, machine.accel(), machine.kernel(), &program, &steps)?;
    let run = machine::finish_within(command, PATIENCE * (1 + count / 1_000_000))?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    for (number, name) in [(1, "signal"), (2, "virtual")] {
        ensure!(
            output.contains(&format!("\nok {number} {name}")),
            "{name} was not run:\n{output}"
        );
    }
    Ok(())
}
