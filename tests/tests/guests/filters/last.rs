//! The last branches of a run, however it ends.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{Sample, branches, report};

/// The last branches of one task, alone and of those that other options leave.
pub fn of_a_task(machine: &Machine) -> Result<()> {
    let sample = Sample::new(machine)?;
    let all = &sample.all;
    sample.check(machine, &["--last", "1"], &all[all.len() - 1..])?;
    sample.check(machine, &["--last", "1000"], &all[all.len() - 1000..])?;
    sample.check(machine, &["--last", "1000000"], all)?;
    let leaf: Vec<_> = all
        .iter()
        .filter(|branch| branch.touches("leaf"))
        .cloned()
        .collect();
    sample.check(
        machine,
        &["--only", "leaf", "--last", "7"],
        &leaf[leaf.len() - 7..],
    )?;
    let options = ["--max-records", "100", "--last", "10"];
    sample.check(machine, &options, &all[90..100])?;
    // What has more is what has all.
    let (direct, _) = sample.trace(machine, "json", &["--max-records", "1000000"])?;
    let (last, _) = sample.trace(machine, "json", &["--last", "1000000"])?;
    ensure!(direct == last, "{last}");
    Ok(())
}

/// Three processes after each other, and one that executes no program.
pub const TASKS: &str = "/bin/true; (read x; read y; :) </dev/null; ls / >/dev/null & wait; :";

/// All formats have the last branches, with what is known of their tasks.
pub fn of_tasks(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let trace = |format: &str, options: &[&str]| -> Result<String> {
        let options = [&["--epoch", "0"], options].concat();
        let program = ["/bin/sh", "-c", TASKS];
        machine
            .trace(format, &output, &options, &program)?
            .expect(0)?;
        Ok(std::fs::read_to_string(&output)?)
    };
    let all = events(&trace("json", &[])?)?;
    let branches: Vec<&Value> = all.iter().filter(|event| is(event, "branch")).collect();
    ensure!(branches.len() > 10_000, "{} branches", branches.len());
    let mut seen = [false; 2];
    for keep in [
        10,
        branches.len() / 3,
        branches.len() / 2,
        branches.len() - 10,
    ] {
        let options = ["--last", &keep.to_string()];
        let json = trace("json", &options)?;
        let kept = events(&json)?;
        let first = kept.iter().position(|event| is(event, "branch"));
        let (before, after) = kept.split_at(first.context("no branch")?);
        // From the first branch on, it is the end of the whole trace.
        let (summary, after) = after.split_last().context("no summary")?;
        let (_, whole) = all.split_last().context("no summary")?;
        ensure!(whole.ends_with(after), "{keep}: another end");
        let count = after.iter().filter(|event| is(event, "branch")).count();
        ensure!(
            count == keep && summary["records"] == keep,
            "{keep}: {summary}"
        );
        let left_out = branches.len() - keep;
        ensure!(summary["filtered"] == left_out, "{keep}: {summary}");
        // Before it is what is known of the tasks.
        let mut tasks: Vec<&Value> = Vec::new();
        for event in before {
            match event["kind"].as_str() {
                Some("start") => tasks.push(&event["task"]),
                Some("exec" | "filtered" | "name") => {}
                _ => anyhow::bail!("{keep}: {event}"),
            }
        }
        seen[0] |= tasks.len() > 1;
        for event in after {
            if is(event, "start") {
                tasks.push(&event["task"]);
            }
            ensure!(tasks.contains(&&event["task"]), "{keep}: {event}");
        }
        let gaps = before.iter().filter_map(|event| event["branches"].as_u64());
        let gaps: u64 = gaps.sum();
        ensure!(gaps > 0 && gaps <= left_out as u64, "{keep}: {gaps}");
        seen[1] |= gaps < left_out as u64;
        // The other formats are those of the same trace.
        trace("text", &options)?;
        let text = std::fs::read(&output)?;
        let kept = directory.path().join("kept.btrace");
        let program = ["/bin/sh", "-c", TASKS];
        let options = [&["--epoch", "0"][..], &options].concat();
        machine
            .trace("btrace", &kept, &options, &program)?
            .expect(0)?;
        ensure!(report(machine, "text", &kept)? == text, "{keep}: text");
        ensure!(
            report(machine, "json", &kept)? == json.as_bytes(),
            "{keep}: json"
        );
    }
    ensure!(seen == [true; 2], "{seen:?}");
    // Each task's file has its part.
    let files = directory.path().join("files");
    let options = [&["--epoch", "0"][..], &["--last", "5000"]].concat();
    let program = ["/bin/sh", "-c", TASKS];
    let path = format!("{}/", files.display());
    machine
        .trace("raw", Path::new(&path), &options, &program)?
        .expect(0)?;
    let mut bytes = 0;
    for file in std::fs::read_dir(&files)? {
        let file = file?;
        if file.path().extension().is_some_and(|name| name == "raw") {
            bytes += file.metadata()?.len();
        }
    }
    ensure!(bytes == 5000 * 24, "{bytes} bytes");
    Ok(())
}

