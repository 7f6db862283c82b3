//! `vbts debug`: GDB on a recording, forward and backward.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use vbts_tests::machine::{self, Killed, Machine, Run, Skip, TestModule};
use vbts_tests::programs;

mod catches;
mod changes;
mod files;
mod kept;
mod kernel;
mod narrow;
mod processes;
mod python;
mod records;
mod seeded;
mod several_processors;
mod values;
mod writes;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_crash_leads_to_the_guilty_line", guide_crash),
            ("a_wrong_value_leads_to_its_write", guide_value),
            ("threads_and_conditions", threads),
            ("the_files_are_those_of_the_root", root),
            ("a_way_back_leads_to_the_same_registers", round_trip),
            ("a_stopped_replay_is_the_recorded_run", unchanged),
            ("the_first_and_the_last_position", ends),
            ("another_client_ends_the_session", other_client),
            ("what_cannot_be_debugged", refused),
        ],
    )
}

const GUIDE: &str = include_str!("../../../docs/guide/debug-a-recording.md");

/// A program and its recording.
struct Recorded {
    directory: TempDir,
}

impl Recorded {
    fn new(machine: &Machine, source: &str, options: &[&str], status: i32) -> Result<Self> {
        let recorded = Self::prepare(source)?;
        recorded.record(machine, options, status)?;
        Ok(recorded)
    }

    /// The program without a recording.
    fn prepare(source: &str) -> Result<Self> {
        Self::compile(source, "gcc", "program.c")
    }

    fn compile(source: &str, compiler: &str, name: &str) -> Result<Self> {
        needs_gdb()?;
        let directory = tempfile::tempdir()?;
        let recorded = Self { directory };
        fs::write(recorded.file(name), source)?;
        let compiled = Command::new(compiler)
            .args(["-g", "-O0", "-U_FORTIFY_SOURCE", "-pthread", "-o"])
            .args([recorded.file("program"), recorded.file(name)])
            .status()?;
        ensure!(compiled.success(), "{compiler}: {compiled}");
        Ok(recorded)
    }

    fn record(&self, machine: &Machine, options: &[&str], status: i32) -> Result<()> {
        let mut command = machine.command(["record", "--quiet", "-o"]);
        command.arg(self.file("run.vbts")).args(options);
        command.arg("--").arg(self.file("program"));
        machine::finish(command)?.expect(status)?;
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What gdb prints for `commands`.
    fn gdb(&self, machine: &Machine, commands: &str) -> Result<String> {
        self.gdb_with(machine, &[], commands)
    }

    /// What gdb prints for `commands`, with options of `vbts debug`.
    fn gdb_with(&self, machine: &Machine, options: &[&str], commands: &str) -> Result<String> {
        let script = self.file("commands.gdb");
        fs::write(&script, commands)?;
        let run = debug(machine, options, &self.file("run.vbts"), &script)?.expect(0)?;
        Ok(both(&run))
    }
}

/// What gdb and vbts have printed.
fn both(run: &Run) -> String {
    String::from_utf8_lossy(&run.stdout).into_owned() + &run.stderr
}

fn debug(machine: &Machine, options: &[&str], file: &Path, script: &Path) -> Result<Run> {
    let mut command = machine.command(["debug", "--batch", "-x"]);
    command.arg(script).args(options).arg(file);
    // Nothing of the user's changes the session, which keeps nothing.
    command.env("HOME", "/nonexistent");
    command.env("XDG_CACHE_HOME", "/dev/null");
    machine::finish(command)
}

/// Checks that the lines of `expected` are in `text`, in this order, apart from their spaces.
fn check_order(text: &str, expected: &[&str]) -> Result<()> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = words(text);
    let mut rest = all.as_str();
    for line in expected {
        let line = words(line);
        match rest.split_once(&line) {
            Some((_, after)) => rest = after,
            None => bail!("'{line}' is not in the rest of\n{text}"),
        }
    }
    Ok(())
}

/// The lines of code that follow, up to the next command or text.
fn code_block<'a>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> String {
    let is_code = |line: &&str| line.is_empty() || line.starts_with("    ");
    let mut block = String::new();
    while let Some(line) = lines.next_if(|line| is_code(line) && !line.starts_with("    $ ")) {
        block += line.strip_prefix("    ").unwrap_or(line);
        block.push('\n');
    }
    block
}

/// A section of the guide: its files, its commands, and the session of `vbts debug` after them.
fn guide(machine: &Machine, heading: &str) -> Result<()> {
    guide_in(machine, heading, tempfile::tempdir()?.path())
}

