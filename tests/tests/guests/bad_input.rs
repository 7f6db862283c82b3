//! Bad input leads to a message of one line and the right exit status, and leaves no files behind.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::tcgetattr;
use nix::unistd::Pid;
use vbts_tests::machine::{self, Machine, Run, TestModule};
use vbts_tests::programs;

/// Exit status of a timeout.
const TIMEOUT: i32 = 124;
/// Exit status of bad usage and of errors.
const USAGE: i32 = 125;
/// Exit status of a command or a program that this host cannot execute.
const CANNOT: i32 = 126;
/// Exit status if the program does not exist.
const NOT_FOUND: i32 = 127;
/// Exit status of a guest that crashed.
const GUEST_CRASHED: i32 = 255;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("no_such_program", no_such_program),
            ("no_such_program_in_path", no_such_program_in_path),
            ("not_an_elf_file", not_an_elf_file),
            ("a_directory", a_directory),
            ("not_executable", not_executable),
            ("elf_of_x32", elf_of_x32),
            ("elf_of_another_architecture", elf_of_another_architecture),
            ("truncated_elf", truncated_elf),
            ("a_report_is_no_trace", reports_in_one_file),
            ("no_such_kernel", no_such_kernel),
            ("not_a_kernel", not_a_kernel),
            ("truncated_kernel", truncated_kernel),
            ("special_files", special_files),
            ("share_of_the_root", share_of_the_root),
            ("initrd_larger_than_memory", large_initrd),
            ("one_megabyte_of_memory", little_memory),
            ("unknown_cpu_model", unknown_model),
            ("kvm_or_a_reason", no_kvm),
            ("timeout", timeout),
            ("guest_panic", guest_panic),
            ("interrupted", interrupted),
            ("terminal_is_restored", terminal),
            ("full_output_disk", full_disk),
            ("output_directory_missing", no_output_directory),
        ],
    )
}

/// Checks the status, and that the message is one line that contains each of `words`.
fn complains(run: Run, status: i32, words: &[&str]) -> Result<()> {
    let run = run.expect(status)?;
    let lines: Vec<&str> = run.stderr.lines().filter(|line| !line.is_empty()).collect();
    ensure!(
        lines.len() == 1,
        "{} lines instead of one:\n{}",
        lines.len(),
        run.stderr
    );
    for word in words {
        ensure!(run.stderr.contains(word), "no `{word}` in: {}", run.stderr);
    }
    ensure!(!run.stderr.contains("panicked"), "{}", run.stderr);
    Ok(())
}

fn trace(machine: &Machine, program: &Path) -> Result<Run> {
    machine.trace("raw", Path::new("/dev/null"), &[], &[program])
}

/// Builds a program in a temporary directory, and changes it with `edit`.
fn edited(edit: impl FnOnce(&mut Vec<u8>)) -> Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let path = programs::ALL[0].build(directory.path())?;
    let mut bytes = fs::read(&path)?;
    edit(&mut bytes);
    fs::write(&path, bytes)?;
    Ok((directory, path))
}

fn no_such_program(machine: &Machine) -> Result<()> {
    complains(
        trace(machine, Path::new("/no/such/program"))?,
        NOT_FOUND,
        &["/no/such/program"],
    )
}

fn no_such_program_in_path(machine: &Machine) -> Result<()> {
    complains(
        trace(machine, Path::new("no-such-program"))?,
        NOT_FOUND,
        &["no-such-program", "PATH"],
    )
}

fn not_an_elf_file(machine: &Machine) -> Result<()> {
    let (_directory, path) = edited(|bytes| *bytes = b"just words\n".repeat(20))?;
    complains(trace(machine, &path)?, CANNOT, &["recursion", "ELF"])
}

fn a_directory(machine: &Machine) -> Result<()> {
    complains(
        trace(machine, Path::new("/etc"))?,
        CANNOT,
        &["/etc", "directory"],
    )
}

fn not_executable(machine: &Machine) -> Result<()> {
    let (_directory, path) = edited(|_| ())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    complains(trace(machine, &path)?, CANNOT, &["recursion", "permission"])
}

fn elf_of_x32(machine: &Machine) -> Result<()> {
    let (_directory, path) = edited(|bytes| {
        bytes[4] = 1; // ELFCLASS32
    })?;
    complains(trace(machine, &path)?, CANNOT, &["recursion", "x32"])
}

