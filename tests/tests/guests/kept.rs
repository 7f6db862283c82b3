//! What a btrace file has when its run ends early: every branch that the messages count.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};
use vbts_tests::machine::{self, Machine, Run, TestModule};
use vbts_trace::{Item, Reader};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_time_limit", time_limit),
            ("no_reader_of_standard_error", no_reader),
            ("signals", signals),
            ("a_panic_of_the_guest", panic),
            ("tasks_without_a_buffer", tasks_without_a_buffer),
            ("a_recording_of_a_blocked_machine", blocked_recording),
            ("one_writer_for_a_file", one_writer),
        ],
    )
}

/// Checks that the file has as many branches as its end says, at least `least`, and that the run
/// ended as `end` says. Returns their number.
fn kept(file: &Path, end: &str, least: u64) -> Result<u64> {
    let mut reader = Reader::new(BufReader::new(File::open(file)?))?;
    let mut count = 0;
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            count += branches.len() as u64;
        }
    }
    let summary = reader.summary().context("the file has no end")?;
    ensure!(
        summary.end == end && summary.records == count && count >= least,
        "{count} branches, {summary:?}"
    );
    Ok(count)
}

/// Checks the file, and that the message in `run` says the same.
fn check(file: &Path, run: &Run, end: &str, least: u64) -> Result<()> {
    let count = kept(file, end, least).with_context(|| run.stderr.clone())?;
    let message = format!("\nvbts: records: {count}, ");
    ensure!(
        format!("\n{}", run.stderr).contains(&message),
        "{}",
        run.stderr
    );
    Ok(())
}

const ENDLESS: [&str; 3] = ["/bin/sh", "-c", "while :; do :; done"];

fn time_limit(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    // The last branches come from memory.
    for options in [
        &["--timeout", "8"][..],
        &["--timeout", "8", "--last", "500"],
    ] {
        let run = machine.trace("btrace", &file, options, &ENDLESS)?;
        check(&file, &run.expect(124)?, "timeout", 500)?;
    }
    Ok(())
}

/// The report of where tasks stand cannot be written, but the trace can.
fn no_reader(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--timeout", "8"]);
    command.args(["--format", "btrace", "--output"]).arg(&file);
    let (reader, stderr) = std::io::pipe()?;
    drop(reader);
    command.args(["--"]).args(ENDLESS).stderr(stderr);
    let mut child = machine::Killed(command.spawn()?);
    let status = machine::wait(&mut child.0, Duration::from_secs(60))?;
    ensure!(status == Some(124), "{status:?}");
    kept(&file, "timeout", 1000)?;
    Ok(())
}

fn signals(machine: &Machine) -> Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("trace");
        let mut command = machine.command(["trace", "--accel", machine.accel()]);
        command.args(["--format", "btrace", "--output"]).arg(&file);
        // The first signal is for the program.
        let script = "trap 'echo b' TERM INT; echo a; while :; do :; done";
        command.args(["--", "/bin/sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = machine::Killed(command.spawn()?);
        let pid = Pid::from_raw(i32::try_from(child.0.id())?);
        let mut stdout = child.0.stdout.take().context("no pipe")?;
        for _ in 0..2 {
            stdout.read_exact(&mut [0; 2])?;
            kill(pid, signal)?;
        }
        let status = machine::wait(&mut child.0, Duration::from_secs(60))?;
        let mut stderr = String::new();
        let mut pipe = child.0.stderr.take().context("no pipe")?;
        pipe.read_to_string(&mut stderr)?;
        let run = Run {
            status,
            stdout: Vec::new(),
            stderr,
        };
        check(
            &file,
            &run.expect(128 + signal as i32)?,
            "interrupted",
            1000,
        )?;
    }
    Ok(())
}

