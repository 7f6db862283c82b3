//! The commands of the guide's pages about reports: each one runs, in the order of its page.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

/// Programs that the pages compile.
const SOURCES: [&str; 5] = ["answers.c", "calc.c", "events.c", "inlined.c", "jit.c"];
/// The signal of a division by zero.
const SIGFPE: i32 = 8;
/// Commands that fail, because what they trace crashes: their ends, and their statuses.
const FAILING: [(&str, i32); 1] = [("./calc 5 -0", 128 + SIGFPE)];

/// The commands of a page, and its headings between them. A line that ends with a backslash
/// continues.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut continues = false;
    for line in page.lines() {
        if continues && let Some(last) = commands.last_mut() {
            last.push('\n');
            last.push_str(line);
        } else if line.starts_with("## ") {
            commands.push(line.to_owned());
        } else if let Some(command) = line.strip_prefix("    $ ") {
            commands.push(command.to_owned());
        } else if line.starts_with("| ") {
            // A table of questions has a command in each row.
            let cell = line.split('`').nth(1).unwrap_or_default();
            commands.extend(cell.starts_with("vbts ").then(|| cell.to_owned()));
        }
        continues = line.ends_with('\\') && commands.last().is_some();
    }
    commands
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
            .envs(machine::variables(&vbts))
            .env("PATH", &path)
            .stdin(Stdio::null());
        shell
    };
    let (mut missing, mut count) = (false, 0);
    for command in commands(&text) {
        if command.starts_with("## ") {
            missing = false;
            continue;
        }
        let name = command.split(' ').next().context("no command")?;
        let found = shell(&format!("command -v {name}")).output()?;
        missing |= !found.status.success();
        missing |= debug_info.is_none() && command.contains(DEBUG_INFO);
        if missing {
            eprintln!("{page}: left out, because a tool or a kernel is missing: {command}");
            continue;
        }
        let failing = FAILING.iter().find(|(end, _)| command.ends_with(end));
        let status = failing.map_or(0, |(_, status)| *status);
        let run = machine::finish(shell(&command))?;
        run.expect(status).context(command)?;
        count += 1;
    }
    ensure!(count >= 4, "{page}: {count} commands");
    Ok(())
}

pub(super) fn what_ran(machine: &Machine) -> Result<()> {
    run(machine, "what-ran.md")
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
