//! Reports of a trace so long that they read its last branches alone.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vbts_tests::machine::Machine;
use vbts_tests::programs;

use super::report;

/// The loop has two branches a turn, and the functions at its end are called once.
const SOURCE: &str = "
    #include <sys/wait.h>
    #include <unistd.h>
    __attribute__((noinline)) static long step(long sum) { return sum * 3 + 1; }
    __attribute__((noinline)) static long end(long sum) { asm volatile(\"\"); return sum; }
    __attribute__((noinline)) static long work(long turns) {
            long sum = 1;
            for (long turn = 0; turn < turns; turn++)
                    sum = step(sum);
            return end(sum) + 1;
    }
    int main(void) {
            if (fork() == 0)
                    _exit(work(1) == 0);
            wait(0);
            return work(9000000) == 0;
    }
";

/// The line that says what is missing.
const CUT: &str = "--from 0 also shows what was called before)";

pub(super) fn is_read_from_its_end(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("long.c"), SOURCE)?;
    let program = programs::gcc(&path("long.c"), &path("long"), &["-O1", "-g", "-static"])?;
    let trace = path("long.btrace");
    machine
        .trace("btrace", &trace, &["--epoch", "0"], &[&program])?
        .expect(0)?;
    tail_is_the_same(machine, &trace)?;
    // Before the end of the loop, nothing shows what has called it.
    let rows = tasks(machine, &["--sort", "branches"], &trace)?;
    let branches = |row: &Value| row["branches"].as_u64().context("a number");
    let all: u64 = rows.iter().map(branches).sum::<Result<u64>>()?;
    ensure!(all > 18_000_000, "{rows:?}");
    let to = (all - 100_000).to_string();
    let near = report(machine, &["where", "--to", &to], &trace)?;
    let whole = report(machine, &["where", "--to", &to, "--from", "0"], &trace)?;
    ensure!(near.contains(CUT) && !near.contains("main+"), "{near}");
    ensure!(whole.contains("main+") && !whole.contains(CUT), "{whole}");
    // The stack is the same as far as it goes.
    let frames = |text: &str| text.lines().filter(|l| !l.ends_with(CUT)).count();
    let same = near.lines().zip(whole.lines()).take(frames(&near));
    ensure!(
        frames(&near) >= 4 && same.into_iter().all(|(a, b)| a == b),
        "{near}{whole}"
    );
    // A short part of it is read as a whole.
    let early = report(machine, &["where", "--to", "1000000"], &trace)?;
    ensure!(early.contains("main+") && !early.contains(CUT), "{early}");
    // Instructions are counted on request.
    ensure!(rows.iter().all(|row| row["instructions"].is_null()));
    let text = report(machine, &["tasks"], &trace)?;
    ensure!(text.contains("--sort instructions"), "{text}");
    for words in [["--sort", "instructions"], ["--from", "0"]] {
        let counted = tasks(machine, &words, &trace)?;
        let same = counted.iter().zip(&rows);
        ensure!(
            counted.len() == 2
                && same
                    .into_iter()
                    .all(|(a, b)| a["branches"] == b["branches"]),
            "{counted:?} {rows:?}"
        );
        ensure!(counted[0]["instructions"].as_u64() > Some(all));
    }
    Ok(())
}

fn tasks(machine: &Machine, words: &[&str], trace: &Path) -> Result<Vec<Value>> {
    let words = [&["tasks", "--json"], words].concat();
    let rows = report(machine, &words, trace)?;
    Ok(rows
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

/// The last calls and returns do not depend on what is read. The stack of the parent lacks what the
/// trace does not return to.
fn tail_is_the_same(machine: &Machine, trace: &Path) -> Result<()> {
    let tail = |words: &[&str]| {
        report(
            machine,
            &[&["tail", "--steps", "12"], words].concat(),
            trace,
        )
    };
    let (near, whole) = (tail(&[])?, tail(&["--from", "0"])?);
    let steps = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(" -> "));
        // The indent depends on the depth.
        lines.map(|line| line.trim().to_owned()).collect()
    };
    ensure!(
        steps(&near).len() > 20 && steps(&near) == steps(&whole),
        "{near}{whole}"
    );
    // The child has the stack of its parent.
    ensure!(near.matches(CUT).count() == 2, "{near}");
    ensure!(!whole.contains(CUT), "{whole}");
    Ok(())
}
