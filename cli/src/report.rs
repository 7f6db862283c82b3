//! `vbts report`: shows a kept trace.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use vbts_trace::{Branch, Event, Item, Reader, Run, Streams};

use super::file_uses::FileUses;
use super::options::{default_of, named, seconds};
use super::report_files::{TraceFile, name_files, open_root, say_file_problems, say_unnamed};
use super::report_kernel::{Kernel, NO_KERNEL_NAMES};
use super::trace::{FilterArgs, OWN_PROGRAM};
use super::{answers, report_process};
use vbts_capture::Format;
use vbts_capture::format::{FULL, Raw};
use vbts_capture::json::Json;
use vbts_capture::replay::{Only, Replay};
use vbts_capture::sink::Sink;
use vbts_capture::summary::Summary;
use vbts_capture::task::Task;
use vbts_capture::text::Text;
use vbts_host::exit::Failure;
use vbts_host::output::{Output, OutputError};
use vbts_symbols::Symbolizer;
use vbts_vmm::accel::Accel;
use vbts_vmm::config::SandboxMode;

/// The end of the help text.
const EXIT_STATUS: &str = "\
Exit status:
  0    the report is complete
  124  --timeout was reached
  125  bad usage, or the trace cannot be read, or the output fails
  126  this host cannot confine the process as --sandbox says
  128+n  signal n has ended the report
A report that is not complete leaves no part of itself in the file that --output names.";

/// What to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// For people: one line a branch, with functions and source lines
    Text,
    /// One JSON object a line
    Json,
    /// Records of 24 bytes, little-endian: from, to, flags; of one task
    Raw,
    /// Functions: calls, instructions and branches, without and with those of callees
    Functions,
    /// Mapped files
    Modules,
    /// Source files
    Files,
    /// Tasks
    Tasks,
    /// The call tree
    Calls,
    /// Call stacks with their instructions, for flame graph tools
    Folded,
    /// A flame graph: one SVG file
    Flamegraph,
    /// Functions over time, for Perfetto and Chrome's tracing
    Timeline,
    /// Call stacks over time, for the Firefox profiler
    Firefox,
    /// Source files with the count of each line
    Lines,
    /// Instructions of functions with their counts
    Assembly,
    /// Coverage of lines, functions and branches, for lcov's tools
    Lcov,
    /// Coverage as Cobertura's XML
    Cobertura,
    /// Coverage as one HTML file
    Html,
    /// Executed code, in DynamoRIO's format
    Drcov,
    /// A profile for BOLT (pre-aggregated)
    Bolt,
    /// A profile for AutoFDO's create_llvm_prof (text)
    Autofdo,
    /// All branches as a perf.data file with branch stacks, for Linux perf
    Perf,
    /// Functions that a second run, OTHER, has executed more or less often
    Diff,
    /// The last calls and returns of each task, and its stack
    Tail,
    /// The stack of the task of the last branch: with --to or --time, that at this moment
    Where,
}

