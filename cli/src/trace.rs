//! `vbts trace`: runs a program of the host in a guest and prints every branch that it takes.

mod args;
mod epoch;
mod filters;
mod format;
mod job;
mod prepared;
pub mod report;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use vbts_devices::lock;
use vbts_protocol::ExitStatus;

use self::args::{ScopeArg, TraceFormat};
use self::prepared::Prepared;
use super::{options, stats};
pub use args::TraceArgs;
pub use filters::FilterArgs;
pub(super) use format::add_kernel;
use vbts_capture::destination::StdoutUse;
use vbts_capture::{Notes, RunEnd, SessionError, Summary};
use vbts_host::exit::{Failure, say, signal_name, status};
use vbts_host::whole_file;
use vbts_vmm::config::trace_model;
use vbts_vmm::launch::Launch;

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &TraceArgs) -> Result<u8, Failure> {
    let began = Instant::now();
    let mut config = args.machine.config(trace_model());
    config.root.get_or_insert_with(|| "/".into());
    options::start_logging(config.log);
    let launch = Launch::new(&config, false)?;
    let prepared = Prepared::new(args, launch)?;
    let (session, shared_writes) = (prepared.session.clone(), prepared.shared_writes.clone());
    let (machine, failure) = prepared.run(args.stats)?;
    let mut session = lock(&session);
    let (end, interrupted) = failure.as_ref().map_or((RunEnd::Panic, false), end_of);
    let (summary, error) = session.finish(end, interrupted);
    let failure = match (failure, error.map(SessionError::into_failure)) {
        // The first failure decides the exit status.
        (Some(failure), error) => {
            if let Some(Failure::Error(error)) = error {
                say(format_args!("{error:#}"));
            }
            Some(failure)
        }
        (None, error) => error.map(|failure| machine.name_interrupted_trace(failure)),
    };
    let took = began.elapsed();
    if let Some(process) = machine.killed_for_memory() {
        say(format_args!(
            "the guest ran out of memory, and its kernel killed process {process}; \
             more --memory than {} may help",
            config.memory
        ));
    }
    match &summary {
        Some(summary) => report(args, summary, session.notes(), took),
        None if session.has_started() => say(session.written()),
        None => {}
    }
    let outcome = match (failure, summary.and_then(|summary| summary.end.exit())) {
        (Some(failure), _) => Err(failure),
        (None, Some(exit)) => {
            if args.stats {
                stats::print(&machine, session.writing(), took);
            }
            Ok(exit)
        }
        (None, None) => Err(machine.crashed("the guest ended before the program did")),
    };
    shared_writes.conclude(outcome)
}

/// How a run ended that failed so, and whether its output may have a reader that does not read.
pub(super) fn end_of(failure: &Failure) -> (RunEnd, bool) {
    match failure {
        Failure::Timeout { .. }
        | Failure::WritingTimeout { .. }
        | Failure::ReportTimeout { .. } => (RunEnd::Timeout, true),
        Failure::Signal(signal_hook::consts::SIGPIPE) => (RunEnd::Error, true),
        Failure::Signal(_) | Failure::Interrupted | Failure::Quit => (RunEnd::Interrupted, true),
        Failure::Guest { .. } => (RunEnd::Panic, false),
        Failure::Error(_)
        | Failure::Host(_)
        | Failure::NotFound(_)
        | Failure::NotExecutable(_)
        | Failure::Killed(_) => (RunEnd::Error, false),
    }
}

/// Opens `path` if it is an ELF file. A bzImage is none.
pub(super) fn elf_file(path: &Path) -> Option<File> {
    let file = whole_file::open(path).ok()?;
    let mut magic = [0; 4];
    (file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF").then_some(file)
}

/// Prints the end of the program, notes, and the numbers of the trace on standard error.
fn report(args: &TraceArgs, summary: &Summary, notes: &Notes, took: Duration) {
    report_lost(args, summary);
    summary.filter_notes.iter().for_each(say);
    if args.quiet {
        return;
    }
    let name = args
        .program
        .first()
        .map_or(OsStr::new(""), |name| name)
        .display();
    match summary.end {
        RunEnd::Program(ExitStatus::Signal(signal)) => {
            say(format_args!(
                "{name} was killed by {}",
                signal_name(signal.into())
            ));
        }
        RunEnd::Program(ExitStatus::Code(
            code @ (status::TIMEOUT
            | status::ERROR
            | status::HOST
            | status::NOT_FOUND
            | status::GUEST),
        )) => say(format_args!("{name} itself ended with status {code}")),
        _ => {}
    }
    notes.at_end().for_each(say);
    // On standard output, text and JSON have the summary already.
    let is_binary = matches!(args.format(), TraceFormat::Raw | TraceFormat::Btrace);
    if args.stdout_use() == StdoutUse::Program || is_binary {
        say(format_args!("{summary} ({:.1} s)", took.as_secs_f64()));
    }
}

fn report_lost(args: &TraceArgs, summary: &Summary) {
    if summary.lost == 0 {
        return;
    }
    let lost = summary.lost;
    let least = if summary.lost_more { "at least " } else { "" };
    let help = match args.scope {
        ScopeArg::User => "a larger --buffer may help",
        ScopeArg::Kernel | ScopeArg::All => "more --memory or a larger --buffer may help",
    };
    say(format_args!("{least}{lost} branches were lost; {help}"));
}
