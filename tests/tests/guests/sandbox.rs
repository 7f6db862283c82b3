//! A running guest is in the sandbox, and the sandbox allows the system calls of each kind of work.
//!
//! Unit tests beside the code check what the sandbox forbids. All other tests of the whole system
//! run in the sandbox too.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vbts_tests::machine::{self, Machine, TestModule};
use vbts_tests::programs;

/// A program that prints a line, which shows that the guest runs, and never ends.
const ENDLESS: [&str; 3] = ["/bin/sh", "-c", "echo ready; while :; do :; done"];
/// `Seccomp:` in /proc/PID/status of a thread with a filter.
const FILTERED: &str = "2";
/// CAP_CHOWN to CAP_FOWNER.
const FILE_CAPABILITIES: u64 = 0xF;
/// The capability that is given up without a sandbox, too.
const CAP_FSETID: u64 = 1 << 4;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("all_threads_are_confined", confined),
            ("no_sandbox_turns_it_off", not_confined),
            ("traces_to_files_and_pipes", formats),
            ("trace_and_progress_on_a_terminal", terminal),
            ("symbols_below_another_root", root),
            ("all_operations_on_a_writable_share", share),
            ("console_to_standard_output_and_file", console),
            ("timeout", timeout),
            ("signal", signal),
            ("address_space_of_the_document", address_space),
        ],
    )
}

/// The limit that docs/security.md recommends is enough for a trace with names.
fn address_space(machine: &Machine) -> Result<()> {
    let document = include_str!("../../../docs/security.md");
    let command = "prlimit --as=$(((512 + 1024) << 20)) vbts trace --memory 512M --output trace";
    ensure!(document.contains(command), "the document has another limit");
    let directory = tempfile::tempdir()?;
    let vbts = machine.command(["trace", "--accel", machine.accel(), "--memory", "512M"]);
    for (mib, status) in [(512 + 1024, 0), (512, 125)] {
        let mut command = Command::new("/usr/bin/prlimit");
        command.arg(format!("--as={}", mib << 20));
        machine::append(&mut command, &vbts);
        command.arg("--output").arg(directory.path().join("trace"));
        command.args(["--format", "text", "--", "/bin/ls", "/"]);
        let run = machine::finish(command)?.expect(status)?;
        ensure!(
            status == 0 || run.stderr.contains("cannot map 512M of guest memory"),
            "{}",
            run.stderr
        );
    }
    Ok(())
}

/// Starts an endless program and waits until it runs in the guest.
fn start(machine: &Machine, options: &[&str]) -> Result<Child> {
    let mut command = machine.command(["trace", "--accel", "soft", "--timeout", "100"]);
    command
        .args(["--output", "/dev/null", "--format", "raw"])
        .args(options)
        .arg("--")
        .args(ENDLESS)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn()?;
    let ready = child
        .stdout
        .as_mut()
        .context("no pipe")?
        .read_exact(&mut [0]);
    if ready.is_err() {
        child.kill()?;
        child.wait()?;
    }
    ready.context("the program printed nothing")?;
    Ok(child)
}

/// Reads /proc/PID/task/TID/status of each thread, and ends the process.
fn threads(mut child: Child) -> Result<Vec<String>> {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id()))?
        .map(|entry| Ok(fs::read_to_string(entry?.path().join("status"))?))
        .collect();
    child.kill()?;
    child.wait()?;
    threads
}

fn field<'a>(status: &'a str, name: &str) -> Result<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(line
        .and_then(|rest| rest.strip_prefix(':'))
        .with_context(|| format!("no {name} in {status}"))?
        .trim())
}

fn capabilities(status: &str, name: &str) -> Result<u64> {
    Ok(u64::from_str_radix(field(status, name)?, 16)?)
}

fn confined(machine: &Machine) -> Result<()> {
    let threads = threads(start(machine, &[])?)?;
    ensure!(
        threads.len() >= 2,
        "a thread for the time limit was expected"
    );
    for status in &threads {
        ensure!(field(status, "Seccomp")? == FILTERED, "{status}");
        ensure!(field(status, "NoNewPrivs")? == "1", "{status}");
        for name in ["CapPrm", "CapEff"] {
            ensure!(
                capabilities(status, name)? & !FILE_CAPABILITIES == 0,
                "{status}"
            );
        }
    }
    Ok(())
}

