//! Runs cases: a guest for each group, and another one for what is left when a case has taken it
//! down.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::guest::{End, Guest, Settings};
use super::lines::{Line, parse};
use super::report::Reports;
use super::{Case, CaseResult, Counts, Needs, Outcome};
use crate::exit::{Failure, signal_name};
use crate::guest_files::Api;
use crate::host::{Alarm, Event, Output, OutputError, input};

/// Lines of a case's console that are kept for its report.
const CASE_LINES: usize = 200;
/// Lines of the console that a message shows.
const TAIL_LINES: usize = 30;
/// Longer than any run: 30 years.
const NO_LIMIT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// The name of no case: a guest that is asked for it says what the kernel has, and ends.
const NO_CASE: &str = "-";

/// What a kernel has to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// A generation of the API.
    Api(Api),
    /// None, and why.
    Nothing(String),
}

/// Runs guests.
#[derive(Debug)]
pub struct Runner {
    settings: Settings,
    alarm: Arc<Alarm>,
    /// How long a case may take.
    /// Where the console of all guests goes.
    log: Output,
    tail: VecDeque<String>,
    /// Guests so far.
    guests: u32,
}

/// What happens next.
enum Next {
    Line(String),
    End(End),
    /// Nothing, for too long.
    Late,
    /// Something outside.
    Event(Event),
}

/// A guest and what it has printed that nobody has looked at.
struct Session {
    guest: Option<Guest>,
    lines: VecDeque<String>,
}

/// The case that runs.
#[derive(Debug)]
struct Running {
    name: String,
    since: Instant,
    why: Option<String>,
    complaint: Option<String>,
    console: Vec<String>,
}

impl Running {
    fn new(name: String) -> Self {
        Self {
            name,
            since: Instant::now(),
            why: None,
            complaint: None,
            console: Vec::new(),
        }
    }

    /// What has become of it, by what the suite says and what the kernel says.
    fn outcome(&mut self, outcome: Outcome) -> Outcome {
        match (outcome, self.complaint.take()) {
            (Outcome::Failed(_), complaint) => {
                let why = self.why.take().unwrap_or_default();
                Outcome::Failed(match complaint {
                    Some(complaint) => format!("{why}; the kernel complained: {complaint}"),
                    None => why,
                })
            }
            (_, Some(complaint)) => Outcome::Failed(format!("the kernel complained: {complaint}")),
            (outcome, None) => outcome,
        }
    }
}

/// How a guest's part of a group has come to its end.
enum Left {
    /// It ended as it should.
    Done,
    /// It crashed or hung, or would not run the cases.
    Down(Outcome),
    /// The run has to end.
    Event(Event),
}

impl Runner {
    /// A runner whose guests have `settings`; their console goes to `log`.
    pub fn new(settings: Settings, alarm: Arc<Alarm>, log: Output) -> Self {
        Self {
            settings,
            alarm,
            log,
            tail: VecDeque::new(),
            guests: 0,
        }
    }

    /// The last lines of the console.
    pub fn tail(&self) -> String {
        self.tail
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }

    /// What the kernel has to offer.
    ///
    /// # Errors
    /// It does not boot, or something outside ended the run.
    pub fn probe(&mut self) -> Result<Offer, Failure> {
        let mut session = self.boot(Needs::Nothing, std::iter::once(NO_CASE), "what it has")?;
        let deadline = self.deadline(Instant::now());
        let (mut api, mut nothing, mut panic) = (None, None, None);
        loop {
            match self.next(&mut session, deadline)? {
                Next::Line(line) => match parse(&line) {
                    Line::Api(found) => api = found,
                    Line::Nothing(why) => nothing = Some(why),
                    Line::Panic(text) => panic = Some(text),
                    _ => {}
                },
                Next::End(End::Ended) => break,
                Next::End(End::Crashed(reason)) => {
                    return Err(Failure::Guest {
                        reason: panic.unwrap_or(reason),
                        console: self.tail(),
                    });
                }
                Next::Late => {
                    return Err(Failure::Timeout {
                        after: self.settings.limit,
                        console: self.tail(),
                    });
                }
                Next::Event(event) => return Err(self.failure_of(event)),
            }
        }
        match (api, nothing) {
            (Some(api), _) => Ok(Offer::Api(api)),
            (None, Some(why)) => Ok(Offer::Nothing(why)),
            (None, None) => Err(Failure::Guest {
                reason: "the guest has ended without a word from the suite".into(),
                console: self.tail(),
            }),
        }
    }

