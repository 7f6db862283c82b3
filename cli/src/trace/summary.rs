//! A run on a terminal without further options: the program's output, then a summary of a screen.
//! The text of all branches would hide what the program has printed.

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdin, stdout};
use std::path::Path;

use anyhow::Context as _;

use super::TraceArgs;
use super::report::{Reported, TraceDirectory, trace_and_report};
use crate::cache;
use crate::report::{ReportRequest, named};
use vbts_host::exit::{Failure, say};

/// The file of the last trace, in the cache.
const FILE: &str = "last.btrace";

/// Whether the user sees standard output, and has not said what to write where.
pub(super) fn is_wanted(args: &TraceArgs) -> bool {
    // These say which branches to show.
    if args.sched || args.filters.max_records.is_some() || args.filters.last.is_some() {
        return false;
    }
    args.format.is_none()
        && args.output.is_none()
        && stdout().is_terminal()
        && stdin().is_terminal()
}

/// Traces the program, shows its counts, and keeps the trace. The exit status is that of the
/// program.
///
/// # Errors
/// The trace cannot be kept, or the summary fails.
pub(super) fn main(args: &TraceArgs) -> Result<u8, Failure> {
    let kind = named("stat").context("there is no report of counts")?;
    // Without a directory, the trace is not kept.
    let kept = cache::directory("").map(|directory| directory.join(FILE));
    let directory = TraceDirectory::create()?;
    let report = ReportRequest::of(kind);
    let made = trace_and_report(args.config(), &directory, kept.as_deref(), |trace| {
        vec![report.of_trace(trace, None, None)]
    });
    let Reported {
        status,
        is_complete,
    } = made?;
    if is_complete
        && !args.quiet
        && let Some(path) = kept
    {
        say_next(&path, status, &args.program);
    }
    Ok(status)
}

/// Says where the trace is, and what can be asked of it after a run with this exit status.
fn say_next(path: &Path, status: u8, program: &[OsString]) {
    let path = path.display();
    let first = if status == 0 { "calls" } else { "tail" };
    let mut text = format!(
        "the trace is in {path} until the next one. It answers, for example:\n  \
         vbts report {first} {path}\n  \
         vbts report flamegraph --output flamegraph.svg {path}\n  \
         vbts report text {path} | less"
    );
    let words: Option<Vec<&str>> = program.iter().map(|word| word.to_str()).collect();
    // It was killed by a signal.
    if status > 128
        && let Some(program) = words.and_then(|words| shlex::try_join(words).ok())
    {
        text += &format!(
            "\nTo go back from the crash in GDB, run it again:\n  vbts debug -- {program}"
        );
    }
    say(text);
}
