//! The commands of the README and of the guide's pages about reports: each one runs, in the order
//! of its page, and prints what the page shows.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

/// Programs that the pages compile.
const SOURCES: [&str; 11] = [
    "answers.c",
    "calc.c",
    "events.c",
    "inlined.c",
    "jit.c",
    "words.cpp",
    "words.rs",
    "words.go",
    "Words.java",
    "words.js",
    "words.py",
];
/// The signal of a division by zero.
const SIGFPE: i32 = 8;
/// Commands that fail, because what they trace crashes: their ends, and their statuses.
const FAILING: [(&str, i32); 3] = [
    ("./calc 5 -0", 128 + SIGFPE),
    // The recorded program of the page, and what repeats its run.
    ("exit 3'", 3),
    (" failure.vbts", 3),
];
/// Commands about that recording that do not repeat its status.
const SUCCEEDING: [&str; 2] = ["vbts report ", " --check "];

/// A command whose output depends on the environment: the kernel empties a full buffer at another
/// place if the program has another one, and that is in the trace of the kernel.
const NOT_COMPARED: &str = "report diff --module '[kernel]'";
/// The system whose output the pages show.
const SHOWN_SYSTEM: &str = "VERSION_ID=\"12\"";

/// A command of a page, or a heading.
#[derive(Default)]
struct Entry {
    text: String,
    /// What the page shows that it prints; nothing, if the page does not.
    shown: Vec<String>,
}

/// The commands of a page, and its headings between them. A line that ends with a backslash
/// continues.
fn entries(page: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let of = |text: &str| Entry {
        text: text.to_owned(),
        ..Entry::default()
    };
    let (mut continues, mut prints) = (false, false);
    for line in page.lines() {
        let last = entries.last_mut();
        if continues && let Some(last) = last {
            last.text.push('\n');
            last.text.push_str(line);
        } else if let Some(command) = line.strip_prefix("    $ ") {
            entries.push(of(command));
            prints = true;
        } else if let Some(text) = line.strip_prefix("    ").filter(|_| prints) {
            last.into_iter()
                .for_each(|last| last.shown.push(text.to_owned()));
        } else if line.starts_with("## ") {
            entries.push(of(line));
            prints = false;
        } else if line.starts_with("| ") {
            // A table of questions has a command in each row.
            let cell = line.split('`').nth(1).unwrap_or_default();
            entries.extend(cell.starts_with("vbts ").then(|| of(cell)));
            prints = false;
        } else {
            prints = false;
        }
        continues = line.ends_with('\\') && !entries.is_empty();
    }
    entries
}

