//! The receiving half of the connection to the agent: its messages become work for the thread that
//! writes the trace.
//!
//! | module | contents |
//! |---|---|
//! | `receive` | messages: changes of the state, and work |
//! | `messages`, `error` | the contents of messages, and what is wrong with them |
//! | `notes` | processes that outlive the program, and files whose changes are lost |
//! | `agent_connection` | the other half: sends the job, standard input and signals |
//! | `replay_connection` | the other half in a replay |
//! | `host_recorder`, `logged_records` | records of the host, for a guest that has none |

mod agent_connection;
mod error;
mod host_recorder;
mod logged_records;
mod messages;
mod notes;
mod receive;
mod recorded_input;
mod replay_connection;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use vbts_cpu::BranchLog;
use vbts_devices::GuestRam;
use vbts_protocol::{Decoder, ExitStatus};
use vbts_trace::Event;

pub use agent_connection::{AgentConnection, EndedBy};
pub use error::SessionError;
use host_recorder::HostRecorder;
pub use host_recorder::HostRecording;
pub use notes::Notes;
pub(crate) use receive::InputWanted;
pub use recorded_input::RecordedInput;
pub use replay_connection::ReplayConnection;

use crate::output::stderr_is_file;
use crate::pipeline::merge::AgentEvent;
use crate::pipeline::queue::Work;
use crate::pipeline::{Options, Writer};
use crate::program::{Positions, Restorer};
use crate::records::Records;
use crate::summary::{RunEnd, Summary, Written};
use vbts_host::Alarm;
use vbts_vmm::inputs::Inputs;

/// Where the records of the traced tasks come from.
#[derive(Debug, Default)]
enum RecordSource {
    /// The guest's kernel.
    #[default]
    Guest,
    /// A log of the processors. Messages wait until the log is read up to them.
    Host(Box<HostRecorder>),
    /// Nothing: the host records later, in a replay, and tasks mean nothing now.
    Later,
}

impl RecordSource {
    /// Returns whether the trace has code of a process.
    fn has_process(&self, process: u32) -> bool {
        match self {
            Self::Guest => true,
            Self::Host(recorder) => recorder.has_process(process),
            Self::Later => false,
        }
    }
}

