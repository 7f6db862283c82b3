//! The end of a run whose run loop does not answer a signal or the time limit. The thread of the
//! watchdog executes it.

use std::time::Duration;

use super::trace::end_of;
use crate::exit::{Failure, say};
use crate::host::Event;
use crate::trace::Writer;
use crate::trace::terminal::Restorer;

/// The failure of a run that `event` ends. `limit` is the time limit.
pub fn failure(event: Event, limit: Option<Duration>) -> Failure {
    match event {
        Event::Timeout => Failure::Timeout {
            after: limit.unwrap_or_default(),
            console: None,
        },
        Event::Signal(signal) => Failure::Signal(signal),
    }
}

/// Finishes the trace of a run that failed so, as far as its thread has got it. It prints the
/// summary if it `reports`.
pub fn finish_trace(writer: &Writer, terminal: &Restorer, failure: &Failure, reports: bool) {
    let (end, interrupted) = end_of(failure);
    let (summary, error) = writer.finish(end, false, interrupted);
    terminal.restore();
    match (summary, error) {
        (Some(summary), None) if reports => say(&summary),
        (Some(_), None) => {}
        _ => say(writer.written()),
    }
}

/// Ends the process with this failure.
pub fn end(failure: &Failure) {
    say("the thread that runs the guest does not answer; another one has ended the run");
    failure.report();
    std::process::exit(failure.status().into())
}
