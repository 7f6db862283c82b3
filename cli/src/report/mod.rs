//! `vbts report`: shows a kept trace.
//!
//! | module | contents |
//! |---|---|
//! | `kinds` | the reports: a table |
//! | `branches` | reports that show branches one after the other |
//! | `analysis`, `maker`, `problems` | reports that count first, how they are made, and what they lack |
//! | `files`, `kernel`, `tasks` | the trace, the traced files and kernel, the tasks |
//! | `build_ids`, `debuginfod` | which files were executed; their debugging information |
//! | `inputs` | what a recording contains |
//! | `strace` | system calls of a recording |
//! | `gdb_rows` | reports of a recorded program that gdb makes |
//! | `moment` | the stack at a moment, with the functions of a Python program |
//! | `values`, `writes` | values of expressions; writes to a variable |
//! | `process` | the process that makes the report |
//! | `request` | a report as `vbts trace --report` asks for it |

mod analysis;
mod branches;
mod build_ids;
mod debuginfod;
mod files;
mod gdb_rows;
mod inputs;
mod kernel;
mod kinds;
mod maker;
mod moment;
mod problems;
mod process;
mod request;
mod strace;
mod tasks;
mod values;
mod writes;

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use vbts_analysis::SortBy;
use vbts_protocol::Scope;
use vbts_trace::Reader;

use super::file_uses::FileUses;
use super::filters::FilterArgs;
use super::options::{self, default_of, is_stdout, seconds, values};
use kinds::Opt;
pub(crate) use kinds::{Kind, kind, named};
pub(crate) use request::{ReportParser, ReportRequest};
use tasks::TaskPattern;
use vbts_host::exit::Failure;
use vbts_vmm::config::SandboxMode;

/// The end of the help text.
const EXIT_STATUS: &str = "\
Exit status:
  0    the report is complete
  124  --timeout was reached
  125  bad usage, or the trace cannot be read, or the output fails
  126  this host cannot confine the process as --sandbox says, has no debuginfod-find,
       or no gdb
  128+n  signal n has ended the report
A report that is not complete leaves no part of itself in the file that --output names.";

