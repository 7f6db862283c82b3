//! How cases ended, and their numbers.

use std::fmt;
use std::time::Duration;

use super::Case;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It does not apply to this kernel or machine, with the reason.
    Skipped(String),
    /// A check failed or the kernel reported an error, with the message.
    Failed(String),
    /// The guest crashed or ended, with the reason.
    Crashed(String),
    /// It did not end in time, with the limit.
    TimedOut(String),
    /// No guest ran it, with the reason.
    NotRun(String),
}

impl Outcome {
    /// Returns whether the case passed or was skipped.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Passed | Self::Skipped(_))
    }

    /// The outcome without its reason.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
            Self::Crashed(_) => "crashed",
            Self::TimedOut(_) => "timed out",
            Self::NotRun(_) => "not run",
        }
    }

    /// The reason, unless the case passed.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Skipped(why)
            | Self::Failed(why)
            | Self::Crashed(why)
            | Self::TimedOut(why)
            | Self::NotRun(why) => Some(why),
        }
    }
}

/// A run of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How it ended.
    pub outcome: Outcome,
    /// Host time that it took.
    pub took: Duration,
    /// What the kernel printed meanwhile.
    pub console: Vec<String>,
}

/// The result of a case: that of its first run. A later run that passes does not hide a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// Its first run.
    pub first: Run,
    /// The runs after a failure. Only the last one can have passed.
    pub later: Vec<Run>,
}

impl CaseResult {
    /// The result of a case that has run once.
    pub fn new(case: Case, first: Run) -> Self {
        Self {
            case,
            first,
            later: Vec::new(),
        }
    }

    /// How the case ended.
    pub fn outcome(&self) -> &Outcome {
        &self.first.outcome
    }

    /// Whether the case has failed, and then did not fail.
    pub(crate) fn is_flaky(&self) -> bool {
        self.later.last().is_some_and(|run| run.outcome.is_good())
    }

    /// The runs that failed.
    pub(crate) fn failed_runs(&self) -> impl Iterator<Item = &Run> {
        let all = std::iter::once(&self.first).chain(&self.later);
        all.filter(|run| !run.outcome.is_good())
    }
}

/// Numbers of cases by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed.
    pub passed: usize,
    /// Failed, crashed or timed out.
    pub failed: usize,
    /// Skipped.
    pub skipped: usize,
    /// Not run.
    pub(crate) not_run: usize,
}

impl Counts {
    /// Counts a case.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) | Outcome::Crashed(_) | Outcome::TimedOut(_) => self.failed += 1,
            Outcome::NotRun(_) => self.not_run += 1,
        }
    }

    /// Whether all cases have passed or were skipped.
    pub fn is_good(&self) -> bool {
        self.failed == 0 && self.not_run == 0
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "passed: {}, failed: {}, skipped: {}",
            self.passed, self.failed, self.skipped
        )?;
        if self.not_run > 0 {
            write!(f, ", not run: {}", self.not_run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_mention_cases_that_were_not_run_only_if_there_are_any() {
        let mut counts = Counts::default();
        counts.add(&Outcome::Passed);
        counts.add(&Outcome::Crashed("x".into()));
        assert_eq!(counts.to_string(), "passed: 1, failed: 1, skipped: 0");
        counts.add(&Outcome::NotRun("x".into()));
        assert!(counts.to_string().ends_with(", not run: 1"));
    }
}
