//! The sending half of the connection to the agent, which takes part in the machine's run.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock};
use vbts_protocol::{Job, ToGuest};

use super::session::{Session, SessionError};
use crate::board::Board;
use crate::exit::{Failure, say};
use crate::host::input::ReadOutcome;
use crate::host::{Alarm, Event, Input};
use crate::machine::RunObserver;

/// The most standard input that one answer carries, in bytes.
const MAX_INPUT: usize = 64 << 10;
/// Interval in virtual time, in ns, at which input is read that was not available before.
const INPUT_CHECK_INTERVAL: u64 = 1_000_000;
/// Host time for which the guest may drain its buffers when the run ends early.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Index of the agent's port on its console device.
const AGENT_PORT: usize = 0;

/// Connects the agent inside the guest to the host: sends it the job, standard input and signals.
#[derive(Debug)]
pub struct AgentConnection {
    session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    /// The job until it is sent.
    job: Option<Job>,
    input: Input,
    /// Bytes of standard input that the agent still waits for.
    wanted: u64,
    /// Virtual time of the next attempt to read input that was not available.
    next_check: u64,
    /// Frames for which the port had no room yet.
    outbox: Vec<u8>,
    alarm: Arc<Alarm>,
    /// The program was sent a signal.
    signalled: bool,
    /// The event that ends the run, for which the guest was asked to drain its buffers.
    ended_by: Option<Event>,
    progress: Option<indicatif::ProgressBar>,
    /// Notes about the run are not shown.
    quiet: bool,
}

impl AgentConnection {
    /// A connection of `session` over `port`. The agent runs `job` with `input` as standard input.
    /// `alarm` is that of the machine.
    pub fn new(
        session: Shared<Session>,
        port: Shared<MmioTransport<Console>>,
        job: Job,
        input: Input,
        alarm: Arc<Alarm>,
    ) -> Self {
        Self {
            session,
            port,
            job: Some(job),
            input,
            wanted: 0,
            next_check: 0,
            outbox: Vec::new(),
            alarm,
            signalled: false,
            ended_by: None,
            progress: None,
            quiet: false,
        }
    }

    /// Shows the number of branches on `progress`.
    pub fn show_progress(&mut self, progress: indicatif::ProgressBar) {
        self.progress = Some(progress);
    }

    /// Does not show notes about the run.
    pub fn be_quiet(&mut self) {
        self.quiet = true;
    }

    /// The event that has ended the run before the program did.
    pub fn ended_by(&self) -> Option<Event> {
        self.ended_by
    }

    /// Asks the guest to drain its buffers and to end, because of `event`. Returns whether it can.
    fn end(&mut self, board: &Board, event: Event) -> Result<bool, Failure> {
        if self.ended_by.is_some() || !lock(&self.session).has_started() {
            return Ok(false);
        }
        self.ended_by = Some(event);
        lock(&self.session).expect_end();
        self.send(&ToGuest::End)?;
        self.flush(board);
        self.alarm.set_timer(Some(DRAIN_TIME));
        Ok(true)
    }

    fn send(&mut self, message: &ToGuest<'_>) -> Result<(), Failure> {
        message.encode(&mut self.outbox)?;
        Ok(())
    }

    fn flush(&mut self, board: &Board) {
        if self.outbox.is_empty() {
            return;
        }
        let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        board.apply(effects);
    }

    fn send_input(&mut self) -> Result<(), Failure> {
        let mut bytes = vec![
            0;
            usize::try_from(self.wanted)
                .unwrap_or(usize::MAX)
                .min(MAX_INPUT)
        ];
        match self.input.read(&mut bytes) {
            ReadOutcome::Bytes(n) => {
                self.wanted -= n as u64;
                self.send(&ToGuest::Stdin(bytes.get(..n).unwrap_or_default()))
            }
            ReadOutcome::End => {
                self.wanted = 0;
                self.send(&ToGuest::StdinEof)
            }
            ReadOutcome::NotReady => Ok(()),
        }
    }
}

impl RunObserver for AgentConnection {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        let mut session = lock(&self.session);
        if let Some(error) = session.take_error() {
            return Err(error.into_failure());
        }
        let (ready, wanted) = (session.is_ready(), session.take_wanted_input());
        if let Some(progress) = &self.progress {
            progress.set_position(session.records());
        }
        let note = session.take_waiting_note().filter(|_| !self.quiet);
        drop(session);
        if let Some(note) = note {
            match &self.progress {
                Some(progress) => progress.suspend(|| say(note)),
                None => say(note),
            }
        }
        if ready && let Some(job) = self.job.take() {
            self.send(&ToGuest::Job(Box::new(job)))?;
        }
        self.wanted = self.wanted.saturating_add(wanted);
        if self.wanted > 0 && (wanted > 0 || now >= self.next_check) {
            self.next_check = now.saturating_add(INPUT_CHECK_INTERVAL);
            self.send_input()?;
        }
        self.flush(board);
        Ok(())
    }

    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        let Event::Signal(signal) = event else {
            return Ok(());
        };
        // The first signal is for the program, which may handle it.
        if !self.signalled && self.ended_by.is_none() && lock(&self.session).has_started() {
            self.signalled = true;
            self.send(&ToGuest::Signal(signal.unsigned_abs()))?;
            self.flush(board);
            return Ok(());
        }
        if self.end(board, event)? {
            return Ok(());
        }
        Err(Failure::Signal(signal))
    }

    fn outlasts_timeout(&mut self, board: &Board) -> Result<bool, Failure> {
        self.end(board, Event::Timeout)
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        let input = (self.wanted > 0 && self.input.is_open()).then(|| self.input.fd());
        input.into_iter().collect()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.next_check = 0;
        lock(&self.session)
            .flush_line()
            .map_err(SessionError::into_failure)
    }
}
