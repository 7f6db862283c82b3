//! What a program leaves: processes that outlive it, and changes to files that are lost.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vbts_tests::machine::{self, Machine, Run, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("all_processes_are_waited_for", wait_for_all),
            ("the_first_process_can_end_the_others", wait_for_first),
            ("a_signal_ends_the_wait", signal),
            ("discarded_changes_are_named", discarded),
            ("quiet_is_silent", quiet),
        ],
    )
}

/// The child writes after the shell has ended.
const LATE: &str = "(sleep 2; echo late) & echo early; exit 3";

fn traced(machine: &Machine, options: &[&str], script: &str) -> Result<Run> {
    let trace = tempfile::NamedTempFile::new()?;
    machine.trace("json", trace.path(), options, &["/bin/sh", "-c", script])
}

fn wait_for_all(machine: &Machine) -> Result<()> {
    let host = Command::new("/bin/sh").args(["-c", LATE]).output()?;
    for options in [&[][..], &["--wait", "all"], &["--follow", "none"]] {
        let run = traced(machine, options, LATE)?.expect(3)?;
        ensure!(
            run.stdout == host.stdout && !run.stderr.contains("outlived"),
            "{options:?}: {run:?}"
        );
    }
    // A grandchild, of which PID 1 becomes the parent, and a child that nothing waits for.
    let script = "setsid sh -c 'sh -c \"sleep 1; echo c\" & echo b' & echo a; exec >&-";
    let run = traced(machine, &[], script)?.expect(0)?;
    ensure!(run.stdout == b"a\nb\nc\n", "{run:?}");
    Ok(())
}

fn wait_for_first(machine: &Machine) -> Result<()> {
    // The second one has processes that are not traced.
    for options in [&[][..], &["--follow", "none"]] {
        let options = [&["--wait", "first"], options].concat();
        let run = traced(machine, &options, LATE)?.expect(3)?;
        ensure!(run.stdout == b"early\n", "{run:?}");
        let note = run.stderr.lines().find(|line| line.contains("outlived"));
        ensure!(
            note.is_some_and(|note| note.starts_with("vbts: ended ") && note.contains(" (sh)")),
            "{options:?}: {}",
            run.stderr
        );
    }
    let run = traced(machine, &["--wait", "first"], "echo a & wait")?.expect(0)?;
    ensure!(!run.stderr.contains("outlived"), "{}", run.stderr);
    Ok(())
}

fn signal(machine: &Machine) -> Result<()> {
    let trace = tempfile::NamedTempFile::new()?;
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--format", "raw"]);
    command.arg("--output").arg(trace.path());
    command.args(["--", "/bin/sh", "-c", "while :; do :; done & exit 3"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let outcome = (|| -> Result<String> {
        let stderr = child.stderr.as_mut().context("no pipe")?;
        let (mut text, mut bytes) = (String::new(), [0; 256]);
        while !text.contains("the program has ended; waiting for 1 process that it has left") {
            let n = stderr.read(&mut bytes)?;
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
            if n == 0 {
                bail!("no note: {text}");
            }
        }
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
        let status = machine::wait(&mut child, Duration::from_secs(60))?;
        let stderr = child.stderr.as_mut().context("no pipe")?;
        stderr.read_to_string(&mut text)?;
        ensure!(status == Some(3), "{status:?}: {text}");
        Ok(text)
    })();
    if outcome.is_err() {
        // It may have ended.
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = outcome?;
    ensure!(
        text.contains("ended 1 process that outlived the program: "),
        "{text}"
    );
    Ok(())
}

/// Makes, writes, and deletes files of the host, and files of its own.
const CHANGE: &str = "cd \"$0\"; echo > written; rm deleted; mkdir new; echo > new/file; \
                      echo > temporary; rm temporary; echo > shared/file; echo > /dev/shm/file; \
                      ln -s x 'a
b'; chmod 700 sub; exit 4";

fn discarded(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().context("a path")?;
    for name in ["shared", "sub"] {
        fs::create_dir(directory.path().join(name))?;
    }
    for name in ["written", "deleted"] {
        fs::write(directory.path().join(name), "x")?;
    }
    let share = format!("{path}/shared:rw");
    let trace = tempfile::NamedTempFile::new()?;
    let run = |options: &[&str], script: &str| {
        let options = [&["--share", &share], options].concat();
        let program = ["/bin/sh", "-c", script, path];
        machine.trace("raw", trace.path(), &options, &program)
    };
    let changed = run(&[], CHANGE)?.expect(4)?;
    let notes: Vec<_> = changed
        .stderr
        .lines()
        .filter(|line| line.contains("discarded"))
        .collect();
    let expected = format!(
        "vbts: discarded changes to 5 files outside of writable shares: {path}/a\\nb, \
         {path}/deleted (deleted), {path}/new/, {path}/written, … \
         (--share DIR:rw keeps those in DIR)"
    );
    ensure!(notes == [expected], "{}", changed.stderr);
    ensure!(directory.path().join("shared/file").exists());
    // A run that ends early tells, too.
    let limited = "echo > \"$0/sub/file\"; while :; do :; done";
    let limited = run(&["--timeout", "10"], limited)?.expect(124)?;
    let named = format!("1 file outside of writable shares: {path}/sub/file (");
    ensure!(
        limited.stderr.contains(&named) || limited.stderr.contains("at most"),
        "{}",
        limited.stderr
    );
    let unchanged = run(&[], "ls \"$0\"; echo > \"$0/shared/file\"")?.expect(0)?;
    ensure!(
        !unchanged.stderr.contains("discarded"),
        "{}",
        unchanged.stderr
    );
    Ok(())
}

fn quiet(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let change = format!("echo > {}/file; sleep 1 &", directory.path().display());
    let silent = ["--quiet", "--wait", "first"];
    let run = traced(machine, &silent, &change)?.expect(0)?;
    ensure!(run.stderr.is_empty(), "{}", run.stderr);
    let run = traced(machine, &silent, "kill -SEGV $$")?.expect(128 + 11)?;
    ensure!(run.stderr.is_empty(), "{}", run.stderr);
    let run = traced(machine, &["--quiet"], "exit 124")?.expect(124)?;
    ensure!(run.stderr.is_empty(), "{}", run.stderr);
    // Errors are shown.
    let options = ["--quiet", "--timeout", "5"];
    let run = traced(machine, &options, "exec sleep 1000000000")?.expect(124)?;
    ensure!(
        run.stderr == "vbts: timeout: the guest was still running after 5 s\n",
        "{}",
        run.stderr
    );
    Ok(())
}
