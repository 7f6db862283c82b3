//! `vbts report`: answers that are computed from a trace.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::num::NonZero;

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vbts_trace::profile::{Counts, Watch};

use super::report::{ReportArgs, What};
use super::report_files::{Source, Trace, say_file_problems, say_files, say_unnamed};
use super::report_process;
use vbts_analysis::{
    self, By, Calls, CodeFiles, Loaded, Moment, Out, PerfError, Range, Samples, Selection, Timeline,
};
use vbts_host::Workers;
use vbts_host::exit::{Failure, say};
use vbts_host::output::{Output, OutputError};
use vbts_symbols::Problem;

/// Maximum number of threads that decode: one more takes some 70 MB, and those that count what four
/// have decoded are not faster.
const MAX_WORKERS: usize = 4;

/// Answers `args.what`, and writes the answer to `output`.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub fn main(args: &ReportArgs, output: Output) -> Result<u8, Failure> {
    if args.other.is_some() && args.what != What::Diff {
        return Err(anyhow!("Only diff compares two traces, so there can be only one FILE").into());
    }
    if args.processor.is_some() {
        return Err(anyhow!("--processor: only text, json and raw show a processor alone").into());
    }
    let source = Source::open(args, &args.file)?;
    let other = match (&args.other, args.what) {
        (Some(other), _) => Some(Source::open(args, other)?),
        (None, What::Diff) => {
            return Err(anyhow!("diff needs two traces: FILE and OTHER").into());
        }
        _ => None,
    };
    report_process::restrict_files(args.sandbox, &args.root)?;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let workers = Workers::start(processors.min(MAX_WORKERS)).context("Cannot start a thread")?;
    report_process::restrict_calls(args.sandbox)?;
    let mut report = Report {
        args,
        workers,
        output,
    };
    let (trace, files) = source.read()?;
    match args.what {
        What::Timeline => {
            let mut profile = report.load(trace, files, Timeline::default())?;
            report.write(|out| vbts_analysis::timeline(&mut profile, out))?;
            say_problems(&mut profile, "");
        }
        What::Firefox => {
            let title = trace.reader.run().command.join(" ");
            let mut profile = report.load(trace, files, Samples::default())?;
            report.write(|out| vbts_analysis::firefox(&mut profile, &title, out))?;
            say_problems(&mut profile, "");
        }
        What::Perf => report.perf(trace, files)?,
        What::Tail | What::Where => {
            let tail = args.what == What::Tail;
            let steps = if tail { args.steps } else { 1 };
            let mut profile = report.load(trace, files, Moment::new(steps, tail))?;
            report.write(|out| vbts_analysis::moment(&mut profile, !tail, out))?;
            say_problems(&mut profile, "");
        }
        What::Diff => {
            let calls = Calls::new(trace.reader.run().streams);
            let good_name = format!("{}: ", trace.name);
            let mut good = report.load(trace, files, calls)?;
            let (trace, files) = other.context("diff needs two traces")?.read()?;
            let calls = Calls::new(trace.reader.run().streams);
            let bad_name = format!("{}: ", trace.name);
            let mut bad = report.load(trace, files, calls)?;
            let only = args.module.as_deref();
            if let Some(name) = only
                && !vbts_analysis::was_executed(&good, name)
                && !vbts_analysis::was_executed(&bad, name)
            {
                return Err(anyhow!("No code of {name} was executed").into());
            }
            report.write(|out| vbts_analysis::diff(&mut good, &mut bad, only, args.limit, out))?;
            say_problems(&mut good, &good_name);
            say_problems(&mut bad, &bad_name);
        }
        _ => {
            let selection = selection(args, &trace)?;
            let title = trace.reader.run().command.join(" ");
            let mut profile = report.load(trace, files, ())?;
            let module = vbts_analysis::find_module(&profile, args.module.as_deref());
            if matches!(args.what, What::Bolt | What::Autofdo) && module.is_none() {
                let name = args.module.as_deref().unwrap_or("the program");
                return Err(anyhow!("No code of {name} was executed").into());
            }
            let module = module.unwrap_or(0);
            report.write(|out| answer(args, &mut profile, &selection, &title, module, out))?;
            say_problems(&mut profile, "");
        }
    }
    Ok(0)
}

/// What makes a report, in its sandbox.
struct Report<'a> {
    args: &'a ReportArgs,
    workers: Workers,
    output: Output,
}

