//! A trace of any length. The number of branches of the program, guest-kernel/tests/long_trace.c,
//! is known.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, setting};
use vbts_tests::{guest_program, programs};

/// Time limit for a million steps on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const OTHERS: [&str; 2] = ["walk.c", "bts.c"];

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[("native", native), ("guest", guest), ("grows", grows)],
    )
}

/// A buffer that grows while the program runs has the same records as one that stays, and stops the
/// program less often.
fn grows(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("long_loop");
    // Some 40 million taken branches: 229 segments of 4 MiB.
    let rounds = 3_000_000;
    let result = (0..rounds).fold(12345u32, |number, _| {
        number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
    });
    let flags = [format!("-DROUNDS={rounds}"), format!("-DRESULT={result}")];
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    programs::compile(&programs::source("long_loop.S"), &program, &flags)?;
    let trace = |name: &str, options: &[&str]| -> Result<_> {
        let output = directory.path().join(name);
        let options = [&["--stats"], options].concat();
        let run = machine
            .trace("btrace", &output, &options, &[&program])?
            .expect(0)?;
        ensure!(run.stderr.contains("lost: 0"), "{}", run.stderr);
        let line = run.stderr.lines().find(|line| line.ends_with(WHILE_TRACED));
        let count = line.and_then(|line| line.split_whitespace().next());
        let count: u64 = count.context("no instructions of the kernel")?.parse()?;
        Ok((output, count))
    };
    let (grown, fewer) = trace("grown", &[])?;
    let (fixed, more) = trace("fixed", &["--buffer", "4M"])?;
    ensure!(
        have_equal_records(machine, [&grown, &fixed])?,
        "the records differ"
    );
    // Only the software CPU counts instructions.
    ensure!(
        machine.accel() != "soft" || fewer < more,
        "{fewer} instructions of the kernel, and {more} with a buffer that stays"
    );
    Ok(())
}

/// What follows the instructions of the guest's kernel in the output of `--stats`.
const WHILE_TRACED: &str = "the kernel while it is traced";

/// Whether two traces have the same records, of which there are many.
fn have_equal_records(machine: &Machine, traces: [&Path; 2]) -> Result<bool> {
    let mut reports = Vec::new();
    for trace in traces {
        let mut command = machine.command(["report", "raw"]);
        reports.push(command.arg(trace).stdout(Stdio::piped()).spawn()?);
    }
    let outputs = reports.iter_mut().filter_map(|report| report.stdout.take());
    let mut outputs: Vec<_> = outputs.map(|output| output.take(u64::MAX)).collect();
    let mut pieces = [Vec::new(), Vec::new()];
    let mut size = 0;
    let equal = loop {
        for (output, piece) in outputs.iter_mut().zip(&mut pieces) {
            piece.clear();
            output.set_limit(1 << 20);
            output.read_to_end(piece)?;
        }
        let [one, other] = &pieces;
        size += one.len();
        if one != other || one.is_empty() {
            break one == other;
        }
    };
    drop(outputs);
    for mut report in reports {
        ensure!(report.wait()?.success() || !equal, "a report failed");
    }
    Ok(equal && size > 0)
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
