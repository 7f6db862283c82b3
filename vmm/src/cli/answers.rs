//! `vbts report`: answers that are computed from a trace.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vbts_trace::profile::{Counts, Watch};
use vbts_trace::{Reader, Run};

use super::report::{ReportArgs, What};
use super::trace::{OWN_PROGRAM, elf_file};
use crate::answers::{
    self, By, Calls, CodeFiles, Loaded, Moment, Out, PerfError, Problem, Range, Samples, Selection,
    Timeline,
};
use crate::exit::{Failure, say};
use crate::guest_files::GuestFiles;
use crate::host::output::{Output, OutputError};
use crate::root::Root;
use crate::trace::symbols::FileSymbols;

/// Number of files that a message names.
const NAMED: usize = 4;

/// Answers `args.what`. The trace was written at `traced`.
///
/// # Errors
/// The trace is damaged, or the output fails.
pub fn main(args: &ReportArgs, trace: Trace) -> Result<u8, Failure> {
    if args.other.is_some() && args.what != What::Diff {
        return Err(anyhow!("Only diff compares two traces, so there can be only one FILE").into());
    }
    if args.processor.is_some() {
        return Err(anyhow!("--processor: only text, json and raw show a processor alone").into());
    }
    match args.what {
        What::Timeline => {
            let mut profile = trace.load(args, Timeline::default())?;
            write(args, |out| answers::timeline(&mut profile, out))?;
            say_problems(&mut profile);
        }
        What::Firefox => {
            let title = trace.reader.run().command.join(" ");
            let mut profile = trace.load(args, Samples::default())?;
            write(args, |out| answers::firefox(&mut profile, &title, out))?;
            say_problems(&mut profile);
        }
        What::Perf => trace.perf(args)?,
        What::Tail | What::Where => {
            let tail = args.what == What::Tail;
            let steps = if tail { args.steps } else { 1 };
            let mut profile = trace.load(args, Moment::new(steps, tail))?;
            write(args, |out| answers::moment(&mut profile, !tail, out))?;
            say_problems(&mut profile);
        }
        What::Diff => {
            let other = args
                .other
                .as_ref()
                .context("diff needs two traces: FILE and OTHER")?;
            let other = Trace::open(other)?;
            let mut good = trace.load(args, Calls::default())?;
            let mut bad = other.load(args, Calls::default())?;
            write(args, |out| {
                answers::diff(&mut good, &mut bad, args.limit, out)
            })?;
            say_problems(&mut bad);
        }
        _ => {
            let selection = selection(args, &trace)?;
            let title = trace.reader.run().command.join(" ");
            let mut profile = trace.load(args, ())?;
            let module = answers::find_module(&profile, args.module.as_deref());
            if matches!(args.what, What::Bolt | What::Autofdo) && module.is_none() {
                let name = args.module.as_deref().unwrap_or("the program");
                return Err(anyhow!("No code of {name} was executed").into());
            }
            write(args, |out| {
                answer(
                    args,
                    &mut profile,
                    &selection,
                    &title,
                    module.unwrap_or(0),
                    out,
                )
            })?;
            say_problems(&mut profile);
        }
    }
    Ok(0)
}

/// A trace, and when it was written.
pub struct Trace {
    /// The trace.
    pub reader: Reader<BufReader<File>>,
    name: String,
    traced: SystemTime,
}

impl Trace {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// It is no trace, or cannot be read.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("Cannot open {name}"))?;
        let traced = file.metadata().and_then(|metadata| metadata.modified());
        let reader = Reader::new(BufReader::new(file));
        Ok(Self {
            reader: reader.with_context(|| format!("Cannot read {name}"))?,
            name,
            traced: traced.unwrap_or_else(|_| SystemTime::now()),
        })
    }

    /// Says so if the trace has no end.
    pub fn say_if_cut(&self) {
        if self.reader.summary().is_none() {
            say(format_args!(
                "{} has no end: its run was cut or is not over. {} branches are complete",
                self.name,
                self.reader.records()
            ));
        }
    }

    /// Writes the trace as a file of Linux perf.
    fn perf(mut self, args: &ReportArgs) -> Result<(), Failure> {
        self.say_if_cut();
        let mut files = code_files(args, self.reader.run(), self.traced)?;
        let range = self.range(args)?;
        let progress = progress_bar();
        let mut out = Sink::new(args)?;
        let (reader, files) = (&mut self.reader, &mut files);
        match answers::perf(reader, range, args.task, files, &progress, &mut out) {
            Ok(()) => out.finish(Ok(())),
            Err(PerfError::Output(error)) => out.finish(Err(error)),
            Err(PerfError::Trace(error)) => Err(anyhow!(error)
                .context(format!("Cannot read {}", self.name))
                .into()),
        }
    }

    /// The branches that `args` select.
    fn range(&mut self, args: &ReportArgs) -> Result<Range, Failure> {
        let range = args.range(&mut self.reader);
        let range = range.with_context(|| format!("Cannot read {}", self.name))?;
        Ok(Range {
            from: range.start,
            to: range.end,
        })
    }

    fn load<W: Watch>(mut self, args: &ReportArgs, watch: W) -> Result<Loaded<W>, Failure> {
        self.say_if_cut();
        let files = code_files(args, self.reader.run(), self.traced)?;
        let range = self.range(args)?;
        let progress = progress_bar();
        let loaded = answers::load(self.reader, range, args.task, files, watch, &progress);
        Ok(loaded.with_context(|| format!("Cannot read {}", self.name))?)
    }
}

