//! Calls and returns in order, compared with what the program itself notes about them.

use anyhow::{Context, Result, ensure};
use vbts_tests::machine::{self, Machine};
use vbts_tests::programs;

use super::{function_rows, report};

/// Functions that call each other, and note when they begin and end: as `+NAME` and `-NAME`.
const SOURCE: &str = r#"
    #include <stdio.h>
    static char notes[1 << 16], *next = notes;
    static unsigned state = 1;
    #define NOTE(sign, name) (*next++ = sign, *next++ = name)
    #define FUNCTION(name, one, other) \
        __attribute__((noinline)) void name(int left) \
        { \
            NOTE('+', #name[0]); \
            for (state = state * 1664525 + 1013904223; left-- > 0 && state >> 30;) { \
                if (state >> 31) \
                    one(left); \
                else \
                    other(left); \
            } \
            NOTE('-', #name[0]); \
        }
    void a(int), b(int), c(int);
    FUNCTION(a, b, c)
    FUNCTION(b, c, a)
    FUNCTION(c, a, b)
    int main(void)
    {
        for (int i = 0; i < 100; i++)
            a(6);
        fwrite(notes, 1, next - notes, stdout);
        return 0;
    }
"#;

/// Makes such notes from the lines of a report.
fn notes(text: &str) -> String {
    let mut notes = String::new();
    for line in text.lines() {
        let call = line.split_whitespace().collect::<Vec<_>>();
        match call[..] {
            [_, call @ ("a();" | "b();" | "c();")] | [_, _, call @ ("a();" | "b();" | "c();")] => {
                let name = &call[..1];
                notes.push_str(&format!("+{name}-{name}"));
            }
            [_, call @ ("a()" | "b()" | "c()"), "{"] => notes.push_str(&format!("+{}", &call[..1])),
            [.., "}", "/*", name @ ("a" | "b" | "c"), "*/"] => notes.push_str(&format!("-{name}")),
            _ => {}
        }
    }
    notes
}

pub(super) fn as_the_program_says(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (source, program) = (
        directory.path().join("notes.c"),
        directory.path().join("notes"),
    );
    std::fs::write(&source, SOURCE)?;
    let flags = ["-O1", "-fno-optimize-sibling-calls"];
    programs::gcc(&source, &program, &flags)?;
    let trace = directory.path().join("notes.btrace");
    let run = machine.trace("btrace", &trace, &["--epoch", "0"], &[&program])?;
    let said = String::from_utf8(run.expect(0)?.stdout)?;
    ensure!(said.len() > 400, "{said}");
    let text = report(machine, &["trace"], &trace)?;
    ensure!(notes(&text) == said, "{text}");
    let main = report(machine, &["trace", "--function", "main"], &trace)?;
    ensure!(notes(&main) == said, "{main}");
    ensure!(!main.contains("_start"), "{main}");
    // The instructions of a call are those of the function with its callees.
    let close = main.lines().find(|line| line.ends_with("  } /* main */"));
    let count = close.and_then(|line| line.split_whitespace().next());
    let rows = report(
        machine,
        &["functions", "--json", "--limit", "100000", "--no-inline"],
        &trace,
    )?;
    let total = rows.lines().find(|line| line.contains("\"name\":\"main\""));
    let total: serde_json::Value = serde_json::from_str(total.context("no main")?)?;
    ensure!(
        count == Some(&total["total"].to_string()),
        "{close:?} {total}"
    );
    ensure!(function_rows(&rows)?["a"].0 as usize == said.matches("+a").count());
    // Only what main calls.
    let shallow = report(
        machine,
        &["trace", "--function", "a", "--depth", "1"],
        &trace,
    )?;
    ensure!(shallow.matches("a();").count() == 100, "{shallow}");
    ensure!(
        !shallow.contains("  b()") && !shallow.contains("  c()"),
        "{shallow}"
    );
    let mut command = machine.command(["report", "trace", "--depth", "0"]);
    command.arg(&trace);
    machine::finish(command)?.expect(125)?;
    Ok(())
}

/// Calls of a function that come after more calls than are shown.
pub(super) fn late(machine: &Machine) -> Result<()> {
    const SOURCE: &str = "
        __attribute__((noinline)) void often(void) { asm volatile(\"\"); }
        __attribute__((noinline)) void late(void) { often(); asm volatile(\"\"); }
        int main(void)
        {
            for (int i = 0; i < 4200000; i++)
                often();
            late();
            late();
            return 0;
        }
    ";
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let (source, program, trace) = (path("late.c"), path("late"), path("late.btrace"));
    std::fs::write(&source, SOURCE)?;
    programs::gcc(&source, &program, &["-O1"])?;
    machine
        .trace("btrace", &trace, &[], &[&program])?
        .expect(0)?;
    let text = report(machine, &["trace", "--function", "late"], &trace)?;
    let calls = text.lines().map(|line| line.rsplit("  ").next());
    let calls: Vec<&str> = calls.skip(1).flatten().collect();
    let one = ["late() {", "often();", "} /* late */"];
    ensure!(calls == [one, one].concat(), "{text}");
    let mut command = machine.command(["report", "trace", "--function", "lately"]);
    command.arg(&trace);
    let run = machine::finish(command)?.expect(125)?;
    ensure!(run.stderr.contains("Similar: late"), "{}", run.stderr);
    Ok(())
}
