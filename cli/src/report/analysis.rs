//! Reports that count what a trace has executed, and then answer.

use std::io;

use anyhow::{Context as _, anyhow};
use vbts_trace::profile::Watch;

use super::ReportArgs;
use super::maker::{Counted, Report};
use super::problems::say_problems;
use super::process::temporary_file;
use vbts_analysis::{CallTrace, Choice, Executions, Loaded, Names, Out, Timeline, Windows};
use vbts_host::exit::Failure;
use vbts_host::output::Output;

/// Number of rows without `--limit`.
const LIMIT: usize = 100;

/// Makes the report `answer` of the instructions, calls and branches of a trace.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub(super) fn counted(
    args: &ReportArgs,
    output: Output,
    answer: impl FnOnce(&mut Counted, &mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    watched(args, output, (), answer)
}

/// Makes the report `answer` of one file of a trace, which has a number.
///
/// # Errors
/// As [`counted`], or no code of the file was executed.
pub(super) fn of_module(
    args: &ReportArgs,
    output: Output,
    answer: impl FnOnce(&mut Loaded, u32, &mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    let find = |profile: &mut Loaded| {
        let module = vbts_analysis::find_module(profile, args.module.as_deref());
        let name = args.module.as_deref().unwrap_or("the program");
        module.with_context(|| no_code(name))
    };
    found(args, output, (), find, |trace, module, out| {
        answer(&mut trace.profile, module, out)
    })
}

/// Makes the report `answer` of the functions called `--function`, or of all.
///
/// # Errors
/// As [`counted`], or no such function was executed.
pub(super) fn of_function(
    args: &ReportArgs,
    output: Output,
    answer: impl FnOnce(&mut Loaded, &Names, &mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    let find = |profile: &mut Loaded| named(args, profile);
    found(args, output, (), find, |trace, names, out| {
        answer(&mut trace.profile, &names, out)
    })
}

/// Makes the report of calls and returns in order.
///
/// # Errors
/// As [`of_function`].
pub(super) fn call_trace(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let (report, started) = Report::start(args, output, args.function.is_some())?;
    // Most calls of a long trace are not kept, so that the function has to be known before.
    let functions = match (&args.function, started.again) {
        (Some(name), Some(source)) => {
            let (trace, files) = source.read()?;
            let names = named(args, &mut report.load(trace, files, ())?)?;
            Some(names.called(name))
        }
        _ => None,
    };
    let calls = CallTrace::new(Choice {
        functions,
        max_depth: args.depth.unwrap_or(u32::MAX),
        raw_frames: args.raw_frames,
    });
    report.make(
        started.source,
        calls,
        |_| Ok(()),
        |trace, (), out| vbts_analysis::call_trace(&mut trace.profile, out),
    )
}

/// The names of the functions of a trace. One is called `--function`, if that is given.
fn named(args: &ReportArgs, profile: &mut Loaded) -> anyhow::Result<Names> {
    let names = Names::of(profile);
    let Some(name) = &args.function else {
        return Ok(names);
    };
    match names.similar_to(name).as_deref() {
        None => Ok(names),
        Some([]) => Err(anyhow!("--function: no function {name} was executed")),
        Some(similar) => Err(anyhow!(
            "--function: no function {name} was executed. Similar: {}",
            similar.join(", ")
        )),
    }
}

/// Makes the report `answer` of the counts of a trace and of what `watch` has seen in it.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub(super) fn watched<W: Watch>(
    args: &ReportArgs,
    output: Output,
    watch: W,
    answer: impl FnOnce(&mut Counted<W>, &mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    found(
        args,
        output,
        watch,
        |_| Ok(()),
        |trace, (), out| answer(trace, out),
    )
}

/// Makes the report `answer` of a part of a trace that `find` finds. If it finds none, the output
/// stays as it was.
fn found<W: Watch, T>(
    args: &ReportArgs,
    output: Output,
    watch: W,
    find: impl FnOnce(&mut Loaded<W>) -> anyhow::Result<T>,
    answer: impl FnOnce(&mut Counted<W>, T, &mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    let (report, started) = Report::start(args, output, false)?;
    report.make(started.source, watch, find, answer)
}

/// Makes the timeline of the calls of a trace.
///
/// # Errors
/// As [`counted`], or there is no room for a temporary file.
pub(super) fn timeline(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let calls = temporary_file().context("Cannot create a temporary file")?;
    watched(args, output, Timeline::new(calls), |trace, out| {
        vbts_analysis::timeline(&mut trace.profile, out)
    })
}

/// Writes the trace as a file of Linux perf.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub(super) fn perf(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let (mut report, started) = Report::start(args, output, false)?;
    let (trace, files) = started.source.read()?;
    report.perf(trace, files)
}

/// Compares what two traces have executed.
///
/// # Errors
/// There is one trace, one is damaged, or the output fails.
pub(super) fn diff(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    if args.other.is_none() {
        return Err(anyhow!("diff needs two traces: FILE and OTHER").into());
    }
    let (mut report, started) = Report::start(args, output, true)?;
    let (trace, files) = started.source.read()?;
    let only = args.module.as_deref();
    let executions = Executions::new(trace.reader.run().streams, only);
    let good_name = format!("{}: ", trace.name);
    let mut good = report.load(trace, files, executions)?;
    let other = started.other.context("diff needs two traces")?;
    let (trace, files) = other.read()?;
    let executions = Executions::against(trace.reader.run().streams, only, good.watch());
    let bad_name = format!("{}: ", trace.name);
    let mut bad = report.load(trace, files, executions)?;
    if let Some(name) = only
        && !vbts_analysis::was_executed(&good, name)
        && !vbts_analysis::was_executed(&bad, name)
    {
        return Err(anyhow!(no_code(name)).into());
    }
    let windows = Windows::of(good.watch(), bad.watch());
    let mut windows = match (windows, started.again) {
        (Some((windows, range)), Some(source)) => {
            let (trace, files) = source.read()?;
            Some(report.load_range(trace, files, windows, range)?)
        }
        _ => None,
    };
    report.write(|out| {
        let limit = limit(args);
        vbts_analysis::diff(&mut good, &mut bad, windows.as_mut(), only, limit, out)
    })?;
    say_problems(&mut good, &good_name);
    say_problems(&mut bad, &bad_name);
    Ok(())
}

fn no_code(name: &str) -> String {
    format!("No code of {name} was executed")
}

/// The number of rows that `args` select.
pub(super) fn limit(args: &ReportArgs) -> usize {
    args.limit.unwrap_or(LIMIT)
}
