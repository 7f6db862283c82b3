//! The end of a run whose run loop does not answer a signal or the time limit. The thread of the
//! watchdog executes it.

use std::time::Duration;

use vbts_devices::Shared;

use vbts_capture::program::Restorer;
use vbts_capture::{RunEnd, Writer};
use vbts_host::exit::{Failure, say};
use vbts_host::{Alarm, Event};
use vbts_vmm::console::Console;

/// Time for which a reader of the console that does not read can delay the end.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The failure of a run that `event` ends. `limit` is the time limit.
pub(crate) fn failure(event: Event, limit: Option<Duration>) -> Failure {
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
pub(crate) fn finish_trace(writer: &Writer, terminal: &Restorer, failure: &Failure, reports: bool) {
    let end = RunEnd::of_failure(failure);
    let (summary, error) = writer.finish(end, false, failure.is_interruption());
    terminal.restore();
    match (summary, error) {
        (Some(summary), None) if reports => say(&summary),
        (Some(_), None) => {}
        _ => say(writer.written()),
    }
}

/// Writes the last line of the console, unless the stuck thread does that.
pub(crate) fn flush_console(console: &Shared<Console>, alarm: &Alarm) {
    alarm.set_timer(Some(READER_TIMEOUT));
    if let Ok(mut console) = console.try_lock() {
        console.flush();
    }
}

/// Ends the process with this failure.
pub(crate) fn end(failure: &Failure) {
    say("a thread that runs the guest does not answer; another one has ended the run");
    failure.report();
    std::process::exit(failure.status().into())
}

/// Ends the process although the functions above have not: the stuck thread holds a lock that one
/// of them needs. The trace or the recording may have no end.
pub(crate) fn give_up(event: Event) {
    let message = b"vbts: a thread that runs the guest does not answer, and holds up the end of \
        the output: that may be incomplete\n";
    // Not through `std`, which locks standard error.
    let _ = rustix::io::write(rustix::stdio::stderr(), message);
    let status = failure(event, None).status();
    // SAFETY: the call ends all threads at once. What must run before the end of the process, such
    // as handlers of exit(3), may need the lock.
    unsafe { libc::_exit(status.into()) }
}
