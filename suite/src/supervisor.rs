//! Boots guests and waits for what they do next: print a line, end, or exceed a limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Needs;
use super::guest::{Guest, GuestEnd, Settings};
use super::source::Contents;
use vbts_host::exit::Failure;
use vbts_host::{Alarm, Event, EventLoop, Output, OutputError};

/// Lines of the console that a message shows.
const TAIL_LINES: usize = 30;
/// A time that is longer than any run: 30 years.
const NO_LIMIT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Boots guests, one at a time, and keeps the console of all of them in one log.
#[derive(Debug)]
pub(crate) struct Supervisor {
    settings: Settings,
    alarm: Arc<Alarm>,
    log: Output,
    /// The last lines of the console.
    tail: VecDeque<String>,
    /// Guests so far.
    guests: u32,
}

/// A guest that was booted, with lines of its console that are not processed yet.
#[derive(Debug)]
pub(crate) struct SupervisedGuest {
    /// `None` after its end.
    guest: Option<Guest>,
    lines: VecDeque<String>,
    events: EventLoop,
}

/// What a guest does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// It prints a line.
    Line(String),
    /// It ends, or has to be ended.
    End(GuestEnd),
}

impl Supervisor {
    /// A supervisor of guests that have `settings`. Their console is written to `log`.
    pub(crate) fn new(settings: Settings, alarm: Arc<Alarm>, log: Output) -> Self {
        Self {
            settings,
            alarm,
            log,
            tail: VecDeque::new(),
            guests: 0,
        }
    }

    /// Selects the kernel and the machine of the guests that follow.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(crate) fn select(&mut self, settings: Settings) -> Result<(), Failure> {
        self.settings = settings;
        let Settings {
            machine, kernel, ..
        } = &self.settings;
        let (kernel, model) = (kernel.display(), &machine.model);
        let title = format!("=== kernel {kernel}, {model}, {}", machine.processors);
        self.write_log(&title)
    }

    /// What the guests have.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Host time that a case may take.
    pub(crate) fn case_limit(&self) -> Duration {
        self.settings.limit
    }

    /// The last lines of the console.
    pub(crate) fn tail(&self) -> String {
        self.tail
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }

    /// Boots a guest with `contents` on a machine for `needs`. `title` is its title in the log.
    ///
    /// # Errors
    /// The process of the guest cannot be started, or the log cannot be written.
    pub(crate) fn boot(
        &mut self,
        needs: Needs,
        contents: &Contents,
        title: &str,
    ) -> Result<SupervisedGuest, Failure> {
        self.guests += 1;
        self.write_log(&format!("=== guest {}: {title}", self.guests))?;
        Ok(SupervisedGuest {
            guest: Some(Guest::boot(&self.settings, needs, contents)?),
            lines: VecDeque::new(),
            events: EventLoop::new(self.alarm.clone())?,
        })
    }

    /// Waits for what `guest` does next. The limit of a case counts from `since`.
    ///
    /// # Errors
    /// The console cannot be read, the log cannot be written, or the process of the guest fails.
    pub(crate) fn next(
        &mut self,
        guest: &mut SupervisedGuest,
        since: Instant,
    ) -> Result<Next, Failure> {
        let deadline = self.deadline(since);
        loop {
            if let Some(line) = guest.lines.pop_front() {
                self.keep(&line)?;
                return Ok(Next::Line(line));
            }
            if self.alarm.is_pending()
                && let Some(event) = self.alarm.take()
            {
                return Ok(Next::End(GuestEnd::Interrupted(event)));
            }
            let Some(process) = &mut guest.guest else {
                return Ok(Next::End(GuestEnd::TimedOut));
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(Next::End(GuestEnd::TimedOut));
            }
            if !guest.events.wait(&[process.fd()], Some(remaining))?.input {
                continue;
            }
            if !process.read(&mut guest.lines)?
                && guest.lines.is_empty()
                && let Some(process) = guest.guest.take()
            {
                return Ok(Next::End(process.wait()?));
            }
        }
    }

    fn deadline(&self, since: Instant) -> Instant {
        // No clock can represent a very long limit.
        since
            .checked_add(self.settings.limit)
            .unwrap_or(since + NO_LIMIT)
    }

    fn keep(&mut self, line: &str) -> Result<(), Failure> {
        self.write_log(line)?;
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
        Ok(())
    }

    fn write_log(&mut self, line: &str) -> Result<(), Failure> {
        self.log
            .write(format!("{line}\n").as_bytes())
            .map_err(OutputError::into_failure)
    }

    /// The failure of a command that `event` has ended.
    pub(crate) fn failure_of(&self, event: Event) -> Failure {
        match event {
            Event::Timeout => Failure::Timeout {
                after: self.alarm.limit().unwrap_or_default(),
                console: Some(self.tail()),
            },
            Event::Signal(signal) => Failure::Signal(signal),
        }
    }
}
