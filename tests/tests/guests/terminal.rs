//! Programs on a terminal: what a user sees is the same on the host and when they are traced.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine};

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("settings_and_size_are_those_of_the_host", settings),
            ("prompts_and_passwords", prompts),
            ("keys_are_signals_and_a_new_size_is_told", keys_and_size),
            ("job_control", job_control),
            ("three_keys_end_the_run", end_keys),
        ],
    )
}

/// Runs a program on a terminal of 33 by 99 characters. Its arguments are the number of steps, the
/// steps (a text to wait for, and what to type then; "resize" resizes the terminal), and the
/// program. It prints what the terminal shows, and exits with the status of the program.
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
        resize(20, 40) if typed == b'resize' else os.write(fd, typed)
os.set_blocking(1, True)
os.write(1, shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// What a terminal shows while `program` runs with what is typed in `steps`, and its exit status.
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
    Ok((shown, run.status))
}

fn traced(machine: &Machine, trace: &std::path::Path, program: &[&str]) -> Command {
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

fn end_keys(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let program = ["/bin/sh", "-c", "trap '' INT; echo ready; exec sleep 1000"];
    let keys = [("ready", "\\x1d\\x1d\\x1d")];
    let (shown, status) = run(&traced(machine, &output, &program), &keys)?;
    ensure!(status == Some(130), "{status:?} {shown}");
    let trace = std::fs::read_to_string(output)?;
    ensure!(
        trace.contains("end: interrupted"),
        "{:?}",
        trace.lines().last()
    );
    Ok(())
}
