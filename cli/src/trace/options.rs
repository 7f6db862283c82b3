//! The options of `vbts trace`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{ArgAction, Args};
use vbts_protocol::{Follow, Scope};

use super::date;
use crate::filters::FilterArgs;
use crate::options::{EXIT_STATUS, MachineArgs, is_btrace, is_stdout, named, one_of, values};
use crate::report::{ReportParser, ReportRequest};
use vbts_capture::config::DEFAULT_BUFFER;
use vbts_capture::output::TraceTo;
use vbts_capture::{Filters, TraceConfig, TraceFormat};
use vbts_vmm::memory::Size;

/// Arguments of `vbts trace`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts trace [OPTIONS] -- PROGRAM [ARG]...")]
pub(crate) struct TraceArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts)
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// Format of the trace (default: text; btrace if the name of the output ends with .btrace)
    #[arg(
        long,
        value_parser = named::<TraceFormat>(),
        value_name = "FORMAT",
        help_heading = "Trace options"
    )]
    pub format: Option<TraceFormat>,
    /// Write the trace to FILE. By default it goes to standard output: text together with the
    /// output of the program, other formats alone, with the output of the program on standard
    /// error. On a terminal, without --format, a summary follows the output of the program, and the
    /// trace is kept in ~/.cache/vbts. With raw, FILE can be a directory (DIR/): it gets a file for
    /// each task, and an index
    #[arg(short, long, value_name = "FILE", help_heading = "Trace options")]
    pub output: Option<PathBuf>,
    /// Answer a question from the trace, as `vbts report` does: to --output, or to standard output
    /// after the program has ended. WHAT can be followed by options of the report, as in --report
    /// 'functions --limit 5', and --report can be repeated. The trace is kept if --output names a
    /// .btrace file
    #[arg(
        long,
        value_parser = ReportParser,
        value_name = "WHAT",
        conflicts_with = "format",
        help_heading = "Trace options"
    )]
    pub report: Vec<ReportRequest>,
    /// --report diff: the trace that was kept of another run, with which this one is compared
    #[arg(
        long,
        value_name = "FILE",
        requires = "report",
        help_heading = "Trace options"
    )]
    pub against: Option<PathBuf>,
    /// Which processes and threads to trace (default: all; none for raw into one file, which has
    /// the records of one task)
    #[arg(
        long,
        value_parser = named::<Follow>(),
        value_name = "TASKS",
        help_heading = "Trace options"
    )]
    pub follow: Option<Follow>,
    /// Whose end ends the run. The exit status is that of the first process
    #[arg(
        long = "wait",
        action = ArgAction::Set,
        value_parser = wait_all(),
        value_name = "PROCESSES",
        default_value = "all",
        help_heading = "Trace options"
    )]
    pub wait_all: bool,
    /// Wait on if all tasks of the program wait for each other for ever (default: end the run)
    #[arg(long, help_heading = "Trace options")]
    pub wait_forever: bool,
    /// Which branches to record
    #[arg(
        long,
        value_parser = named::<Scope>(),
        default_value = "user",
        help_heading = "Trace options"
    )]
    pub scope: Scope,
    /// Size of the guest kernel's trace buffer of a task. The task waits while a full buffer is
    /// emptied. With the branches of the kernel, it moves the records inside a system call to a
    /// quarter of the guest's memory
    #[arg(
        long,
        value_name = "SIZE",
        default_value_t = DEFAULT_BUFFER,
        help_heading = "Trace options"
    )]
    pub buffer: Size,
    /// Also show when each task arrives on a processor and departs from it, in ns
    #[arg(long, help_heading = "Trace options")]
    pub sched: bool,
    /// Which branches to keep.
    #[command(flatten)]
    pub filters: FilterArgs,
    /// Date of the guest at its boot: seconds since 1970, or a date such as 2026-01-31 or
    /// 2026-01-31T12:00:00Z (default: $SOURCE_DATE_EPOCH, else the host's date)
    #[arg(
        long,
        value_name = "TIME",
        allow_negative_numbers = true,
        value_parser = date::parse,
        help_heading = "Trace options"
    )]
    pub epoch: Option<i64>,
    /// Print no messages except errors and lost records
    #[arg(long, help_heading = "Trace options")]
    pub quiet: bool,
    /// Print at the end how the time was spent
    #[arg(long, help_heading = "Trace options")]
    pub stats: bool,
    /// Program to run, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

impl TraceArgs {
    /// The configuration of these options. With `--report`, another one replaces the output.
    pub(crate) fn config(&self) -> TraceConfig {
        let (format, output) = (self.format(), self.output());
        let one_file = format == TraceFormat::Raw && !matches!(output, TraceTo::Directory(_));
        TraceConfig {
            machine: self.machine.config_of_trace(),
            kernel: self.kernel.clone(),
            program: self.program.clone(),
            format,
            output,
            report_outputs: Vec::new(),
            scope: self.scope,
            follow: self.follow.unwrap_or(match one_file {
                true => Follow::None,
                false => Follow::All,
            }),
            wait_all: self.wait_all,
            ends_at_deadlock: !self.wait_forever,
            buffer: self.buffer,
            sched: self.sched,
            filters: Filters::from(&self.filters),
            epoch: self.epoch,
            quiet: self.quiet,
            stats: self.stats,
        }
    }

    fn format(&self) -> TraceFormat {
        let by_name = match self.output.as_deref() {
            Some(output) if is_btrace(output) => TraceFormat::Btrace,
            _ => TraceFormat::Text,
        };
        self.format.unwrap_or(by_name)
    }

