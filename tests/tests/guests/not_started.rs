//! Programs that the guest cannot start, although vbts has found nothing wrong with them: the run
//! ends at once, with the cause.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

/// Exit status if the program cannot be executed.
const NOT_EXECUTABLE: i32 = 126;
/// Exit status if there is no such program.
const NOT_FOUND: i32 = 127;

/// The run ends before this limit. A loaded machine needs a few seconds to boot the guest.
const LIMIT: Duration = Duration::from_secs(120);

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("damaged_program", damaged_program),
            ("program_changed_after_the_check", program_changed),
            ("no_working_directory", no_working_directory),
        ],
    )
}

/// Offset of `e_phentsize` in a 64-bit ELF header.
const PHENTSIZE: usize = 54;
/// More than the headers of an ELF program, and less than its first segment.
const HEADERS: usize = 1000;

/// The ELF headers are good enough for vbts, but not for the guest's kernel.
fn damaged_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("program");
    fs::copy("/bin/true", &program)?;
    let whole = fs::read(&program)?;
    let mut refused = whole.clone();
    refused[PHENTSIZE] += 1;
    let truncated = whole.get(..HEADERS).context("a small program")?;
    for (bytes, message) in [
        (&refused[..], "Exec format error"),
        // The kernel kills a task whose old program is gone already.
        (
            truncated,
            "the guest's kernel could not load the program (SIGSEGV)",
        ),
    ] {
        fs::write(&program, bytes)?;
        let mut command = machine.command(["trace", "--accel", machine.accel(), "--output"]);
        command.arg("/dev/null").arg("--").arg(&program);
        let run = machine::finish_within(command, LIMIT)?.expect(NOT_EXECUTABLE)?;
        ensure!(run.stderr.contains(message), "{}", run.stderr);
    }
    Ok(())
}

/// Changes the file at a path.
type Change = fn(&Path) -> std::io::Result<()>;

fn program_changed(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("program");
    let path = program.to_str().context("a strange directory")?;
    let cases: [(&str, Change, i32, &str); 3] = [
        (
            "truncated",
            |path| fs::write(path, []),
            NOT_EXECUTABLE,
            "Exec format error",
        ),
        (
            "without permission",
            |path| fs::set_permissions(path, Permissions::from_mode(0o000)),
            NOT_EXECUTABLE,
            "Permission denied",
        ),
        (
            "removed",
            |path| fs::remove_file(path),
            NOT_FOUND,
            "No such file or directory",
        ),
    ];
    for (name, change, status, message) in cases {
        fs::copy("/bin/true", &program)?;
        let change = || change(&program);
        ends_with(machine, directory.path(), path, change, status, message).context(name)?;
    }
    Ok(())
}

fn no_working_directory(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let within = directory.path().join("directory");
    fs::create_dir(&within)?;
    let remove = || fs::remove_dir(&within);
    let message = "directory: No such file or directory";
    ends_with(
        machine,
        &within,
        "/bin/true",
        remove,
        NOT_EXECUTABLE,
        message,
    )
}

/// Runs `program` in `directory`, makes the `change` when the guest begins to boot, and checks how
/// the run ends.
fn ends_with(
    machine: &Machine,
    directory: &Path,
    program: &str,
    change: impl Fn() -> std::io::Result<()>,
    status: i32,
    message: &str,
) -> Result<()> {
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--log", "debug"]);
    command
        .args(["--output", "/dev/null", "--", program])
        .current_dir(directory)
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut errors = BufReader::new(child.stderr.take().context("no pipe")?);
    let mut text = String::new();
    while !text.contains("DEBUG boot") {
        ensure!(errors.read_line(&mut text)? > 0, "{text}");
    }
    let changed = change();
    let ended = machine::wait(&mut child, LIMIT);
    changed?;
    errors.read_to_string(&mut text)?;
    ensure!(
        ended.as_ref().is_ok_and(|ended| *ended == Some(status)),
        "{ended:?}\n{text}"
    );
    ensure!(text.contains(message), "{text}");
    Ok(())
}
