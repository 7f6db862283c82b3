//! Runs cases: a guest for each group, and another guest for the rest of a group when a case has
//! ended the one before.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::group::{Group, TIME_LIMIT};
use super::guest::{GuestEnd, Settings};
use super::guest_run::GuestRun;
use super::lines::{Line, parse};
use super::report::Reports;
use super::supervisor::{Next, Supervisor};
use super::{Case, Needs, Outcome};
use crate::exit::{Failure, signal_name};
use crate::guest_files::Api;
use crate::host::{Alarm, Event, Output};

/// The name of no case. A guest with it only reports the kernel's API and ends.
const NO_CASE: &str = "-";

/// The groups of `cases`, which are in the suite's order.
pub fn groups(cases: &[Case]) -> impl Iterator<Item = &[Case]> {
    cases.chunk_by(|a, b| a.group() == b.group())
}

/// What a kernel can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// The cases for a generation of the API.
    Api(Api),
    /// No case, and the reason.
    Nothing(String),
}

/// Runs cases in guests.
#[derive(Debug)]
pub struct Runner {
    supervisor: Supervisor,
}

impl Runner {
    /// A runner whose guests have `settings`. Their console is written to `log`.
    pub fn new(settings: Settings, alarm: Arc<Alarm>, log: Output) -> Self {
        Self {
            supervisor: Supervisor::new(settings, alarm, log),
        }
    }

    /// Selects the kernel of the guests that follow.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn select_kernel(&mut self, kernel: &Path) -> Result<(), Failure> {
        self.supervisor.select_kernel(kernel)
    }

    /// Boots the kernel and returns what it can run.
    ///
    /// # Errors
    /// The kernel does not boot, or a signal or `--timeout` ended the run.
    pub fn probe(&mut self) -> Result<Offer, Failure> {
        let names = std::iter::once(NO_CASE);
        let mut guest = self.supervisor.boot(Needs::Nothing, names, "what it has")?;
        let booted = Instant::now();
        let (mut api, mut nothing, mut panic) = (None, None, None);
        let end = loop {
            match self.supervisor.next(&mut guest, booted)? {
                Next::Line(line) => match parse(&line) {
                    Line::Api(found) => api = found,
                    Line::Nothing(why) => nothing = Some(why),
                    Line::Panic(text) => panic = Some(text),
                    _ => {}
                },
                Next::End(end) => break end,
            }
        };
        let crashed = |reason| Failure::Guest {
            reason,
            console: self.supervisor.tail(),
        };
        match end {
            GuestEnd::Exited => {}
            GuestEnd::Crashed(reason) => return Err(crashed(panic.unwrap_or(reason))),
            GuestEnd::TimedOut => {
                return Err(Failure::Timeout {
                    after: self.supervisor.case_limit(),
                    console: Some(self.supervisor.tail()),
                });
            }
            GuestEnd::Interrupted(event) => return Err(self.failure_of(event)),
        }
        match (api, nothing) {
            (Some(api), _) => Ok(Offer::Api(api)),
            (None, Some(why)) => Ok(Offer::Nothing(why)),
            (None, None) => Err(crashed(
                "the guest ended before the suite printed anything".into(),
            )),
        }
    }

    /// Runs `cases`, group by group, unless `event` has already ended the run. Returns the event
    /// that ended the run early, if there was one; the cases that were not run because of it are
    /// reported too.
    ///
    /// # Errors
    /// A report cannot be written, or `vbts` itself fails.
    pub fn run(
        &mut self,
        cases: &[Case],
        mut event: Option<Event>,
        reports: &mut Reports,
    ) -> Result<Option<Event>, Failure> {
        for cases in groups(cases) {
            let name = cases.first().map_or("", Case::group);
            reports.group(name, cases.len())?;
            let mut group = Group::new(cases);
            if event.is_none() {
                event = self.run_group(&mut group, reports)?;
            }
            if let Some(event) = event {
                let why = match event {
                    Event::Timeout => TIME_LIMIT.to_owned(),
                    Event::Signal(signal) => format!("interrupted by {}", signal_name(signal)),
                };
                group.give_up(&Outcome::NotRun(why), reports)?;
            }
            reports.group_end(name, group.counts(), group.errors())?;
        }
        Ok(event)
    }

    /// Boots guests until each case of `group` has a result, or an event ends the run.
    fn run_group(
        &mut self,
        group: &mut Group,
        reports: &mut Reports,
    ) -> Result<Option<Event>, Failure> {
        while let Some(needs) = group.next_needs() {
            let event = self.run_guest(needs, group, reports)?;
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Runs one guest with the cases of `group` that have no result yet.
    fn run_guest(
        &mut self,
        needs: Needs,
        group: &mut Group,
        reports: &mut Reports,
    ) -> Result<Option<Event>, Failure> {
        let names = group.remaining_names();
        let title = names.join(" ");
        let names = names.iter().map(String::as_str);
        let mut guest = self.supervisor.boot(needs, names, &title)?;
        let mut run = GuestRun::new(group, reports);
        loop {
            match self.supervisor.next(&mut guest, run.step_began())? {
                Next::Line(line) => run.line(&line)?,
                Next::End(end) => return run.end(end, self.supervisor.case_limit()),
            }
        }
    }

    /// The failure of a command that `event` has ended.
    pub fn failure_of(&self, event: Event) -> Failure {
        self.supervisor.failure_of(event)
    }
}