impl Report<'_> {
    fn load<W: Watch>(
        &self,
        mut trace: Trace,
        files: CodeFiles,
        watch: W,
    ) -> Result<Loaded<W>, Failure> {
        let range = range(self.args, &mut trace)?;
        let (task, progress) = (self.args.task, progress_bar());
        let loaded = vbts_analysis::load(
            trace.reader,
            range,
            task,
            files,
            watch,
            &self.workers,
            &progress,
        );
        Ok(loaded.with_context(|| format!("Cannot read {}", trace.name))?)
    }

    /// Writes the trace as a file of Linux perf.
    fn perf(&mut self, mut trace: Trace, mut files: CodeFiles) -> Result<(), Failure> {
        let range = range(self.args, &mut trace)?;
        let (task, progress) = (self.args.task, progress_bar());
        let mut out = Sink::new(&mut self.output)?;
        let reader = &mut trace.reader;
        match vbts_analysis::perf(reader, range, task, &mut files, &progress, &mut out) {
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
        let mut out = Sink::new(&mut self.output)?;
        let answered = answer(&mut out);
        out.finish(answered)
    }
}

/// The branches that `args` select.
fn range(args: &ReportArgs, trace: &mut Trace) -> Result<Range, Failure> {
    let range = trace.range(args)?;
    Ok(Range {
        from: range.start,
        to: range.end,
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

fn answer(
    args: &ReportArgs,
    profile: &mut Loaded,
    selection: &Selection,
    title: &str,
    module: u32,
    out: &mut Out<'_>,
) -> io::Result<()> {
    let by = match args.what {
        What::Calls => return vbts_analysis::calls(profile, args.least, args.json, out),
        What::Folded => return vbts_analysis::folded(profile, out),
        What::Flamegraph => return vbts_analysis::flamegraph(profile, title, out),
        What::Assembly => {
            let name = args.function.as_deref();
            return vbts_analysis::assembly(profile, name, args.limit, out);
        }
        What::Drcov => return vbts_analysis::drcov(profile, out),
        What::Bolt => return vbts_analysis::bolt(profile, module, out),
        What::Autofdo => return vbts_analysis::autofdo(profile, module, out),
        What::Lines | What::Lcov | What::Cobertura | What::Html => {
            let coverage = vbts_analysis::coverage(profile, selection);
            if coverage.left_out > 0 {
                say("the debugging information is too large: some source lines are missing");
            }
            if coverage.files.is_empty() {
                say(
                    "no source file was found: the traced files need debugging information, and \
                     the source files have to be where it says",
                );
            }
            return match args.what {
                What::Lines => vbts_analysis::lines(profile, &coverage, out),
                What::Lcov => vbts_analysis::lcov(&coverage, out),
                What::Cobertura => vbts_analysis::cobertura(&coverage, out),
                _ => vbts_analysis::html(profile, &coverage, title, out),
            };
        }
        What::Modules => By::Module,
        What::Files => By::File,
        What::Tasks => By::Task,
        _ => By::Function,
    };
    vbts_analysis::functions(profile, by, args.limit, args.json, out)
}

/// Progress on standard error, if that is a terminal.
fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    match ProgressStyle::with_template("{elapsed} {bar:30} {human_pos} of {human_len} branches") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Says what the answer lacks. Each message begins with `of`.
fn say_problems<W: Watch>(profile: &mut Loaded<W>, of: &str) {
    let Counts {
        no_code,
        gaps,
        lost,
        unexplained,
        too_deep,
        uncounted,
        ..
    } = *profile.counts();
    let cut = profile.tree().cut();
    let lacks = [
        (lost, "records are missing in the trace"),
        (
            gaps,
            "times the code does not lead from one branch to the next",
        ),
        (
            no_code,
            "branches are in code that cannot be read: their instructions are not counted",
        ),
        (
            unexplained,
            "transfers into functions that nothing has called begin a new stack",
        ),
        (
            too_deep,
            "times a stack was too deep, and its outer functions are forgotten",
        ),
        (
            cut,
            "calls count for their callers, because the call tree is full",
        ),
        (
            uncounted,
            "branches are not counted, because there are too many different ones",
        ),
    ];
    for (count, message) in lacks.iter().filter(|(count, _)| *count > 0) {
        say(format_args!("{of}{count} {message}"));
    }
    let (code, _) = profile.code();
    let (changed, replaced) = (
        "changed after the trace, so that its counts can be wrong",
        "is not the file that was traced, by its build ID: its code is shown by address, without \
         instructions",
    );
    say_file_problems(of, code.files.symbols.mapped(), changed, replaced);
    for (problem, message) in [
        (
            Problem::Changed,
            "changed after the trace, so that its lines can be other ones",
        ),
        (Problem::Missing, "cannot be read"),
    ] {
        say_files(of, code.files.source_problems().with(problem), message);
    }
    let replaced = code.files.replaced();
    if replaced > 0 {
        say(format_args!(
            "{of}{replaced} functions of JIT compilers were replaced while the program ran: \
             what was executed at their addresses counts for the last ones"
        ));
    }
    say_unnamed(of, code.files.symbols.unnamed());
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
