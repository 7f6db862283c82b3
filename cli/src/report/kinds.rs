//! The table of reports.

use anyhow::anyhow;
use clap::builder::TypedValueParser;
use vbts_analysis::{self as analysis, By, Samples, SortBy, SystemCalls, Tail, Tasks};
use vbts_host::exit::Failure;
use vbts_host::output::Output;

use super::ReportArgs;
use super::analysis::{
    call_trace, counted, diff, limit, of_function, of_module, perf, timeline, watched,
};
use super::branches::{Shown, show};
use super::{build_ids, inputs, moment, strace, values, writes};
use crate::options::{name_of, one_of};

/// The report of a recording that needs no replay.
const INPUTS: &str = "inputs";
/// The report of a recording whose replay is observed.
const STRACE: &str = "strace";
/// The reports of a recording that gdb makes.
const PRINT: &str = "print";
const WRITES: &str = "writes";
/// The report of a moment.
const WHERE: &str = "where";
/// Number of branches that `tail` shows without `--steps`.
const STEPS: usize = 20;
/// Percentage of the instructions that a subtree of `calls` has at least, without `--least`.
const LEAST: f64 = 0.5;

/// A report.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// Contents, for the help text.
    title: &'static str,
    /// Options besides those of all reports.
    pub options: &'static [Opt],
    /// Makes the report of a trace.
    pub make: fn(&ReportArgs, Output) -> Result<(), Failure>,
}

impl Kind {
    /// Returns whether it is of the recording itself, and not of its trace.
    pub(crate) fn is_of_recording(&self) -> bool {
        [INPUTS, STRACE].contains(&self.name) || self.has_expression()
    }

    /// Returns whether it shows a moment, at which a recording has the program's memory, too.
    pub(super) fn is_of_moment(&self) -> bool {
        self.name == WHERE
    }

    /// Returns whether it has an expression before its file.
    pub(crate) fn has_expression(&self) -> bool {
        [PRINT, WRITES].contains(&self.name)
    }
}

/// An option or an argument that only some reports have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opt {
    /// `--at PLACE`
    At,
    /// `--depth N`
    Depth,
    /// `--function NAME`
    Function,
    /// `--json`
    Json,
    /// `--least P`
    Least,
    /// `--limit N`
    Limit,
    /// `--module NAME`
    Module,
    /// `--no-inline`
    NoInline,
    /// The second trace, or the recording after an expression
    Other,
    /// `--processor N`
    Processor,
    /// `--raw-frames`
    RawFrames,
    /// `--sched`
    Sched,
    /// `--short-names`
    ShortNames,
    /// `--sort KEY`
    Sort,
    /// `--source PATH`
    Source,
    /// `--steps N`
    Steps,
}

use Opt::{
    At, Depth, Function, Json, Least, Limit, Module, NoInline, Other, Processor, RawFrames, Sched,
    ShortNames, Sort, Source, Steps,
};

impl Opt {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            At => "--at",
            Depth => "--depth",
            Function => "--function",
            Json => "--json",
            Least => "--least",
            Limit => "--limit",
            Module => "--module",
            NoInline => "--no-inline",
            Other => "OTHER",
            Processor => "--processor",
            RawFrames => "--raw-frames",
            Sched => "--sched",
            ShortNames => "--short-names",
            Sort => "--sort",
            Source => "--source",
            Steps => "--steps",
        }
    }
}

/// Reports that people read on a terminal. The others are for programs, or have many branches.
const FOR_PEOPLE: [&str; 14] = [
    "assembly",
    "calls",
    "diff",
    "files",
    "functions",
    "modules",
    "print",
    "stat",
    "syscalls",
    "tail",
    "tasks",
    "trace",
    "where",
    "writes",
];

impl Kind {
    /// Returns whether people read the report on a terminal.
    pub(crate) fn is_for_people(&self) -> bool {
        FOR_PEOPLE.contains(&self.name)
    }
}

const fn row(
    name: &'static str,
    title: &'static str,
    options: &'static [Opt],
    make: fn(&ReportArgs, Output) -> Result<(), Failure>,
) -> Kind {
    Kind {
        name,
        title,
        options,
        make,
    }
}

