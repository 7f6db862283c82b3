//! Two runs of the same command have the same console, output and trace, byte for byte, also on
//! different days.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run, Test, TestModule, setting};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    let tests: [(&str, &'static [&'static str]); 3] = [
        (
            "shell",
            &[
                "/bin/sh",
                "-c",
                "for i in 1 2 3; do echo $i $$ $(date +%N); done",
            ],
        ),
        (
            "clocks_and_random_numbers",
            &[
                "/bin/sh",
                "-c",
                "date +%s.%N; od -An -tx8 -N32 /dev/urandom; cat /proc/uptime",
            ],
        ),
        (
            "processes",
            &[
                "/bin/sh",
                "-c",
                "(sleep 0.01; echo a) & (sleep 0.02; echo b) & wait; ls /proc | head -50",
            ],
        ),
    ];
    let tests = tests.map(|(name, program)| {
        (
            name.to_owned(),
            Box::new(move |machine: &Machine| twice(machine, program)) as Test,
        )
    });
    let another_day: Test = Box::new(another_day);
    let boots: Test = Box::new(boots);
    let tests = tests
        .into_iter()
        .chain([("another_day".into(), another_day), ("boots".into(), boots)]);
    machine::trials(module, tests.collect())
}

/// All output of a run.
struct Output {
    run: Run,
    console: Vec<u8>,
    trace: Vec<u8>,
}

/// Runs `program` on the day `date`, and traces it with `options`.
fn once(machine: &Machine, date: &str, options: &[&str], program: &[&str]) -> Result<Output> {
    let directory = tempfile::tempdir()?;
    let (console, trace) = (
        directory.path().join("console"),
        directory.path().join("trace"),
    );
    let mut command = machine.command(["trace", "--accel", "soft", "--sched", "--epoch", date]);
    command
        .args(options)
        .arg("--console")
        .arg(&console)
        .arg("--output")
        .arg(&trace)
        .arg("--")
        .args(program);
    // The working directory is part of the input.
    command.current_dir("/");
    let run = machine::finish(command)?.expect(0)?;
    Ok(Output {
        run,
        console: std::fs::read(console)?,
        trace: std::fs::read(trace)?,
    })
}

fn twice(machine: &Machine, program: &[&str]) -> Result<()> {
    let once = || once(machine, "2026-01-31", &["--format", "raw"], program);
    same(&once()?, &once()?)
}

/// A program that does not look at the date. The times in the trace are part of it.
fn another_day(machine: &Machine) -> Result<()> {
    let script = "for i in 1 2 3; do echo $i $$; sleep 0.3; done; cat /proc/uptime; \
                  od -An -tx8 -N32 /dev/urandom; echo > /tmp/file; rm /tmp/file";
    let on = |date: &str| {
        once(
            machine,
            date,
            &["--format", "json"],
            &["/bin/sh", "-c", script],
        )
    };
    let first = on("2026-11-23")?;
    for date in ["2026-12-31T23:59:59+05:30", "8277292035"] {
        same(&first, &on(date)?)?;
    }
    Ok(())
}

/// Boots with one and with four processors by turns. `VBTS_BOOTS` is their number.
fn boots(machine: &Machine) -> Result<()> {
    let number: usize = setting("VBTS_BOOTS")?.unwrap_or(4);
    let boot = |processors| {
        let program = ["/bin/cat", "/proc/interrupts"];
        once(machine, "2026-01-31", &["--smp", processors], &program)
    };
    let first = [("1", boot("1")?), ("4", boot("4")?)];
    ensure!(
        first.iter().all(|(_, first)| !first.console.is_empty()),
        "the console is empty"
    );
    for (processors, first) in first.iter().cycle().take(number) {
        same(first, &boot(processors)?)?;
    }
    println!("{number} boots, all equal");
    Ok(())
}

/// Checks that two runs are the same.
fn same(a: &Output, b: &Output) -> Result<()> {
    ensure!(
        a.run.stdout == b.run.stdout,
        "standard output differs:\n{}\n---\n{}",
        String::from_utf8_lossy(&a.run.stdout),
        String::from_utf8_lossy(&b.run.stdout)
    );
    ensure!(
        a.console == b.console,
        "the console differs:\n{}\n---\n{}",
        String::from_utf8_lossy(&a.console),
        String::from_utf8_lossy(&b.console)
    );
    ensure!(!a.trace.is_empty(), "no branch was recorded");
    let differs = a.trace.iter().zip(&b.trace).position(|(a, b)| a != b);
    ensure!(
        differs.is_none(),
        "the traces differ from byte {} on",
        differs.unwrap_or_default()
    );
    ensure!(
        a.trace.len() == b.trace.len(),
        "traces of {} and {} bytes",
        a.trace.len(),
        b.trace.len()
    );
    Ok(())
}
