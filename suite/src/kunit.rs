//! KUnit: asks the kernel for its tests, and parses the KTAP that it prints while it runs them
//! (Documentation/dev-tools/kunit in the kernel's source).
//!
//! A case of the suite SUITE is called `SUITE.CASE`. KUnit prints a line at the end of each case,
//! and none at its beginning. The cases of a parameterised test are part of it.

use std::collections::VecDeque;

use super::lines::{self, Line};
use super::source::NO_CASE;
use super::{Case, Outcome};

/// Spaces that a subtest is indented by.
const INDENT: usize = 4;

/// The kernel's words for a guest that runs `names`: all cases of a suite, a single case, or
/// [`NO_CASE`].
pub(crate) fn words(names: &[String]) -> String {
    let what = match names {
        [name] if name == NO_CASE => "kunit.action=list".to_owned(),
        [name] => format!("kunit.filter_glob={name}"),
        _ => format!(
            "kunit.filter_glob={}.*",
            names.first().map_or("", |name| suite_of(name))
        ),
    };
    format!("kunit.enable=1 kunit_shutdown=reboot {what}")
}

fn suite_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(suite, _)| suite)
}

/// The case that a line of `kunit.action=list` names.
fn listed(name: &str) -> Option<Case> {
    let (suite, case) = name.split_once('.')?;
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    (is_word(suite) && is_word(case)).then(|| Case::of_the_kernel(name.to_owned()))
}

/// Parses the console of a guest that runs cases of one suite.
#[derive(Debug)]
pub struct Parser {
    /// Cases without a result, in the order in which KUnit runs them.
    remaining: VecDeque<String>,
    /// The reason for the failure of the case that runs has been printed.
    failed: bool,
    /// The guest lists its cases, and has begun to do so.
    lists: bool,
}

impl Parser {
    /// For a guest that runs `names`.
    pub fn new(names: &[String]) -> Self {
        Self {
            remaining: names.to_vec().into(),
            failed: false,
            lists: false,
        }
    }

    /// What a line of the console says.
    pub fn lines(&mut self, line: &str) -> Vec<Line> {
        let text = lines::without_time(line.trim_end_matches(['\r', '\n']));
        let inner = text.trim_start_matches(' ');
        let depth = (text.len() - inner.len()) / INDENT;
        if self.remaining.front().is_some_and(|name| name == NO_CASE) {
            self.lists |= text.starts_with("KTAP version ");
            if self.lists
                && let Some(case) = listed(text)
            {
                return vec![Line::Case(case)];
            }
        }
        if let Some((name, outcome)) = lines::result(inner) {
            return match depth {
                0 => self.suite_end(&outcome),
                1 => self.case_end(name, outcome),
                _ => vec![Line::Other(text.to_owned())],
            };
        }
        match inner.strip_prefix("# ") {
            Some(text) if depth == 1 && text.starts_with("Subtest: ") => self.start(),
            Some(text) if depth > 0 && text.contains("FAILED at ") && !self.failed => {
                self.failed = true;
                vec![Line::Why(text.to_owned())]
            }
            // KUnit judges what the kernel says: many tests provoke a warning.
            _ => vec![match lines::parse(line) {
                Line::Complaint(text) => Line::Other(text),
                line => line,
            }],
        }
    }

    /// The next case begins.
    fn start(&mut self) -> Vec<Line> {
        self.failed = false;
        let next = self.remaining.front().cloned();
        next.map(Line::Start).into_iter().collect()
    }

    fn case_end(&mut self, name: &str, outcome: Outcome) -> Vec<Line> {
        let running = self.remaining.front().cloned();
        match running {
            Some(running)
                if running
                    .split_once('.')
                    .is_some_and(|(_, case)| case == name) =>
            {
                self.remaining.pop_front();
                let mut lines = vec![Line::End(running, outcome)];
                lines.extend(self.start());
                lines
            }
            _ => Vec::new(),
        }
    }