#[rustfmt::skip]
static KINDS: [Kind; 33] = [
    row("text", "For people: one line a branch, with functions and source lines", &[Processor, Sched],
        |args, output| show(Shown::Text, args, output)),
    row("json", "One JSON object a line", &[Processor, Sched],
        |args, output| show(Shown::Json, args, output)),
    row("raw", "Records of 24 bytes, little-endian: from, to, flags; of one task", &[Processor],
        |args, output| show(Shown::Raw, args, output)),
    row("functions", "Functions: calls, instructions and branches, without and with those of callees", &[Json, Limit, NoInline, ShortNames, Sort],
        |args, output| by(By::Function, args, output)),
    row("stat", "Counts of the run: instructions, branches, calls, and what has most of them", &[Json],
        |args, output| counted(args, output, |trace, out| analysis::stat(&mut trace.profile, &trace.command, args.json, out))),
    row("modules", "Mapped files", &[Json, Limit, Sort],
        |args, output| by(By::Module, args, output)),
    row("files", "Source files", &[Json, Limit, Sort],
        |args, output| by(By::File, args, output)),
    row("tasks", "Tasks", &[Json, Limit, Sort],
        tasks),
    row("calls", "The call tree", &[Json, Least, NoInline, RawFrames, ShortNames],
        |args, output| counted(args, output, |trace, out| analysis::calls(&mut trace.profile, args.least.unwrap_or(LEAST), args.json, out))),
    row("trace", "Calls and returns in order, with their instructions", &[Depth, Function, NoInline, RawFrames, ShortNames],
        call_trace),
    row("syscalls", "System calls: how often, and instructions of the kernel, in all and of the longest", &[Json],
        |args, output| watched(args, output, SystemCalls::default(), |trace, out| analysis::system_calls(&mut trace.profile, args.json, out))),
    row(STRACE, "System calls of a recording with arguments and results, as strace shows them", &[Json],
        strace::show),
    row("folded", "Call stacks with their instructions, for flame graph tools", &[NoInline, RawFrames, ShortNames],
        |args, output| counted(args, output, |trace, out| analysis::folded(&mut trace.profile, out))),
    row("callgrind", "The call graph in Valgrind's format, for KCachegrind and callgrind_annotate", &[NoInline, RawFrames, ShortNames],
        |args, output| counted(args, output, |trace, out| analysis::callgrind(&mut trace.profile, &trace.title, out))),
    row("flamegraph", "A flame graph: one SVG file", &[NoInline, RawFrames, ShortNames],
        |args, output| counted(args, output, |trace, out| analysis::flamegraph(&mut trace.profile, &trace.title, out))),
    row("timeline", "Functions over time, for Perfetto", &[RawFrames, ShortNames],
        timeline),
    row("firefox", "Call stacks over time, for the Firefox profiler", &[NoInline, RawFrames, ShortNames],
        |args, output| watched(args, output, Samples::default(), |trace, out| analysis::firefox(&mut trace.profile, &trace.title, out))),
    row("lines", "Source files with the count of each line", &[Source],
        |args, output| counted(args, output, |trace, out| { let coverage = trace.coverage(); analysis::lines(&mut trace.profile, &coverage, out) })),
    row("assembly", "Instructions of functions with their counts", &[Function, Limit],
        |args, output| of_function(args, output, |profile, names, out| analysis::assembly(profile, names, args.function.as_deref(), limit(args), out))),
    row("lcov", "Coverage of lines, functions and branches, for lcov's tools", &[Source],
        |args, output| counted(args, output, |trace, out| analysis::lcov(&trace.coverage(), out))),
    row("cobertura", "Coverage as Cobertura's XML", &[Source],
        |args, output| counted(args, output, |trace, out| analysis::cobertura(&trace.coverage(), out))),
    row("html", "Coverage as one HTML file", &[Source],
        |args, output| counted(args, output, |trace, out| { let coverage = trace.coverage(); analysis::html(&mut trace.profile, &coverage, &trace.title, out) })),
    row("drcov", "Executed code, in DynamoRIO's format", &[],
        |args, output| counted(args, output, |trace, out| analysis::drcov(&mut trace.profile, out))),
    row("bolt", "A profile for BOLT (pre-aggregated)", &[Module],
        |args, output| of_module(args, output, |profile, module, out| analysis::bolt(profile, module, out))),
    row("autofdo", "A profile for AutoFDO's create_llvm_prof (text)", &[Module],
        |args, output| of_module(args, output, |profile, module, out| analysis::autofdo(profile, module, out))),
    row("perf", "All branches as a perf.data file with branch stacks, for Linux perf", &[],
        perf),
    row("diff", "Functions that a second run, OTHER, has executed more or less often", &[Limit, Module, Other],
        diff),
    row("tail", "The last calls and returns of each task, and its stack", &[NoInline, RawFrames, ShortNames, Steps],
        |args, output| watched(args, output, Tail::new(args.steps.unwrap_or(STEPS), args.raw_frames), |trace, out| analysis::tail(&mut trace.profile, out))),
    row(WHERE, "The stack of the task of the last branch: with --to or --time, that at this moment", &[NoInline, RawFrames, ShortNames],
        moment::show_stack),
    row("build-ids", "Build IDs of the executed files, as perf buildid-list shows them", &[],
        build_ids::show),
    row(INPUTS, "What a recording contains: files, environment, standard input", &[Json],
        inputs::show),
    row(PRINT, "Values of expressions each time that a place of a recorded program is reached", &[At, Json, Limit, Other],
        values::print),
    row(WRITES, "Each write to a variable of a recorded program, with the values before and after it", &[Json, Limit, Other],
        writes::show),
];

