//! Moments of a run, and the differences of two.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{report, traced};

pub(super) fn two_runs(machine: &Machine) -> Result<()> {
    let flags = ["-O2", "-g", "-pthread"];
    let (plain, kinds) = (
        traced(machine, &flags, &[])?,
        traced(machine, &flags, &["k"])?,
    );
    let other = kinds.trace.to_str().context("a path")?;
    let mut command = machine.command(["report", "diff", "--limit", "1000"]);
    command.arg(&plain.trace).arg(other);
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8(run.stdout)?;
    let line = |name: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.contains(&format!("  {name} (answers)")))
            .unwrap_or_default()
    };
    // The first one ends where the second one calls `kinds`.
    let part = text
        .lines()
        .find(|line| line.starts_with("  second"))
        .unwrap_or_default();
    ensure!(
        part.ends_with("-> kinds") && part.contains("answers.c:"),
        "{text}"
    );
    ensure!(text.contains("-> choose\n"), "{text}");
    ensure!(line("deep").ends_with("only in the second"), "{text}");
    ensure!(
        line("leaf").trim_start().starts_with("3         93 "),
        "{text}"
    );
    ensure!(line("fib").is_empty(), "{text}");
    // In one command.
    let mut command = machine.command(["trace", "--epoch", "0", "--report", "diff", "--against"]);
    command
        .arg(&plain.trace)
        .arg("--")
        .arg(&kinds.program)
        .arg("k");
    let run = machine::finish(command)?.expect(0)?;
    let text = String::from_utf8(run.stdout)?;
    let part = text.lines().find(|line| line.starts_with("  second"));
    ensure!(
        part.is_some_and(|part| part.ends_with("-> kinds")),
        "{text}"
    );
    Ok(())
}

/// Children of one program are compared in the order in which they begin.
pub(super) fn two_runs_of_tasks(machine: &Machine) -> Result<()> {
    const CHILDREN: &str = r"
        #include <sys/wait.h>
        #include <unistd.h>
        volatile int sink;
        __attribute__((noinline)) void usual(void) { sink++; }
        __attribute__((noinline)) void other(void) { sink--; }
        int main(int argc, char **argv)
        {
            int which = 11 - 5 * argc;
            for (int i = 0; i < 2 + argc; i++) {
                if (!fork()) {
                    usual();
                    if (i == which)
                        other();
                    usual();
                    _exit(0);
                }
                wait(0);
            }
            return 0;
        }";
    let directory = tempfile::tempdir()?;
    let (source, program) = (
        directory.path().join("children.c"),
        directory.path().join("children"),
    );
    std::fs::write(&source, CHILDREN)?;
    programs::gcc(&source, &program, &["-O1", "-g"])?;
    let program = program.to_str().context("a path")?;
    let run = |name: &str, words: &[&str]| -> Result<PathBuf> {
        let trace = directory.path().join(name);
        let options = ["--epoch", "0"];
        machine
            .trace("btrace", &trace, &options, words)?
            .expect(0)?;
        Ok(trace)
    };
    let (good, bad) = (
        run("good.btrace", &[program])?,
        run("bad.btrace", &[program, "x"])?,
    );
    let diff = |other: &Path| -> Result<Vec<String>> {
        let mut command = machine.command(["report", "diff"]);
        command.arg(&good).arg(other);
        let run = machine::finish(command)?.expect(0)?;
        let text = String::from_utf8(run.stdout)?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let equal = diff(&good)?;
    ensure!(
        equal
            == [
                "in 4 tasks, the branches and the calls of the program's own functions are the same, in order",
                "the two runs have the same calls and instructions",
            ],
        "{equal:?}"
    );
    let lines = diff(&bad)?;
    let heads = lines.iter().filter(|line| line.starts_with("children,"));
    let heads: Vec<&String> = heads.collect();
    // The parent forks once more, the second child calls `other`, and the fourth one is new.
    ensure!(
        heads.len() == 3 && heads[2].ends_with(": only in the second"),
        "{lines:#?}"
    );
    let second = lines.iter().position(|line| line == heads[1]);
    let part = &lines[second.context("a head")?..];
    let ends = part.iter().position(|line| line == heads[2]);
    let part = &part[..ends.context("the next head")?];
    let of = |run: &str| {
        let mut lines = part.iter();
        lines
            .rfind(|line| line.starts_with(run) && line.contains(" branch "))
            .cloned()
            .unwrap_or_default()
    };
    ensure!(of("  first").ends_with("-> usual"), "{lines:#?}");
    ensure!(of("  second").ends_with("-> other"), "{lines:#?}");
    let same = "in 2 tasks, the branches and the calls of the program's own functions are the same, in order";
    ensure!(lines.iter().any(|line| line == same), "{lines:#?}");
    Ok(())
}

pub(super) fn moments(machine: &Machine) -> Result<()> {
    let flags = ["-O0", "-g", "-static"];
    let traced = traced(machine, &flags, &[])?;
    let text = report(machine, &["text"], &traced.trace)?;
    let inside = text
        .lines()
        .position(|line| line.contains("-> ") && line.contains("choose+0x0"));
    let to = (inside.context("choose is not called")? + 1).to_string();
    let words = ["where", "--to", &to];
    let stack = report(machine, &words, &traced.trace)?;
    let frames: Vec<&str> = stack
        .lines()
        .filter(|line| line.starts_with("     "))
        .collect();
    ensure!(
        frames.first().is_some_and(|f| f.contains("0  choose+0x0")),
        "{stack}"
    );
    ensure!(
        frames.get(1).is_some_and(|f| f.contains("1  main+")),
        "{stack}"
    );
    ensure!(frames[1].contains("answers.c:"), "{stack}");
    // The program ends after all branches, and nothing is before its start.
    let json = report(machine, &["json"], &traced.trace)?;
    let event = |kind: &str| -> Result<String> {
        let line = json
            .lines()
            .find(|line| line.contains(kind))
            .context("no event")?;
        let event: Value = serde_json::from_str(line)?;
        Ok(event["time"].as_u64().context("no time")?.to_string())
    };
    let (start, end) = (event("\"start\"")?, event("\"kind\":\"end\"")?);
    let at = |time: &str| report(machine, &["where", "--time", time], &traced.trace);
    ensure!(at(&start)?.is_empty(), "{}", at(&start)?);
    ensure!(at(&end)?.contains("__run_exit_handlers+"), "{}", at(&end)?);
    let tail = report(machine, &["tail", "--steps", "5"], &traced.trace)?;
    ensure!(tail.contains("xit+0x0"), "{tail}");
    Ok(())
}
