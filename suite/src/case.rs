//! The cases of the suite: which there are, and what they need.

use std::path::Path;
use std::process::{Command, Stdio};

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
    pub(crate) fn case(name: &str) -> Case {
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
}