/// Arguments of `vbts report`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_STATUS)]
pub struct ReportArgs {
    /// What to show: what `vbts trace` prints in this format
    pub what: What,
    /// A trace of `vbts trace --output FILE.btrace` or of `vbts run --record FILE`
    pub file: PathBuf,
    /// diff: the trace to compare with
    pub other: Option<PathBuf>,
    /// Only the task with this thread ID
    #[arg(long, value_name = "TASK")]
    pub task: Option<u32>,
    /// Only this processor of a machine; the first one is 0
    #[arg(long, value_name = "N")]
    pub processor: Option<u32>,
    /// From branch number N on; the first one is 0. Branches of all tasks count
    #[arg(long, value_name = "N")]
    pub from: Option<u64>,
    /// Up to the branch before number N
    #[arg(long, value_name = "N")]
    pub to: Option<u64>,
    /// Up to the first branch after this time of the guest, in ns, as --sched and json show times
    #[arg(long, value_name = "NS", conflicts_with = "to")]
    pub time: Option<u64>,
    /// Which of these branches to show.
    #[command(flatten)]
    pub filters: FilterArgs,
    /// Also show when each task arrives on a processor and departs from it (default: as
    /// `vbts trace` was told)
    #[arg(long)]
    pub sched: bool,
    /// Write to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// End the report after this much time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", default_value = "3600", allow_negative_numbers = true,
          value_parser = seconds)]
    pub timeout: Duration,
    /// How to confine the process that makes the report
    #[arg(long, value_parser = named::<SandboxMode>(), value_name = "MODE", default_value = default_of::<SandboxMode>())]
    pub sandbox: SandboxMode,
    /// Directory in which the traced files are looked up for names
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// The guest kernel, for the names of its functions (default: the one that was traced)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// functions, modules, files, tasks, diff: at most N rows; assembly: N functions
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// lines, lcov, cobertura, html: only source files in this directory, or this file; can be
    /// repeated
    #[arg(long, value_name = "PATH")]
    pub source: Vec<PathBuf>,
    /// assembly: only the function with this name
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// bolt, autofdo, diff: the executed file (default: the program). diff also takes [kernel]
    #[arg(long, value_name = "NAME")]
    pub module: Option<String>,
    /// tail: branches to show of each task, 10000 at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub steps: usize,
    /// calls: only subtrees with at least P percent of all instructions
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    pub least: f64,
    /// functions, modules, files, tasks, calls: one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// The file is no trace or is damaged, or the output fails.
pub fn main(args: &ReportArgs) -> Result<u8, Failure> {
    let mut uses = FileUses::default();
    uses.reads("FILE", &args.file);
    if let Some(other) = &args.other {
        uses.reads("OTHER", other);
    }
    if let Some(kernel) = &args.kernel {
        uses.reads("--kernel", kernel);
    }
    if let Some(output) = &args.output {
        uses.writes("--output", output);
    }
    uses.check()?;
    report_process::run(args.output.as_deref(), args.timeout, |output| {
        match args.what {
            What::Text | What::Json | What::Raw => show(args, output),
            _ => answers::main(args, output),
        }
    })
}

/// Shows the branches of a trace.
fn show(args: &ReportArgs, output: Output) -> Result<u8, Failure> {
    let file = TraceFile::open(args, &args.file)?;
    let mut symbols = Symbolizer::new(open_root(args)?, Path::new("/"));
    let kernel = Kernel::find(args);
    if args.what == What::Text {
        symbols
            .start_reader(
                &mut Command::new(OWN_PROGRAM),
                args.sandbox != SandboxMode::Off,
            )
            .context("Cannot start the process that reads symbols")?;
    }
    report_process::restrict_files(args.sandbox, &args.root)?;
    report_process::restrict_calls(args.sandbox)?;
    let mut trace = file.read()?;
    let range = trace.range(args)?;
    let (mut reader, name, traced) = (trace.reader, trace.name, trace.traced);
    if args.what == What::Text {
        let named = name_files(&mut symbols, &mut reader, traced);
        named.with_context(|| format!("Cannot read {name}"))?;
    }
    let run = reader.run();
    symbols.set_directory(Path::new(&run.directory));
    if args.what == What::Text
        && run.scope != "user"
        && let Some((path, file)) = kernel.of(run, NO_KERNEL_NAMES)?
    {
        symbols.set_kernel(file, &path.display().to_string());
    }
    let mut replay = Replay::new(run.streams);
    let only = Only {
        task: args.task,
        processor: args.processor,
    };
    let mut report = Report {
        symbols,
        format: format(args, run),
        out: Vec::new(),
        output,
    };
    report
        .output
        .truncate()
        .map_err(OutputError::into_failure)?;
    report
        .show(
            &mut reader,
            range,
            &mut replay,
            only,
            args.what == What::Raw,
        )
        .map_err(|error| match error.downcast::<OutputError>() {
            Ok(error) => error.into_failure(),
            Err(error) => error.context(format!("Cannot read {name}")).into(),
        })?;
    report.say_problems();
    Ok(0)
}