/// Arguments of `vbts report`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct ReportArgs {
    /// What to show: what `vbts trace` prints in this format
    #[arg(value_parser = kind())]
    pub what: &'static Kind,
    /// A trace of `vbts trace --output FILE.btrace` or of `vbts run --record FILE`, or a recording
    /// of `vbts record`, which is replayed the first time
    pub file: PathBuf,
    /// diff: the trace to compare with. print, writes: the recording, whose expression is in the
    /// place of FILE
    pub other: Option<PathBuf>,
    /// The expressions of print, or the variable of writes.
    #[arg(skip)]
    pub expression: Option<OsString>,
    /// print: where to evaluate expressions: FILE:LINE, a function, or *ADDRESS, also with 'if
    /// CONDITION'; can be repeated
    #[arg(long, value_name = "PLACE")]
    pub at: Vec<String>,
    /// Only the task with this thread ID, or those with this program: a name, or a pattern such as
    /// 'cc*'
    #[arg(long, value_name = "TASK")]
    pub task: Option<TaskPattern>,
    /// text, json, raw: only this processor of a machine; the first one is 0
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
    /// text, json: also show when each task arrives on a processor and departs from it (default:
    /// as `vbts trace` was told)
    #[arg(long)]
    pub sched: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// End the report after this much time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", default_value = "3600", allow_negative_numbers = true,
          value_parser = seconds)]
    pub timeout: Duration,
    /// How to confine the process that makes the report
    #[arg(long, value_parser = options::named::<SandboxMode>(), value_name = "MODE", default_value = default_of::<SandboxMode>())]
    pub sandbox: SandboxMode,
    /// FILE is a recording: which of its branches to report (default: user;
    /// all of a machine)
    #[arg(long, value_parser = options::named::<Scope>())]
    pub scope: Option<Scope>,
    /// Directory in which the traced files are looked up for names
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// First ask the servers of DEBUGINFOD_URLS for the debugging information that is not here,
    /// with debuginfod-find
    #[arg(long)]
    pub debuginfod: bool,
    /// The guest kernel, for the names of its functions (default: the one that was traced)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The symbols of the guest kernel as text: System.map, or a copy of the guest's /proc/kallsyms
    #[arg(long, value_name = "FILE", conflicts_with = "kernel")]
    pub system_map: Option<PathBuf>,
    /// functions, modules, files, tasks, diff, print, writes: at most N rows; assembly: N
    /// functions (default: 100)
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// functions, modules, files, tasks: what to sort by (default: instructions)
    #[arg(long, value_parser = options::named::<SortBy>(), value_name = "KEY")]
    pub sort: Option<SortBy>,
    /// lines, lcov, cobertura, html: only source files in this directory, or this file; can be
    /// repeated
    #[arg(long, value_name = "PATH")]
    pub source: Vec<PathBuf>,
    /// assembly, trace: only the function with this name; trace: with what it calls
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// bolt, autofdo, diff: the executed file (default: the program). diff also takes [kernel]
    #[arg(long, value_name = "NAME")]
    pub module: Option<String>,
    /// trace: only calls that are in fewer than N others of those that are shown
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// tail: branches to show of each task, 10000 at most (default: 20)
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// calls: only subtrees with at least P percent of all instructions (default: 0.5)
    #[arg(long, value_name = "P")]
    pub least: Option<f64>,
    /// calls, trace, folded, callgrind, flamegraph, timeline, firefox, tail, where: also show the
    /// stubs of the procedure linkage table and the dynamic linker's resolver, through which calls
    /// lead
    #[arg(long)]
    pub raw_frames: bool,
    /// functions, calls, trace, folded, callgrind, flamegraph, firefox, tail, where: inlined
    /// functions, which are marked with "(inlined)", have no frames and count for their callers
    #[arg(long)]
    pub no_inline: bool,
    /// functions, calls, trace, folded, callgrind, flamegraph, timeline, firefox, tail, where:
    /// short names of functions, without parameters, results and the arguments of templates and
    /// generics
    #[arg(long)]
    pub short_names: bool,
    /// functions, modules, files, tasks, calls, syscalls, strace, inputs, print, writes: one JSON
    /// object a line; stat: one object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// The file is no trace or is damaged, or the output fails.
pub(crate) fn main(args: &ReportArgs) -> Result<u8, Failure> {
    make(args, None)
}

/// Runs the command. `args.file` is the trace of `recording`.
///
/// # Errors
/// See [`main`].
pub(crate) fn of_recording(args: &ReportArgs, recording: &Path) -> Result<u8, Failure> {
    make(args, Some(recording))
}

fn make(args: &ReportArgs, recording: Option<&Path>) -> Result<u8, Failure> {
    let mut uses = FileUses::default();
    uses.reads("FILE", &args.file);
    if let Some(other) = &args.other {
        uses.reads("OTHER", other);
    }
    if let Some(kernel) = &args.kernel {
        uses.reads("--kernel", kernel);
    }
    if let Some(map) = &args.system_map {
        uses.reads("--system-map", map);
    }
    let output = args.output.as_deref().filter(|path| !is_stdout(path));
    if let Some(output) = output {
        uses.writes("--output", output);
    }
    uses.check()?;
    args.check_options()?;
    if args.debuginfod {
        let status = debuginfod::fetch(args)?;
        if status != 0 {
            return Ok(status);
        }
    }
    if let Some(recording) = recording
        && args.what.is_of_moment()
    {
        return moment::show(args, recording, output);
    }
    process::run(output, args.timeout, |output| {
        (args.what.make)(args, output)?;
        Ok(0)
    })
}

values! {
    SortBy {
        Instructions: "instructions", "Instructions without those of callees";
        Total: "total", "functions: instructions with those of callees";
        Branches: "branches", "Taken branches";
        Calls: "calls", "functions, modules, files: calls";
        Name: "name", "The name, by the alphabet";
    }
}

