//! Guests with several processors. On KVM each processor has its own thread, and moves between KVM
//! and the software CPU while the others run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine, setting};
use vbts_tests::programs;

/// Time limit of a guest on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("start_and_stop", start_and_stop),
            ("traced_threads", traced_threads),
            ("stress", stress),
        ],
    )
}

/// INIT and start-up IPIs, from real-address mode to 64-bit mode: guest-kernel/tests/startup.S.
fn start_and_stop(machine: &Machine) -> Result<()> {
    const ROUNDS: usize = 320;
    let directory = tempfile::tempdir()?;
    let kernel = programs::gcc(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests/startup.S"),
        &directory.path().join("startup"),
        &[
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,-Ttext=0x1000000,--build-id=none",
            "-DOTHERS=3",
            &format!("-DROUNDS={ROUNDS}"),
        ],
    )?;
    let mut command = machine.command(["run", "--accel", machine.accel(), "--smp", "4"]);
    command.arg("--kernel").arg(kernel);
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    ensure!(run.stdout == ".".repeat(ROUNDS / 16).as_bytes(), "{run:?}");
    Ok(())
}

/// The duration of a test by the guest's clock: `VBTS_STRESS_SECONDS`, or the default for the
/// accelerator.
fn seconds(machine: &Machine, soft: f64, kvm: f64) -> Result<f64> {
    // The host needs much longer for one second of four software CPUs.
    let default = if machine.accel() == "soft" { soft } else { kvm };
    Ok(setting("VBTS_STRESS_SECONDS")?.unwrap_or(default))
}

/// Runs a program of guest-kernel/tests as the only one of a guest with four processors.
fn run(machine: &Machine, name: &str, others: &[&str], seconds: f64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = guest_program::compile(directory.path(), &format!("{name}.c"), others)?;
    let mut command = guest_program::command(
        machine,
        machine.accel(),
        machine.kernel(),
        &program,
        &seconds.to_string(),
    )?;
    command.args(["--smp", "4", "--memory", "512M"]);
    // On the software CPU, one thread executes the four processors in turn.
    let limit = PATIENCE + Duration::try_from_secs_f64(seconds)?.saturating_mul(300);
    let run = machine::finish_within(command, limit)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    ensure!(
        output.contains(&format!("\nok 1 {name}")),
        "{name} was not run:\n{output}"
    );
    Ok(())
}

/// Several traced threads, and others that interrupt them: guest-kernel/tests/traced_threads.c.
fn traced_threads(machine: &Machine) -> Result<()> {
    let seconds = seconds(machine, 0.1, 20.0)?;
    run(machine, "traced_threads", &["walk.c", "bts.c"], seconds)
}

/// Tracers that make random requests: guest-kernel/tests/stress.c.
fn stress(machine: &Machine) -> Result<()> {
    run(machine, "stress", &["bts.c"], seconds(machine, 0.2, 20.0)?)
}
