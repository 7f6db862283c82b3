//! Moments of a run, and the differences of two.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::{self, Machine};

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