/// Receives what the agent sends through the guest's console port.
pub struct Session {
    decoder: Decoder,
    memory: GuestRam,
    is_32_bit: bool,
    source: RecordSource,
    /// Messages wait for the log.
    has_waiting: bool,
    /// Records of a task that the agent has not confirmed yet.
    records: Option<(u32, Records)>,
    /// Number of messages about records that stay in the guest's memory.
    mapped: u64,
    writer: Writer,
    /// The agent is ready for a job.
    ready: bool,
    /// The program has started.
    started: bool,
    /// The guest's CLOCK_MONOTONIC in the last message that had it, until it is taken.
    time: Option<u64>,
    /// The program has stopped at its terminal.
    stopped: bool,
    /// The program is in a deadlock.
    deadlock: bool,
    /// The last requests for input since the last [`Session::take_wanted_input`], by stream.
    wanted_input: BTreeMap<u32, InputWanted>,
    positions: Positions,
    ending: Option<ExitStatus>,
    /// The agent has drained everything because the host has ended the run.
    ended: bool,
    notes: Notes,
    /// Notes go to standard error.
    reports: bool,
    terminal: Option<Restorer>,
    inputs: Inputs,
    error: Option<SessionError>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("records", &self.writer.records())
            .field("started", &self.started)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Starts a session with a guest that has `memory`. `positions` are those of the regular files
    /// that the program has open. `alarm` interrupts waits for a slow reader.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub fn start(
        memory: GuestRam,
        options: Options,
        positions: Positions,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        Ok(Self {
            decoder: Decoder::new(),
            memory,
            is_32_bit: options.is_32_bit,
            source: RecordSource::default(),
            has_waiting: false,
            records: None,
            mapped: 0,
            reports: options.reports,
            writer: Writer::start(options, alarm.clone())?,
            ready: false,
            started: false,
            time: None,
            stopped: false,
            deadlock: false,
            wanted_input: BTreeMap::new(),
            positions,
            ending: None,
            ended: false,
            notes: Notes::default(),
            terminal: None,
            inputs: Inputs::default(),
            error: None,
        })
    }

    /// Notes what the agent sends in a recording, or compares it with one.
    pub fn set_inputs(&mut self, inputs: Inputs) {
        self.inputs = inputs;
    }

    /// How the program ended, or `None` if it has not.
    pub fn ending(&self) -> Option<ExitStatus> {
        self.ending
    }

    /// Has the records of the traced tasks come from the log that this returns.
    pub fn record(&mut self, wanted: HostRecording) -> Box<BranchLog> {
        let recorder = HostRecorder::new(wanted);
        let log = recorder.log();
        self.source = RecordSource::Host(Box::new(recorder));
        log
    }

    /// Ignores the traced tasks, whose records the host makes in a replay.
    pub fn record_later(&mut self) {
        self.source = RecordSource::Later;
    }

    /// Whether messages wait until the log is read up to them.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting
    }

    /// Receives the messages that have waited, at `now`, a time of the machine in ns. The log is
    /// read up to here.
    pub(crate) fn receive_waiting(&mut self, now: u64) {
        let RecordSource::Host(recorder) = &mut self.source else {
            return;
        };
        recorder.advance_to(now);
        let old = recorder.old_records();
        let is_waiting = std::mem::take(&mut self.has_waiting);
        let mut received = self.put_events(old);
        if received.is_ok() && is_waiting {
            received = self.take_messages();
        }
        if let Err(error) = received {
            self.error.get_or_insert(error);
        }
    }

    /// Receives the last records of the log, at the end of the run, which is at `now`.
    pub fn end_log(&mut self, now: u64) {
        self.receive_waiting(now);
        if let RecordSource::Host(recorder) = &mut self.source {
            let last = recorder.last_records();
            if let Err(error) = self.put_events(last) {
                self.error.get_or_insert(error);
            }
        }
    }

    fn put_events(&mut self, events: Vec<AgentEvent>) -> Result<(), SessionError> {
        for event in events {
            self.writer.put(Work::Agent(event))?;
        }
        Ok(())
    }

    /// The thread that writes the trace, for a thread that cannot wait for this session.
    pub fn writer(&self) -> Writer {
        self.writer.clone()
    }

    /// The notes about the run.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// The note that the run waits for processes that the program has left, once it is due.
    pub(crate) fn take_waiting_note(&mut self) -> Option<String> {
        let note = self.notes.take_waiting();
        note.filter(|_| self.reports && !stderr_is_file())
    }

    /// Host time so far in which the trace was formatted and written.
    pub fn writing(&self) -> Duration {
        self.writer.busy()
    }

    /// Prepares for the records that the guest drains when the run ends early.
    pub(crate) fn expect_end(&mut self) {
        self.writer.expect_end();
    }

    /// Adds what the file of the guest's kernel lacks, as
    /// [`crate::kernel_code::KernelText::events`] returns it.
    pub fn add_kernel(&mut self, events: Vec<Event>) {
        let mut events = events.into_iter();
        let put = events.try_for_each(|event| self.writer.put(Work::Event(event)));
        if let Err(error) = put {
            self.error.get_or_insert(error.into());
        }
    }

    /// Blocks until the trace and its summary are written. `end` says how the run ended if the
    /// program did not. If the run was `interrupted`, the wait for a reader that does not read is
    /// short. A further event of the alarm ends the trace.
    ///
    /// Returns the summary, if the trace has its end, and why the session has failed, if it has and
    /// the run loop has not taken the error.
    pub fn finish(
        &mut self,
        end: RunEnd,
        interrupted: bool,
    ) -> (Option<Summary>, Option<SessionError>) {
        self.positions.settle();
        let end = self.ending.map_or(end, RunEnd::Program);
        let drained = self.ended || self.ending.is_some();
        let (summary, error) = self.writer.finish(end, drained, interrupted);
        // The writer has done so, unless it is stuck.
        if let Some(terminal) = self.terminal.take() {
            terminal.restore();
        }
        // The guest may have ended before the run loop has looked for an error.
        let error = self.error.take().or(error.map(SessionError::from));
        (summary, error)
    }

    /// Returns whether the agent is ready for a job.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns whether the program has started.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Returns the guest's CLOCK_MONOTONIC in ns, if a message since the last call had it. The
    /// agent has read it just before.
    pub(crate) fn take_time(&mut self) -> Option<u64> {
        self.time.take()
    }

    /// Returns whether the program has stopped at its terminal since the last call.
    pub(crate) fn take_stopped(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// Returns whether the program has come into a deadlock since the last call.
    pub(crate) fn take_deadlock(&mut self) -> bool {
        std::mem::take(&mut self.deadlock)
    }

    /// Returns the last requests for input since the last call, by stream.
    pub(crate) fn take_wanted_input(&mut self) -> BTreeMap<u32, InputWanted> {
        std::mem::take(&mut self.wanted_input)
    }

    /// Returns the streams of the program whose readers have closed them since the last call.
    ///
    /// # Errors
    /// The session has ended with an error, which is returned once.
    pub(crate) fn take_closed(&mut self) -> Result<Vec<u32>, SessionError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.writer.take_closed()?),
        }
    }

    /// Branches so far.
    pub fn records(&self) -> u64 {
        self.writer.records()
    }

    /// What is written of a trace that has no end.
    pub fn written(&self) -> Written {
        self.writer.written()
    }

    /// Restores the terminal after all output of the program so far, or in [`Session::finish`].
    pub fn restore_terminal(&mut self, restorer: Restorer) {
        self.terminal = Some(restorer.clone());
        // A writer that has failed writes nothing, so that the terminal can be restored now.
        let failed = self.writer.put(Work::RestoreTerminal(restorer.clone()));
        if failed.is_err() {
            restorer.restore();
        }
    }

    /// Blocks until what the program has written so far is written, for at most a second.
    pub(crate) fn wait_for_output(&self) {
        self.writer.wait_for_output();
    }

    /// Writes the program's unfinished line, which may be a prompt.
    pub(crate) fn flush_line(&self) -> Result<(), SessionError> {
        Ok(self.writer.put(Work::FlushLine)?)
    }
}

#[cfg(test)]
mod tests;
