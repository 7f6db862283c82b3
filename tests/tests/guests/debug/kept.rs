//! The snapshots that a session keeps in the user's cache for later ones.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, TestModule};

use super::{LOOP, Recorded, both, check_order};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_second_session_continues_from_snapshots", second),
            ("a_session_that_is_killed_leaves_no_file", killed),
        ],
    )
}

/// Questions forward and backward.
const COMMANDS: &str = "when\nbreak program.c:10 if i == 150\ncontinue\np i\np sum\nwatch sum
reverse-continue\nreverse-continue\np i\nwhen\ndelete\nbreak main\nreverse-continue\nwhen
goto end\nwhen\nreverse-stepi\nwhen\n";

/// A session of a recording.
struct Session {
    answers: String,
    /// Instructions that were executed until the client was answered first.
    executed: u64,
    /// The snapshots were written.
    has_kept: bool,
    refused: bool,
}

/// The cache of the sessions of `recorded`.
fn cache(recorded: &Recorded) -> PathBuf {
    recorded.file("cache")
}

/// The files of snapshots.
fn files(recorded: &Recorded) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(cache(recorded).join("vbts/snapshots"))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn session(machine: &Machine, recorded: &Recorded) -> Result<Session> {
    let script = recorded.file("commands.gdb");
    fs::write(&script, COMMANDS)?;
    let mut command = machine.command(["debug", "--log", "info", "--batch", "-x"]);
    command.arg(script).arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", cache(recorded));
    let run = machine::finish(command)?.expect(0)?;
    let number = |line: &str| {
        let rest = line.split_once("executed=")?.1;
        rest.split_whitespace().next()?.parse().ok()
    };
    let executed = run.stderr.lines().find_map(number);
    Ok(Session {
        answers: String::from_utf8_lossy(&run.stdout).into_owned(),
        executed: executed.with_context(|| both(&run))?,
        has_kept: run.stderr.contains("the snapshots are kept"),
        refused: run.stderr.contains("the recording is replayed again"),
    })
}

fn second(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LOOP, &[], 5)?;
    let first = session(machine, &recorded)?;
    let expected = ["$1 = 150", "Old value", "Old value", "main"];
    check_order(&first.answers, &expected)?;
    // The loop alone has 30 million instructions.
    ensure!(
        first.executed > 50_000_000 && first.has_kept,
        "{}",
        first.executed
    );
    let second = session(machine, &recorded)?;
    ensure!(second.answers == first.answers, "{}", second.answers);
    ensure!(second.executed < 5_000_000, "{}", second.executed);
    ensure!(!second.has_kept && !second.refused);

    let [file] = &files(&recorded)?[..] else {
        bail!("{:?}", files(&recorded)?);
    };
    let good = fs::read(file)?;
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 4;
    for damaged in [&flipped[..], &good[..good.len() / 3], b"", b"vbtssnap"] {
        fs::write(file, damaged)?;
        let replayed = session(machine, &recorded)?;
        ensure!(replayed.answers == first.answers, "{}", replayed.answers);
        ensure!(replayed.executed == first.executed && replayed.refused);
        // A good file is there again.
        ensure!(replayed.has_kept && fs::read(file)?.len() == good.len());
    }
    let last = session(machine, &recorded)?;
    ensure!(last.answers == first.answers && last.executed == second.executed);
    ensure!(files(&recorded)?.len() == 1);
    Ok(())
}

fn killed(machine: &Machine) -> Result<()> {
    let recorded = Recorded::new(machine, LOOP, &[], 5)?;
    let mut command = machine.command(["debug", "--listen"]);
    command.arg(recorded.file("socket"));
    command.arg(recorded.file("run.vbts"));
    command.env("XDG_CACHE_HOME", cache(&recorded));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    await_files(&recorded, |names| names.len() == 1)?;
    child.kill()?;
    child.wait()?;
    // On a busy machine, it may have completed its file before.
    await_files(&recorded, |names| {
        names.iter().all(|name| name.ends_with(".snapshots"))
    })
}

/// Waits until the names of the files of snapshots are as `wanted`.
fn await_files(recorded: &Recorded, wanted: impl Fn(&[String]) -> bool) -> Result<()> {
    for _ in 0..3000 {
        if wanted(&names(recorded)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("there are {:?}", names(recorded))
}

/// The names of the files of snapshots.
fn names(recorded: &Recorded) -> Vec<String> {
    let paths = files(recorded).unwrap_or_default();
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    names.map(str::to_owned).collect()
}