impl ReportArgs {
    /// The numbers of the branches to show or to filter.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub(super) fn range(
        &self,
        reader: &mut Reader<BufReader<File>>,
    ) -> Result<std::ops::Range<u64>, vbts_trace::Error> {
        let records = reader.records();
        let to = match self.time {
            Some(time) => reader.record_at(time)?,
            None => self.to.map_or(records, |to| to.min(records)),
        };
        Ok(self.from.unwrap_or(0)..to)
    }
}

/// What shows the trace.
struct Report {
    symbols: Symbolizer,
    format: Box<dyn Format>,
    /// What is formatted and not written.
    out: Vec<u8>,
    output: Output,
}

impl Report {
    /// Shows branches `range` of the trace that are of `only`, and what happens between them. If
    /// `one_task`, refuses branches of a second task.
    fn show(
        &mut self,
        reader: &mut Reader<BufReader<File>>,
        range: std::ops::Range<u64>,
        replay: &mut Replay,
        only: Only,
        one_task: bool,
    ) -> anyhow::Result<()> {
        let mut skipped = Ok(());
        reader.events_before(range.start, |task, event| {
            if skipped.is_ok() {
                skipped = replay.skip(task, event, self);
            }
        })?;
        skipped?;
        reader.seek(range.start)?;
        let whole = range.end == reader.records();
        let mut left = range.end.saturating_sub(range.start);
        let mut first_task = None;
        while left > 0 || whole {
            let item = match reader.next_item()? {
                None => break,
                Some(Item::Branches { task, branches }) => {
                    if one_task
                        && only == Only::default()
                        && *first_task.get_or_insert(task) != task
                    {
                        return Err(anyhow!(replay.several()));
                    }
                    let count = branches
                        .len()
                        .min(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= count as u64;
                    let branches = branches.get(..count).unwrap_or_default();
                    Item::Branches { task, branches }
                }
                Some(item) => item,
            };
            replay.give(item, only, self)?;
        }
        if let Some(summary) = reader.summary() {
            let summary = Summary {
                unnamed: self.symbols.unnamed(),
                ..replay.summary(summary)?
            };
            self.format.summary(&summary, &mut self.out);
        }
        self.write()
    }

    /// Says which names the report lacks.
    fn say_problems(&self) {
        let (changed, replaced) = (
            "changed after the trace, so that its names can be wrong",
            "is not the file that was traced, by its build ID: it has no names",
        );
        say_file_problems("", self.symbols.mapped(), changed, replaced);
        say_unnamed("", self.symbols.readable_unnamed());
    }

    fn write(&mut self) -> anyhow::Result<()> {
        self.output.write_units(&self.out, self.format.unit())?;
        self.out.clear();
        Ok(())
    }

    /// Writes what is formatted, if it is much.
    fn write_if_full(&mut self) -> anyhow::Result<()> {
        match self.out.len() {
            FULL.. => self.write(),
            _ => Ok(()),
        }
    }
}

impl Sink for Report {
    type Error = anyhow::Error;

    fn branches(&mut self, task: &mut Task, branches: &[Branch]) -> anyhow::Result<()> {
        let mut rest = branches;
        while !rest.is_empty() {
            let (symbols, out) = (&mut self.symbols, &mut self.out);
            let count = self.format.branches(task, rest, symbols, out);
            rest = rest.get(count..).unwrap_or_default();
            self.write_if_full()?;
        }
        Ok(())
    }

    fn event(&mut self, task: &Task, event: &Event) -> anyhow::Result<()> {
        self.symbols.event(event);
        self.format.event(task, event, &mut self.out);
        self.write_if_full()
    }
}

fn format(args: &ReportArgs, run: &Run) -> Box<dyn Format> {
    let sched = args.sched || run.sched;
    let accel = match run.accel.as_str() {
        "kvm" => Accel::Kvm,
        _ => Accel::Soft,
    };
    let of_machine = run.streams == Streams::Processors;
    match args.what {
        What::Text if of_machine => Box::new(Text::new(sched).of_machine()),
        What::Text => Box::new(Text::new(sched)),
        What::Raw => Box::new(Raw),
        _ if of_machine => Box::new(Json::new(accel, sched).of_machine()),
        _ => Box::new(Json::new(accel, sched)),
    }
}
