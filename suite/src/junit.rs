//! Reports as JUnit's XML, which continuous integration systems read.

use std::time::Duration;

use quick_junit::{
    FlakyOrRerun, NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite,
};

use super::ktap::one_line;
use super::shard::Shard;
use super::{CaseResult, Outcome, Run};

/// Name of a report.
const NAME: &str = "vbts test";
/// Type of the error of a case that was not run.
const NOT_RUN: &str = "not run";

/// Prefix of the names of groups, which are class names here.
const PREFIX: &str = "ptrace_bts";
/// Name of a test case that stands for an error of a group's guest.
const GUEST: &str = "(guest)";

/// A document under construction.
#[derive(Debug)]
pub(crate) struct Document {
    report: Report,
    /// Results of the group that runs.
    cases: Vec<TestCase>,
}

impl Document {
    /// A document without groups, of this part of all cases, if it is one.
    pub(crate) fn new(shard: Option<Shard>) -> Self {
        Self {
            report: Report::new(name(shard)),
            cases: Vec::new(),
        }
    }

    /// Adds the result of a case to the group `group`, which runs.
    pub(crate) fn case(&mut self, group: &str, result: &CaseResult) {
        let name = result.case.short_name();
        let mut case = of_run(group, name, &result.first);
        let failed = result.failed_runs();
        let failed = failed.flat_map(|run| failed_runs(&of_run(group, name, run)));
        set_failed_runs(&mut case, failed.collect(), result.is_flaky());
        self.cases.push(case);
    }

    /// Ends the group that runs. `errors` are those of its guests.
    pub(crate) fn group_end(&mut self, name: &str, errors: &[String]) {
        for error in errors {
            let status = with_message(TestCaseStatus::non_success(NonSuccessKind::Error), error);
            let case = test_case(name, GUEST, status, Duration::ZERO);
            self.cases.push(case);
        }
        let mut group = TestSuite::new(class_name(name));
        group.set_time(self.cases.iter().filter_map(|case| case.time).sum());
        group.add_test_cases(self.cases.drain(..));
        self.report.add_test_suite(group);
    }

    /// Ends the document, of a run that took `took`.
    pub(crate) fn finish(&mut self, took: Duration) -> &Report {
        self.report.set_time(took);
        &self.report
    }
}

/// The name of the report of a part of all cases, or of all of them.
pub(crate) fn name(shard: Option<Shard>) -> String {
    match shard {
        Some(shard) => format!("{NAME} {shard}"),
        None => NAME.to_owned(),
    }
}

/// The part of which the report `name` is, if it is one of a part; `None` for other reports.
pub(crate) fn shard(name: &str) -> Option<Option<Shard>> {
    match name.strip_prefix(NAME)? {
        "" => Some(None),
        part => Some(Some(part.strip_prefix(' ')?.parse().ok()?)),
    }
}

/// Whether this is the status of a case that was not run.
pub(crate) fn is_not_run(status: &TestCaseStatus) -> bool {
    matches!(status, TestCaseStatus::NonSuccess { ty: Some(ty), .. } if ty.as_str() == NOT_RUN)
}

/// Whether the case has passed in one run and failed in another one.
pub(crate) fn is_flaky(case: &TestCase) -> bool {
    match &case.status {
        TestCaseStatus::NonSuccess { reruns, .. } => {
            reruns.kind == FlakyOrRerun::Flaky && !reruns.runs.is_empty()
        }
        TestCaseStatus::Success { .. } | TestCaseStatus::Skipped { .. } => false,
    }
}

/// The failed runs of a case, the first one first.
pub(crate) fn failed_runs(case: &TestCase) -> Vec<TestRerun> {
    let TestCaseStatus::NonSuccess {
        kind,
        message,
        ty,
        reruns,
        ..
    } = &case.status
    else {
        return Vec::new();
    };
    if is_flaky(case) {
        return reruns.runs.clone();
    }
    let mut first = TestRerun::new(*kind);
    first.message.clone_from(message);
    first.ty.clone_from(ty);
    first.time = case.time;
    first.system_out.clone_from(&case.system_out);
    std::iter::once(first).chain(reruns.runs.clone()).collect()
}