/// The guest's kernel panics when it is out of memory.
fn panic(machine: &Machine) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(machine::Skip("only root sets vm.panic_on_oom".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let script = "echo 2 > /proc/sys/vm/panic_on_oom && exec tail /dev/zero";
    let options = ["--memory", "64M"];
    let run = machine.trace("btrace", &file, &options, &["/bin/sh", "-c", script])?;
    check(&file, &run.expect(255)?, "panic", 1000)
}

/// Tasks whose buffers the agent cannot map are not traced. It is the same when the kernel has no
/// memory for them, which depends on the order of its allocations. Neither their mappings nor their
/// ends matter to the trace.
fn tasks_without_a_buffer(machine: &Machine) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(machine::Skip("only root limits the address space of PID 1".into()).into());
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    // A buffer takes a 256th of the guest's memory, which is 4 MiB. The agent keeps half of that
    // for all else. The shell reads the size while it has the only buffer.
    let limit = "while read name size _; do [[ $name = VmSize: ]] && break; done < /proc/1/status; \
                 prlimit --pid 1 --as=$(((size + 2048) << 10))";
    // The others live when the first process ends, or the run waits for them.
    for (wait, time) in [("first", "1000"), ("all", "0.1")] {
        let script = format!("{limit} && for i in {{1..8}}; do sleep {time} & done; :");
        let options = ["--memory", "1G", "--wait", wait];
        let program = ["/bin/bash", "-c", &script];
        let run = machine.trace("btrace", &file, &options, &program)?;
        let run = run.expect(0)?;
        let reason = "the guest has too little memory for its trace buffer";
        ensure!(run.stderr.contains(reason), "{}", run.stderr);
        check(&file, &run, "exited", 100_000)?;
    }
    Ok(())
}

/// A debugger stops the thread that runs the machine. Another one ends the recording.
fn blocked_recording(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let mut command = machine.command(["run", "--append", "console=ttyS0", "--timeout", "8"]);
    command
        .arg("--kernel")
        .arg(machine.kernel())
        .arg("--record")
        .arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = machine::Killed(command.spawn()?);
    let mut stdout = child.0.stdout.take().context("no pipe")?;
    stdout.read_exact(&mut [0; 2])?;
    let pid = Pid::from_raw(child.0.id().cast_signed());
    ptrace::seize(pid, ptrace::Options::empty())?;
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    let status = machine::wait(&mut child.0, Duration::from_secs(100))?;
    let mut stderr = String::new();
    let mut pipe = child.0.stderr.take().context("no pipe")?;
    pipe.read_to_string(&mut stderr)?;
    ensure!(status == Some(124), "{status:?}: {stderr}");
    let count = kept(&file, "timeout", 1000)?;
    ensure!(
        stderr.contains(&format!("{count} branches recorded")),
        "{stderr}"
    );
    Ok(())
}

/// A file that a run of vbts writes is not written by another one.
fn one_writer(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| -> Result<String> {
        let path = directory.path().join(name);
        Ok(path.to_str().context("a strange directory")?.into())
    };
    let (file, trace) = (path("file")?, path("a.btrace")?);
    machine
        .run(["trace", "--output", &trace, "--", "/bin/true"])?
        .expect(0)?;
    std::fs::write(&file, "before")?;
    let locked = File::open(&file)?;
    flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
    let kernel = machine.kernel().to_str().context("a strange directory")?;
    for arguments in [
        &["trace", "--output", &file, "--", "/bin/true"][..],
        &["run", "--kernel", kernel, "--record", &file],
        &["run", "--kernel", kernel, "--console", &file],
        &["report", "functions", "--output", &file, &trace],
    ] {
        let run = machine.run(arguments)?.expect(125)?;
        ensure!(
            run.stderr.contains("another vbts is writing to it"),
            "{arguments:?}: {}",
            run.stderr
        );
        ensure!(std::fs::read(&file)? == b"before", "{arguments:?}");
    }
    drop(locked);
    machine
        .run(["trace", "--output", &file, "--", "/bin/true"])?
        .expect(0)?;
    Ok(())
}