    /// Runs all `cases`, group by group. What ended it early, if something did, is returned; the
    /// cases that it kept from running are reported as well.
    ///
    /// # Errors
    /// A report cannot be written, or `vbts` itself fails.
    pub fn run(&mut self, cases: &[Case], reports: &mut Reports) -> Result<Option<Event>, Failure> {
        let groups: Vec<&[Case]> = cases.chunk_by(|a, b| a.group() == b.group()).collect();
        let mut event = None;
        reports.begin(groups.len())?;
        for (number, group) in (1..).zip(groups) {
            let name = group.first().map_or("", Case::group);
            reports.group(name, group.len())?;
            let mut progress = Progress::new(group);
            if event.is_none() {
                event = self.run_group(&mut progress, reports)?;
            }
            if let Some(event) = event {
                let why = match event {
                    Event::Timeout => "the time limit was reached".to_owned(),
                    Event::Signal(signal) => format!("interrupted by {}", signal_name(signal)),
                };
                progress.give_up(&Outcome::NotRun(why), reports)?;
            }
            reports.group_end(number, name, &progress.counts, &progress.trouble)?;
        }
        reports.end()?;
        Ok(event)
    }

    fn run_group(
        &mut self,
        progress: &mut Progress,
        reports: &mut Reports,
    ) -> Result<Option<Event>, Failure> {
        while let Some(needs) = progress.rest.front().map(|case| case.needs) {
            let before = progress.rest.len();
            let mut running = None;
            let mut why = "no guest has come to it".to_owned();
            match self.run_guest(needs, progress, &mut running, reports)? {
                Left::Done => {}
                Left::Event(event) => {
                    if let (Event::Timeout, Some(running)) = (event, running) {
                        let why = "the time limit was reached".into();
                        progress.end(running, Outcome::TimedOut(why), reports)?;
                    }
                    return Ok(Some(event));
                }
                Left::Down(outcome) => match running {
                    Some(running) => progress.end(running, outcome, reports)?,
                    None if progress.rest.len() < before => {
                        let how = outcome.reason().unwrap_or_default();
                        progress.trouble.push(format!("between two cases: {how}"));
                    }
                    // A guest that does not even come to its first case would not the next time.
                    None => {
                        let how = outcome.reason().unwrap_or_default();
                        why = format!("{why}: {how}");
                    }
                },
            }
            if progress.rest.len() == before {
                progress.give_up(&Outcome::NotRun(why), reports)?;
            }
        }
        Ok(None)
    }

    /// A guest for what is left of a group. `running` is the case that runs when it comes to an
    /// end.
    fn run_guest(
        &mut self,
        needs: Needs,
        progress: &mut Progress,
        running: &mut Option<Running>,
        reports: &mut Reports,
    ) -> Result<Left, Failure> {
        let names: Vec<String> = progress.rest.iter().map(|case| case.name.clone()).collect();
        let mut session = self.boot(needs, names.iter().map(String::as_str), &names.join(" "))?;
        let mut since = Instant::now();
        let (mut panic, mut late_complaint, mut started) = (None, None, false);
        let left = loop {
            let from = running.as_ref().map_or(since, |running| running.since);
            let line = match self.next(&mut session, self.deadline(from))? {
                Next::Line(line) => line,
                Next::End(End::Ended) if progress.rest.is_empty() => break Left::Done,
                Next::End(End::Ended) => {
                    let why = "the guest has ended, or was reset".into();
                    break Left::Down(Outcome::Crashed(why));
                }
                Next::End(End::Crashed(reason)) => {
                    break Left::Down(Outcome::Crashed(panic.unwrap_or(reason)));
                }
                Next::Late => {
                    let why = format!("nothing after {} s", self.settings.limit.as_secs_f64());
                    break Left::Down(Outcome::TimedOut(why));
                }
                Next::Event(event) => break Left::Event(event),
            };
            let parsed = parse(&line);
            if let (Some(running), Line::Complaint(text) | Line::Other(text) | Line::Panic(text)) =
                (running.as_mut(), &parsed)
                && running.console.len() < CASE_LINES
            {
                running.console.push(text.clone());
            }
            match parsed {
                Line::Start(name) => {
                    *running = Some(Running::new(name));
                    started = true;
                }
                Line::Why(why) => {
                    if let Some(running) = running {
                        running.why = Some(why);
                    }
                }
                Line::End(name, outcome) => {
                    if let Some(mut running) = running.take_if(|running| running.name == name) {
                        let outcome = running.outcome(outcome);
                        progress.end(running, outcome, reports)?;
                    }
                    since = Instant::now();
                }
                Line::Complaint(text) => match running {
                    Some(running) => {
                        running.complaint.get_or_insert(text);
                    }
                    // Before the first case, it is not about the suite.
                    None if started => {
                        late_complaint.get_or_insert(text);
                    }
                    None => {}
                },
                Line::Panic(text) => panic = Some(text),
                Line::Nothing(why) => {
                    let why = format!("not on this machine: {why}");
                    progress.give_up(&Outcome::NotRun(why), reports)?;
                }
                Line::Api(_) | Line::Plan | Line::Other(_) => {}
            }
        };
        if let Some(complaint) = late_complaint {
            progress.trouble.push(format!(
                "between two cases the kernel complained: {complaint}"
            ));
        }
        if let (Left::Down(outcome), true) = (&left, progress.rest.is_empty()) {
            let how = outcome.reason().unwrap_or_default();
            progress.trouble.push(format!("after the last case: {how}"));
            return Ok(Left::Done);
        }
        Ok(left)
    }