/// Functions, or what they are in, with their counts.
fn by(by: By, args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let sort = args.sort.unwrap_or_default();
    if !sort.is_of(by) {
        let (key, what) = (name_of(&sort), args.what.name);
        return Err(anyhow!("--sort {key}: `vbts report {what}` has no such column").into());
    }
    counted(args, output, |trace, out| {
        let profile = &mut trace.profile;
        analysis::functions(profile, by, sort, limit(args), args.json, out)
    })
}

/// Tasks with their counts.
fn tasks(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    match args.sort {
        None | Some(SortBy::Branches | SortBy::Name) => {
            let sort = args.sort.unwrap_or_default();
            watched(args, output, Tasks, |trace, out| {
                let (profile, limit) = (&mut trace.profile, limit(args));
                analysis::functions(profile, By::Task, sort, limit, args.json, out)
            })
        }
        // They are counted, or there is no such column.
        Some(_) => by(By::Task, args, output),
    }
}

/// The report with this name.
pub(crate) fn named(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// The parser of a report's name.
pub(crate) fn kind() -> impl TypedValueParser<Value = &'static Kind> {
    let all = KINDS.iter().map(|kind| (kind, kind.name, kind.title));
    one_of(all.collect())
}

/// The reports that have an option.
pub(super) fn with(option: Opt) -> impl Iterator<Item = &'static Kind> {
    KINDS
        .iter()
        .filter(move |kind| kind.options.contains(&option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn reports_with_colours_exist() {
        let is_kind = |name: &&str| KINDS.iter().any(|kind| kind.name == *name);
        assert!(FOR_PEOPLE.iter().all(is_kind));
    }

    #[test]
    fn the_help_of_an_option_names_the_reports_that_have_it() {
        let cli = crate::Cli::command();
        let report = cli.find_subcommand("report").unwrap();
        for kind in &KINDS {
            for option in kind.options {
                let is_it = |arg: &&clap::Arg| match option.name().strip_prefix("--") {
                    Some(name) => arg.get_long() == Some(name),
                    None => arg.get_id().as_str().eq_ignore_ascii_case(option.name()),
                };
                let arg = report.get_arguments().find(is_it).unwrap();
                let help = arg.get_help().unwrap().to_string();
                let mut words = help.split(|c: char| !c.is_ascii_alphanumeric());
                assert!(words.any(|word| word == kind.name), "{}: {help}", kind.name);
            }
        }
    }
}
