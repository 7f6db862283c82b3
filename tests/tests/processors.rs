//! Guests with several processors. On KVM each runs in a thread of its own, and moves between KVM and the software CPU
//! while the others go on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

/// What a slow and busy machine needs for anything.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    machine::main_of(&[
        ("start_and_stop", start_and_stop),
        ("traced_threads", traced_threads),
    ]);
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

/// Several traced threads, and others that disturb them: guest-kernel/tests/traced_threads.c. VBTS_STRESS_SECONDS tells how
/// long, in the guest's time.
fn traced_threads(machine: &Machine) -> Result<()> {
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
    let program =
        guest_program::compile(directory.path(), "traced_threads.c", &["walk.c", "bts.c"])?;
    let mut command = guest_program::command(
        machine,
        machine.accel(),
        machine.kernel(),
        &program,
        &seconds,
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