    fn boot<'a>(
        &mut self,
        needs: Needs,
        names: impl Iterator<Item = &'a str>,
        what: &str,
    ) -> Result<Session, Failure> {
        self.guests += 1;
        self.write_log(&format!("=== guest {}: {what}", self.guests))?;
        Ok(Session {
            guest: Some(Guest::boot(&self.settings, needs, names)?),
            lines: VecDeque::new(),
        })
    }

    fn next(&mut self, session: &mut Session, deadline: Instant) -> Result<Next, Failure> {
        loop {
            if let Some(line) = session.lines.pop_front() {
                self.write_log(&line)?;
                if self.tail.len() == TAIL_LINES {
                    self.tail.pop_front();
                }
                self.tail.push_back(line.clone());
                return Ok(Next::Line(line));
            }
            if self.alarm.is_pending()
                && let Some(event) = self.alarm.take()
            {
                return Ok(Next::Event(event));
            }
            let Some(guest) = &mut session.guest else {
                return Ok(Next::Late);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Next::Late);
            }
            if !input::wait(&[guest.fd(), self.alarm.fd()], Some(left))?
                || !input::wait(&[guest.fd()], Some(Duration::ZERO))?
            {
                continue;
            }
            if !guest.read(&mut session.lines)?
                && session.lines.is_empty()
                && let Some(guest) = session.guest.take()
            {
                return Ok(Next::End(guest.end()?));
            }
        }
    }

    /// When what began at `from` has taken too long.
    fn deadline(&self, from: Instant) -> Instant {
        // A limit that no clock can reach is none.
        from.checked_add(self.settings.limit)
            .unwrap_or(from + NO_LIMIT)
    }

    fn write_log(&mut self, line: &str) -> Result<(), Failure> {
        self.log
            .write(format!("{line}\n").as_bytes())
            .map_err(OutputError::into_failure)
    }

    /// What an event means for the command.
    pub fn failure_of(&self, event: Event) -> Failure {
        match event {
            Event::Timeout => Failure::Timeout {
                after: self.alarm.limit().unwrap_or_default(),
                console: self.tail(),
            },
            Event::Signal(signal) => Failure::Signal(signal),
        }
    }
}

/// How far a group is.
struct Progress {
    rest: VecDeque<Case>,
    counts: Counts,
    /// What went wrong that belongs to no case.
    trouble: Vec<String>,
    number: usize,
}

impl Progress {
    fn new(cases: &[Case]) -> Self {
        Self {
            rest: cases.to_vec().into(),
            counts: Counts::default(),
            trouble: Vec::new(),
            number: 0,
        }
    }

    /// A case has ended.
    fn end(
        &mut self,
        running: Running,
        outcome: Outcome,
        reports: &mut Reports,
    ) -> Result<(), Failure> {
        let took = running.since.elapsed();
        let at = self.rest.iter().position(|case| case.name == running.name);
        // Nobody has asked for another one.
        let Some(case) = at.and_then(|at| self.rest.remove(at)) else {
            return Ok(());
        };
        self.report(
            CaseResult {
                case,
                outcome,
                took,
                console: running.console,
            },
            reports,
        )
    }

    /// None of the others will be run.
    fn give_up(&mut self, outcome: &Outcome, reports: &mut Reports) -> Result<(), Failure> {
        while let Some(case) = self.rest.pop_front() {
            self.report(
                CaseResult {
                    case,
                    outcome: outcome.clone(),
                    took: Duration::ZERO,
                    console: Vec::new(),
                },
                reports,
            )?;
        }
        Ok(())
    }

    fn report(&mut self, result: CaseResult, reports: &mut Reports) -> Result<(), Failure> {
        self.counts.add(&result.outcome);
        self.number += 1;
        reports.case(self.number, &result)
    }
}