/// Default of `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(3600);

impl ReportArgs {
    /// The report `what` of the trace in `file`, without options.
    pub(crate) fn new(what: &'static Kind, file: PathBuf) -> Self {
        Self {
            what,
            file,
            other: None,
            expression: None,
            at: Vec::new(),
            task: None,
            processor: None,
            from: None,
            to: None,
            time: None,
            filters: FilterArgs::default(),
            sched: false,
            output: None,
            timeout: TIMEOUT,
            sandbox: SandboxMode::default(),
            scope: None,
            root: "/".into(),
            debuginfod: false,
            kernel: None,
            system_map: None,
            limit: None,
            sort: None,
            source: Vec::new(),
            function: None,
            module: None,
            depth: None,
            steps: None,
            least: None,
            raw_frames: false,
            no_inline: false,
            short_names: false,
            json: false,
        }
    }

    /// The report of a recording: its expression comes before its file.
    ///
    /// # Errors
    /// A file is missing.
    pub(crate) fn of_recording(&self) -> anyhow::Result<Self> {
        let mut args = self.clone();
        if args.what.has_expression() {
            let Some(file) = args.other.take() else {
                bail!(
                    "vbts report {}: EXPRESSION and FILE are needed",
                    args.what.name
                );
            };
            args.expression = Some(std::mem::replace(&mut args.file, file).into());
        }
        Ok(args)
    }

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

    /// Refuses options that the report does not have, which would change nothing.
    pub(crate) fn check_options(&self) -> anyhow::Result<()> {
        let given = [
            (Opt::At, !self.at.is_empty()),
            (Opt::Processor, self.processor.is_some()),
            (Opt::Sched, self.sched),
            (Opt::Limit, self.limit.is_some()),
            (Opt::Sort, self.sort.is_some()),
            (Opt::Source, !self.source.is_empty()),
            (Opt::Function, self.function.is_some()),
            (Opt::Module, self.module.is_some()),
            (Opt::Depth, self.depth.is_some()),
            (Opt::Steps, self.steps.is_some()),
            (Opt::Least, self.least.is_some()),
            (Opt::RawFrames, self.raw_frames),
            (Opt::NoInline, self.no_inline),
            (Opt::ShortNames, self.short_names),
            (Opt::Json, self.json),
            (Opt::Other, self.other.is_some()),
        ];
        let excess = |(option, given): &(Opt, bool)| *given && !self.what.options.contains(option);
        if let Some((option, _)) = given.into_iter().find(excess) {
            let with: Vec<_> = kinds::with(option).map(|kind| kind.name).collect();
            bail!(
                "{}: `vbts report {}` has no such option; these have it: {}",
                option.name(),
                self.what.name,
                with.join(", ")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::ReportArgs;
    use crate::{Cli, Command};

    fn args(words: &[&str]) -> ReportArgs {
        let words = ["vbts", "report"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Report(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_report_without_options_has_the_defaults() {
        let args = args(&["calls", "x"]);
        let without = ReportArgs::new(args.what, "x".into());
        assert_eq!(format!("{args:?}"), format!("{without:?}"));
    }

    #[test]
    fn a_report_refuses_options_that_it_does_not_have() {
        for (words, refused) in [
            (&["functions", "--limit", "3", "x"][..], None),
            (&["assembly", "--limit", "3", "--function", "f", "x"], None),
            (&["folded", "--limit", "3", "x"], Some("--limit")),
            (&["tail", "--json", "x"], Some("--json")),
            (&["where", "--steps", "2", "x"], Some("--steps")),
            (&["functions", "x", "y"], Some("OTHER")),
            (&["diff", "x", "y"], None),
            (&["tasks", "--processor", "1", "x"], Some("--processor")),
        ] {
            let error = args(words)
                .check_options()
                .err()
                .map(|error| error.to_string());
            match refused {
                None => assert_eq!(error, None),
                Some(option) => assert!(error.unwrap().starts_with(option)),
            }
        }
    }
}
