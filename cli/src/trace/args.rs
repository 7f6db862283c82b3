//! The arguments of `vbts trace`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vbts_protocol::{Follow, Scope};

use super::epoch;
use super::filters::FilterArgs;
use crate::options::{EXIT_STATUS, MachineArgs};
use crate::report::{Kind, kind};
use vbts_capture::destination::{StdoutUse, TraceTo};
use vbts_host::exit::Failure;
use vbts_vmm::memory::Size;

/// Formats of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// For people: one line a branch, with functions and source lines
    Text,
    /// One JSON object a line
    Json,
    /// Records of 24 bytes, little-endian: from, to, flags
    Raw,
    /// Compressed, for `vbts report`
    Btrace,
}

/// Which branches to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Branches of the program, without the kernel's returns to it
    User,
    /// Branches into and inside the kernel: system calls, faults, and interrupts while the program
    /// runs
    Kernel,
    /// All branches
    All,
}

impl From<ScopeArg> for Scope {
    fn from(arg: ScopeArg) -> Self {
        match arg {
            ScopeArg::User => Self::User,
            ScopeArg::Kernel => Self::Kernel,
            ScopeArg::All => Self::All,
        }
    }
}

/// Which tasks to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FollowArg {
    /// All processes and threads that the program starts
    All,
    /// The threads of the program's first process
    Threads,
    /// The first thread of the program only
    None,
}

impl From<FollowArg> for Follow {
    fn from(arg: FollowArg) -> Self {
        match arg {
            FollowArg::All => Self::All,
            FollowArg::Threads => Self::Threads,
            FollowArg::None => Self::None,
        }
    }
}

/// Which processes to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitArg {
    /// All processes that the program has started
    All,
    /// The program's first process; its end ends the others
    First,
}