/// Numbers of the branches in a trace in JSON, and of those that its gaps say are left out.
pub fn gaps(json: &[u8]) -> Result<(u64, u64)> {
    let (mut branches, mut gaps) = (0, 0);
    for event in events(std::str::from_utf8(json)?)? {
        branches += u64::from(is(&event, "branch"));
        if is(&event, "filtered") {
            gaps += event["branches"].as_u64().unwrap_or(0);
        }
    }
    Ok((branches, gaps))
}

fn events(text: &str) -> Result<Vec<Value>> {
    text.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn is(event: &Value, kind: &str) -> bool {
    event["kind"] == kind
}

/// It says when it begins and when it is to end, and does not end.
const ENDLESS: &str = r#"#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile long n;
__attribute__((noinline)) static void step(void) { n++; }
static void handler(int signal) { n += write(1, "b\n", 2); }
int main(int argc, char **argv)
{
	signal(SIGTERM, handler);
	n += write(1, "a\n", 2);
	for (long i = 0; argc < 2 || i < 200000; i++)
		step();
	abort();
}
"#;

/// A time limit, signals to `vbts`, and one to the program.
pub fn ends(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("endless.c");
    std::fs::write(&source, ENDLESS)?;
    let program = directory.path().join("endless");
    let options = ["-g", "-O0", "-static"];
    let program = programs::gcc(&source, &program, &options)?;
    let output = directory.path().join("trace");

    let options = ["--last", "100", "--timeout", "8"];
    machine
        .trace("json", &output, &options, &[&program])?
        .expect(124)?;
    let check = |end: &str| -> Result<Vec<Value>> {
        let kept = events(&std::fs::read_to_string(&output)?)?;
        let summary = kept.last().context("no summary")?;
        ensure!(
            summary["end"] == end && summary["records"] == 100,
            "{summary}"
        );
        ensure!(summary["filtered"].as_u64() > Some(1000), "{summary}");
        let count = kept.iter().filter(|event| is(event, "branch")).count();
        ensure!(count == 100, "{count} branches");
        Ok(kept)
    };
    let kept = check("timeout")?;
    ensure!(kept.iter().any(|event| is(event, "standing")), "{kept:?}");

    let mut command = machine.command(["trace", "--accel", machine.accel(), "--last", "100"]);
    command
        .args(["--format", "json", "--output"])
        .arg(&output)
        .arg("--")
        .arg(&program);
    interrupt(command)?;
    check("interrupted")?;

    let options = ["--last", "100"];
    let run = machine.trace(
        "json",
        &output,
        &options,
        &[program.as_os_str(), "x".as_ref()],
    )?;
    let run = run.expect(134)?;
    ensure!(
        run.stderr.contains("was killed by SIGABRT"),
        "{}",
        run.stderr
    );
    check("signal")?;
    let text = ["--last", "100"];
    let program = [program.as_os_str(), "x".as_ref()];
    machine
        .trace("text", &output, &text, &program)?
        .expect(134)?;
    let text = std::fs::read_to_string(&output)?;
    ensure!(branches(&text).len() == 100, "{text}");
    ensure!(text.contains(" abort+0x"), "{text}");
    Ok(())
}

/// Sends `vbts` SIGTERM each time that the program prints a line: the first one is for the program.
fn interrupt(mut command: Command) -> Result<()> {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = machine::Killed(command.spawn()?);
    let pid = Pid::from_raw(i32::try_from(child.0.id())?);
    let stdout = child.0.stdout.as_mut().context("no pipe")?;
    for _ in 0..2 {
        let mut line = [0; 2];
        stdout.read_exact(&mut line)?;
        kill(pid, Signal::SIGTERM)?;
    }
    let status = machine::wait(&mut child.0, Duration::from_secs(60))?;
    ensure!(status == Some(143), "{status:?}");
    Ok(())
}