/// A line without what depends on the environment of a run and on the compiler: numbers, and
/// offsets in functions.
fn normalised(line: &str) -> String {
    let is_number = |word: &str| {
        let digits = word.trim_matches(|c: char| "+-%,:()#".contains(c));
        let hexadecimal = digits.strip_prefix("0x").unwrap_or(digits);
        digits.bytes().any(|c| c.is_ascii_digit())
            && hexadecimal
                .bytes()
                .all(|c| c.is_ascii_hexdigit() || c == b'.')
    };
    let words = line.split_whitespace().map(|word| match word.find("+0x") {
        _ if is_number(word) => "#".to_owned(),
        Some(at) => {
            let (name, offset) = word.split_at(at + 3);
            format!(
                "{name}{}",
                offset.trim_start_matches(|c: char| c.is_ascii_hexdigit())
            )
        }
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a command has printed what a page shows. A line `...` stands for any lines.
fn prints(shown: &[String], run: &machine::Run, at: &Path) -> Result<bool> {
    let stdout = String::from_utf8(run.stdout.clone())?;
    let stdout = stdout.replace(at.to_str().context("a path")?, ".");
    let (messages, shown): (Vec<String>, Vec<String>) =
        (shown.iter().map(|line| normalised(line))).partition(|line| line.starts_with("vbts: "));
    let said: Vec<String> = run.stderr.lines().map(normalised).collect();
    if !messages.iter().all(|message| said.contains(message)) {
        return Ok(false);
    }
    let printed: Vec<String> = stdout.lines().map(normalised).collect();
    let mut rest = printed.as_slice();
    for part in shown.split_inclusive(|line| line == "...") {
        let (lines, is_cut) = match part {
            [lines @ .., last] if last == "..." => (lines, true),
            lines => (lines, false),
        };
        let is_first = rest.len() == printed.len() && shown.first().is_some_and(|l| l != "...");
        let at = match is_first {
            true => rest.starts_with(lines).then_some(0),
            false => (0..=rest.len()).find(|at| rest[*at..].starts_with(lines)),
        };
        let Some(at) = at else {
            return Ok(false);
        };
        rest = &rest[at + lines.len()..];
        if !is_cut && !rest.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The beginning of a command that GDB's commands follow, and the prompt before these.
const DEBUG: &str = "vbts debug ";
const PROMPT: &str = "(gdb) ";

/// Runs a session of `vbts debug`: what a page shows, with GDB's commands in it. Returns what it
/// has printed, if a shown line is missing.
fn wrong_session(
    shell: &dyn Fn(&str) -> Command,
    at: &Path,
    command: &str,
    shown: &[String],
) -> Result<Option<String>> {
    let commands = shown.iter().filter_map(|line| line.strip_prefix(PROMPT));
    let script: String = commands.map(|command| format!("{command}\n")).collect();
    std::fs::write(at.join("session.gdb"), script)?;
    let run = machine::finish(shell(&format!("{command} --batch -x session.gdb")))?.expect(0)?;
    let printed = String::from_utf8(run.stdout)?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = printed.lines().map(words);
    let mut lines = shown.iter().filter(|line| !line.starts_with(PROMPT));
    let is_there = lines.all(|shown| rest.any(|line| line.ends_with(&words(shown))));
    Ok((!is_there).then_some(printed))
}

/// The part of a command that names the kernel with debugging information.
const DEBUG_INFO: &str = "target/guest-debug-info/";

/// Runs the commands of a page. If a tool or this kernel is missing, the rest of its section is
/// left out.
fn run(machine: &Machine, page: &str) -> Result<()> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let text = std::fs::read_to_string(guide.join(page))?;
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    for source in SOURCES {
        std::fs::copy(programs::source(source), at.join(source))?;
    }
    std::fs::create_dir(at.join("target"))?;
    let debug_info = super::kernel_lines::directory().canonicalize().ok();
    if let Some(directory) = &debug_info {
        symlink(directory, at.join("target/guest-debug-info"))?;
    }
    let tools = at.join("bin");
    std::fs::create_dir(&tools)?;
    let vbts = machine.command(["--version"]);
    symlink(vbts.get_program(), tools.join("vbts"))?;
    let path = std::env::var("PATH")?;
    let path = format!("{}:{path}", tools.display());
    let shell = |command: &str| {
        let mut shell = Command::new("bash");
        shell
            .args(["-o", "pipefail", "-c", command])
            .current_dir(at)
            // A large environment is work for the program.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "HOME" || name == "TMPDIR"))
            .envs(machine::variables(&vbts))
            .env("PATH", &path)
            .stdin(Stdio::null());
        shell
    };
    let system = std::fs::read_to_string("/etc/os-release")?;
    let is_shown_system = system.lines().any(|line| line == SHOWN_SYSTEM);
    let (mut missing, mut count) = (false, 0);
    let mut wrong = String::new();
    for Entry {
        text: command,
        shown,
    } in entries(&text)
    {
        if command.starts_with("## ") {
            missing = false;
            continue;
        }
        let name = command.split(' ').next().context("no command")?;
        let found = shell(&format!("command -v {name}")).output()?;
        missing |= !found.status.success();
        let needs_gdb = command.starts_with(DEBUG);
        missing |= needs_gdb && !shell("command -v gdb").output()?.status.success();
        missing |= debug_info.is_none() && command.contains(DEBUG_INFO);
        if missing {
            eprintln!("{page}: left out, because a tool or a kernel is missing: {command}");
            continue;
        }
        if command.starts_with(DEBUG) {
            if let Some(printed) = wrong_session(&shell, at, &command, &shown)? {
                let shown = shown.join("\n");
                writeln!(wrong, "{page}: {command}\n{shown}\nPrinted:\n{printed}")?;
            }
            count += 1;
            continue;
        }
        let succeeds = SUCCEEDING.iter().any(|part| command.contains(part));
        let failing = FAILING.iter().filter(|_| !succeeds);
        let failing = failing.into_iter().find(|(end, _)| command.ends_with(end));
        let status = failing.map_or(0, |(_, status)| *status);
        let run = machine::finish(shell(&command))?;
        let run = run.expect(status).context(command.clone())?;
        let is_compared = is_shown_system && !shown.is_empty() && !command.contains(NOT_COMPARED);
        if is_compared && !prints(&shown, &run, at)? {
            let (shown, printed) = (shown.join("\n"), String::from_utf8(run.stdout)?);
            let said = run.stderr;
            writeln!(
                wrong,
                "{page}: {command}\n{shown}\nPrinted:\n{printed}{said}"
            )?;
        }
        count += 1;
    }
    ensure!(wrong.is_empty(), "{wrong}");
    ensure!(count >= 4, "{page}: {count} commands");
    Ok(())
}

pub(super) fn readme(machine: &Machine) -> Result<()> {
    run(machine, "../../README.md")
}

pub(super) fn what_ran(machine: &Machine) -> Result<()> {
    run(machine, "what-ran.md")
}

pub(super) fn languages(machine: &Machine) -> Result<()> {
    run(machine, "languages.md")
}

pub(super) fn coverage(machine: &Machine) -> Result<()> {
    run(machine, "coverage.md")
}

pub(super) fn what_happened(machine: &Machine) -> Result<()> {
    run(machine, "what-happened.md")
}

pub(super) fn compare_runs(machine: &Machine) -> Result<()> {
    run(machine, "compare-runs.md")
}

pub(super) fn where_time_goes(machine: &Machine) -> Result<()> {
    run(machine, "where-time-goes.md")
}

pub(super) fn optimise(machine: &Machine) -> Result<()> {
    run(machine, "optimise.md")
}

pub(super) fn record_and_replay(machine: &Machine) -> Result<()> {
    run(machine, "record-and-replay.md")
}
