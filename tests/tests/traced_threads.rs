//! Several processors, several traced threads, and others that disturb them: guest-kernel/tests/traced_threads.c. On KVM
//! each processor moves between KVM and the software CPU while the others go on.
//!
//! VBTS_STRESS_SECONDS tells how long, in the guest's time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine};

/// What a slow and busy machine needs for anything.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    machine::main_of(&[("every_record_is_there", every_record)]);
}

fn every_record(machine: &Machine) -> Result<()> {
    let seconds = match std::env::var("VBTS_STRESS_SECONDS") {
        Ok(seconds) => seconds,
        // A second of four software CPUs is a long time.
        Err(_) if machine.accel() == "soft" => "0.1".into(),
        Err(_) => "20".into(),
    };
    let value: f64 = seconds
        .parse()
        .with_context(|| format!("VBTS_STRESS_SECONDS={seconds}"))?;
    let directory = tempfile::tempdir()?;
    let mut command = guest_program::command(
        machine,
        machine.accel(),
        "traced_threads.c",
        &seconds,
        directory.path(),
    )?;
    command.args(["--smp", "4"]);
    let limit = PATIENCE + Duration::try_from_secs_f64(value)?;
    let run = machine::finish_within(command, limit)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    ensure!(
        output.contains("\nok 1 traced_threads"),
        "it was not run:\n{output}"
    );
    Ok(())
}
