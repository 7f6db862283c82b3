//! What a traced program inherits: the same as on the host.

use std::process::Command;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("process_attributes", process_attributes),
            ("ignored_signals", ignored_signals),
            ("leaders_of_groups_and_sessions", leaders),
            ("date", date),
        ],
    )
}

/// A shell prints its user, groups, umask and resource limits.
const ATTRIBUTES: &str = "id -u; id -g; id -G; umask; ulimit -Sn; ulimit -Hn; ulimit -Ss; \
                          ulimit -Hs; ulimit -Sc; ulimit -Hc";
/// Values that are not the defaults.
const CHANGES: &str = "umask 027; ulimit -Sn 777; ulimit -Hn 7777; ulimit -Ss 5000; ulimit -Sc 100";

fn process_attributes(machine: &Machine) -> Result<()> {
    let host = Command::new("/bin/bash")
        .args(["-c", &format!("{CHANGES}; {ATTRIBUTES}")])
        .output()?;
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--format", "raw"]);
    command.arg("--output").arg(&trace);
    command.args(["--", "/bin/bash", "-c", ATTRIBUTES]);
    let run = machine::finish(under_shell(&command))?.expect(0)?;
    ensure!(
        run.stdout == host.stdout,
        "{}\ninstead of\n{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&host.stdout)
    );
    Ok(())
}

/// The program ignores what `vbts` was told to ignore, and the run survives such a signal.
fn ignored_signals(machine: &Machine) -> Result<()> {
    const IGNORE: &str = "trap '' HUP INT QUIT USR1 RTMAX-3";
    // The C library keeps signals 32 and 33 for itself.
    const SHOW: &str = "read -r _ mask < <(grep SigIgn /proc/self/status); \
                        printf '%x\\n' $((0x$mask & ~0x180000000))";
    let host = Command::new("/bin/bash")
        .args(["-c", &format!("{IGNORE}; {SHOW}")])
        .output()?;
    let directory = tempfile::tempdir()?;
    for options in [&["--format", "btrace"][..], &["--report", "stat"]] {
        let mut command = machine.command(["trace", "--accel", machine.accel()]);
        command.args(options).arg("--output");
        command.arg(directory.path().join("output"));
        // The parent is vbts, which gets the signal while the program runs.
        let parent = format!("{SHOW}; for ((i = 0; i < 20000; i++)); do :; done; echo end");
        command.args(["--", "/bin/bash", "-c", &parent]);
        let mut shell = Command::new("/bin/bash");
        let script = format!(
            "{IGNORE}; \"$@\" & while kill -HUP $! 2>/dev/null; do sleep 0.1; done; wait $!"
        );
        shell.args(["-c", &script, "bash"]);
        machine::append(&mut shell, &command);
        let run = machine::finish(shell)?.expect(0)?;
        let expected = format!("{}end\n", String::from_utf8_lossy(&host.stdout));
        let found = String::from_utf8_lossy(&run.stdout);
        ensure!(found == expected, "{found}\ninstead of\n{expected}");
    }
    Ok(())
}

/// The program leads its process group and its session exactly if `vbts` would.
fn leaders(machine: &Machine) -> Result<()> {
    let own = "import os; own = os.getpid(); print(os.getsid(0) == own, os.getpgrp() == own)";
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace");
    for (before, expected) in [
        ("", "False False\n"),
        ("import os; os.setpgid(0, 0)", "False True\n"),
        ("import os; os.setsid()", "True True\n"),
    ] {
        let start = format!("{before}\nimport os, sys; os.execv(sys.argv[1], sys.argv[1:])");
        let program = ["/usr/bin/python3", "-c", own];
        let run = |vbts: Option<&Command>| -> Result<String> {
            let mut command = Command::new("/usr/bin/python3");
            command.args(["-c", &start]);
            if let Some(vbts) = vbts {
                machine::append(&mut command, vbts);
            }
            command.args(program).stdin(std::process::Stdio::null());
            let run = machine::finish(command)?.expect(0)?;
            Ok(String::from_utf8(run.stdout)?)
        };
        let mut vbts = machine.command(["trace", "--accel", machine.accel(), "--output"]);
        vbts.arg(&trace).arg("--");
        let (host, guest) = (run(None)?, run(Some(&vbts))?);
        ensure!(host == expected, "{before}: {host} on the host");
        ensure!(guest == host, "{before}: {guest} instead of {host}");
    }
    // setsid(1) waits for its program exactly if it leads no process group.
    let program = ["/usr/bin/setsid", "/bin/sh", "-c", "exit 3"];
    machine.trace("text", &trace, &[], &program)?.expect(3)?;
    Ok(())
}

/// The date is the host's, or the one that was asked for.
fn date(machine: &Machine) -> Result<()> {
    let trace = tempfile::NamedTempFile::new()?;
    let date = |options: &[&str], variable: Option<&str>, words: &[&str]| -> Result<String> {
        let mut command = machine.command(["trace", "--accel", machine.accel(), "--output"]);
        command.arg(trace.path()).args(["--format", "raw"]);
        command.args(options).arg("--").arg("/bin/date").args(words);
        command.env_remove("SOURCE_DATE_EPOCH");
        command.envs(variable.map(|value| ("SOURCE_DATE_EPOCH", value)));
        let run = machine::finish(command)?.expect(0)?;
        Ok(String::from_utf8(run.stdout)?.trim().into())
    };
    let seconds = || -> Result<u64> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(now.as_secs())
    };
    let before = seconds()?;
    let guest: u64 = date(&[], None, &["+%s"])?.parse()?;
    let after = seconds()?;
    ensure!(
        (before..=after + 1).contains(&guest),
        "{guest} is not between {before} and {after}"
    );
    // The boot takes some hundredths of a second.
    let format = &["-u", "+%FT%T.%1N"][..];
    for (options, variable, expected) in [
        (
            &["--epoch", "2000-02-29"][..],
            None,
            "2000-02-29T00:00:00.0",
        ),
        (&["--epoch", "0"], Some("1"), "1970-01-01T00:00:00.0"),
        (&[], Some("951782400"), "2000-02-29T00:00:00.0"),
    ] {
        let guest = date(options, variable, format)?;
        ensure!(guest == expected, "{guest} instead of {expected}");
    }
    Ok(())
}

/// `command`, started by a shell after [`CHANGES`].
fn under_shell(command: &Command) -> Command {
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &format!("{CHANGES}; exec \"$@\""), "bash"]);
    machine::append(&mut shell, command);
    shell.stdin(std::process::Stdio::null());
    shell
}