/// As [`guide`], in a directory that can have files already.
fn guide_in(machine: &Machine, heading: &str, at: &Path) -> Result<()> {
    needs_gdb()?;
    let section = GUIDE.split(&format!("## {heading}\n")).nth(1);
    let section = section.and_then(|text| text.split("\n## ").next()?.split("\n### ").next());
    let mut lines = section.context("no section")?.lines().peekable();
    let vbts = machine.command(["--version"]);
    let mut recording = None;
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("    $ ") else {
            continue;
        };
        if let Some(name) = command.strip_prefix("vbts debug ") {
            recording = Some(at.join(name));
            break;
        }
        let shown = code_block(&mut lines);
        if let Some(name) = command.strip_prefix("cat ") {
            fs::write(at.join(name), shown)?;
            continue;
        }
        let program = vbts.get_program().to_string_lossy();
        let command = match command.strip_prefix("vbts ") {
            Some(rest) => format!("{program} {rest}"),
            None => command.to_owned(),
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]);
        shell.current_dir(at).envs(machine::variables(&vbts));
        let run = machine::finish(shell)?;
        // The recorded program may crash.
        ensure!(run.status != Some(125), "{command}: {run:?}");
        check_order(&run.printed(), &shown.lines().collect::<Vec<_>>())?;
    }
    let (mut commands, mut expected) = (String::new(), Vec::new());
    for line in lines.filter_map(|line| line.strip_prefix("    ")) {
        match line.strip_prefix("(gdb) ") {
            Some(command) => commands += &format!("{command}\n"),
            None => expected.push(line),
        }
    }
    ensure!(commands.lines().count() >= 5 && expected.len() >= 5);
    let script = at.join("commands.gdb");
    fs::write(&script, &commands)?;
    let run = debug(machine, &[], &recording.context("no session")?, &script)?;
    check_order(&both(&run.expect(0)?), &expected)
}

fn guide_crash(machine: &Machine) -> Result<()> {
    guide(machine, "Why did it crash?")
}

fn guide_value(machine: &Machine) -> Result<()> {
    guide(machine, "Who wrote this?")
}

/// The program is in a root directory of its own, and gdb is told of nothing.
fn root(machine: &Machine) -> Result<()> {
    let recorded = Recorded::prepare(LOOP)?;
    let root = recorded.file("root");
    for directory in ["app", "dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    let (source, program) = (recorded.file("program.c"), root.join("app/looped"));
    programs::gcc(&source, &program, &["-g", "-O0", "-static"])?;
    let mut command = machine.command(["record", "--quiet", "--root"]);
    command.arg(&root).arg("-o").arg(recorded.file("run.vbts"));
    command.args(["--", "/app/looped"]);
    machine::finish(command)?.expect(5)?;
    let text = recorded.gdb(machine, "break program.c:10\ncontinue\nprint i\n")?;
    check_order(&text, &["main () at", "Breakpoint 1, main", "$1 = 1"])
}

const THREADS: &str = "
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
int counter;
static void add(int i)
{
	counter += i;
}
static void *work(void *arg)
{
	for (int i = 0; i < 100; i++)
		add(i);
	pause();
	return arg;
}
int main(void)
{
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], 0, work, 0);
	usleep(1000);
	printf(\"counter %d\\n\", counter);
	return 3;
}
";

fn threads(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, THREADS, &[], 3)?;
    let commands = "bt 1\nbreak add if i == 50\ncontinue\np i\ncontinue\ncontinue\np i\ndelete
break program.c:23\ncontinue\np counter\nthread apply all -s -q frame function work
info threads\ninfo sharedlibrary\nwatch counter\nreverse-continue\np i\np counter
tbreak add if i == 10\nreverse-continue\np i";
    let text = recorded.gdb(machine, commands)?;
    let expected = [
        "main () at",
        "hit Breakpoint 1, add (i=50)",
        "$1 = 50",
        "hit Breakpoint 1, add (i=50)",
        "hit Breakpoint 1, add (i=50)",
        "$2 = 50",
        "hit Breakpoint 2, main",
        "$3 = 14850",
        "work (arg=0x0)",
        "work (arg=0x0)",
        "work (arg=0x0)",
        "\"program\"",
        "libc.so.6",
        "hit Hardware watchpoint 3: counter",
        "Old value = 14850",
        "New value = 14751",
        "$4 = 99",
    ];
    check_order(&text, &expected)
}

const LOOP: &str = "
#include <string.h>
volatile double sum;
static char text[64];
int main(void)
{
	for (volatile long i = 0; i < 10000000; i++)
		;
	for (int i = 1; i < 200; i++)
		sum += 1.0 / i;
	memset(text, 'x', sizeof(text) - 1);
	return text[3] == 'x' ? 5 : 6;
}
";

/// The values of RIP and the other registers that `info all-registers` prints, for each time.
fn registers(text: &str) -> Vec<Vec<&str>> {
    let is_register = |line: &&str| {
        let name = line.split_whitespace().next().unwrap_or_default();
        ["rip", "rax", "rsp", "eflags", "xmm0", "st0", "fs_base"].contains(&name)
    };
    let lines: Vec<&str> = text.lines().filter(is_register).collect();
    lines.chunks(7).map(<[&str]>::to_vec).collect()
}

