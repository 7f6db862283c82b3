//! Runs cases: a guest for each group, and another guest for the rest of a group when a case has
//! ended the one before.

use std::sync::Arc;
use std::time::Instant;

use super::group::{Group, TIME_LIMIT};
use super::guest::{GuestEnd, Settings};
use super::guest_run::GuestRun;
use super::lines::Line;
use super::report::Reports;
use super::source::{NO_CASE, Source};
use super::supervisor::{Next, Supervisor};
use super::{Case, Needs, Outcome};
use vbts_guest_files::Api;
use vbts_host::exit::{Failure, signal_name};
use vbts_host::{Alarm, Event, Output};

/// The groups of `cases`, which are in the suite's order.
pub fn groups(cases: &[Case]) -> impl Iterator<Item = &[Case]> {
    cases.chunk_by(|a, b| a.group() == b.group())
}

/// What a kernel can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// The cases for a generation of the API.
    Api(Api),
    /// Cases of its own.
    Cases(Vec<Case>),
    /// No case, and the reason.
    Nothing(String),
}

/// Runs cases in guests.
#[derive(Debug)]
pub struct Runner {
    source: Source,
    supervisor: Supervisor,
    /// How often a case that fails runs again.
    retries: u32,
}

impl Runner {
    /// A runner of cases of `source`, whose guests have `settings`. Their console is written to
    /// `log`. A case that fails runs `retries` times again.
    pub fn new(
        source: Source,
        settings: Settings,
        alarm: Arc<Alarm>,
        log: Output,
        retries: u32,
    ) -> Self {
        Self {
            source,
            retries,
            supervisor: Supervisor::new(settings, alarm, log),
        }
    }

    /// Selects the kernel and the machine of the guests that follow.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn select(&mut self, settings: Settings) -> Result<(), Failure> {
        self.supervisor.select(settings)
    }

    /// Returns what the selected kernel can run. Boots it, unless all kernels can run the same.
    ///
    /// # Errors
    /// The kernel does not boot, or a signal or `--timeout` ended the run.
    pub fn probe(&mut self) -> Result<Offer, Failure> {
        if let Source::Kselftest { cases, .. } = &self.source {
            return Ok(Offer::Cases(cases.clone()));
        }
        let names = [NO_CASE.to_owned()];
        let contents = self.source.contents(&names, self.supervisor.settings());
        let title = "what it has";
        let mut guest = self.supervisor.boot(Needs::Nothing, &contents, title)?;
        let booted = Instant::now();
        let mut parser = self.source.parser(&names);
        let mut cases = Vec::new();
        let (mut api, mut nothing, mut panic) = (None, None, None);
        let end = loop {
            match self.supervisor.next(&mut guest, booted)? {
                Next::Line(line) => {
                    for line in parser.lines(&line) {
                        match line {
                            Line::Api(found) => api = found,
                            Line::Nothing(why) => nothing = Some(why),
                            Line::Panic(text) => panic = Some(text),
                            Line::Case(case) => cases.push(case),
                            _ => {}
                        }
                    }
                }
                Next::End(end) => break end,
            }
        };
        let crashed = |reason| Failure::Guest {
            reason,
            console: self.supervisor.tail(),
        };
        match end {
            GuestEnd::Exited => {}
            // Without KUnit, the kernel looks for a process to start.
            GuestEnd::Crashed(_) if matches!(self.source, Source::Kunit) && panic.is_some() => {
                nothing = panic;
            }
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
            (None, None) if matches!(self.source, Source::Kunit) => Ok(match cases.is_empty() {
                true => Offer::Nothing("it lists no test".into()),
                false => Offer::Cases(cases),
            }),
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
            let mut group = Group::new(cases, self.retries);
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
        let mut names = group.remaining_names();
        names.truncate(self.source.batch(&names, group.len()));
        let contents = self.source.contents(&names, self.supervisor.settings());
        let mut guest = self.supervisor.boot(needs, &contents, &names.join(" "))?;
        let parser = self.source.parser(&names);
        let mut run = GuestRun::new(group, names.len(), parser, reports);
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