fn elf_of_another_architecture(machine: &Machine) -> Result<()> {
    let (_directory, path) = edited(|bytes| bytes[18] = 183)?; // EM_AARCH64
    complains(trace(machine, &path)?, CANNOT, &["recursion", "AArch64"])
}

fn truncated_elf(machine: &Machine) -> Result<()> {
    let (_directory, path) = edited(|bytes| bytes.truncate(100))?;
    complains(trace(machine, &path)?, CANNOT, &["recursion", "truncated"])
}

fn reports_in_one_file(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a");
    let reports = ["trace", "--report", "functions", "--report", "calls"];
    let mut command = machine.command(reports);
    command.arg("--output").arg(&file).args(["--", "/bin/true"]);
    let run = machine::finish(command)?;
    complains(run, USAGE, &["several reports need a file each"])?;
    ensure!(!file.exists(), "a file is left");
    for (report, words) in [
        ("functionz", "a similar value exists: 'functions'"),
        ("functions --depth 3", "no such option"),
        ("functions --limit x", "--limit"),
        ("diff", "--against FILE names the trace"),
    ] {
        let command = machine.command(["trace", "--report", report, "--", "/bin/true"]);
        let run = machine::finish(command)?;
        ensure!(run.stderr.contains(words), "{report}: {}", run.stderr);
        ensure!(run.status == Some(USAGE), "{report}: {:?}", run.status);
    }
    Ok(())
}

fn boot(machine: &Machine, kernel: &Path, options: &[&str]) -> Result<Run> {
    let mut command = machine.command(["run", "--accel", "soft", "--timeout", "120", "--kernel"]);
    command.arg(kernel).args(options);
    machine::finish(command)
}

fn no_such_kernel(machine: &Machine) -> Result<()> {
    complains(
        boot(machine, Path::new("/no/kernel"), &[])?,
        USAGE,
        &["/no/kernel"],
    )
}

fn not_a_kernel(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kernel");
    fs::write(&path, "not a kernel at all\n".repeat(1000))?;
    complains(boot(machine, &path, &[])?, USAGE, &["kernel"])
}

fn truncated_kernel(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kernel");
    let mut bytes = fs::read(machine.kernel())?;
    bytes.truncate(bytes.len() / 3);
    fs::write(&path, bytes)?;
    complains(boot(machine, &path, &[])?, USAGE, &["truncated"])
}

/// Files that have no end, or whose opening waits for another process.
fn special_files(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let pipe = directory.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    let pipe = pipe.to_str().context("a strange directory")?;
    let kernel = machine.kernel().to_str().context("a strange directory")?;
    for (file, words) in [
        (pipe, ["Cannot read", "a pipe"]),
        ("/dev/zero", ["Cannot read", "a character device"]),
        ("/", ["Cannot read", "a directory"]),
    ] {
        for command in [
            &["run", "--kernel", file][..],
            &["run", "--kernel", kernel, "--initrd", file],
            &["trace", "--kernel", file, "--", "/bin/true"],
            &[
                "trace",
                "--kernel",
                file,
                "--scope",
                "all",
                "--",
                "/bin/true",
            ],
            &["test", "--kernel", file],
        ] {
            complains(machine.run(command)?, USAGE, &words)?;
        }
        let disk = machine.run(["run", "--kernel", kernel, "--disk", file])?;
        complains(disk, USAGE, &["--disk", file])?;
    }
    Ok(())
}

fn share_of_the_root(machine: &Machine) -> Result<()> {
    complains(
        machine.run(["trace", "--share", "/:rw", "--", "/bin/true"])?,
        USAGE,
        &["--share /", "the guest's root"],
    )
}

fn large_initrd(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("initrd");
    File::create(&path)?.set_len(300 << 20)?;
    let path = path.to_str().context("a strange directory")?;
    let options = ["--memory", "256M", "--initrd", path];
    complains(
        boot(machine, machine.kernel(), &options)?,
        USAGE,
        &["initrd", "memory"],
    )
}

fn little_memory(machine: &Machine) -> Result<()> {
    complains(
        boot(machine, machine.kernel(), &["--memory", "1M"])?,
        USAGE,
        &["--memory", "1M"],
    )
}

fn unknown_model(machine: &Machine) -> Result<()> {
    complains(
        boot(machine, machine.kernel(), &["--cpu", "pentium"])?,
        USAGE,
        &["pentium", "core2"],
    )
}

