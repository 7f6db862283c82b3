//! Applies the lines and the end of a guest to its group of cases.

use std::time::{Duration, Instant};

use super::Outcome;
use super::group::{Group, RunningCase, TIME_LIMIT};
use super::guest::GuestEnd;
use super::lines::Line;
use super::report::Reports;
use super::source::Parser;
use vbts_host::Event;
use vbts_host::exit::Failure;

/// Lines of a case's console that are kept for its report.
const CASE_LINES: usize = 200;

/// One guest's part of a group: applies its lines and its end to the group.
#[derive(Debug)]
pub(crate) struct GuestRun<'a> {
    group: &'a mut Group,
    reports: &'a mut Reports,
    parser: Parser,
    /// Cases without a result when the guest was booted.
    remaining_at_boot: usize,
    /// Those of them that are for other guests.
    for_others: usize,
    running: Option<RunningCase>,
    /// When the guest was booted or the last case ended.
    idle_since: Instant,
    /// The kernel's message about a panic.
    panic: Option<String>,
    /// The kernel's first complaint between two cases.
    complaint: Option<String>,
    /// The first case has begun. Complaints before it are not about the suite.
    started: bool,
}

impl<'a> GuestRun<'a> {
    /// A guest that was just booted, and runs the first `batch` cases without a result.
    pub(crate) fn new(
        group: &'a mut Group,
        batch: usize,
        parser: Parser,
        reports: &'a mut Reports,
    ) -> Self {
        let remaining_at_boot = group.remaining();
        Self {
            group,
            reports,
            parser,
            remaining_at_boot,
            for_others: remaining_at_boot.saturating_sub(batch),
            running: None,
            idle_since: Instant::now(),
            panic: None,
            complaint: None,
            started: false,
        }
    }

    /// The time from which the limit of a case counts: the case that runs, or the one that should
    /// begin, may take this long.
    pub(crate) fn step_began(&self) -> Instant {
        self.running
            .as_ref()
            .map_or(self.idle_since, |running| running.began)
    }

