//! The sending half of the connection to the agent, which takes part in the machine's run.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGCONT, SIGINT, SIGQUIT, SIGTSTP};
use vbts_devices::virtio::console::Console;
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock};
use vbts_protocol::{Job, ToGuest};

use super::{Session, SessionError};
use crate::program::Terminal;
use vbts_host::exit::{Failure, say};
use vbts_host::input::ReadOutcome;
use vbts_host::{Alarm, Event, Input};
use vbts_vmm::board::Board;
use vbts_vmm::inputs::Inputs;
use vbts_vmm::machine::RunObserver;

/// The most input that one answer carries, in bytes.
const MAX_INPUT: usize = 64 << 10;
/// Interval in virtual time, in ns, at which input is read that was not available before.
const INPUT_CHECK_INTERVAL: u64 = 1_000_000;
/// Host time for which the guest may drain its buffers when the run ends early.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Index of the agent's port on its console device.
pub(super) const AGENT_PORT: usize = 0;

/// Cause that ends a run before the program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// A signal or the time limit.
    Event(Event),
    /// The program is in a deadlock.
    Deadlock,
}

/// Connects the agent inside the guest to the host: sends it the job, input and signals.
#[derive(Debug)]
pub struct AgentConnection {
    session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    /// The job until it is sent.
    job: Option<Job>,
    /// The guest's date at its boot, in seconds since 1970, if the job sets it.
    epoch: Option<i64>,
    /// What the program reads, by stream, with the bytes that the agent still waits for.
    inputs: BTreeMap<u32, (Input, u32)>,
    terminal: Option<Terminal>,
    /// Virtual time of the next attempt to read input that was not available.
    next_check: u64,
    /// Frames for which the port had no room yet.
    outbox: Vec<u8>,
    /// Bytes of `outbox` that are recorded.
    recorded: usize,
    /// Records what the agent gets.
    log: Inputs,
    alarm: Arc<Alarm>,
    /// The program was sent a signal.
    signalled: bool,
    /// Cause of the end of the run, for which the guest was asked to drain its buffers.
    ended_by: Option<EndedBy>,
    progress: Option<indicatif::ProgressBar>,
}

impl AgentConnection {
    /// A connection of `session` over `port`. The agent runs `job`, which reads `inputs`, by
    /// stream. `alarm` is that of the machine.
    pub fn new(
        session: Shared<Session>,
        port: Shared<MmioTransport<Console>>,
        job: Job,
        inputs: BTreeMap<u32, File>,
        alarm: Arc<Alarm>,
    ) -> Self {
        let inputs = inputs.into_iter();
        Self {
            session,
            port,
            epoch: job.epoch,
            job: Some(job),
            inputs: inputs
                .map(|(fd, file)| (fd, (Input::new(file), 0)))
                .collect(),
            terminal: None,
            next_check: 0,
            outbox: Vec::new(),
            recorded: 0,
            log: Inputs::default(),
            alarm,
            signalled: false,
            ended_by: None,
            progress: None,
        }
    }

    /// The program's terminal is `terminal`.
    pub fn connect_terminal(&mut self, mut terminal: Terminal) {
        terminal.update();
        self.terminal = Some(terminal);
    }

    /// Records what the agent gets.
    pub fn record(&mut self, inputs: Inputs) {
        self.log = inputs;
    }

    /// Shows the number of branches on `progress`.
    pub fn show_progress(&mut self, progress: indicatif::ProgressBar) {
        self.progress = Some(progress);
    }

    /// Returns the cause that has ended the run before the program did.
    pub fn ended_by(&self) -> Option<EndedBy> {
        self.ended_by
    }

    /// Asks the guest to drain its buffers and to end, because of `cause`. Returns whether it can.
    fn end(&mut self, board: &Board, cause: EndedBy) -> Result<bool, Failure> {
        if self.ended_by.is_some() || !lock(&self.session).has_started() {
            return Ok(false);
        }
        self.ended_by = Some(cause);
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
        let new = self.outbox.get(self.recorded..).unwrap_or_default();
        if !new.is_empty() {
            self.log.record_input(new);
        }
        let (taken, effects) = lock(&self.port).push_input(AGENT_PORT, &self.outbox);
        self.outbox.drain(..taken);
        self.recorded = self.outbox.len();
        board.apply(effects);
    }

    /// Sends what is available of the inputs that the agent waits for. Returns whether the user has
    /// pressed the keys that end the run.
    fn send_input(&mut self) -> Result<bool, Failure> {
        let mut ends = false;
        let Self {
            inputs,
            outbox,
            terminal,
            progress,
            ..
        } = self;
        for (fd, (input, wanted)) in inputs.iter_mut().filter(|(_, (_, wanted))| *wanted > 0) {
            let mut terminal = terminal.as_mut().filter(|t| t.stream() == *fd);
            // The program draws on its terminal from here on.
            if terminal.is_some()
                && let Some(progress) = progress.take()
            {
                progress.finish_and_clear();
            }
            let most = usize::try_from(*wanted).unwrap_or(usize::MAX);
            let mut bytes = vec![0; most.min(MAX_INPUT)];
            let outcome = match &mut terminal {
                Some(terminal) => terminal.read(input, &mut bytes),
                None => input.read(&mut bytes),
            };
            match outcome {
                ReadOutcome::Bytes(n) => {
                    *wanted = 0;
                    let bytes = bytes.get(..n).unwrap_or_default();
                    ends |= terminal.is_some_and(|t| t.take_keys(bytes));
                    ToGuest::Input { fd: *fd, bytes }.encode(outbox)?;
                }
                ReadOutcome::End => {
                    *wanted = 0;
                    ToGuest::InputEnd { fd: *fd }.encode(outbox)?;
                }
                ReadOutcome::NotReady => {}
            }
        }
        Ok(ends)
    }