/// Gives a case, which has the status of the first of its `failed` runs, the elements of Maven's
/// Surefire for all of them. Those of a flaky case have other names, and include the first run:
/// Surefire calls the case a success, which would hide the failure.
pub(crate) fn set_failed_runs(case: &mut TestCase, failed: Vec<TestRerun>, is_flaky: bool) {
    if let TestCaseStatus::NonSuccess { reruns, .. } = &mut case.status {
        reruns.kind = match is_flaky {
            true => FlakyOrRerun::Flaky,
            false => FlakyOrRerun::Rerun,
        };
        reruns.runs = failed.into_iter().skip(usize::from(!is_flaky)).collect();
    }
}

fn class_name(group: &str) -> String {
    format!("{PREFIX}.{group}")
}

fn of_run(group: &str, name: &str, run: &Run) -> TestCase {
    let mut case = test_case(group, name, status(&run.outcome), run.took);
    if !run.outcome.is_good() && !run.console.is_empty() {
        case.set_system_out(printable(&run.console.join("\n")));
    }
    case
}

fn test_case(group: &str, name: &str, status: TestCaseStatus, took: Duration) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(class_name(group)).set_time(took);
    case
}

fn status(outcome: &Outcome) -> TestCaseStatus {
    let error = |kind, why| {
        let mut status = with_message(TestCaseStatus::non_success(NonSuccessKind::Error), why);
        status.set_type(kind);
        status
    };
    match outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Skipped(why) => with_message(TestCaseStatus::skipped(), why),
        Outcome::Failed(why) => {
            with_message(TestCaseStatus::non_success(NonSuccessKind::Failure), why)
        }
        Outcome::Crashed(why) => error("crash", why),
        Outcome::TimedOut(why) => error("timeout", why),
        Outcome::NotRun(why) => error(NOT_RUN, why),
    }
}

/// `status` with a message. It is an attribute, in which XML parsers replace line ends by spaces
/// (XML 1.0, section 3.3.3).
fn with_message(mut status: TestCaseStatus, message: &str) -> TestCaseStatus {
    status.set_message(one_line(message));
    status
}

