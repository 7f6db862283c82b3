//! `--jit auto`: native code where the host has what it needs, and the same trace without.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vbts_tests::machine::{self, Machine, Run, TestModule, append, finish};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_host_that_refuses_executable_memory", refused),
            ("more_memory_than_native_code_reaches", too_much_memory),
        ],
    )
}

/// Executes its arguments from the second one on. If the first one is 1, it refuses to make memory
/// executable (PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN, prctl(2)), as systemd's
/// MemoryDenyWriteExecute does.
const LAUNCHER: &str = "
import ctypes, os, sys
if sys.argv[1] == '1' and ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit('prctl(PR_SET_MDWE) failed')
os.execvp(sys.argv[2], sys.argv[2:])
";

/// Runs `vbts` with these arguments where memory becomes executable, or not.
fn run(machine: &Machine, refuses: bool, arguments: &[&str]) -> Result<Run> {
    let mut launcher = Command::new("python3");
    launcher.args(["-c", LAUNCHER, if refuses { "1" } else { "0" }]);
    append(&mut launcher, &machine.command(arguments));
    finish(launcher)
}

fn refused(machine: &Machine) -> Result<()> {
    let trace = |jit: &'static str| {
        let options = ["--accel", "soft", "--jit", jit, "--format", "raw"];
        [&["trace"], &options[..], &["--", "/bin/true"]].concat()
    };
    let native = run(machine, false, &trace("on"))?.expect(0)?;
    let interpreted = run(machine, true, &trace("auto"))?.expect(0)?;
    ensure!(!native.stdout.is_empty(), "no branches");
    ensure!(native.stdout == interpreted.stdout, "another trace");
    ensure!(
        !interpreted.stderr.contains("native"),
        "{}",
        interpreted.stderr
    );
    let on = run(machine, true, &trace("on"))?.expect(126)?;
    ensure!(
        on.stderr.starts_with("vbts: No native code: ") && on.stderr.contains("--jit auto"),
        "{}",
        on.stderr
    );
    for refuses in [false, true] {
        let findings = run(machine, refuses, &["probe", "--json"])?.expect(0)?;
        let findings: Value = serde_json::from_slice(&findings.stdout)?;
        let native = &findings["native_code"];
        ensure!(native["available"] == !refuses, "{native}");
        ensure!(native["reason"].is_null() != refuses, "{native}");
    }
    Ok(())
}

fn too_much_memory(machine: &Machine) -> Result<()> {
    let trace = |jit| {
        let words = ["trace", "--accel", "soft", "--memory", "4G", "--jit", jit];
        machine.run([&words[..], &["--", "/bin/true"]].concat())
    };
    trace("auto")?.expect(0)?;
    let on = trace("on")?.expect(126)?;
    let limit = on.stderr.split("more than ").nth(1);
    let limit = limit.with_context(|| on.stderr.clone())?;
    ensure!(limit.starts_with("3968M"), "{}", on.stderr);
    Ok(())
}
