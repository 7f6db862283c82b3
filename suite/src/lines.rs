//! Parses the lines of a guest's console: those of the suite and those of the kernel.
//!
//! The suite writes its lines to `/dev/kmsg`. The kernel prints each of them whole, between its own
//! messages.

use super::{Case, Outcome};
use vbts_guest_files::Api;
use vbts_vmm::vcpu::MALFORMED_DS_AREA;

/// Prefix of the suite's lines, after the kernel's time.
const OURS: &str = "vbts-test: ";
/// Prefix of lines that a program of the suite prints: the kernel has no part in them.
const OUTPUT: &str = "vbts-out: ";

/// Messages of a kernel that has found an error in itself, and of `vbts guest`, which has found one
/// in the kernel.
const COMPLAINTS: [&str; 14] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops: ",
    "KASAN: ",
    "UBSAN: ",
    "INFO: task ",
    "rcu: INFO: ",
    "Call Trace:",
    "unchecked MSR access error",
    "NMI received for unknown reason",
    "------------[ cut here ]",
    "DEBUG_LOCKS_WARN_ON",
    MALFORMED_DS_AREA,
];

/// The beginning of the kernel's message about a panic.
const PANIC: &str = "Kernel panic - not syncing";

/// A line of the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The generation of the kernel's API, or `None` if the kernel has no API.
    Api(Option<Api>),
    /// No case can be run, with the reason.
    Nothing(String),
    /// The case with this name begins.
    Start(String),
    /// The reason for the failure of the case that runs.
    Why(String),
    /// The case with this name has ended. A failure has no reason yet: [`Line::Why`] precedes it.
    End(String, Outcome),
    /// The kernel has this case.
    Case(Case),
    /// Another line of the suite.
    Plan,
    /// The kernel reports an error in itself.
    Complaint(String),
    /// The kernel panics.
    Panic(String),
    /// Anything else.
    Other(String),
}

/// Parses a line.
pub(crate) fn parse(line: &str) -> Line {
    let text = without_time(line.trim_end_matches(['\r', '\n']));
    if let Some(ours) = text.strip_prefix(OURS) {
        return parse_ours(ours);
    }
    if let Some(output) = text.strip_prefix(OUTPUT) {
        return Line::Other(output.into());
    }
    if let Some(at) = text.find(PANIC) {
        return Line::Panic(text.get(at..).unwrap_or_default().into());
    }
    if COMPLAINTS.iter().any(|complaint| text.contains(complaint)) {
        return Line::Complaint(text.into());
    }
    Line::Other(text.into())
}

fn parse_ours(text: &str) -> Line {
    match result(text) {
        Some((name, outcome)) => Line::End(name.into(), outcome),
        None => parse_diagnostic(text),
    }
}

/// The name and the outcome in a result line of KTAP: `ok NUMBER [- ]NAME [# SKIP REASON]`, or
/// `not ok …`. A failure has no reason yet.
pub(crate) fn result(text: &str) -> Option<(&str, Outcome)> {
    let (good, result) = match (text.strip_prefix("ok "), text.strip_prefix("not ok ")) {
        (Some(result), _) => (true, result),
        (_, Some(result)) => (false, result),
        _ => return None,
    };
    let (number, name) = result.split_once(' ')?;
    number.parse::<u64>().ok()?;
    let name = name.strip_prefix("- ").unwrap_or(name);
    let (name, skipped) = match name.split_once(" # SKIP") {
        Some((name, why)) => (name, Some(why.trim())),
        None => (name, None),
    };
    let outcome = match (good, skipped) {
        (true, None) => Outcome::Passed,
        (true, Some(why)) => Outcome::Skipped(why.into()),
        (false, _) => Outcome::Failed(String::new()),
    };
    Some((name, outcome))
}

fn parse_diagnostic(text: &str) -> Line {
    if let Some(why) = text.strip_prefix("1..0 # SKIP ") {
        return Line::Nothing(why.into());
    }
    match text.strip_prefix("# ") {
        Some(text) => match text.split_once(' ') {
            Some(("api", name)) => Line::Api(Api::from_name(name)),
            Some(("start", name)) => Line::Start(name.into()),
            _ => Line::Why(text.into()),
        },
        None => Line::Plan,
    }
}

/// Removes the prefix of `printk.time` and `CONFIG_PRINTK_CALLER`, such as `[    0.123456][    T1]
/// `.
pub(crate) fn without_time(line: &str) -> &str {
    let mut rest = line;
    while let Some((bracket, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
    {
        let inside = bracket.trim_start();
        let tagged = inside
            .strip_prefix(['T', 'C'])
            .unwrap_or(inside)
            .bytes()
            .all(|b| b.is_ascii_digit() || b == b'.');
        if inside.is_empty() || !tagged {
            break;
        }
        rest = after;
    }
    rest.strip_prefix(' ').unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_suite_and_of_the_kernel_are_distinct() {
        for (line, expected) in [
            (
                "[    0.294117] vbts-test: # api new\r\n",
                Line::Api(Some(Api::New)),
            ),
            ("[    0.294117] vbts-test: # api none", Line::Api(None)),
            (
                "[    1.000000][    T1] vbts-test: # start basic.wrap",
                Line::Start("basic.wrap".into()),
            ),
            (
                "vbts-test: ok 1 basic.wrap",
                Line::End("basic.wrap".into(), Outcome::Passed),
            ),
            (
                "vbts-test: ok 2 smp.x # SKIP one processor only",
                Line::End(
                    "smp.x".into(),
                    Outcome::Skipped("one processor only".into()),
                ),
            ),
            (
                "vbts-test: # basic.c:9: n > 0 (errno 22)",
                Line::Why("basic.c:9: n > 0 (errno 22)".into()),
            ),
            (
                "vbts-test: not ok 3 basic.wrap",
                Line::End("basic.wrap".into(), Outcome::Failed(String::new())),
            ),
            (
                "vbts-test: 1..0 # SKIP no branch trace store: Input/output error",
                Line::Nothing("no branch trace store: Input/output error".into()),
            ),
            ("vbts-test: 1..7", Line::Plan),
            ("vbts-test: KTAP version 1", Line::Plan),
            ("vbts-test: ok", Line::Plan),
            (
                "[    2.500000] WARNING: CPU: 0 PID: 7 at kernel/ptrace.c:1",
                Line::Complaint("WARNING: CPU: 0 PID: 7 at kernel/ptrace.c:1".into()),
            ),
            (
                "[    2.5] Kernel panic - not syncing: Oops: 0000\r",
                Line::Panic("Kernel panic - not syncing: Oops: 0000".into()),
            ),
            (
                "[    0.5] vbts-out: # WARNING: slow",
                Line::Other("# WARNING: slow".into()),
            ),
            (
                "[    0.5] ptrace_bts: available",
                Line::Other("ptrace_bts: available".into()),
            ),
            (
                "not vbts-test: ok 1 x",
                Line::Other("not vbts-test: ok 1 x".into()),
            ),
            ("[x] y", Line::Other("[x] y".into())),
            ("[", Line::Other("[".into())),
            ("", Line::Other(String::new())),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
