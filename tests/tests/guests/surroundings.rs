//! What a traced program inherits: the same as on the host.

use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine};

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("process_attributes", process_attributes)])
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

/// `command`, started by a shell after [`CHANGES`].
fn under_shell(command: &Command) -> Command {
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &format!("{CHANGES}; exec \"$@\""), "bash"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    shell.stdin(std::process::Stdio::null());
    shell
}
