//! C programs of guest-kernel/tests, each the only process of a guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use vbts_vmm::boot::cpio::Cpio;

use crate::machine::Machine;
use crate::programs;

/// Compiles a program of the source files `main` and `others` of guest-kernel/tests, into
/// `directory`.
///
/// # Errors
/// The compiler complains.
pub fn compile(directory: &Path, main: &str, others: &[&str]) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-kernel/tests");
    let others: Vec<String> = others
        .iter()
        .map(|name| sources.join(name).display().to_string())
        .collect();
    let mut flags = vec!["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"];
    flags.extend(others.iter().map(String::as_str));
    programs::gcc(&sources.join(main), &directory.join("program"), &flags)
}

/// `vbts run` of a guest of `kernel` whose PID 1 is `program`, with `argument`, on the accelerator
/// `accel`. Options may be added. The program ends the machine with its exit status.
///
/// # Errors
/// The initial file system cannot be written, to a file beside the program.
pub fn command(
    machine: &Machine,
    accel: &str,
    kernel: &Path,
    program: &Path,
    argument: &str,
) -> Result<Command> {
    let mut archive = Cpio::new();
    archive.file("init", 0o755, &std::fs::read(program)?);
    archive.directory("dev", 0o755);
    archive.character_device("dev/console", 0o600, (5, 1));
    let initrd = program.with_extension("initrd");
    std::fs::write(&initrd, archive.finish())?;

    let mut command = machine.command(["run", "--accel", accel, "--kernel"]);
    command
        .arg(kernel)
        .arg("--initrd")
        .arg(initrd)
        .args(["--append", &format!("quiet -- {argument}")]);
    Ok(command)
}