/// `text` with a replacement for each character that XML cannot represent (XML 1.0, section 2.2),
/// and for the other control characters except line ends.
///
/// `quick_junit` interprets text as the output of a terminal: it removes tabs, and it removes an
/// escape sequence without an end together with all text after it. A guest could hide its output
/// in this way.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' => c,
            '\t' => ' ',
            '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::tests::case;

    fn result(name: &str, outcome: Outcome) -> CaseResult {
        CaseResult::new(case(name), run(outcome))
    }

    fn run(outcome: Outcome) -> Run {
        Run {
            outcome,
            took: Duration::from_millis(1500),
            console: vec!["WARNING: <x> & \"y\"\t\x1b]".into(), "last\u{fffe}".into()],
        }
    }

    fn read(document: &mut Document) -> Report {
        let text = document
            .finish(Duration::from_millis(12_345))
            .to_string()
            .unwrap();
        assert!(text.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
        assert!(text.ends_with("</testsuites>\n"), "{text}");
        Report::deserialize_from_str(&text).unwrap()
    }

    #[test]
    fn a_parser_reads_every_outcome() {
        let mut document = Document::new(None);
        for (name, outcome) in [
            ("a.passed", Outcome::Passed),
            ("a.skipped", Outcome::Skipped("one processor only".into())),
            ("a.failed", Outcome::Failed("a < b && \"c\"\nd".into())),
            ("a.crashed", Outcome::Crashed("Kernel panic".into())),
            ("a.late", Outcome::TimedOut("no result after 60 s".into())),
            ("a.not_run", Outcome::NotRun("interrupted".into())),
        ] {
            document.case("a", &result(name, outcome));
        }
        document.group_end("a", &[]);
        document.case("a", &result("b.skipped", Outcome::Skipped("no".into())));
        document.group_end("b", &["after the last case: Oops".into()]);

        let report = read(&mut document);
        assert_eq!(report.name.as_deref(), Some("vbts test"));
        assert_eq!(report.time, Some(Duration::from_millis(12_345)));
        let counts = (report.tests, report.failures, report.errors, report.skipped);
        assert_eq!(counts, (8, 1, 4, 2));

        let [a, b] = &report.test_suites[..] else {
            panic!("{report:?}");
        };
        assert_eq!(&*a.name, "ptrace_bts.a");
        assert_eq!((a.tests, a.failures, a.errors, a.skipped), (6, 1, 3, 1));
        assert_eq!(a.time, Some(Duration::from_secs(9)));
        let [passed, skipped, failed, crashed, late, not_run] = &a.test_cases[..] else {
            panic!("{a:?}");
        };
        assert_eq!(&*passed.name, "passed");
        assert_eq!(passed.classname.as_deref(), Some("ptrace_bts.a"));
        assert_eq!(passed.time, Some(Duration::from_millis(1500)));
        assert_eq!(passed.status, TestCaseStatus::success());
        assert_eq!(passed.system_out, None);
        let one = |kind, message: &str, ty: Option<&str>| {
            let mut status = TestCaseStatus::non_success(kind);
            status.set_message(message);
            if let Some(ty) = ty {
                status.set_type(ty);
            }
            status
        };
        let mut expected = TestCaseStatus::skipped();
        expected.set_message("one processor only");
        assert_eq!((&skipped.status, &skipped.system_out), (&expected, &None));
        assert_eq!(
            failed.status,
            one(NonSuccessKind::Failure, "a < b && \"c\" d", None)
        );
        for (case, message, ty) in [
            (crashed, "Kernel panic", "crash"),
            (late, "no result after 60 s", "timeout"),
            (not_run, "interrupted", "not run"),
        ] {
            assert_eq!(case.status, one(NonSuccessKind::Error, message, Some(ty)));
        }
        assert_eq!(
            failed.system_out.as_deref(),
            Some("WARNING: <x> & \"y\" \u{fffd}]\nlast\u{fffd}")
        );

        let guest = b.test_cases.last().unwrap();
        assert_eq!(&*guest.name, "(guest)");
        assert_eq!(guest.time, Some(Duration::ZERO));
        assert_eq!(
            guest.status,
            one(NonSuccessKind::Error, "after the last case: Oops", None)
        );
    }

    #[test]
    fn a_flaky_case_is_a_failure_with_all_its_failed_runs() {
        let mut document = Document::new(None);
        let failed = result("a.b", Outcome::Failed("x".into()));
        let crashed = run(Outcome::Crashed("p".into()));
        for later in [
            vec![],
            vec![crashed.clone()],
            vec![crashed, run(Outcome::Passed)],
        ] {
            let result = CaseResult {
                later,
                ..failed.clone()
            };
            document.case("a", &result);
        }
        document.group_end("a", &[]);
        let text = document.finish(Duration::ZERO).to_string().unwrap();
        for (element, count) in [
            ("failure", 3),
            ("flakyFailure", 1),
            ("flakyError", 1),
            ("rerunFailure", 0),
            ("rerunError", 1),
        ] {
            assert_eq!(
                text.matches(&format!("<{element} ")).count(),
                count,
                "{element}: {text}"
            );
        }
        let report = read(&mut document);
        assert_eq!((report.tests, report.failures), (3, 3));
        let cases = &report.test_suites[0].test_cases;
        let flaky: Vec<bool> = cases.iter().map(is_flaky).collect();
        assert_eq!(flaky, [false, false, true]);
        let TestCaseStatus::NonSuccess {
            message, reruns, ..
        } = &cases[2].status
        else {
            panic!("{:?}", cases[2]);
        };
        assert_eq!(message.as_deref(), Some("x"));
        let messages: Vec<_> = reruns
            .runs
            .iter()
            .map(|run| run.message.as_deref())
            .collect();
        assert_eq!(messages, [Some("x"), Some("p")]);
        let crashed = &reruns.runs[1];
        assert_eq!(crashed.ty.as_deref(), Some("crash"));
        assert_eq!(crashed.time, Some(Duration::from_millis(1500)));
        assert!(
            crashed
                .system_out
                .as_deref()
                .unwrap()
                .starts_with("WARNING: <x>")
        );
    }

    #[test]
    fn the_name_says_which_part_it_is() {
        let part: Shard = "2/3".parse().unwrap();
        for known in [None, Some(part)] {
            assert_eq!(shard(&name(known)), Some(known));
        }
        // The environment of the merge is not that of the part.
        for bad in [
            "",
            "nextest",
            "vbts test auto",
            "vbts test 4/3",
            "vbts test2/3",
        ] {
            assert_eq!(shard(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_run_without_cases_is_a_document() {
        let report = read(&mut Document::new(None));
        assert_eq!((report.tests, report.test_suites.len()), (0, 0));
    }
}
