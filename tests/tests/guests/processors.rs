//! Guests with several processors. On the host's clock each processor has its own thread. On KVM it
//! moves between KVM and the software CPU while the others run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::guest_program;
use vbts_tests::machine::{self, Machine, TestModule, setting};
use vbts_tests::programs;

/// Time limit of a guest on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A test with `--clock CLOCK`.
type Test = fn(&Machine, clock: &str) -> Result<()>;

const TESTS: [(&str, Test); 4] = [
    ("start_and_stop", start_and_stop),
    ("traced_threads", traced_threads),
    ("stress", stress),
    // `processors::stress` names both.
    ("stress_in_sequences", sequences),
];

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let mut tests: Vec<(String, machine::Test)> = vec![
        ("memory_order".into(), Box::new(memory_order)),
        (
            "memory_order_in_native_code".into(),
            Box::new(memory_order_in_native_code),
        ),
    ];
    for (name, test) in TESTS {
        tests.push((
            name.into(),
            Box::new(move |machine| test(machine, DEFAULT_CLOCK)),
        ));
        // KVM has no other clock.
        if !is_on_kvm() {
            let name = format!("{name}_on_the_hosts_clock");
            tests.push((name, Box::new(move |machine| test(machine, "host"))));
        }
    }
    // On the host's time, a processor need not see a change before a serializing instruction.
    if !is_on_kvm() {
        for jit in ["off", "on"] {
            let name = format!("cross_modifying_code_with_jit_{jit}");
            let test = move |machine: &Machine| cross_modifying_code(machine, jit);
            tests.push((name, Box::new(test)));
        }
    }
    machine::trials(module, tests)
}

/// Whether the guests run on KVM.
fn is_on_kvm() -> bool {
    std::env::var("VBTS_ACCEL").as_deref() == Ok("kvm")
}

/// The clock that the accelerator has by default.
const DEFAULT_CLOCK: &str = "auto";

/// Two processors that run at the same time see each other's loads and stores in the order that
/// the manual promises, and locked instructions are atomic: litmus.c.
fn litmus(machine: &Machine, options: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = programs::gcc(
        &programs::source("litmus.c"),
        &directory.path().join("litmus"),
        &["-O2", "-static", "-pthread"],
    )?;
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--clock", "host"]);
    command
        .args(["--smp", "2", "--last", "1", "--quiet"])
        .args(options)
        .arg("--output")
        .arg(directory.path().join("trace"))
        .arg("--")
        .arg(program)
        .arg("1");
    let run = machine::finish_within(command, PATIENCE)?;
    let printed = run.printed();
    run.expect(0)?;
    // Without both outcomes the threads would have run one after the other.
    let outcomes = printed.lines().find(|line| line.starts_with("MP:"));
    let seen = |outcome: &str| {
        let mut words = outcomes.unwrap_or_default().split_whitespace();
        words.any(|word| word == outcome) && words.next() != Some("0")
    };
    ensure!(seen("0,0") && seen("1,1"), "{printed}");
    Ok(())
}

fn memory_order(machine: &Machine) -> Result<()> {
    litmus(machine, &[])
}

fn memory_order_in_native_code(machine: &Machine) -> Result<()> {
    litmus(machine, &["--jit", "on"])
}

/// Code that another processor has changed is what a processor executes: cross_modifying.c.
fn cross_modifying_code(machine: &Machine, jit: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = programs::gcc(
        &programs::source("cross_modifying.c"),
        &directory.path().join("cross_modifying"),
        &["-O2", "-static", "-pthread"],
    )?;
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--jit", jit]);
    command
        .args(["--smp", "2", "--last", "1", "--quiet", "--output"])
        .arg(directory.path().join("trace"))
        .arg("--")
        .arg(program);
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    ensure!(run.printed() == "0 of 2000 calls were stale\n", "{run:?}");
    Ok(())
}

/// INIT and start-up IPIs, from real-address mode to 64-bit mode: guest-kernel/tests/startup.S.
fn start_and_stop(machine: &Machine, clock: &str) -> Result<()> {
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
    command.args(["--clock", clock, "--kernel"]).arg(kernel);
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    ensure!(run.stdout == ".".repeat(ROUNDS / 16).as_bytes(), "{run:?}");
    Ok(())
}

/// The duration of a test by the guest's clock: `VBTS_STRESS_SECONDS`, or the default for the
/// clock.
fn seconds(machine: &Machine, clock: &str, soft: f64, kvm: f64) -> Result<f64> {
    let default = match (machine.accel(), clock) {
        // The host needs much longer for one second of four software CPUs.
        ("soft", DEFAULT_CLOCK) => soft,
        ("soft", _) => 5.0,
        _ => kvm,
    };
    Ok(setting("VBTS_STRESS_SECONDS")?.unwrap_or(default))
}

/// Runs a program of guest-kernel/tests as the only one of a guest with four processors.
fn run(machine: &Machine, clock: &str, name: &str, others: &[&str], seconds: f64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = guest_program::compile(directory.path(), &format!("{name}.c"), others)?;
    let mut argument = seconds.to_string();
    if let Some(seed) = setting::<u64>("VBTS_STRESS_SEED")? {
        argument = format!("{argument} {seed}");
    }
    let mut command = guest_program::command(
        machine,
        machine.accel(),
        machine.kernel(),
        &program,
        &argument,
    )?;
    command.args(["--smp", "4", "--memory", "512M", "--clock", clock]);
    // On virtual time, one thread executes the four processors in turn.
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
fn traced_threads(machine: &Machine, clock: &str) -> Result<()> {
    let seconds = seconds(machine, clock, 0.1, 20.0)?;
    run(
        machine,
        clock,
        "traced_threads",
        &["walk.c", "bts.c"],
        seconds,
    )
}

/// Tracers that make random requests: guest-kernel/tests/stress.c.
fn stress(machine: &Machine, clock: &str) -> Result<()> {
    let seconds = seconds(machine, clock, 0.2, 20.0)?;
    run(machine, clock, "stress", &["bts.c"], seconds)
}

/// Tracers that make random requests, whose results they know: guest-kernel/tests/sequences.c.
fn sequences(machine: &Machine, clock: &str) -> Result<()> {
    let seconds = seconds(machine, clock, 0.5, 20.0)?;
    run(
        machine,
        clock,
        "sequences",
        &["sequence_model.c", "sequence_requests.c", "bts.c"],
        seconds,
    )
}
