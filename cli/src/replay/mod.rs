//! `vbts replay`: runs a recording again, without anything of the host.
//!
//! | module | contents |
//! |---|---|
//! | `run` | the run, and its comparison with the recorded one |
//! | `machine` | the run of a machine of the user |
//! | `place` | where a replay is that differs |
//! | `records` | the branches of the whole machine |
//! | `trace` | a trace or reports of a recording |
//! | `observed` | the machine of a recorded program, for a debugger or a list of its system calls |
//! | `options` | options of the machine, also of `vbts debug` |
//! | `kept` | traces of recordings, which are kept for `vbts report` |

mod kept;
mod machine;
mod observed;
mod options;
mod place;
mod records;
mod run;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use vbts_capture::TraceFormat;
use vbts_host::exit::{Failure, say};
use vbts_protocol::{Follow, Scope};
use vbts_vmm::config::MachineConfig;

use crate::filters::FilterArgs;
use crate::options::{EXIT_STATUS, is_btrace, named, seconds, start_logging};
use crate::report::{ReportParser, ReportRequest};
pub(crate) use kept::{is_recording, report};
pub(crate) use observed::ObservedMachine;
pub(crate) use options::ReplayedMachineArgs;
use records::Opened;
use run::{Branches, ProgramOutput, Replay, TaskTrace};

/// Arguments of `vbts replay`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct ReplayArgs {
    /// Recording that vbts record has made
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print nothing that the program has printed, and only compare the run with the recorded one
    #[arg(long)]
    pub check: bool,
    /// Print no messages except errors
    #[arg(long)]
    pub quiet: bool,
    /// Write the branches of the program as vbts trace does (default: none, or btrace if the name
    /// of the output ends with .btrace)
    #[arg(long, value_parser = named::<TraceFormat>(), value_name = "FORMAT", conflicts_with = "check", help_heading = "Trace options")]
    pub format: Option<TraceFormat>,
    /// Write the branches to FILE. By default they go to standard output, and the output of the
    /// program to standard error
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with = "check",
        help_heading = "Trace options"
    )]
    pub output: Option<PathBuf>,
    /// Answer a question, as `vbts report` does: to --output, or to standard output after the
    /// program has ended. WHAT can be followed by options of the report, and --report can be
    /// repeated
    #[arg(long, value_parser = ReportParser, value_name = "WHAT", conflicts_with_all = ["format", "check"], help_heading = "Trace options")]
    pub report: Vec<ReportRequest>,
    /// Which branches to record (default: user; all for --record and of a machine)
    #[arg(long, value_parser = named::<Scope>(), help_heading = "Trace options")]
    pub scope: Option<Scope>,
    /// Which processes and threads to trace (default: all; none for raw, which has the records of
    /// one task)
    #[arg(long, value_parser = named::<Follow>(), value_name = "TASKS", help_heading = "Trace options")]
    pub follow: Option<Follow>,
    /// Also show when each task arrives on a processor and departs from it, in ns
    #[arg(long, help_heading = "Trace options")]
    pub sched: bool,
    /// Which branches to show.
    #[command(flatten)]
    pub filters: FilterArgs,
    /// Write the branches of the whole machine to a btrace file, as vbts run --record does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "output", "report", "check"], help_heading = "Trace options")]
    pub record: Option<PathBuf>,
    /// Machine options.
    #[command(flatten)]
    pub machine: ReplayedMachineArgs,
    /// End the replay after this much host time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = "Machine options")]
    pub timeout: Option<Duration>,
}

impl ReplayArgs {
    /// What the recording does not say of the machine.
    fn machine(&self) -> MachineConfig {
        MachineConfig {
            time_limit: self.timeout,
            ..self.machine.config()
        }
    }

    /// The format of the branches; `None` if none are written.
    ///
    /// # Errors
    /// The output has no format.
    fn format(&self) -> anyhow::Result<Option<TraceFormat>> {
        match (self.format, self.output.as_deref()) {
            (Some(format), _) => Ok(Some(format)),
            (None, None) => Ok(None),
            (None, Some(path)) if is_btrace(path) => Ok(Some(TraceFormat::Btrace)),
            (None, Some(_)) => Err(anyhow!(
                "--output: --format says what to write there: text, json, raw or btrace"
            )),
        }
    }

    /// The branches to record.
    fn scope(&self) -> Scope {
        match (self.scope, &self.record) {
            (Some(scope), _) => scope,
            (None, Some(_)) => Scope::All,
            (None, None) => kept::default_scope(&self.file),
        }
    }

    /// The trace of the tasks in the file `path`.
    fn trace(&self, path: Option<PathBuf>, default: Follow) -> TaskTrace {
        TaskTrace {
            path,
            scope: self.scope(),
            follow: self.follow.unwrap_or(default),
            sched: self.sched,
            signal: self.filters.until_signal,
        }
    }

    fn replay(&self, branches: Branches, program_output: ProgramOutput) -> Replay {
        Replay {
            file: self.file.clone(),
            machine: self.machine(),
            branches,
            program_output,
            quiet: self.quiet || self.check,
        }
    }
}

/// Runs the command. The exit status is that of the recorded run.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &ReplayArgs) -> Result<u8, Failure> {
    start_logging(args.machine.log);
    if !args.report.is_empty() {
        return trace::reports(args);
    }
    let format = args.format()?;
    let program_output = match (args.check, format, &args.output) {
        (true, ..) => ProgramOutput::Nowhere,
        (false, Some(_), None) => ProgramOutput::Stderr,
        _ => ProgramOutput::Streams,
    };
    let branches = match (format, &args.record) {
        (Some(TraceFormat::Btrace), _) => {
            trace::check_no_filters(args, "--format btrace")?;
            Branches::Tasks(args.trace(args.output.clone(), Follow::All))
        }
        (Some(format), _) => return trace::show(args, format, program_output),
        (None, Some(path)) => {
            trace::check_no_filters(args, "--record")?;
            Branches::Machine(Opened::new(args.scope(), path)?)
        }
        (None, None) => {
            trace::check_no_filters(args, "a replay without a trace")?;
            Branches::None
        }
    };
    let replayed = args.replay(branches, program_output).run()?;
    let status = replayed.status(&args.file)?;
    if !args.check {
        return Ok(status);
    }
    if !args.quiet {
        say(format_args!(
            "{}: {} instructions, as in the recorded run, whose status was {status}",
            args.file.display(),
            replayed.instructions
        ));
    }
    Ok(0)
}
