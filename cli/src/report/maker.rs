//! The maker of a report that counts: it reads the traces and writes the answer, in a sandbox.

use std::io::{self, BufWriter, Write};
use std::num::NonZero;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use indicatif::ProgressBar;
use vbts_trace::profile::Watch;

use super::files::{Source, Trace};
use super::kinds::Opt;
use super::problems::say_problems;
use super::{ReportArgs, process};
use crate::colours::{self, Coloured};
use crate::progress::progress;
use vbts_analysis::{CodeFiles, Coverage, Loaded, Out, PerfError, Range, Selection};
use vbts_host::Workers;
use vbts_host::exit::{Failure, say};
use vbts_host::output::{Output, OutputError};

/// Maximum number of threads that decode: one more takes some 70 MB, and those that count what four
/// have decoded are not faster.
const MAX_WORKERS: usize = 4;

/// The traces of a report.
pub(super) struct Started {
    /// The first trace.
    pub source: Source,
    /// The first trace again, for a report that reads it twice.
    pub again: Option<Source>,
    /// The second trace of a report of two.
    pub other: Option<Source>,
}

/// The counts of a trace, and what `W` has seen in it.
pub(super) struct Counted<W = ()> {
    /// The counts.
    pub profile: Loaded<W>,
    /// The command that was traced.
    pub command: Vec<String>,
    /// Words of the command, with spaces between them.
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

/// The maker of a report, in its sandbox.
pub(super) struct Report<'a> {
    args: &'a ReportArgs,
    workers: Workers,
    output: Output,
}

impl<'a> Report<'a> {
    /// Opens the traces, the first one twice if the report `reads_twice`, and enters the sandbox.
    pub(super) fn start(
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
    pub(super) fn make<W: Watch, T>(
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

    pub(super) fn load<W: Watch>(
        &self,
        mut trace: Trace,
        files: CodeFiles,
        watch: W,
    ) -> Result<Loaded<W>, Failure> {
        let range = range(self.args, &mut trace)?;
        self.load_range(trace, files, watch, range)
    }

    pub(super) fn load_range<W: Watch>(
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
    pub(super) fn perf(&mut self, mut trace: Trace, mut files: CodeFiles) -> Result<(), Failure> {
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
    pub(super) fn write(
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
