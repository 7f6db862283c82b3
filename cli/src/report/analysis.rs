//! Reports that count what a trace has executed, and then answer.

use std::io::{self, BufWriter, Write};
use std::num::NonZero;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use indicatif::ProgressBar;
use vbts_trace::profile::Watch;

use super::files::{Source, Trace};
use super::kinds::Opt;
use super::problems::say_problems;
use super::process::temporary_file;
use super::{ReportArgs, process};
use crate::colours::{self, Coloured};
use crate::progress::progress;
use vbts_analysis::{
    CallTrace, Choice, CodeFiles, Coverage, Executions, Loaded, Names, Out, PerfError, Range,
    Selection, Timeline, Windows,
};
use vbts_host::Workers;
use vbts_host::exit::{Failure, say};
use vbts_host::output::{Output, OutputError};

/// Maximum number of threads that decode: one more takes some 70 MB, and those that count what four
/// have decoded are not faster.
const MAX_WORKERS: usize = 4;
/// Number of rows without `--limit`.
const LIMIT: usize = 100;

/// The traces of a report.
struct Started {
    source: Source,
    /// The same one, if the report reads it twice.
    again: Option<Source>,
    /// The second one, if it is a report of two.
    other: Option<Source>,
}

/// The counts of a trace, and what `W` has seen in it.
pub(super) struct Counted<W = ()> {
    /// The counts.
    pub profile: Loaded<W>,
    /// The command that was traced.
    pub command: Vec<String>,
    /// Its words.
    pub title: String,
    /// The source files that the options select.
    selection: Selection,
}

impl Counted {
    /// The coverage of the source files that the options select.
    pub(super) fn coverage(&mut self) -> Coverage {
        let coverage = vbts_analysis::coverage(&mut self.profile, &self.selection);
        if coverage.left_out > 0 {
            say("the debugging information is too large: some source lines are missing");
        }
        if coverage.files.is_empty() {
            say(
                "no source file was found: the traced files need debugging information, and \
                 the source files have to be where it says",
            );
        }
        coverage
    }
}

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

/// The maker of a report, in its sandbox.
struct Report<'a> {
    args: &'a ReportArgs,
    workers: Workers,
    output: Output,
}

impl<'a> Report<'a> {
    /// Opens the traces, the first one twice if the report `reads_twice`, and enters the sandbox.
    fn start(
        args: &'a ReportArgs,
        output: Output,
        reads_twice: bool,
    ) -> Result<(Self, Started), Failure> {
        let open = |file: &PathBuf| Source::open(args, file);
        let source = open(&args.file)?;
        let again = reads_twice.then(|| open(&args.file)).transpose()?;
        let other = args.other.as_ref().map(open).transpose()?;
        process::restrict_files(args.sandbox, &args.root)?;
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers = Workers::start(processors.min(MAX_WORKERS));
        let workers = workers.context("Cannot start a thread")?;
        process::restrict_calls(args.sandbox)?;
        let report = Self {
            args,
            workers,
            output,
        };
        let started = Started {
            source,
            again,
            other,
        };
        Ok((report, started))
    }