/// The source files that `args` select.
fn selection(args: &ReportArgs, trace: &Trace) -> Result<Selection, Failure> {
    let only = args.source.iter().map(|path| {
        std::path::absolute(path).with_context(|| format!("--source {}", path.display()))
    });
    Ok(Selection {
        directory: trace.reader.run().directory.clone().into(),
        only: only.collect::<Result<_, _>>()?,
    })
}

/// Writes an answer to the output.
fn write(
    args: &ReportArgs,
    answer: impl FnOnce(&mut Out<'_>) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = Sink::new(args)?;
    let answered = answer(&mut out);
    out.finish(answered)
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
        What::Calls => return answers::calls(profile, args.least, args.json, out),
        What::Folded => return answers::folded(profile, out),
        What::Flamegraph => return answers::flamegraph(profile, title, out),
        What::Assembly => {
            let name = args.function.as_deref();
            return answers::assembly(profile, name, args.limit, out);
        }
        What::Drcov => return answers::drcov(profile, out),
        What::Bolt => return answers::bolt(profile, module, out),
        What::Autofdo => return answers::autofdo(profile, module, out),
        What::Lines | What::Lcov | What::Cobertura | What::Html => {
            let coverage = answers::coverage(profile, selection);
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
                What::Lines => answers::lines(profile, &coverage, out),
                What::Lcov => answers::lcov(&coverage, out),
                What::Cobertura => answers::cobertura(&coverage, out),
                _ => answers::html(profile, &coverage, title, out),
            };
        }
        What::Modules => By::Module,
        What::Files => By::File,
        What::Tasks => By::Task,
        _ => By::Function,
    };
    answers::functions(profile, by, args.limit, args.json, out)
}

/// The traced files on this machine.
fn code_files(args: &ReportArgs, run: &Run, traced: SystemTime) -> Result<CodeFiles, Failure> {
    let open = || {
        Root::open(&args.root)
            .with_context(|| format!("--root: cannot open {}", args.root.display()))
    };
    let symbols = FileSymbols::new(open()?, &mut Command::new(OWN_PROGRAM))
        .context("Cannot start the process that reads symbols")?;
    let mut files = CodeFiles::new(open()?, symbols, run.directory.clone().into(), traced);
    if run.scope != "user" {
        let kernel = match (&args.kernel, &run.kernel) {
            (None, Some(kernel)) => PathBuf::from(kernel),
            (kernel, _) => GuestFiles::find(kernel.as_deref())?.kernel,
        };
        match elf_file(&kernel) {
            Some(file) => files.set_kernel(file, &kernel.display().to_string()),
            None => say(format_args!(
                "{} has no symbols and no code that can be read: \
                 the kernel's branches are counted, but not its instructions",
                kernel.display()
            )),
        }
    }
    Ok(files)
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

/// Says what the answer lacks.
fn say_problems<W: Watch>(profile: &mut Loaded<W>) {
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
        say(format_args!("{count} {message}"));
    }
    let (code, _) = profile.code();
    for (problem, message) in [
        (
            Problem::Changed,
            "changed after the trace, so that its counts can be wrong",
        ),
        (
            Problem::Missing,
            "cannot be opened; --root DIR says where the traced files are",
        ),
    ] {
        let files = code.files.problems().filter(|(_, is)| *is == problem);
        let files: Vec<&str> = files.map(|(name, _)| name).collect();
        let more = files.len().saturating_sub(NAMED);
        for name in files.iter().take(NAMED) {
            say(format_args!("{name} {message}"));
        }
        if more > 0 {
            say(format_args!("{more} more files: the same"));
        }
    }
    let unnamed = code.files.symbols.unnamed();
    if !unnamed.is_empty() {
        say(format_args!("names are missing of {unnamed}"));
    }
}

/// Writes an answer to the output.
struct Sink {
    to: BufWriter<Raw>,
}

/// An output, and why it has failed.
struct Raw {
    output: Output,
    failure: Option<OutputError>,
}

impl Write for Raw {
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

impl Sink {
    fn new(args: &ReportArgs) -> Result<Self, Failure> {
        let output = match &args.output {
            Some(path) => Output::create(path),
            None => Output::stdout(),
        }
        .map_err(OutputError::into_failure)?;
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

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