fn not_confined(machine: &Machine) -> Result<()> {
    let own = fs::read_to_string("/proc/self/status")?;
    for status in threads(start(machine, &["--sandbox", "off"])?)? {
        for name in ["Seccomp", "NoNewPrivs"] {
            ensure!(field(&status, name)? == field(&own, name)?, "{status}");
        }
        let expected = capabilities(&own, "CapEff")? & !CAP_FSETID;
        ensure!(capabilities(&status, "CapEff")? == expected, "{status}");
    }
    Ok(())
}

fn formats(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for format in ["text", "json", "raw"] {
        let output = directory.path().join(format);
        machine
            .trace(format, &output, &["--sched"], &["/bin/ls", "-l", "/etc"])?
            .expect(0)?;
        ensure!(fs::metadata(&output)?.len() > 0);
        let run = machine
            .run(["trace", "--format", format, "--", "/bin/ls", "-l", "/etc"])?
            .expect(0)?;
        ensure!(!run.stdout.is_empty());
    }
    Ok(())
}

fn terminal(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    // With the trace in a file, the terminal shows a progress line.
    for output in [Path::new("-"), &file] {
        let pty = openpty(None, None)?;
        let mut command = machine.command(["trace", "--timeout", "100", "--output"]);
        command
            .arg(output)
            .args(["--", "/bin/ls", "-lR", "/etc/apt"])
            .stdin(pty.slave.try_clone()?)
            .stdout(pty.slave.try_clone()?)
            .stderr(pty.slave);
        let mut child = command.spawn()?;
        // `command` has copies of the terminal. Without it, the child is the only writer.
        drop(command);
        let mut master = fs::File::from(pty.master);
        let shown = std::thread::spawn(move || {
            let mut shown = Vec::new();
            // The read returns EIO when the last writer has closed the terminal.
            let _ = master.read_to_end(&mut shown);
            shown
        });
        let status = machine::wait(&mut child, Duration::from_secs(100));
        let shown = shown.join().unwrap_or_default();
        let shown = String::from_utf8_lossy(&shown);
        ensure!(status? == Some(0), "{shown}");
        ensure!(shown.contains("sources.list"), "{shown}");
    }
    Ok(())
}

fn root(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = programs::ALL
        .iter()
        .find(|program| program.name() == "straight")
        .context("no such program")?;
    fs::create_dir(directory.path().join("bin"))?;
    program.build(&directory.path().join("bin"))?;
    std::os::unix::fs::symlink("/bin", directory.path().join("link"))?;
    let mut command = machine.command(["trace", "--accel", "soft", "--root"]);
    command.arg(directory.path()).args(["--", "/link/straight"]);
    let run = machine::finish(command)?.expect(program.status)?;
    let text = String::from_utf8_lossy(&run.stdout);
    ensure!(
        text.contains("_start+0x"),
        "no address has a function name: {text}"
    );
    Ok(())
}

fn share(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let shared = directory.path().join("shared");
    fs::create_dir(&shared)?;
    let script = "set -e; cd \"$0\"; echo text > file; mkdir d; mv file d/file; ln -s file d/link; ln d/file hard; \
                  chmod 600 hard; touch -d 2020-01-01 hard; truncate -s 5 hard; sync hard; chown $(id -u) hard; \
                  test \"$(cat d/link)\" = text; rm hard; rm -r d; echo done > end";
    let mut command = machine.command(["trace", "--accel", "soft", "--format", "raw", "--output"]);
    command
        .arg("/dev/null")
        .arg("--share")
        .arg(format!("{}:rw", shared.display()))
        .args(["--", "/bin/sh", "-c", script])
        .arg(&shared);
    machine::finish(command)?.expect(0)?;
    ensure!(fs::read_to_string(shared.join("end"))? == "done\n");
    ensure!(fs::read_dir(&shared)?.count() == 1);
    Ok(())
}

fn console(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("console");
    let mut command = machine.command(["run", "--accel", "soft", "--append", "panic=-1"]);
    command
        .arg("--kernel")
        .arg(machine.kernel())
        .arg("--console")
        .arg(&file);
    let run = machine::finish(command)?.expect(255)?;
    ensure!(run.stdout == fs::read(&file)?);
    ensure!(String::from_utf8_lossy(&run.stdout).contains("Linux version"));
    Ok(())
}

fn timeout(machine: &Machine) -> Result<()> {
    let mut command = machine.command(["trace", "--timeout", "1", "--output", "/dev/null", "--"]);
    command.args(ENDLESS);
    machine::finish(command)?.expect(124)?;
    Ok(())
}

fn signal(machine: &Machine) -> Result<()> {
    let mut child = start(machine, &[])?;
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
    let status = machine::wait(&mut child, Duration::from_secs(30))?;
    ensure!(status == Some(128 + Signal::SIGINT as i32));
    Ok(())
}
