//! The regression suite of the guest kernel's `ptrace` BTS requests (guest-kernel/tests): its
//! cases, the guests that run them, and what comes out.
//!
//! | module | what it is |
//! |---|---|
//! | this | cases, and what can become of them |
//! | [`lines`] | what the lines of a guest's console say |
//! | [`guest`] | a guest, in a process of its own: a kernel under test may hang or crash it |
//! | [`run`] | cases, guest after guest |
//! | [`report`] | reports as KTAP (`ktap`) and JUnit's XML (`junit`) |

pub mod guest;
mod junit;
mod ktap;
pub mod lines;
pub mod report;
pub mod run;

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use glob::Pattern;

use crate::guest_files::Api;

/// What a case needs of the machine beyond what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A processor without a Branch Trace Store.
    NoBts,
    /// A kernel with page-table isolation.
    PageTableIsolation,
}

/// A case of the suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// `GROUP.NAME`.
    pub name: String,
    /// The generation of the API that it is about.
    pub api: Api,
    /// The machine that it is for.
    pub needs: Needs,
}

impl Case {
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

/// What has become of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It does not apply here, and why.
    Skipped(String),
    /// One of its checks failed, and which; or the kernel complained.
    Failed(String),
    /// It took the kernel down, and how.
    Crashed(String),
    /// It did not end in time, and what is known about that.
    TimedOut(String),
    /// There was no guest for it any more, and why.
    NotRun(String),
}

impl Outcome {
    /// Whether this is a success, which a case that does not apply is.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Passed | Self::Skipped(_))
    }

    /// Why, if there is something to say.
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

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// How it ended.
    pub outcome: Outcome,
    /// Host time that it took.
    pub took: Duration,
    /// What the kernel printed meanwhile.
    pub console: Vec<String>,
}

/// How many cases have ended how.
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
    /// Counts one more.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) | Outcome::Crashed(_) | Outcome::TimedOut(_) => self.failed += 1,
            Outcome::NotRun(_) => self.not_run += 1,
        }
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

/// All cases that `program` has, in its order.
///
/// # Errors
/// It cannot be run on this host, or says something else.
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
                .with_context(|| format!("{name} --list says {line:?}: is it the suite?"))
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
            _ => bail!("no such machine"),
        },
    })
}

/// Those of `cases` that match one of `patterns`, a pattern of the whole name or of its group; all,
/// if there are none.
///
/// # Errors
/// A pattern that is none, or matches nothing.
pub fn select(cases: Vec<Case>, patterns: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut wanted = Vec::new();
    for text in patterns {
        let pattern =
            Pattern::new(text).with_context(|| format!("--filter {text}: no such pattern"))?;
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

    /// A case of the new API.
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
            error.contains("--filter basic.[w: no such pattern"),
            "{error}"
        );
    }

    #[test]
    fn counts_name_what_was_not_run_only_if_there_is_some() {
        let mut counts = Counts::default();
        counts.add(&Outcome::Passed);
        counts.add(&Outcome::Crashed("x".into()));
        assert_eq!(counts.to_string(), "passed: 1, failed: 1, skipped: 0");
        counts.add(&Outcome::NotRun("x".into()));
        assert!(counts.to_string().ends_with(", not run: 1"));
    }
}
