//! C programs of guest-kernel/tests, each the only process of a guest.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use vbts::boot::cpio::Cpio;

use crate::machine::Machine;
use crate::programs;

/// `vbts run` of a guest whose PID 1 is the program `source`, with `argument`, on the accelerator `accel`. Options may be
/// added. The program ends the machine with its exit status.
///
/// # Errors
/// The program cannot be compiled, or the initial file system not be written to `directory`.
pub fn command(
    machine: &Machine,
    accel: &str,
    source: &str,
    argument: &str,
    directory: &Path,
) -> Result<Command> {
    let program = programs::gcc(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../guest-kernel/tests")
            .join(source),
        &directory.join("program"),
        &["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"],
    )?;
    let mut archive = Cpio::new();
    archive.file("init", 0o755, &std::fs::read(program)?);
    archive.directory("dev", 0o755);
    archive.character_device("dev/console", 0o600, (5, 1));
    let initrd = directory.join("initrd");
    std::fs::write(&initrd, archive.finish())?;

    let mut command = machine.command(["run", "--accel", accel, "--kernel"]);
    command
        .arg(machine.kernel())
        .arg("--initrd")
        .arg(initrd)
        .args(["--append", &format!("quiet -- {argument}")]);
    Ok(command)
}
