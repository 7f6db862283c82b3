//! A group of cases: which of them have results, and the case that runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::report::Reports;
use super::{Case, CaseResult, Counts, Needs, Outcome};
use crate::exit::Failure;

/// Reason of a case that did not end before `--timeout` was reached.
pub const TIME_LIMIT: &str = "the time limit was reached";

/// A group of cases, some of which have results.
#[derive(Debug)]
pub struct Group {
    /// Cases without a result.
    remaining: VecDeque<Case>,
    counts: Counts,
    /// Errors of guests that belong to no case.
    errors: Vec<String>,
    /// Number of cases with a result.
    reported: usize,
}

impl Group {
    /// A group of `cases` without results.
    pub fn new(cases: &[Case]) -> Self {
        Self {
            remaining: cases.to_vec().into(),
            counts: Counts::default(),
            errors: Vec::new(),
            reported: 0,
        }
    }

    /// What the first case without a result needs of the machine; `None` if all have results.
    pub fn next_needs(&self) -> Option<Needs> {
        self.remaining.front().map(|case| case.needs)
    }

    /// The names of the cases without a result.
    pub fn remaining_names(&self) -> Vec<String> {
        self.remaining
            .iter()
            .map(|case| case.name.clone())
            .collect()
    }

    /// How many cases have ended, by outcome.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Errors of guests that belong to no case.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Reports `outcome` for each case without a result.
    ///
    /// # Errors
    /// A report cannot be written.
    pub fn give_up(&mut self, outcome: &Outcome, reports: &mut Reports) -> Result<(), Failure> {
        while let Some(case) = self.remaining.pop_front() {
            let result = CaseResult {
                case,
                outcome: outcome.clone(),
                took: Duration::ZERO,
                console: Vec::new(),
            };
            self.report(result, reports)?;
        }
        Ok(())
    }

    /// Reports the case `running`. A case that was not asked for is ignored.
    ///
    /// # Errors
    /// A report cannot be written.
    pub fn end(
        &mut self,
        running: RunningCase,
        outcome: Outcome,
        reports: &mut Reports,
    ) -> Result<(), Failure> {
        let took = running.began.elapsed();
        let mut cases = self.remaining.iter();
        let at = cases.position(|case| case.name == running.name);
        let Some(case) = at.and_then(|at| self.remaining.remove(at)) else {
            return Ok(());
        };
        let result = CaseResult {
            case,
            outcome,
            took,
            console: running.console,
        };
        self.report(result, reports)
    }

    /// Adds an error of a guest that belongs to no case.
    pub fn add_error(&mut self, error: String) {
        self.errors.push(error);
    }

    /// The number of cases without a result.
    pub fn remaining(&self) -> usize {
        self.remaining.len()
    }

    /// The number of cases.
    pub fn len(&self) -> usize {
        self.reported + self.remaining.len()
    }

    fn report(&mut self, result: CaseResult, reports: &mut Reports) -> Result<(), Failure> {
        self.counts.add(&result.outcome);
        self.reported += 1;
        reports.case(self.reported, &result)
    }
}

/// The case that runs.
#[derive(Debug)]
pub struct RunningCase {
    /// Its name, as the suite prints it.
    pub name: String,
    /// When it began.
    pub began: Instant,
    /// The suite's reason for a failure.
    pub why: Option<String>,
    /// The kernel's first complaint.
    pub complaint: Option<String>,
    /// What the kernel printed meanwhile.
    pub console: Vec<String>,
}

impl RunningCase {
    /// The case `name`, which begins now.
    pub fn new(name: String) -> Self {
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
    pub fn outcome(&mut self, outcome: Outcome) -> Outcome {
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
