//! A group of cases: which of them have results, which run again, and the case that runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::report::Reports;
use super::{Case, CaseResult, Counts, Needs, Outcome, Run};
use vbts_host::exit::Failure;

/// A case without a final result.
#[derive(Debug)]
struct Pending {
    case: Case,
    /// The result so far, if it has failed and runs again.
    failure: Option<CaseResult>,
}

/// Reason of a case that did not end before `--timeout` was reached.
pub(crate) const TIME_LIMIT: &str = "the time limit was reached";

/// A group of cases, some of which have results.
#[derive(Debug)]
pub(crate) struct Group {
    /// Cases that the next guests run.
    remaining: VecDeque<Pending>,
    /// Cases that have failed and run again, each in a guest of its own, when all others have
    /// ended.
    again: VecDeque<Pending>,
    /// How often a case that fails runs again.
    retries: u32,
    counts: Counts,
    /// Errors of guests that belong to no case.
    errors: Vec<String>,
    /// Number of cases with a result.
    reported: usize,
}

impl Group {
    /// A group of `cases` without results. A case that fails runs `retries` times again, or until
    /// it does not fail.
    pub(crate) fn new(cases: &[Case], retries: u32) -> Self {
        let pending = |case: &Case| Pending {
            case: case.clone(),
            failure: None,
        };
        Self {
            remaining: cases.iter().map(pending).collect(),
            again: VecDeque::new(),
            retries,
            counts: Counts::default(),
            errors: Vec::new(),
            reported: 0,
        }
    }

    /// What the first case for the next guest needs of the machine; `None` if all have results.
    pub(crate) fn next_needs(&mut self) -> Option<Needs> {
        if self.remaining.is_empty() {
            self.remaining.extend(self.again.pop_front());
        }
        self.remaining.front().map(|pending| pending.case.needs)
    }

    /// The names of the cases for the next guests.
    pub(crate) fn remaining_names(&self) -> Vec<String> {
        let names = self.remaining.iter().map(|pending| &pending.case.name);
        names.cloned().collect()
    }

    /// How many cases have ended, by outcome.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Errors of guests that belong to no case.
    pub(crate) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Reports `outcome` for each case that has not run, and the failure of each that should have
    /// run again.
    ///
    /// # Errors
    /// A report cannot be written.
    pub(crate) fn give_up(
        &mut self,
        outcome: &Outcome,
        reports: &mut Reports,
    ) -> Result<(), Failure> {
        self.remaining.append(&mut self.again);
        while let Some(Pending { case, failure }) = self.remaining.pop_front() {
            let result = failure.unwrap_or_else(|| {
                let run = Run {
                    outcome: outcome.clone(),
                    took: Duration::ZERO,
                    console: Vec::new(),
                };
                CaseResult::new(case, run)
            });
            self.report(result, reports)?;
        }
        Ok(())
    }

    /// Applies the end of the case `running`: it is reported, or runs again. A case that was not
    /// asked for is ignored.
    ///
    /// # Errors
    /// A report cannot be written.
    pub(crate) fn end(
        &mut self,
        running: RunningCase,
        outcome: Outcome,
        reports: &mut Reports,
    ) -> Result<(), Failure> {
        let took = running.began.elapsed();
        let mut cases = self.remaining.iter();
        let at = cases.position(|pending| pending.case.name == running.name);
        let Some(Pending { case, failure }) = at.and_then(|at| self.remaining.remove(at)) else {
            return Ok(());
        };
        let is_good = outcome.is_good();
        let run = Run {
            outcome,
            took,
            console: running.console,
        };
        let result = match failure {
            Some(mut result) => {
                result.later.push(run);
                result
            }
            None => CaseResult::new(case.clone(), run),
        };
        if is_good || result.later.len() >= self.retries as usize {
            return self.report(result, reports);
        }
        self.again.push_back(Pending {
            case,
            failure: Some(result),
        });
        Ok(())
    }

    /// Adds an error of a guest that belongs to no case.
    pub(crate) fn add_error(&mut self, error: String) {
        self.errors.push(error);
    }

    /// The number of cases for the next guests.
    pub(crate) fn remaining(&self) -> usize {
        self.remaining.len()
    }

    /// The number of cases.
    pub(crate) fn len(&self) -> usize {
        self.reported + self.remaining.len() + self.again.len()
    }

    fn report(&mut self, result: CaseResult, reports: &mut Reports) -> Result<(), Failure> {
        self.counts.add(result.outcome());
        self.reported += 1;
        reports.case(self.reported, &result)
    }
}

/// The case that runs.
#[derive(Debug)]
pub(crate) struct RunningCase {
    /// Its name, as the suite prints it.
    pub name: String,
    /// When it began.
    pub began: Instant,
    /// The suite's reason for a failure.
    pub why: Option<String>,
    /// The kernel's first complaint.
    pub(crate) complaint: Option<String>,
    /// What the kernel printed meanwhile.
    pub console: Vec<String>,
}

impl RunningCase {
    /// The case `name`, which begins now.
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            began: Instant::now(),
            why: None,
            complaint: None,
            console: Vec::new(),
        }
    }

    /// The outcome of the case, for which the suite reports `outcome`. A complaint of the kernel
    /// makes any outcome a failure.
    pub(crate) fn outcome(&mut self, outcome: Outcome) -> Outcome {
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
