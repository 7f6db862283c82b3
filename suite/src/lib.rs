//! The regression suite of the guest kernel's `ptrace` BTS requests (guest-kernel/tests): its
//! cases, the guests that run them, and the reports.
//!
//! | module | contents |
//! |---|---|
//! | this | cases and their outcomes |
//! | `lines` | the lines of a guest's console |
//! | `guest` | a guest in a process of its own, because a kernel under test may hang or crash it |
//! | `supervisor` | boots guests and waits for their output, their end, and limits |
//! | `group` | a group of cases and the case that runs |
//! | `source` | where the cases come from: the suite, KUnit (`kunit`), the kernel's selftests |
//! | `guest_run` | applies what a guest prints, and its end, to its group |
//! | `run` | runs all cases |
//! | `comparison` | what differs between several kernels |
//! | `shard`, `merge` | parts of the suite, and one report of theirs |
//! | `report` | reports as KTAP (`ktap`), JUnit's XML (`junit`), and for KernelCI (`kcidb`) |

mod comparison;
mod group;
pub mod guest;
mod guest_run;
mod junit;
pub mod kcidb;
pub mod kernel_tree;
mod ktap;
mod kunit;
mod lines;
pub mod merge;
pub mod report;
pub mod run;
pub mod shard;
pub mod source;
mod supervisor;

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use glob::Pattern;

use vbts_guest_files::Api;

/// What a case needs of the machine besides the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A processor without a Branch Trace Store.
    NoBts,
    /// A kernel with page-table isolation.
    PageTableIsolation,
    /// A disk to swap to.
    Disk,
}

/// A case of the suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// `GROUP.NAME`.
    pub name: String,
    /// The generation of the API that it tests.
    pub api: Api,
    /// What it needs of the machine.
    pub needs: Needs,
}

impl Case {
    /// A case that the kernel or its source has itself.
    pub fn of_the_kernel(name: String) -> Self {
        Self {
            name,
            api: Api::New,
            needs: Needs::Nothing,
        }
    }

    /// The part of the name before the dot.
    pub fn group(&self) -> &str {
        self.name.split_once('.').map_or("", |(group, _)| group)
    }

    /// The part of the name after the dot.
    pub fn short_name(&self) -> &str {
        self.name
            .split_once('.')
            .map_or(self.name.as_str(), |(_, name)| name)
    }
}

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
    pub fn is_flaky(&self) -> bool {
        self.later.last().is_some_and(|run| run.outcome.is_good())
    }

    /// The runs that failed.
    pub fn failed_runs(&self) -> impl Iterator<Item = &Run> {
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
    pub not_run: usize,
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

/// Returns all cases of the suite's `program`, in its order.
///
/// # Errors
/// The program cannot be run on this host, or does not print a list of cases.
pub fn list(program: &Path) -> anyhow::Result<Vec<Case>> {
    let name = program.display();
    let output = Command::new(program)
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("Cannot run {name}"))?;
    ensure!(
        output.status.success(),
        "{name} --list failed: {}",
        output.status
    );
    let text = String::from_utf8(output.stdout).with_context(|| format!("{name} --list"))?;
    text.lines()
        .map(|line| {
            parse_case(line)
                .with_context(|| format!("{name} --list printed {line:?}: is it the suite?"))
        })
        .collect()
}

fn parse_case(line: &str) -> anyhow::Result<Case> {
    let mut fields = line.split('\t');
    let (Some(name), Some(api), Some(machine), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        bail!("a line has three fields");
    };
    ensure!(
        name.contains('.') && name.bytes().all(|b| b.is_ascii_graphic()),
        "a name is GROUP.NAME"
    );
    Ok(Case {
        name: name.into(),
        api: Api::from_name(api).context("no such generation")?,
        needs: match machine {
            "any" => Needs::Nothing,
            "bts=off" => Needs::NoBts,
            "pti=on" => Needs::PageTableIsolation,
            "disk=on" => Needs::Disk,
            _ => bail!("no such machine"),
        },
    })
}

/// Returns those of `cases` whose name or group matches one of `patterns`, or all if there are no
/// patterns.
///
/// # Errors
/// A pattern is malformed or matches no case.
pub fn select(cases: Vec<Case>, patterns: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut wanted = Vec::new();
    for text in patterns {
        let pattern =
            Pattern::new(text).with_context(|| format!("--filter {text}: malformed pattern"))?;
        ensure!(
            cases.iter().any(|case| is_wanted(&pattern, case)),
            "--filter {text}: there is no such case; vbts test --list shows them all"
        );
        wanted.push(pattern);
    }
    Ok(cases
        .into_iter()
        .filter(|case| wanted.is_empty() || wanted.iter().any(|pattern| is_wanted(pattern, case)))
        .collect())
}

fn is_wanted(pattern: &Pattern, case: &Case) -> bool {
    pattern.matches(&case.name) || pattern.matches(case.group())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A case for the new API, without needs.
    pub fn case(name: &str) -> Case {
        Case {
            name: name.into(),
            api: Api::New,
            needs: Needs::Nothing,
        }
    }

    #[test]
    fn a_line_is_a_case() {
        let parsed = parse_case("no_bts.config\tnew\tbts=off").unwrap();
        assert_eq!(parsed.needs, Needs::NoBts);
        assert_eq!((parsed.group(), parsed.short_name()), ("no_bts", "config"));
        let old = parse_case("2007-11.init\t2007-11\tany").unwrap();
        assert_eq!(old.api, Api::November2007);
        for bad in [
            "",
            "a.b",
            "a.b\tnew",
            "a.b\tnew\tany\tmore",
            "ab\tnew\tany",
            "a.b\tnewer\tany",
            "a.b\tnew\tbts=on",
            "a. b\tnew\tany",
        ] {
            assert!(parse_case(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_choose_names_and_groups() {
        let cases = || {
            ["basic.wrap", "basic.errors", "signal.wrap"]
                .map(case)
                .to_vec()
        };
        let names = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).into()).collect();
            select(cases(), &patterns)
                .map(|found| found.into_iter().map(|c| c.name).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(names(&[]).unwrap().len(), 3);
        assert_eq!(names(&["basic"]).unwrap(), ["basic.wrap", "basic.errors"]);
        assert_eq!(names(&["*.wrap"]).unwrap(), ["basic.wrap", "signal.wrap"]);
        assert_eq!(
            names(&["signal.*", "basic.e*"]).unwrap(),
            ["basic.errors", "signal.wrap"]
        );
        let error = names(&["basic", "wrapp*"]).unwrap_err();
        assert!(error.contains("--filter wrapp*"), "{error}");
        let error = names(&["basic.[w"]).unwrap_err();
        assert!(
            error.contains("--filter basic.[w: malformed pattern"),
            "{error}"
        );
    }

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