fn round_trip(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LOOP, &[], 5)?;
    let show = "info registers rip rax rsp eflags fs_base\ninfo registers xmm0 st0\n";
    let mut commands = "break program.c:9\ncontinue\ndelete\n".to_owned();
    const STEPS: usize = 12;
    for step in ["stepi\n", "reverse-stepi\n"] {
        for _ in 0..STEPS {
            commands += show;
            commands += step;
        }
    }
    commands += show;
    let began = Instant::now();
    let text = recorded.gdb(machine, &commands)?;
    eprintln!("{STEPS} steps forward and backward: {:?}", began.elapsed());
    let all = registers(&text);
    ensure!(all.len() == 2 * STEPS + 1, "{} {text}", all.len());
    for n in 0..STEPS {
        ensure!(all[n] == all[2 * STEPS - n], "step {n}: {all:?}");
        ensure!(all[n] != all[n + 1], "step {n}: {all:?}");
    }
    Ok(())
}

/// A condition that never holds is evaluated thousands of times, and the run ends as recorded.
fn unchanged(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LOOP, &[], 5)?;
    let commands =
        "break program.c:10 if i == 150\ncontinue\np i\nwatch text[40]\ncontinue\np text[39]
delete\ncontinue\nwhen\ngoto start\ncontinue\nwhen\nreverse-continue\ncontinue\nwhen";
    let text = recorded.gdb(machine, commands)?;
    let expected = ["$1 = 150", "New value = 120 'x'", "$2 = 120 'x'"];
    check_order(&text, &expected)?;
    // Three ways lead to one end.
    let ends: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("virtual time"))
        .collect();
    let at_end = ends.iter().filter(|line| **line == ends[0]).count();
    ensure!(at_end == 3, "{ends:?} {text}");
    let mut command = machine.command(["replay", "--check", "--quiet"]);
    command.arg(recorded.file("run.vbts"));
    machine::finish(command)?.expect(0)?;
    Ok(())
}

fn ends(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LOOP, &[], 5)?;
    let text = recorded.gdb(machine, "continue\nreverse-continue\nreverse-stepi\n")?;
    let ended = "No more reverse-execution history.";
    check_order(&text, &[ended, ended, "in _start ()", ended])
}

fn needs_gdb() -> Result<()> {
    match Command::new("gdb").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(Skip("gdb is not installed".into()).into()),
    }
}

/// Another client connects to a socket. When it ends the session, nothing is left.
fn other_client(machine: &Machine) -> Result<()> {
    needs_gdb()?;
    let directory = tempfile::tempdir()?;
    let recording = directory.path().join("true.vbts");
    let socket = directory.path().join("socket");
    let mut command = machine.command(["record", "--quiet", "--output"]);
    command.arg(&recording).args(["--", "/bin/true"]);
    machine::finish(command)?.expect(0)?;
    let target = format!("target remote {}", socket.display());
    let listen = || -> Result<Killed> {
        let mut command = machine.command(["debug", "--quiet", "--listen"]);
        command.arg(&socket).arg(&recording).stderr(Stdio::piped());
        let mut server = Killed(command.spawn()?);
        let said = BufReader::new(server.0.stderr.take().context("no pipe")?);
        let ready = said.lines().next().context("the server has ended")??;
        ensure!(ready.contains(&target), "{ready}");
        Ok(server)
    };
    // A signal ends the wait for a client.
    let mut server = listen()?;
    kill(
        Pid::from_raw(i32::try_from(server.0.id())?),
        Signal::SIGTERM,
    )?;
    let status = machine::wait(&mut server.0, Duration::from_secs(60))?;
    ensure!(status == Some(128 + 15), "{status:?}");
    ensure!(!socket.exists(), "the socket is left");
    let mut server = listen()?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex"])
        .arg(&target)
        .args(["-ex", "stepi", "-ex", "disconnect"]);
    let run = machine::finish(gdb)?;
    let status = machine::wait(&mut server.0, Duration::from_secs(60))?;
    ensure!(status == Some(0), "{status:?}: {run:?}");
    ensure!(!socket.exists(), "the socket is left");
    Ok(())
}

fn refused(machine: &Machine) -> Result<()> {
    let mut command = machine.command(["debug", "--gdb", "no-such-gdb", "/etc/passwd"]);
    command.env("VBTS_KERNEL", "/nonexistent");
    let run = machine::finish(command)?.expect(126)?;
    ensure!(run.stderr.contains("the package gdb"), "{run:?}");
    let command = machine.command(["debug", "--listen", "somewhere", "/etc/passwd"]);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("--listen"), "{run:?}");
    Ok(())
}