fn no_kvm(machine: &Machine) -> Result<()> {
    let run = machine.run([
        "trace",
        "--accel",
        "kvm",
        "--format",
        "raw",
        "--output",
        "/dev/null",
        "--",
        "/bin/true",
    ])?;
    // The run succeeds on a host with a usable KVM.
    if run.status == Some(0) {
        Ok(())
    } else {
        complains(run, CANNOT, &["--accel", "kvm"])
    }
}

fn timeout(machine: &Machine) -> Result<()> {
    let start = Instant::now();
    let mut command = machine.command([
        "trace",
        "--accel",
        "soft",
        "--format",
        "raw",
        "--output",
        "/dev/null",
    ]);
    command.args([
        "--timeout",
        "3",
        "--",
        "/bin/sh",
        "-c",
        "while :; do :; done",
    ]);
    let run = machine::finish(command)?.expect(TIMEOUT)?;
    ensure!(run.stderr.contains("timeout"), "{}", run.stderr);
    ensure!(
        start.elapsed() < Duration::from_secs(60),
        "it took {:?}",
        start.elapsed()
    );
    Ok(())
}

fn guest_panic(machine: &Machine) -> Result<()> {
    // No root file system and no initrd.
    let run = boot(machine, machine.kernel(), &["--append", "panic=-1"])?.expect(GUEST_CRASHED)?;
    let shown = run.printed();
    ensure!(
        shown.contains("Kernel panic"),
        "the message does not show the end of the console: {shown}"
    );
    Ok(())
}

fn interrupted(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let temporary = directory.path().join("tmp");
    fs::create_dir(&temporary)?;
    let mut command = machine.command(["trace", "--accel", "soft", "--format", "raw", "--output"]);
    command.arg(directory.path().join("trace")).args([
        "--",
        "/bin/sh",
        "-c",
        "echo ready; while :; do :; done",
    ]);
    command
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The program is running once its first line arrives.
    let mut byte = [0];
    let stdout = child.stdout.as_mut().context("no pipe")?;
    std::io::Read::read_exact(stdout, &mut byte)?;
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
    let status = machine::wait(&mut child, Duration::from_secs(30))?;
    if status.is_none() && child.try_wait()?.is_none() {
        child.kill()?;
    }
    ensure!(status != Some(0), "an interrupted run looks like success");
    ensure!(
        fs::read_dir(&temporary)?.next().is_none(),
        "vbts leaves temporary files behind"
    );
    Ok(())
}

/// A signal ends a guest whose console is a terminal, and vbts restores the terminal.
fn terminal(machine: &Machine) -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let pty = openpty(None, None)?;
        let before = tcgetattr(&pty.slave)?;
        let mut command =
            machine.command(["run", "--accel", "soft", "--append", "panic=0", "--kernel"]);
        command
            .arg(machine.kernel())
            .stdin(Stdio::from(pty.slave.try_clone()?));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let start = Instant::now();
        while tcgetattr(&pty.slave)? == before {
            ensure!(
                child.try_wait()?.is_none(),
                "the guest ended before the signal"
            );
            if start.elapsed() > Duration::from_secs(30) {
                child.kill()?;
                bail!("vbts does not put the terminal into raw mode");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(i32::try_from(child.id())?), signal)?;
        let status = machine::wait(&mut child, Duration::from_secs(30))?;
        ensure!(status != Some(0), "an interrupted run looks like success");
        ensure!(
            tcgetattr(&pty.slave)? == before,
            "{signal} leaves the terminal in raw mode"
        );
    }
    Ok(())
}

fn full_disk(machine: &Machine) -> Result<()> {
    let run = machine.trace("raw", Path::new("/dev/full"), &[], &["/bin/true"])?;
    let run = run.expect(USAGE)?;
    // The trace is incomplete, and why.
    for words in [
        "the trace is empty: nothing of it was",
        "/dev/full: No space left",
    ] {
        ensure!(
            run.stderr.contains(words),
            "no `{words}` in: {}",
            run.stderr
        );
    }
    let mut command = machine.command([
        "trace",
        "--accel",
        "soft",
        "--format",
        "raw",
        "--",
        "/bin/true",
    ]);
    command
        .stdout(Stdio::from(File::options().write(true).open("/dev/full")?))
        .stderr(Stdio::piped());
    let output = command.output()?;
    ensure!(output.status.code() == Some(USAGE), "{}", output.status);
    Ok(())
}

fn no_output_directory(machine: &Machine) -> Result<()> {
    complains(
        machine.trace(
            "raw",
            Path::new("/no/such/directory/trace"),
            &[],
            &["/bin/true"],
        )?,
        USAGE,
        &["/no/such/directory"],
    )
}
