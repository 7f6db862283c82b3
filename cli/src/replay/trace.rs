//! A trace or reports of a recording. A replay opens no files. It therefore runs in a process of
//! its own, which writes a btrace file, and the report is made of that.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use vbts_capture::{Filters, RunEnd, TraceFormat};
use vbts_host::exit::Failure;
use vbts_protocol::Follow;
use vbts_trace::Reader;

use super::ReplayArgs;
use super::run::{Branches, ProgramOutput};
use crate::options::name_of;
use crate::report::{self, ReportArgs, ReportRequest, named};
use crate::trace::{TraceDirectory, in_child, outputs};

/// Refuses filters for `what`, which has all branches.
///
/// # Errors
/// There are filters.
pub(super) fn check_no_filters(args: &ReplayArgs, what: &str) -> anyhow::Result<()> {
    match Filters::from(&args.filters) == Filters::default() {
        true => Ok(()),
        false => Err(anyhow!(
            "{what} has no choice of branches: --format text, json and raw have one, and reports"
        )),
    }
}

/// Shows the branches of the recording in `format`.
///
/// # Errors
/// The replay or the report fails.
pub(super) fn show(
    args: &ReplayArgs,
    format: TraceFormat,
    program_output: ProgramOutput,
) -> Result<u8, Failure> {
    let kind = named(name_of(&format)).context("there is no such report")?;
    let follow = match format {
        TraceFormat::Raw => Follow::None,
        _ => Follow::All,
    };
    let directory = TraceDirectory::create()?;
    let trace = directory.file("trace.btrace");
    let report = ReportArgs {
        sched: args.sched,
        ..ReportRequest::of(kind).of_trace(&trace, args.output.as_deref(), None)
    };
    replay_and_report(args, &trace, follow, program_output, vec![report])
}

/// Makes the reports of `args`.
///
/// # Errors
/// The replay or a report fails.
pub(super) fn reports(args: &ReplayArgs) -> Result<u8, Failure> {
    let lacks_other = |report: &&ReportRequest| report.compares() && !report.names_other();
    if args.report.iter().any(|report| lacks_other(&report)) {
        let message = "--report diff: the file to compare with follows, as in --report 'diff FILE'";
        return Err(anyhow!(message).into());
    }
    let (kept, output) = outputs(&args.report, args.output.as_deref())?;
    let directory = TraceDirectory::create()?;
    let trace = kept.map_or_else(|| directory.file("trace.btrace"), Path::to_path_buf);
    let reports = args.report.iter();
    let reports = reports.map(|report| report.of_trace(&trace, output, None));
    let reports = reports.collect();
    replay_and_report(args, &trace, Follow::All, ProgramOutput::Streams, reports)
}

/// Replays with the trace in the file `trace`, and makes `reports` of it. The exit status is that
/// of the recorded run.
fn replay_and_report(
    args: &ReplayArgs,
    trace: &Path,
    follow: Follow,
    program_output: ProgramOutput,
    reports: Vec<ReportArgs>,
) -> Result<u8, Failure> {
    let code = in_child(|| {
        let branches = Branches::Tasks(args.trace(Some(trace.to_path_buf()), follow));
        let replayed = args.replay(branches, program_output).run()?;
        replayed.status(&args.file)
    })?;
    if !is_replayed(&args.file, trace)? {
        // The other process has said why.
        return Ok(code);
    }
    for report in reports {
        let mut report = ReportArgs {
            sandbox: args.machine.sandbox,
            ..report
        };
        if Filters::from(&args.filters) != Filters::default() {
            report.filters = args.filters.clone();
        }
        match report::main(&report)? {
            0 => {}
            status => return Ok(status),
        }
    }
    Ok(code)
}

/// Whether the replay of `recording` has written the trace, which gets the date of the recording:
/// files that have changed since have other names.
///
/// # Errors
/// The date cannot be set.
pub(super) fn is_replayed(recording: &Path, trace: &Path) -> anyhow::Result<bool> {
    let name = trace.display();
    let Ok(file) = File::options().read(true).append(true).open(trace) else {
        return Ok(false);
    };
    let recorded = std::fs::metadata(recording).and_then(|metadata| metadata.modified());
    let dated = recorded.and_then(|recorded| file.set_modified(recorded));
    dated.with_context(|| format!("Cannot set the date of {name}"))?;
    // A replay that differs from the recorded run has an error as its end.
    let reader = Reader::new(BufReader::new(file)).ok();
    let summary = reader.as_ref().and_then(Reader::summary);
    Ok(summary.is_some_and(|summary| summary.end != RunEnd::Error.name()))
}