    /// Handles what has happened at the terminal. The program is stopped if it has `stopped`
    /// itself.
    fn serve_terminal(&mut self, stopped: bool) -> Result<(), Failure> {
        let Some(terminal) = &mut self.terminal else {
            return Ok(());
        };
        if self.alarm.take_continued() {
            terminal.update();
        }
        let (mut stops, mut resized) = (stopped, self.alarm.take_resized());
        if self.alarm.take_suspended() {
            if lock(&self.session).has_started() {
                // The program stops, and with it vbts, unless it does not want to.
                ToGuest::Signal(SIGTSTP.unsigned_abs()).encode(&mut self.outbox)?;
            } else {
                stops = true;
            }
        }
        if stops {
            // The shell's prompt comes after it.
            lock(&self.session).wait_for_output();
            terminal.suspend();
            resized = true;
        }
        if stopped {
            ToGuest::Signal(SIGCONT.unsigned_abs()).encode(&mut self.outbox)?;
        }
        if resized && let Some(size) = terminal.size() {
            ToGuest::WindowSize(size).encode(&mut self.outbox)?;
        }
        Ok(())
    }

    /// Whether a signal is for the program. The first one is, which it may handle. So are all keys
    /// of its terminal (Ctrl-C), except that several in a row end the run.
    fn is_for_program(&mut self, signal: i32) -> bool {
        match &mut self.terminal {
            Some(terminal) if matches!(signal, SIGINT | SIGQUIT) => !terminal.take_signal(),
            _ => !std::mem::replace(&mut self.signalled, true),
        }
    }

    /// The guest's date, in ns since 1970, when its CLOCK_MONOTONIC is `time`.
    fn date(&self, time: u64) -> Option<i64> {
        let epoch = self.epoch?.checked_mul(1_000_000_000)?;
        epoch.checked_add(i64::try_from(time).ok()?)
    }

    /// Whether the agent waits for input.
    fn awaits_input(&self) -> bool {
        self.inputs.values().any(|(_, wanted)| *wanted > 0)
    }
}

impl RunObserver for AgentConnection {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        let mut session = lock(&self.session);
        let closed = session.take_closed().map_err(SessionError::into_failure)?;
        let (ready, wanted) = (session.is_ready(), session.take_wanted_input());
        let (time, stopped) = (session.take_time(), session.take_stopped());
        let deadlock = session.take_deadlock();
        if let Some(progress) = &self.progress {
            progress.set_position(session.records());
        }
        let note = session.take_waiting_note();
        drop(session);
        if let Some(note) = note {
            match &self.progress {
                Some(progress) => progress.suspend(|| say(note)),
                None => say(note),
            }
        }
        if let Some(date) = time.and_then(|time| self.date(time)) {
            board.guest_clock().set(date, now);
        }
        if ready && let Some(job) = self.job.take() {
            self.send(&ToGuest::Job(Box::new(job)))?;
        }
        for fd in closed {
            self.send(&ToGuest::OutputClosed { fd })?;
        }
        let asked = !wanted.is_empty();
        for (fd, request) in wanted {
            if let Some((_, wanted)) = self.inputs.get_mut(&fd) {
                *wanted = request.bytes;
            }
            if let Some(terminal) = self.terminal.as_mut().filter(|t| t.stream() == fd) {
                terminal.want(request.keys());
            }
        }
        if self.awaits_input() && (asked || now >= self.next_check) {
            self.next_check = now.saturating_add(INPUT_CHECK_INTERVAL);
            if self.send_input()? && !self.end(board, EndedBy::Event(Event::Signal(SIGINT)))? {
                return Err(Failure::Signal(SIGINT));
            }
        }
        if deadlock {
            self.end(board, EndedBy::Deadlock)?;
        }
        self.serve_terminal(stopped)?;
        self.flush(board);
        Ok(())
    }

    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        let Event::Signal(signal) = event else {
            return Ok(());
        };
        let can_take = self.ended_by.is_none() && lock(&self.session).has_started();
        if can_take && self.is_for_program(signal) {
            self.send(&ToGuest::Signal(signal.unsigned_abs()))?;
            self.flush(board);
            return Ok(());
        }
        if self.end(board, EndedBy::Event(event))? {
            return Ok(());
        }
        Err(Failure::Signal(signal))
    }

    fn outlasts_timeout(&mut self, board: &Board) -> Result<bool, Failure> {
        self.end(board, EndedBy::Event(Event::Timeout))
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        // Others read the terminal while vbts is a job in the background.
        let not_for_us = |fd| {
            let terminal = self.terminal.as_ref().filter(|t| t.stream() == fd);
            terminal.is_some_and(|terminal| !terminal.is_readable())
        };
        let awaited = self.inputs.iter();
        awaited
            .filter(|(fd, (input, wanted))| *wanted > 0 && input.is_open() && !not_for_us(**fd))
            .map(|(_, (input, _))| input.fd())
            .chain(self.terminal.as_ref().and_then(Terminal::pace))
            .collect()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.next_check = 0;
        lock(&self.session)
            .flush_line()
            .map_err(SessionError::into_failure)
    }
}