    /// The suite has ended. Cases without a result were not run: the suite was skipped, or it could
    /// not be initialised.
    fn suite_end(&mut self, outcome: &Outcome) -> Vec<Line> {
        let mut lines = Vec::new();
        for name in std::mem::take(&mut self.remaining) {
            let outcome = match outcome {
                Outcome::Passed => Outcome::Skipped("KUnit did not run it".into()),
                Outcome::Failed(_) => Outcome::Failed(String::new()),
                other => other.clone(),
            };
            lines.push(Line::Start(name.clone()));
            if let Outcome::Failed(_) = outcome {
                lines.push(Line::Why("its suite failed before".into()));
            }
            lines.push(Line::End(name, outcome));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["s.a", "s.b", "s.c"].map(String::from).to_vec()
    }

    fn parsed(console: &str) -> Vec<Line> {
        let mut parser = Parser::new(&names());
        let lines = console.lines().flat_map(|line| parser.lines(line));
        lines
            .filter(|line| !matches!(line, Line::Other(_)))
            .collect()
    }

    const HEAD: &str = "[    0.1] KTAP version 1\n[    0.1] 1..1\n\
        [    0.1]     KTAP version 1\n[    0.1]     # Subtest: s\n[    0.1]     1..3\n";

    #[test]
    fn each_case_has_a_result() {
        let console = format!(
            "{HEAD}[    0.1]     ok 1 a\n\
             [    0.1]         KTAP version 1\n\
             [    0.1]         # Subtest: b\n\
             [    0.1]         ok 1 x y\n\
             [    0.1]     # b: pass:1 fail:0 skip:0 total:1\n\
             [    0.1]     ok 2 b # SKIP no device\n\
             [    0.1]     # c: EXPECTATION FAILED at lib/c.c:5\n\
             [    0.1]     Expected 1 == 2\n\
             [    0.1]     # c: ASSERTION FAILED at lib/c.c:6\n\
             [    0.1]     not ok 3 c\n\
             [    0.1] # s: pass:1 fail:1 skip:1 total:3\n\
             [    0.1] not ok 1 s\n"
        );
        let start = |name: &str| Line::Start(name.into());
        let end = |name: &str, outcome| Line::End(name.into(), outcome);
        assert_eq!(
            parsed(&console),
            [
                start("s.a"),
                end("s.a", Outcome::Passed),
                start("s.b"),
                end("s.b", Outcome::Skipped("no device".into())),
                start("s.c"),
                Line::Why("c: EXPECTATION FAILED at lib/c.c:5".into()),
                end("s.c", Outcome::Failed(String::new())),
            ]
        );
    }

    #[test]
    fn cases_of_a_suite_that_does_not_run_have_its_outcome() {
        let lines = parsed(&format!("{HEAD}ok 1 s # SKIP not here\n"));
        let skipped = lines.iter().filter(
            |line| matches!(line, Line::End(_, Outcome::Skipped(why)) if why == "not here"),
        );
        assert_eq!(skipped.count(), 3);
        let lines = parsed(&format!("{HEAD}not ok 1 s\n"));
        let failed = |line: &&Line| matches!(line, Line::End(_, Outcome::Failed(_)));
        assert_eq!(lines.iter().filter(failed).count(), 3);
    }

    #[test]
    fn a_warning_is_for_kunit_to_judge() {
        let mut parser = Parser::new(&names());
        let lines = parser.lines("WARNING: CPU: 0 PID: 1 at lib/x.c:1");
        assert!(matches!(&lines[..], [Line::Other(_)]), "{lines:?}");
        let lines = parser.lines("Kernel panic - not syncing: x");
        assert!(matches!(&lines[..], [Line::Panic(_)]), "{lines:?}");
    }

    #[test]
    fn a_list_has_cases_and_other_lines() {
        let mut parser = Parser::new(&[NO_CASE.to_owned()]);
        let console = "not.listed\n[    0.1] KTAP version 1\nring\n[    0.1] ring.wraps\r\n\
                       .x\na.b c\n[    0.2] reboot: Restarting system\n";
        let lines = console.lines().flat_map(|line| parser.lines(line));
        let cases = lines.filter_map(|line| match line {
            Line::Case(case) => Some(case.name),
            _ => None,
        });
        assert_eq!(cases.collect::<Vec<_>>(), ["ring.wraps"]);
    }

    #[test]
    fn a_guest_runs_a_suite_a_case_or_nothing() {
        let shutdown = "kunit.enable=1 kunit_shutdown=reboot";
        assert_eq!(words(&names()), format!("{shutdown} kunit.filter_glob=s.*"));
        let one = [String::from("s.b")];
        assert_eq!(words(&one), format!("{shutdown} kunit.filter_glob=s.b"));
        let none = [String::from(NO_CASE)];
        assert_eq!(words(&none), format!("{shutdown} kunit.action=list"));
    }
}