    /// Makes the report `answer` of a part of a trace that `find` finds.
    fn make<W: Watch, T>(
        mut self,
        source: Source,
        watch: W,
        find: impl FnOnce(&mut Loaded<W>) -> anyhow::Result<T>,
        answer: impl FnOnce(&mut Counted<W>, T, &mut Out<'_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (trace, files) = source.read()?;
        let selection = selection(self.args, &trace)?;
        let command = trace.reader.run().command.clone();
        let mut profile = self.load(trace, files, watch)?;
        let part = find(&mut profile)?;
        let mut counted = Counted {
            profile,
            title: command.join(" "),
            command,
            selection,
        };
        self.write(|out| answer(&mut counted, part, out))?;
        say_problems(&mut counted.profile, "");
        // Reports with names of functions have this option.
        if self.args.what.options.contains(&Opt::ShortNames)
            && let Some(interpreter) = &counted.profile.code().0.files.interpreter
        {
            say(interpreter);
        }
        Ok(())
    }

    fn load<W: Watch>(
        &self,
        mut trace: Trace,
        files: CodeFiles,
        watch: W,
    ) -> Result<Loaded<W>, Failure> {
        let range = range(self.args, &mut trace)?;
        self.load_range(trace, files, watch, range)
    }

    fn load_range<W: Watch>(
        &self,
        mut trace: Trace,
        mut files: CodeFiles,
        watch: W,
        range: Range,
    ) -> Result<Loaded<W>, Failure> {
        files.short_names = self.args.short_names;
        let (tasks, progress) = (trace.tasks.take(), progress_bar());
        let loaded = vbts_analysis::load(
            trace.reader,
            range,
            tasks,
            files,
            watch,
            &self.workers,
            &progress,
        );
        let mut loaded = loaded.with_context(|| format!("Cannot read {}", trace.name))?;
        loaded.set_raw_frames(self.args.raw_frames);
        loaded.set_no_inline(self.args.no_inline);
        Ok(loaded)
    }

    /// Writes the trace as a file of Linux perf.
    fn perf(&mut self, mut trace: Trace, mut files: CodeFiles) -> Result<(), Failure> {
        let range = range(self.args, &mut trace)?;
        let (tasks, progress) = (trace.tasks.take(), progress_bar());
        let mut out = Sink::new(&mut self.output)?;
        let reader = &mut trace.reader;
        match vbts_analysis::perf(
            reader,
            range,
            tasks.as_ref(),
            &mut files,
            &progress,
            &mut out,
        ) {
            Ok(()) => out.finish(Ok(())),
            Err(PerfError::Output(error)) => out.finish(Err(error)),
            Err(PerfError::Trace(error)) => Err(anyhow!(error)
                .context(format!("Cannot read {}", trace.name))
                .into()),
        }
    }

    /// Writes an answer to the output.
    fn write(
        &mut self,
        answer: impl FnOnce(&mut Out<'_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let args = self.args;
        let is_coloured = args.what.is_for_people()
            && !args.json
            && args.output.is_none()
            && colours::are_wanted();
        let mut out = Sink::new(&mut self.output)?;
        let answered = if is_coloured {
            let mut coloured = Coloured::new(&mut out.to);
            answer(&mut coloured).and_then(|()| coloured.flush())
        } else {
            answer(&mut out.to)
        };
        out.finish(answered)
    }
}

/// The branches that `args` select.
fn range(args: &ReportArgs, trace: &mut Trace) -> Result<Range, Failure> {
    let range = trace.range(args)?;
    Ok(Range {
        from: range.start,
        to: range.end,
        whole: args.from.is_some(),
    })
}

/// The source files that `args` select.
fn selection(args: &ReportArgs, trace: &Trace) -> Result<Selection, Failure> {
    let mut only = Vec::new();
    for path in &args.source {
        let absolute = std::path::absolute(path);
        only.push(absolute.with_context(|| format!("--source {}", path.display()))?);
        // Debugging information mostly has paths without symbolic links.
        only.extend(path.canonicalize().ok());
    }
    Ok(Selection {
        directory: trace.reader.run().directory.clone().into(),
        only,
    })
}

fn progress_bar() -> ProgressBar {
    progress(
        "{elapsed} {bar:30} {human_pos} of {human_len} branches",
        true,
    )
}

/// Writes an answer to the output.
struct Sink<'a> {
    to: BufWriter<Raw<'a>>,
}

/// An output, and why it has failed.
struct Raw<'a> {
    output: &'a mut Output,
    failure: Option<OutputError>,
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes).map_err(|error| {
            self.failure = Some(error);
            io::Error::other("the output fails")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Sink<'a> {
    /// Discards what was in the output before.
    fn new(output: &'a mut Output) -> Result<Self, Failure> {
        output.truncate().map_err(OutputError::into_failure)?;
        let failure = None;
        Ok(Self {
            to: BufWriter::with_capacity(1 << 16, Raw { output, failure }),
        })
    }

    /// Writes what is left. `answered` is how the answer has ended.
    fn finish(mut self, answered: io::Result<()>) -> Result<(), Failure> {
        let done = answered.and_then(|()| self.to.flush());
        match self.to.get_mut().failure.take() {
            Some(failure) => Err(failure.into_failure()),
            None => Ok(done.context("Cannot write the answer")?),
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
