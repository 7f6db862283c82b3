//! Programs on a terminal: what a user sees is the same on the host and when they are traced.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("settings_and_size_are_those_of_the_host", settings),
            ("prompts_and_passwords", prompts),
            ("keys_are_signals_and_a_new_size_is_told", keys_and_size),
            ("a_summary_is_shown_on_a_terminal", summary),
            ("a_pager_shows_a_report", pager),
            ("job_control", job_control),
            ("a_shell_stops_and_continues_the_run", suspension),
            ("what_is_typed_ahead_is_for_the_shell", type_ahead),
            ("groups_and_sessions_have_the_leaders_of_the_host", leaders),
            ("a_job_in_the_background_reads_after_fg", background),
            ("standard_input_is_a_terminal_in_a_pipeline", pipeline),
            ("keys_are_signals_each_time", repeated_keys),
            ("three_keys_end_the_run", end_keys),
        ],
    )
}

/// Runs a program on a terminal of 33 by 99 characters. Its arguments are the number of steps, the
/// steps (a text to wait for, and what to type then; "resize" resizes the terminal, and "wait"
/// waits for a second), and the program. It prints what the terminal shows, and exits with the
/// status of the program.
const DRIVER: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
def resize(rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
count = int(sys.argv[1])
words = [word.encode().decode('unicode_escape').encode() for word in sys.argv[2:2 + 2 * count]]
steps = list(zip(words[::2], words[1::2]))
ready, go = os.pipe()
pid, fd = pty.fork()
if pid == 0:
    os.read(ready, 1)
    os.execvp(sys.argv[2 + 2 * count], sys.argv[2 + 2 * count:])
resize(33, 99)
os.write(go, b'x')
shown, seen, began = b'', 0, time.time()
while time.time() - began < 100:
    if select.select([fd], [], [], 0.2)[0]:
        try:
            shown += os.read(fd, 65536)
        except OSError:
            break
    elif steps and steps[0][0] in shown[seen:]:
        seen = len(shown)
        typed = steps.pop(0)[1]
        if typed == b'resize':
            resize(20, 40)
        elif typed == b'wait':
            time.sleep(1.1)
        else:
            # Signals that follow each other at once are one.
            for key in typed:
                os.write(fd, bytes([key]))
                time.sleep(0.1 if key == 3 else 0)
else:
    os.kill(pid, 9)
os.set_blocking(1, True)
os.write(1, shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// What a terminal shows while `program` runs with what is typed in `steps`, and its exit status.
/// The echoes of Ctrl-C and Ctrl-Z are left out: the kernel sends the signal of a key before it
/// echoes the key, so another process can write first.
fn run(program: &Command, steps: &[(&str, &str)]) -> Result<(String, Option<i32>)> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", DRIVER]).arg(steps.len().to_string());
    for (text, typed) in steps {
        command.args([text, typed]);
    }
    machine::append(&mut command, program);
    command.stdin(Stdio::null());
    let run = machine::finish(command)?;
    let shown = String::from_utf8_lossy(&run.stdout);
    let lines = shown.lines().filter(|line| !line.starts_with("vbts: "));
    let shown: String = lines.map(|line| format!("{line}\n")).collect();
    Ok((shown.replace("^C", "").replace("^Z", ""), run.status))
}

/// A line for a shell, and what it prints. The number is longer than the random part of the name of
/// a temporary directory, which the terminal shows, too.
const SUM: &str = "echo $((70077626 + 1))\\n";
const PRINTED: &str = "70077627";

/// Without further options, the program's output is followed by a summary and not by all branches,
/// and the trace is kept.
fn summary(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--", "/bin/echo"]);
    command.arg("words").env("XDG_CACHE_HOME", directory.path());
    let (shown, status) = run(&command, &[])?;
    ensure!(status == Some(0), "{status:?}: {shown}");
    ensure!(shown.starts_with("words\n"), "{shown}");
    ensure!(shown.contains("Counts of /bin/echo words:"), "{shown}");
    let lines = shown.lines().count();
    ensure!((10..40).contains(&lines), "{lines} lines: {shown}");
    let kept = directory.path().join("vbts/last.btrace");
    ensure!(fs::metadata(&kept)?.len() > 1000, "no trace");
    let next = format!("vbts report calls {}", kept.display());
    ensure!(shown.contains(&next), "{shown}");
    // A crash leaves what was asked for within a screen of 80 lines.
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--", "/bin/sh"]);
    command
        .args(["-c", "kill -SEGV $$"])
        .env("XDG_CACHE_HOME", directory.path());
    let (shown, status) = run(&command, &[])?;
    ensure!(status == Some(139), "{status:?}: {shown}");
    ensure!(shown.contains("vbts report tail"), "{shown}");
    ensure!(
        shown.contains("vbts debug -- /bin/sh -c 'kill -SEGV $$'"),
        "{shown}"
    );
    let lines = shown.lines().count();
    ensure!(lines < 80, "{lines} lines: {shown}");
    // A run without a trace does not show the one before.
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--", "/nonexistent"]);
    command.env("XDG_CACHE_HOME", directory.path());
    let (shown, status) = run(&command, &[])?;
    ensure!(status == Some(127), "{status:?}: {shown}");
    ensure!(!shown.contains("Counts of"), "{shown}");
    // A format shows all branches.
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--format", "text"]);
    command.args(["--", "/bin/echo", "words"]);
    let (shown, _) = run(&command, &[])?;
    ensure!(shown.lines().count() > 1000, "{shown}");
    Ok(())
}

/// A report on a terminal goes through the user's pager, and the status is that of the report.
fn pager(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("true.btrace");
    machine::finish(traced(machine, &trace, &["/bin/true"]))?.expect(0)?;
    let report = |words: &[&str], file: &Path| -> Result<(Vec<String>, Option<i32>)> {
        let mut command = machine.command([] as [&str; 0]);
        command
            .args(words)
            .arg(file)
            .env("PAGER", "sed 's/^/paged: /'");
        let (shown, status) = run(&command, &[])?;
        // Progress may be on the line of the first one.
        let is_row = |line: &&str| line.contains("self");
        Ok((
            shown.lines().filter(is_row).map(str::to_owned).collect(),
            status,
        ))
    };
    let (shown, status) = report(&["report", "functions"], &trace)?;
    ensure!(status == Some(0), "{status:?}");
    ensure!(
        shown.len() == 1 && shown.iter().all(|line| line.contains("paged: ")),
        "{shown:?}"
    );
    let (shown, _) = report(&["--no-pager", "report", "functions"], &trace)?;
    ensure!(
        shown.len() == 1 && !shown.iter().any(|line| line.contains("paged: ")),
        "{shown:?}"
    );
    let (_, status) = report(&["report", "functions"], Path::new("/nonexistent"))?;
    ensure!(status == Some(125), "{status:?}");
    // The heading is bold, also in the pager.
    for (no_color, is_bold) in [("", true), ("1", false)] {
        let mut command = machine.command(["report", "functions"]);
        command.arg(&trace).env("PAGER", "sed 's/^/paged: /'");
        command.env("TERM", "xterm").env("NO_COLOR", no_color);
        let (shown, _) = run(&command, &[])?;
        ensure!(shown.contains("paged: \x1b[1m") == is_bold, "{shown}");
    }
    Ok(())
}

fn traced(machine: &Machine, trace: &Path, program: &[&str]) -> Command {
    let mut command = machine.command(["trace", "--accel", machine.accel(), "--output"]);
    command.arg(trace).arg("--").args(program);
    command
}

fn compare(machine: &Machine, program: &[&str], steps: &[(&str, &str)]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut on_host = Command::new(program[0]);
    on_host.args(&program[1..]);
    let expected = run(&on_host, steps)?;
    let command = traced(machine, &directory.path().join("trace"), program);
    let shown = run(&command, steps)?;
    ensure!(shown == expected, "{shown:#?}\ninstead of\n{expected:#?}");
    Ok(())
}

fn settings(machine: &Machine) -> Result<()> {
    let script = "stty size; stty -a; test -t 0 && test -t 1 && test -t 2 && ls -C /usr; exit 3";
    compare(machine, &["/bin/sh", "-c", script], &[])
}

fn prompts(machine: &Machine) -> Result<()> {
    let script = "read -p 'name: ' name; read -s -p 'password: ' password; echo
        read -p 'key: ' -n 1 key < /dev/tty; echo \" $name $password $key\"";
    compare(
        machine,
        &["/bin/bash", "-c", script],
        &[
            ("name: ", "ann\\n"),
            ("password: ", "secret\\n"),
            ("key: ", "x"),
        ],
    )
}

fn keys_and_size(machine: &Machine) -> Result<()> {
    let script = "trap 'echo interrupted' INT; trap 'stty size; exit 4' WINCH; echo ready
        while :; do sleep 0.1; done";
    compare(
        machine,
        &["/bin/sh", "-c", script],
        &[("ready", "\\x03"), ("interrupted", "resize")],
    )
}

fn job_control(machine: &Machine) -> Result<()> {
    compare(
        machine,
        &["/usr/bin/env", "PS1=prompt>", "/bin/dash", "-i"],
        &[
            ("prompt>", "sleep 1000\\n"),
            ("sleep 1000", "\\x1a"),
            ("prompt>", "fg\\n"),
            ("fg", "\\x03"),
            ("prompt>", "exit 6\\n"),
        ],
    )
}

/// A shell, on the host and traced, that runs a script in which `$TRACE` stands before a program.
/// It expects the script's path.
fn shell(machine: &Machine, directory: &Path, script: &str) -> Result<[Command; 2]> {
    let path = directory.join("job");
    fs::write(&path, format!("#!/bin/sh\nexec $TRACE {script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let trace = traced(machine, &directory.join("trace"), &[]);
    let words = std::iter::once(trace.get_program()).chain(trace.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let shell = |trace: &str| {
        let mut command = Command::new("/usr/bin/env");
        command.args(["PS1=prompt>", &format!("TRACE={trace}"), "/bin/dash", "-i"]);
        command
    };
    Ok([shell(""), shell(&words.join(" "))])
}

fn suspension(machine: &Machine) -> Result<()> {
    let handler = r#"/usr/bin/python3 -c '
import os, signal, time
def handle(number, frame):
    print("handled", flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, handle)
    print("continued", flush=True)
signal.signal(signal.SIGTSTP, handle)
print("ready", flush=True)
while True:
    time.sleep(0.1)'"#;
    // A shell and its child stop, and a program that does something before. (dash would not stop on
    // the host while it waits for the execve of a child of vfork that is stopped.)
    // A key must not come before the handler is there again.
    for (script, continued) in [
        ("bash -c 'echo ready; sleep 1000; exit 3'", "job"),
        (handler, "continued"),
    ] {
        let directory = tempfile::tempdir()?;
        let job = format!("{}\\n", directory.path().join("job").display());
        let steps = [
            ("prompt>", job.as_str()),
            ("ready", "\\x1a"),
            ("Stopped", "echo $?; fg\\n"),
            (continued, "\\x1a"),
            // dash says that a job was killed if it has ended before the next prompt.
            ("Stopped", "kill -9 %1; sleep 1\\n"),
            ("prompt>", "jobs; exit 7\\n"),
        ];
        let [host, traced] = shell(machine, directory.path(), script)?;
        let (expected, shown) = (run(&host, &steps)?, run(&traced, &steps)?);
        ensure!(
            shown == expected && shown.1 == Some(7) && shown.0.contains("Killed"),
            "{shown:#?}\ninstead of\n{expected:#?}"
        );
    }
    // A program that does not stop.
    let directory = tempfile::tempdir()?;
    let job = format!("{}\\n", directory.path().join("job").display());
    let script = "bash -c 'trap \"\" TSTP; echo ready; sleep 1; echo end'";
    let steps = [
        ("prompt>", job.as_str()),
        ("ready", "\\x1a"),
        ("end", "exit 7\\n"),
    ];
    let [host, traced] = shell(machine, directory.path(), script)?;
    let (expected, shown) = (run(&host, &steps)?, run(&traced, &steps)?);
    ensure!(
        shown == expected && shown.1 == Some(7),
        "{shown:#?}\ninstead of\n{expected:#?}"
    );
    Ok(())
}

fn type_ahead(machine: &Machine) -> Result<()> {
    let editor = "sh -c 'stty -icanon -echo; echo ready; dd count=1 bs=1 status=none; stty sane
        echo ready; sleep 3; echo slept'";
    for (script, steps) in [
        // A program that does not read the terminal, one that has read a line, one that has read
        // the end of the input, and one that has read a key.
        (
            "sh -c 'echo ready; sleep 3; echo slept'",
            &[("ready", SUM)][..],
        ),
        (
            "sh -c 'read line; echo ready; sleep 3; echo slept'",
            &[("job", "line\\n"), ("ready", SUM)],
        ),
        (
            "sh -c 'cat; echo ready; sleep 3; echo slept'",
            &[("job", "a\\n\\x04"), ("ready", SUM)],
        ),
        (editor, &[("ready", "x"), ("ready", SUM)]),
        // What comes with a line is not for a program that reads one line.
        (
            "sh -c 'read line; echo slept $line'",
            &[("job", &format!("one\\n{SUM}"))],
        ),
        // What is typed before cat reads, with the end of the input.
        (
            "sh -c 'echo ready; sleep 2; cat; echo slept'",
            &[("ready", &format!("two\\n\\x04{SUM}"))],
        ),
    ] {
        let directory = tempfile::tempdir()?;
        let job = format!("{}\\n", directory.path().join("job").display());
        let steps = [
            &[("prompt>", job.as_str())],
            steps,
            &[(PRINTED, "exit 7\\n")],
        ]
        .concat();
        for command in shell(machine, directory.path(), script)? {
            let (shown, status) = run(&command, &steps)?;
            let at = |text| shown.find(text);
            ensure!(
                status == Some(7) && at("slept").is_some() && at("slept") < at(PRINTED),
                "{script}: {shown}"
            );
        }
    }
    Ok(())
}

/// The program leads its process group in a shell with job control, and not in a script. setsid(1)
/// does not wait for its program if it leads a group.
fn leaders(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let job = directory.path().join("job").display().to_string();
    let script = r#"setsid sh -c 'sleep 0.3; exit 3'"#;
    let group = format!("{job}; echo status $?; exit 7\\n");
    let nothing = format!("sh -c \"{job}; echo status \\$?\"; exit 7\\n");
    for (line, status) in [(&group, "status 0"), (&nothing, "status 3")] {
        let shells = shell(machine, directory.path(), script)?;
        for command in shells {
            let shown = run(&command, &[("prompt>", line.as_str())])?;
            ensure!(
                shown.1 == Some(7) && shown.0.contains(status),
                "{shown:#?} without {status}"
            );
        }
    }
    let ids = "import os; own = os.getpid()
print(\"leads\", os.getsid(0) == own, os.getpgrp() == own, os.tcgetpgrp(0) == os.getpgrp())";
    // The driver's program leads a session.
    compare(machine, &["/usr/bin/python3", "-c", ids], &[])?;
    let script = format!("/usr/bin/python3 -c '{ids}'");
    for (line, leads) in [
        (format!("{job}; exit 7\\n"), "leads False True True"),
        (
            format!("sh -c '{job}; :'; exit 7\\n"),
            "leads False False True",
        ),
    ] {
        for command in shell(machine, directory.path(), &script)? {
            let shown = run(&command, &[("prompt>", line.as_str())])?;
            ensure!(
                shown.0.contains(leads),
                "{line}: {shown:#?} without {leads}"
            );
        }
    }
    Ok(())
}

fn background(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let job = format!("{} &\\n", directory.path().join("job").display());
    let script = "sh -c 'echo ready; read line; stty size; echo \"got $line\"'";
    let [_, traced] = shell(machine, directory.path(), script)?;
    let steps = [
        ("prompt>", job.as_str()),
        ("ready", SUM),
        (PRINTED, "fg\\n"),
        ("job", "for it\\n"),
        ("got for it", "exit 7\\n"),
    ];
    let (shown, status) = run(&traced, &steps)?;
    ensure!(status == Some(7), "{shown}");
    Ok(())
}

fn pipeline(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let script = r#"bash -c 'test -t 0 && ! test -t 1 && echo terminal; stty size
        read -p name: name; read -s -p password: password; echo "<$name $password>"
        read -p key: -n 1 key < /dev/tty; echo "<$key>"' | sed 's/^/| /' >"$0.out"; cat "$0.out""#;
    let job = directory.path().join("job").display().to_string();
    let command = format!("{job}; exit 7\\n");
    let steps = [
        ("prompt>", command.as_str()),
        ("name:", "ann\\n"),
        ("password:", "secret\\n"),
        ("key:", "x"),
    ];
    let [host, traced] = shell(machine, directory.path(), script)?;
    let (expected, mut shown) = (run(&host, &steps)?, run(&traced, &steps)?);
    // The summary follows the prompt on its line.
    if let Some((before, summary)) = shown.0.split_once("vbts: records: ") {
        let after = summary.split_once('\n').map_or("", |(_, after)| after);
        shown.0 = format!("{before}{after}");
    }
    ensure!(
        shown == expected && shown.0.contains("| <ann secret>"),
        "{shown:#?}\ninstead of\n{expected:#?}"
    );
    Ok(())
}

fn repeated_keys(machine: &Machine) -> Result<()> {
    let script = "trap 'n=$((n + 1)); echo $n times; test $n -lt 4 || exit 3' INT; echo ready
        while :; do sleep 0.1; done";
    let directory = tempfile::tempdir()?;
    let program = ["/bin/sh", "-c", script];
    let keys = [
        ("ready", "\\x03"),
        ("1 times", "\\x03"),
        ("2 times", "wait"),
        ("", "\\x03"),
        ("3 times", "\\x03"),
    ];
    let (shown, status) = run(
        &traced(machine, &directory.path().join("trace"), &program),
        &keys,
    )?;
    ensure!(status == Some(3), "{shown} {status:?}");
    Ok(())
}

fn end_keys(machine: &Machine) -> Result<()> {
    // A program that does not read the terminal, and one that does.
    for (program, keys) in [
        ("exec sleep 1000", [("ready", "\\x03\\x03\\x03")]),
        ("exec cat", [("ready", "\\x1d\\x1d\\x1d")]),
    ] {
        let directory = tempfile::tempdir()?;
        let output = directory.path().join("trace");
        let script = format!("trap '' INT; echo ready; {program}");
        let command = traced(machine, &output, &["/bin/sh", "-c", &script]);
        let (shown, status) = run(&command, &keys)?;
        ensure!(status == Some(130), "{status:?} {shown}");
        let trace = fs::read_to_string(output)?;
        ensure!(
            trace.contains("end: interrupted"),
            "{:?}",
            trace.lines().last()
        );
    }
    Ok(())
}