/// Arguments of `vbts trace`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts trace [OPTIONS] -- PROGRAM [ARG]...")]
pub struct TraceArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts)
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// Format of the trace (default: text; btrace if the name of the output ends with .btrace)
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        help_heading = "Trace options"
    )]
    pub format: Option<TraceFormat>,
    /// Write the trace to FILE. By default it goes to standard output: text together with the
    /// output of the program, other formats alone, with the output of the program on standard
    /// error. With raw, FILE can be a directory (DIR/): it gets a file for each task, and an index
    #[arg(long, value_name = "FILE", help_heading = "Trace options")]
    pub output: Option<PathBuf>,
    /// Answer a question from the trace, as `vbts report` does, instead of writing the trace: to
    /// --output, or to standard output after the program has ended
    #[arg(
        long,
        value_parser = kind(),
        value_name = "WHAT",
        conflicts_with = "format",
        help_heading = "Trace options"
    )]
    pub report: Option<&'static Kind>,
    /// --report diff: the trace that was kept of another run, with which this one is compared
    #[arg(
        long,
        value_name = "FILE",
        requires = "report",
        help_heading = "Trace options"
    )]
    pub against: Option<PathBuf>,
    /// Where this process, which another vbts has started for `--report`, keeps the trace
    #[arg(long, hide = true)]
    pub keep_for_report: Option<PathBuf>,
    /// The file that the answer is written to afterwards
    #[arg(skip)]
    pub report_output: Option<PathBuf>,
    /// Which processes and threads to trace (default: all; none for raw into one file, which has
    /// the records of one task)
    #[arg(long, value_enum, value_name = "TASKS", help_heading = "Trace options")]
    pub follow: Option<FollowArg>,
    /// Whose end ends the run. The exit status is that of the first process
    #[arg(
        long,
        value_enum,
        value_name = "PROCESSES",
        default_value = "all",
        help_heading = "Trace options"
    )]
    pub wait: WaitArg,
    /// Which branches to record
    #[arg(
        long,
        value_enum,
        default_value = "user",
        help_heading = "Trace options"
    )]
    pub scope: ScopeArg,
    /// Size of the guest kernel's trace buffer of a task. The task waits while a full buffer is
    /// emptied. With the branches of the kernel, it moves the records inside a system call to a
    /// quarter of the guest's memory
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4M",
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
        value_parser = epoch::parse,
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
    /// The format of the trace.
    pub fn format(&self) -> TraceFormat {
        let output = self.output.as_deref();
        let by_name = match output.and_then(Path::extension) {
            Some(extension) if extension == "btrace" => TraceFormat::Btrace,
            _ => TraceFormat::Text,
        };
        self.format.unwrap_or(by_name)
    }

    /// Where the trace goes.
    pub fn trace_to(&self) -> TraceTo<'_> {
        match self.output.as_deref() {
            None => TraceTo::Stdout,
            Some(path) if path == "-" => TraceTo::Stdout,
            Some(path) if path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir() => {
                TraceTo::Directory(path)
            }
            Some(path) => TraceTo::File(path),
        }
    }

    /// What is written to standard output. Text is mixed there with the program's output. A format
    /// for machines is alone there.
    pub fn stdout_use(&self) -> StdoutUse {
        match (self.trace_to(), self.format()) {
            (TraceTo::File(_) | TraceTo::Directory(_), _) => StdoutUse::Program,
            (TraceTo::Stdout, TraceFormat::Text) => StdoutUse::Both,
            (TraceTo::Stdout, _) => StdoutUse::Trace,
        }
    }

    /// Whether each task gets a file.
    pub fn has_task_files(&self) -> bool {
        matches!(self.trace_to(), TraceTo::Directory(_))
    }

    /// The tasks to trace.
    pub fn followed(&self) -> FollowArg {
        let one_file = self.format() == TraceFormat::Raw && !self.has_task_files();
        let default = if one_file {
            FollowArg::None
        } else {
            FollowArg::All
        };
        self.follow.unwrap_or(default)
    }

    /// Makes the trace of a process that was started for `--report` the only output.
    pub fn redirect(&mut self) {
        if let Some(trace) = self.keep_for_report.take() {
            self.report_output = self.output.take();
            self.output = Some(trace);
            self.format = Some(TraceFormat::Btrace);
            self.report = None;
        }
    }

    /// Refuses options that make a trace impossible.
    ///
    /// # Errors
    /// The buffer is too small, or the format cannot have what was asked for.
    pub fn check(&self) -> Result<(), Failure> {
        let raw = self.format() == TraceFormat::Raw;
        if let TraceTo::Directory(directory) = self.trace_to()
            && !raw
        {
            return Err(anyhow::anyhow!(
                "--output {}: only --format raw can write to a directory",
                directory.display()
            )
            .into());
        }
        if raw && !self.has_task_files() && self.followed() != FollowArg::None {
            return Err(anyhow::anyhow!(
                "--follow: a raw file has the records of one task; --output DIR/ writes a file \
                 for each task, and --format json tells the tasks in one file"
            )
            .into());
        }
        self.filters.check(self.scope.into())?;
        let record = vbts_protocol::RECORD_SIZE as u64;
        if self.buffer.0 < record {
            return Err(
                anyhow::anyhow!("--buffer {}: a record takes {record} bytes", self.buffer).into(),
            );
        }
        Ok(())
    }
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
            assert_eq!(args.format(), TraceFormat::Text);
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
            (&["x"][..], FollowArg::All, true),
            (&["--follow", "threads", "x"], FollowArg::Threads, true),
            (&["--format", "raw", "x"], FollowArg::None, true),
            (
                &["--format", "raw", "--follow", "none", "x"],
                FollowArg::None,
                true,
            ),
            (
                &["--format", "raw", "--follow", "all", "x"],
                FollowArg::All,
                false,
            ),
            (
                &["--format", "raw", "--output", "new/", "x"],
                FollowArg::All,
                true,
            ),
            (
                &["--format", "raw", "--output", "/tmp", "x"],
                FollowArg::All,
                true,
            ),
            (&["--output", "/tmp", "x"], FollowArg::All, false),
        ] {
            let args = args(words);
            assert_eq!(args.followed(), followed, "{words:?}");
            assert_eq!(args.check().is_ok(), ok, "{words:?}");
        }
    }

    #[test]
    fn a_buffer_holds_a_record() {
        assert!(args(&["--buffer", "23", "x"]).check().is_err());
        assert!(args(&["--buffer", "24", "x"]).check().is_ok());
    }
}
