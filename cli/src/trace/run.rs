//! The run of a trace, and what it prints at its end.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use vbts_devices::{Shared, lock};
use vbts_protocol::{ExitStatus, Scope};

use super::guest::TracedGuest;
use crate::recording::NewRecording;
use crate::{options, stats};
use vbts_capture::output::{StdoutUse, TraceTo};
use vbts_capture::{Notes, RunEnd, Session, SessionError, Summary, TraceConfig};
use vbts_host::exit::{Failure, say, signal_name, status};
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::Machine;

/// Traces the program of `config`. Returns its exit status.
///
/// # Errors
/// See [`Failure`].
pub(super) fn run(config: &TraceConfig) -> Result<u8, Failure> {
    run_recorded(config, None)
}

/// Traces the program of `config`, and keeps the inputs of the run in `recording`. Returns its exit
/// status.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn run_recorded(
    config: &TraceConfig,
    recording: Option<&NewRecording>,
) -> Result<u8, Failure> {
    let began = Instant::now();
    options::start_logging(config.machine.log);
    let launch = Launch::new(&config.machine, false)?;
    let guest = TracedGuest::new(config, recording, launch)?;
    let (session, shared_writes) = (guest.session.clone(), guest.shared_writes.clone());
    let (machine, failure) = guest.run(config.stats)?;
    let outcome = finish(config, &machine, &session, failure, began);
    let outcome = shared_writes.conclude(outcome);
    match recording {
        Some(recording) => recording.end(&machine, outcome),
        None => outcome,
    }
}

/// Finishes the trace of a run that has ended, with `failure` if the program did not end it.
/// Returns the exit status of the program.
///
/// # Errors
/// The run or its trace has failed.
pub(crate) fn finish(
    config: &TraceConfig,
    machine: &Machine,
    session: &Shared<Session>,
    failure: Option<Failure>,
    began: Instant,
) -> Result<u8, Failure> {
    let mut session = lock(session);
    let end = failure.as_ref().map_or(RunEnd::Panic, RunEnd::of_failure);
    let interrupted = failure.as_ref().is_some_and(Failure::is_interruption);
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
    let exit = summary.as_ref().and_then(|summary| summary.end.exit());
    let memory = config.machine.memory;
    if let Some(process) = machine.killed_for_memory() {
        say(format_args!(
            "the guest ran out of memory, and its kernel killed process {process}; \
             more --memory than {memory} may help"
        ));
    } else if exit != Some(0)
        // A program that ends well has done without.
        && let Some((process, bytes)) = machine.refused_memory()
    {
        say(format_args!(
            "the guest's kernel refused process {process} an allocation of {bytes} bytes, which \
             is more than its memory; more --memory than {memory} may help"
        ));
    }
    match &summary {
        Some(summary) => report(config, summary, session.notes(), took),
        None if session.has_started() && config.output != TraceTo::Nowhere => {
            say(session.written());
        }
        None => {}
    }
    let mut notes = summary.iter().flat_map(|summary| &summary.filter_notes);
    let names_are_unknown = notes.any(|note| note.is_error);
    match (failure, summary.and_then(|summary| summary.end.exit())) {
        (Some(failure), _) => Err(failure),
        (None, Some(exit)) => {
            if config.stats {
                stats::print(machine, session.writing(), took);
            }
            // The trace has not what the user has asked for, also if the program has succeeded.
            Ok(if names_are_unknown {
                status::ERROR
            } else {
                exit
            })
        }
        (None, None) => Err(machine.crashed("the guest ended before the program did")),
    }
}

/// Prints the end of the program, notes, and the numbers of the trace on standard error.
fn report(config: &TraceConfig, summary: &Summary, notes: &Notes, took: Duration) {
    report_lost(config.scope, summary);
    for note in &summary.filter_notes {
        say(&note.text);
    }
    if config.quiet {
        return;
    }
    let name = config
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
    if config.output == TraceTo::Nowhere {
        return;
    }
    // On standard output, text and JSON have the summary already.
    if config.stdout_use() == StdoutUse::Program || config.format.is_binary() {
        say(format_args!("{summary} ({:.1} s)", took.as_secs_f64()));
    }
}

fn report_lost(scope: Scope, summary: &Summary) {
    if summary.lost == 0 {
        return;
    }
    let lost = summary.lost;
    let least = if summary.lost_more { "at least " } else { "" };
    let help = match scope {
        Scope::User => "a larger --buffer may help",
        Scope::Kernel | Scope::All => "more --memory or a larger --buffer may help",
    };
    say(format_args!("{least}{lost} branches were lost; {help}"));
}