    /// Applies a line of the console.
    ///
    /// # Errors
    /// A report cannot be written.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        for line in self.parser.lines(line) {
            self.apply(line)?;
        }
        Ok(())
    }

    fn apply(&mut self, line: Line) -> Result<(), Failure> {
        if let (Some(running), Line::Complaint(text) | Line::Other(text) | Line::Panic(text)) =
            (self.running.as_mut(), &line)
            && running.console.len() < CASE_LINES
        {
            running.console.push(text.clone());
        }
        match line {
            Line::Start(name) => {
                self.running = Some(RunningCase::new(name));
                self.started = true;
            }
            Line::Why(why) => {
                if let Some(running) = &mut self.running {
                    running.why = Some(why);
                }
            }
            Line::End(name, outcome) => {
                if let Some(mut running) = self.running.take_if(|running| running.name == name) {
                    let outcome = running.outcome(outcome);
                    self.group.end(running, outcome, self.reports)?;
                }
                self.idle_since = Instant::now();
            }
            Line::Complaint(text) => match &mut self.running {
                Some(running) => {
                    running.complaint.get_or_insert(text);
                }
                None if self.started => {
                    self.complaint.get_or_insert(text);
                }
                None => {}
            },
            Line::Panic(text) => self.panic = Some(text),
            Line::Nothing(why) => {
                let why = format!("not on this machine: {why}");
                self.group.give_up(&Outcome::NotRun(why), self.reports)?;
            }
            Line::Api(_) | Line::Case(_) | Line::Plan | Line::Other(_) => {}
        }
        Ok(())
    }

    /// Applies the guest's end. A case may take `limit`. Returns the event that ends the run, if
    /// there is one.
    ///
    /// # Errors
    /// A report cannot be written.
    pub(crate) fn end(mut self, end: GuestEnd, limit: Duration) -> Result<Option<Event>, Failure> {
        if let Some(complaint) = self.complaint.take() {
            self.group.add_error(format!(
                "between two cases the kernel complained: {complaint}"
            ));
        }
        let outcome = match end {
            GuestEnd::Exited if self.group.remaining() == self.for_others => return Ok(None),
            GuestEnd::Exited => Outcome::Crashed("the guest ended or was reset".into()),
            GuestEnd::Crashed(reason) => Outcome::Crashed(self.panic.take().unwrap_or(reason)),
            GuestEnd::TimedOut => {
                Outcome::TimedOut(format!("no result after {} s", limit.as_secs_f64()))
            }
            GuestEnd::Interrupted(event) => {
                if let (Event::Timeout, Some(running)) = (event, self.running) {
                    let outcome = Outcome::TimedOut(TIME_LIMIT.into());
                    self.group.end(running, outcome, self.reports)?;
                }
                return Ok(Some(event));
            }
        };
        self.fail(outcome)?;
        Ok(None)
    }

    /// Reports a guest that did not end as it should: the case that runs has `outcome`.
    fn fail(self, outcome: Outcome) -> Result<(), Failure> {
        let how = outcome.reason().unwrap_or_default();
        if self.group.remaining() == self.for_others {
            self.group.add_error(format!("after the last case: {how}"));
            return Ok(());
        }
        let mut why = "no guest reached this case".to_owned();
        match self.running {
            Some(running) => self.group.end(running, outcome, self.reports)?,
            None if self.group.remaining() < self.remaining_at_boot => {
                self.group.add_error(format!("between two cases: {how}"));
            }
            None => why = format!("{why}: {how}"),
        }
        // Another guest would end in the same way without a result.
        if self.group.remaining() == self.remaining_at_boot {
            self.group.give_up(&Outcome::NotRun(why), self.reports)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::tests::case;
    use crate::report::{ReportFormat, Subject};
    use vbts_host::Output;

    /// What becomes of the cases `a.x` and `a.y` in a guest that prints `lines` and then ends. The
    /// results are lines of KTAP, followed by the errors that belong to no case.
    fn results(lines: &[&str], end: GuestEnd) -> Vec<String> {
        results_of_guests(0, &[(lines, end)])
    }

    /// [`results`] of several guests, which run one after the other. A case that fails runs
    /// `retries` times again.
    fn results_of_guests(retries: u32, guests: &[(&[&str], GuestEnd)]) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let output = Output::create(file.path()).unwrap();
        let mut reports = Reports::new(vec![(output, ReportFormat::Ktap)], Subject::default());
        let mut group = Group::new(&["a.x", "a.y"].map(case), retries);
        for (lines, end) in guests {
            assert!(
                group.next_needs().is_some(),
                "{lines:?}: no guest is needed"
            );
            let batch = group.remaining();
            let mut run = GuestRun::new(&mut group, batch, Parser::Named, &mut reports);
            for line in *lines {
                run.line(line).unwrap();
            }
            run.end(end.clone(), Duration::from_secs(5)).unwrap();
        }
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines = text.lines().map(|line| line.trim_start().to_owned());
        lines.chain(group.errors().iter().cloned()).collect()
    }

    const START_X: &str = "vbts-test: # start a.x";
    const PASS_X: &str = "vbts-test: ok 1 a.x";
    const START_Y: &str = "vbts-test: # start a.y";
    const PASS_Y: &str = "vbts-test: ok 2 a.y";
    const WARNING: &str = "WARNING: w";

    #[test]
    fn a_guest_that_runs_all_cases_has_no_errors() {
        let lines = [WARNING, START_X, PASS_X, START_Y, PASS_Y];
        assert_eq!(
            results(&lines, GuestEnd::Exited),
            ["ok 1 a.x", "ok 2 a.y"],
            "a warning before the first case is not about the suite"
        );
    }

    #[test]
    fn a_complaint_of_the_kernel_fails_its_case() {
        let fail_y = ["vbts-test: # why", "vbts-test: not ok 2 a.y"];
        let lines = [
            START_X, WARNING, "BUG: b", PASS_X, START_Y, WARNING, fail_y[0], fail_y[1],
        ];
        assert_eq!(
            results(&lines, GuestEnd::Exited),
            [
                "# a.x: the kernel complained: WARNING: w",
                "not ok 1 a.x",
                "# a.y: why; the kernel complained: WARNING: w",
                "not ok 2 a.y"
            ]
        );
    }

    #[test]
    fn a_warning_about_the_guest_fails_its_case() {
        let warning = format!("WARN {}: w rip=0x1", vbts_vmm::vcpu::MALFORMED_DS_AREA);
        let lines = [START_X, &warning, PASS_X, START_Y, PASS_Y];
        assert_eq!(
            results(&lines, GuestEnd::Exited),
            [
                format!("# a.x: the kernel complained: {warning}"),
                "not ok 1 a.x".to_owned(),
                "ok 2 a.y".to_owned()
            ]
        );
    }

    #[test]
    fn a_complaint_between_cases_belongs_to_none() {
        let lines = [START_X, PASS_X, WARNING, START_Y, PASS_Y];
        assert_eq!(
            results(&lines, GuestEnd::Exited),
            [
                "ok 1 a.x",
                "ok 2 a.y",
                "between two cases the kernel complained: WARNING: w"
            ]
        );
    }

    #[test]
    fn the_end_of_a_guest_is_the_outcome_of_its_case() {
        let panic = "Kernel panic - not syncing: p";
        let crashed = || GuestEnd::Crashed("reset".into());
        for (lines, end, expected) in [
            (&[START_X][..], crashed(), "not ok 1 a.x # ERROR reset"),
            (
                &[START_X, panic],
                crashed(),
                "not ok 1 a.x # ERROR Kernel panic - not syncing: p",
            ),
            (
                &[START_X],
                GuestEnd::Exited,
                "not ok 1 a.x # ERROR the guest ended or was reset",
            ),
            (
                &[START_X],
                GuestEnd::TimedOut,
                "not ok 1 a.x # TIMEOUT no result after 5 s",
            ),
            (
                &[START_X],
                GuestEnd::Interrupted(Event::Timeout),
                "not ok 1 a.x # TIMEOUT the time limit was reached",
            ),
        ] {
            assert_eq!(results(lines, end), [expected]);
        }
        let signal = GuestEnd::Interrupted(Event::Signal(2));
        assert_eq!(results(&[START_X], signal), [""; 0]);
    }

    #[test]
    fn an_end_outside_of_a_case_belongs_to_none() {
        let crashed = || GuestEnd::Crashed("reset".into());
        let lines = [START_X, PASS_X];
        let expected = ["ok 1 a.x", "between two cases: reset"];
        assert_eq!(results(&lines, crashed()), expected);
        let lines = [START_X, PASS_X, START_Y, PASS_Y];
        let expected = ["ok 1 a.x", "ok 2 a.y", "after the last case: reset"];
        assert_eq!(results(&lines, crashed()), expected);
    }

    #[test]
    fn a_retry_does_not_hide_a_failure() {
        let fail_x = [START_X, "vbts-test: # why", "vbts-test: not ok 1 a.x"];
        let first = [&fail_x[..], &[START_Y, PASS_Y]].concat();
        let guests = |later: &[(&[&str], GuestEnd)]| {
            let all = [&[(&first[..], GuestEnd::Exited)][..], later].concat();
            results_of_guests(2, &all)
        };
        let fails = (&fail_x[..], GuestEnd::Exited);
        let passes = (&[START_X, PASS_X][..], GuestEnd::Exited);
        let flaky = |run| {
            [
                "ok 1 a.y".to_owned(),
                format!("# a.x: flaky: run {run} did not fail"),
                "# a.x: why".to_owned(),
                "not ok 2 a.x".to_owned(),
            ]
        };
        assert_eq!(guests(std::slice::from_ref(&passes)), flaky(2));
        assert_eq!(guests(&[fails.clone(), passes]), flaky(3));
        let always = [
            "ok 1 a.y",
            "# a.x: 3 runs failed",
            "# a.x: why",
            "not ok 2 a.x",
        ];
        assert_eq!(guests(&[fails.clone(), fails]), always);
        // A guest that does not reach the case leaves its failure.
        let lost = (&[][..], GuestEnd::Crashed("reset".into()));
        assert_eq!(guests(&[lost]), ["ok 1 a.y", "# a.x: why", "not ok 2 a.x"]);
    }

    #[test]
    fn a_guest_without_results_is_not_repeated() {
        let crashed = GuestEnd::Crashed("reset".into());
        let not_run = "ERROR not run: no guest reached this case";
        assert_eq!(
            results(&[], crashed),
            [
                format!("not ok 1 a.x # {not_run}: reset"),
                format!("not ok 2 a.y # {not_run}: reset")
            ]
        );
        let other = "vbts-test: # start b.z";
        let crashed = GuestEnd::Crashed("reset".into());
        assert_eq!(
            results(&[other], crashed),
            [
                format!("not ok 1 a.x # {not_run}"),
                format!("not ok 2 a.y # {not_run}")
            ]
        );
    }

    #[test]
    fn a_machine_that_cannot_run_cases_says_why() {
        let lines = ["vbts-test: 1..0 # SKIP no BTS"];
        let not_run = "ERROR not run: not on this machine: no BTS";
        assert_eq!(
            results(&lines, GuestEnd::Exited),
            [
                format!("not ok 1 a.x # {not_run}"),
                format!("not ok 2 a.y # {not_run}")
            ]
        );
    }
}