    fn output(&self) -> TraceTo {
        match self.output.as_deref() {
            None => TraceTo::Stdout,
            Some(path) if is_stdout(path) => TraceTo::Stdout,
            Some(path) if path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir() => {
                TraceTo::Directory(path.into())
            }
            Some(path) => TraceTo::File(path.into()),
        }
    }
}

values! {
    TraceFormat {
        Text: "text", "For people: one line a branch, with functions and source lines";
        Json: "json", "One JSON object a line";
        Raw: "raw", "Records of 24 bytes, little-endian: from, to, flags";
        Btrace: "btrace", "Compressed, for `vbts report`";
    }
    Scope {
        User: "user", "Branches of the program, without the kernel's returns to it";
        Kernel: "kernel", "Branches into and inside the kernel: system calls, faults, and \
            interrupts while the program runs";
        All: "all", "All branches";
    }
    Follow {
        All: "all", "All processes and threads that the program starts";
        Threads: "threads", "The threads of the program's first process";
        None: "none", "The first thread of the program only";
    }
}

/// The parser of `--wait`: whether the run ends with the last process.
pub(crate) fn wait_all() -> impl TypedValueParser<Value = bool> {
    one_of(vec![
        (true, "all", "All processes that the program has started"),
        (
            false,
            "first",
            "The program's first process; its end ends the others",
        ),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser;

    /// The arguments of `vbts trace` from its command line.
    pub(crate) fn args(words: &[&str]) -> TraceArgs {
        let words = ["vbts", "trace"].iter().chain(words);
        match crate::Cli::try_parse_from(words).unwrap().command {
            crate::Command::Trace(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        for words in [
            &["--sched", "--", "ls", "--format", "x"][..],
            &["--sched", "ls", "--format", "x"],
        ] {
            let args = args(words);
            assert!(args.sched);
            assert_eq!(args.program, ["ls", "--format", "x"]);
            assert_eq!(args.config().format, TraceFormat::Text);
        }
    }

    #[test]
    fn a_mistyped_option_is_not_a_program() {
        for words in [
            &["--outputt", "file", "--", "ls"][..],
            &["--outputt=file", "ls"],
            &["--outputt", "ls"],
            &["--shed", "ls", "--all"],
        ] {
            let words = ["vbts", "trace"].iter().chain(words);
            let error = crate::Cli::try_parse_from(words).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument);
        }
        let error = crate::Cli::try_parse_from(["vbts", "trace", "--outputt", "f", "ls"]);
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("similar argument exists: '--output'"),
            "{text}"
        );
        // After "--" a program may have any name.
        assert_eq!(args(&["--", "--outputt", "x"]).program, ["--outputt", "x"]);
    }

    #[test]
    fn one_raw_file_has_one_task() {
        for (words, followed, ok) in [
            (&["x"][..], Follow::All, true),
            (&["--follow", "threads", "x"], Follow::Threads, true),
            (&["--format", "raw", "x"], Follow::None, true),
            (
                &["--format", "raw", "--follow", "none", "x"],
                Follow::None,
                true,
            ),
            (
                &["--format", "raw", "--follow", "all", "x"],
                Follow::All,
                false,
            ),
            (
                &["--format", "raw", "--output", "new/", "x"],
                Follow::All,
                true,
            ),
            (
                &["--format", "raw", "--output", "/tmp", "x"],
                Follow::All,
                true,
            ),
            (&["--output", "/tmp", "x"], Follow::All, false),
        ] {
            let config = args(words).config();
            assert_eq!(config.follow, followed, "{words:?}");
            assert_eq!(config.check().is_ok(), ok, "{words:?}");
        }
    }

    #[test]
    fn no_option_gives_the_default_configuration() {
        assert_eq!(args(&["ls", "/"]).config(), TraceConfig::new(["ls", "/"]));
    }

    #[test]
    fn each_option_changes_its_part_of_the_configuration() {
        let words = "--kernel k --format json --output f --follow threads --wait first \
                     --scope all --buffer 64K --sched --last 5 --epoch 7 --quiet --stats x";
        let words: Vec<&str> = words.split_whitespace().collect();
        assert_eq!(
            args(&words).config(),
            TraceConfig {
                kernel: Some("k".into()),
                format: TraceFormat::Json,
                output: TraceTo::File("f".into()),
                follow: Follow::Threads,
                wait_all: false,
                scope: Scope::All,
                buffer: Size(65536),
                sched: true,
                filters: Filters {
                    last: Some(5),
                    ..Filters::default()
                },
                epoch: Some(7),
                quiet: true,
                stats: true,
                ..TraceConfig::new(["x"])
            }
        );
    }

    #[test]
    fn the_output_tells_the_format() {
        for (words, format, output) in [
            (&["x"][..], TraceFormat::Text, TraceTo::Stdout),
            (&["--output", "-", "x"], TraceFormat::Text, TraceTo::Stdout),
            (
                &["--output", "a.btrace", "x"],
                TraceFormat::Btrace,
                TraceTo::File("a.btrace".into()),
            ),
            (
                &["--output", "a.btrace", "--format", "json", "x"],
                TraceFormat::Json,
                TraceTo::File("a.btrace".into()),
            ),
        ] {
            let config = args(words).config();
            assert_eq!(
                (config.format, config.output),
                (format, output),
                "{words:?}"
            );
        }
    }
}
