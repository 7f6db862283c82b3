//! Reports as KTAP, the Kernel Test Anything Protocol
//! (Documentation/dev-tools/ktap.rst). Each group is a subtest.

use std::fmt::Write as _;

use super::{CaseResult, Counts, Outcome};

/// A report without tests; `why` is its reason.
pub(crate) fn skip_all(why: &str) -> String {
    format!("KTAP version 1\n1..0 # SKIP {}\n", one_line(why))
}

/// The head of a report of `groups` groups.
pub(crate) fn head(groups: usize) -> String {
    format!("KTAP version 1\n1..{groups}\n")
}

/// The head of the group `name` of `cases` cases.
pub(crate) fn group_head(name: &str, cases: usize) -> String {
    format!("  KTAP version 1\n  # Subtest: {name}\n  1..{cases}\n")
}

/// The result of case `number` of a group, the first of which is 1.
pub(crate) fn case(number: usize, result: &CaseResult) -> String {
    let name = &result.case.name;
    let runs = match 1 + result.later.len() {
        1 => String::new(),
        runs if result.is_flaky() => format!("  # {name}: flaky: run {runs} did not fail\n"),
        runs => format!("  # {name}: {runs} runs failed\n"),
    };
    let line = |status: &str, directive: &str, why: &str| {
        format!(
            "{runs}  {status} {number} {name} # {directive} {}\n",
            one_line(why)
        )
    };
    match result.outcome() {
        Outcome::Passed => format!("  ok {number} {name}\n"),
        Outcome::Skipped(why) => line("ok", "SKIP", why),
        Outcome::Failed(why) => {
            let why = one_line(why);
            format!("{runs}  # {name}: {why}\n  not ok {number} {name}\n")
        }
        Outcome::Crashed(why) => line("not ok", "ERROR", why),
        Outcome::TimedOut(why) => line("not ok", "TIMEOUT", why),
        Outcome::NotRun(why) => line("not ok", "ERROR", &format!("not run: {why}")),
    }
}

/// The result of group `number`, the first of which is 1. `errors` are those of its guests.
pub(crate) fn group_end(number: usize, name: &str, counts: &Counts, errors: &[String]) -> String {
    let mut text = format!("# {name}: {counts}\n");
    for error in errors {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "# {name}: {}", one_line(error));
    }
    let good = counts.failed == 0 && counts.not_run == 0 && errors.is_empty();
    let status = if good { "ok" } else { "not ok" };
    let skipped = counts.skipped > 0 && counts.passed == 0;
    let directive = if good && skipped { " # SKIP" } else { "" };
    let _ = writeln!(text, "{status} {number} {name}{directive}");
    text
}

/// `text` with a space for each control character: one line, which cannot change a terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
