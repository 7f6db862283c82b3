//! Debian's programs have the same output in the guest as on the host, and their traces are
//! complete.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Test};

pub fn trials(module: &str) -> Vec<Trial> {
    let tests: [(&str, &'static [&'static str]); 9] = [
        (
            "python3",
            &["/usr/bin/python3", "-c", "print(sum(range(100000)))"],
        ),
        ("gzip", &["/bin/gzip", "-c", "/bin/ls"]),
        (
            "sha256sum",
            &["/usr/bin/sha256sum", "/bin/ls", "/etc/passwd"],
        ),
        (
            "perl",
            &[
                "/usr/bin/perl",
                "-e",
                "print join(' ', sort map { $_ * 7 % 31 } 1..30), \"\\n\"; printf '%.15g', sin(1)",
            ],
        ),
        (
            "bash",
            &[
                "/bin/bash",
                "-c",
                "for i in {1..20}; do echo $((i * i)); done | sort -r | head -3; echo $PWD",
            ],
        ),
        (
            "awk",
            &[
                "/usr/bin/awk",
                "BEGIN { for (i = 0; i < 100; i++) s += sqrt(i); printf \"%.10f\\n\", s }",
            ],
        ),
        ("ls", &["/bin/ls", "-l", "--time-style=+%s", "/etc/apt"]),
        ("find", &["/usr/bin/find", "/etc/apt", "-name", "*.d"]),
        ("environment", &["/usr/bin/env"]),
    ];
    let tests = tests.map(|(name, program)| {
        (
            name.to_owned(),
            Box::new(move |machine: &Machine| same(machine, program)) as Test,
        )
    });
    machine::trials(module, tests.into())
}

/// Sets the working directory and the environment, which must be the same for both runs.
fn set_environment(command: &mut Command) -> &mut Command {
    command
        .current_dir("/usr/share")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("GREETING", "hello world")
        .env("LC_ALL", "C")
}

fn same(machine: &Machine, program: &[&str]) -> Result<()> {
    let name = program.first().context("no program")?;
    ensure!(
        Path::new(name).exists(),
        "this host has no {name} (ci/setup installs what the tests need)"
    );
    let mut native = Command::new(name);
    let native = machine::finish({
        set_environment(&mut native).args(program.iter().skip(1));
        native
    })?;

    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    let mut command = machine.command(["trace", "--accel", "soft", "--format", "json", "--output"]);
    let settings: Vec<_> = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    set_environment(&mut command);
    // vbts finds its own files by these variables. The comparison leaves them out.
    for (name, value) in settings {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.arg(&trace).arg("--").args(program);
    let run = machine::finish(command)?.expect(native.status.context("killed on the host")?)?;

    let strip = |bytes: &[u8]| -> Vec<u8> {
        let lines = bytes
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| !line.starts_with(b"VBTS_"));
        lines.flatten().copied().collect()
    };
    ensure!(
        strip(&run.stdout) == strip(&native.stdout),
        "on the host:\n{}\nin the guest:\n{}",
        String::from_utf8_lossy(&native.stdout),
        String::from_utf8_lossy(&run.stdout)
    );
    let text = std::fs::read_to_string(&trace)?;
    let summary: serde_json::Value =
        serde_json::from_str(text.lines().last().context("no summary")?)?;
    ensure!(summary["lost"] == 0, "records were lost: {summary}");
    let branches = text
        .lines()
        .filter(|line| line.contains(r#""kind":"branch""#));
    let records = branches.count() as u64;
    ensure!(
        summary["records"] == records && records > 1000,
        "the trace has {records} records, the summary says {summary}"
    );
    Ok(())
}
