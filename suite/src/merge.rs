//! One report of several: of the parts of a run, and of runs of the same cases again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use quick_junit::{Report, TestCase, TestCaseStatus, TestSuite};

use super::Counts;
use super::junit::{self, failed_runs, is_flaky, is_not_run, set_failed_runs};
use super::shard::Shard;

/// What the reports say together.
#[derive(Debug)]
pub struct Merged {
    report: Report,
    counts: Counts,
    /// The names of the cases that have failed.
    failed: Vec<String>,
    /// The names of the cases that have passed in one run and failed in another one.
    flaky: Vec<String>,
    /// Parts without a report.
    missing: Vec<String>,
}

impl Merged {
    /// Merges `reports`: the name of each file and its text, JUnit's XML of `vbts test`.
    ///
    /// # Errors
    /// A text is no such report, or the reports have different numbers of parts.
    pub fn new(reports: &[(String, String)]) -> anyhow::Result<Self> {
        let mut merged = Self {
            report: Report::new(junit::name(None)),
            counts: Counts::default(),
            failed: Vec::new(),
            flaky: Vec::new(),
            missing: Vec::new(),
        };
        let mut suites = Suites::default();
        let mut shards = BTreeSet::new();
        let mut count = None;
        let mut took = Duration::ZERO;
        for (file, text) in reports {
            let report = Report::deserialize_from_str(text)
                .with_context(|| format!("{file}: no JUnit report"))?;
            let name = report.name.as_ref().map_or("", |name| name.as_str());
            let shard = junit::shard(name)
                .with_context(|| format!("{file}: no report of vbts test, but '{name}'"))?;
            let parts = shard.map(Shard::count);
            let expected = *count.get_or_insert(parts);
            ensure!(
                expected == parts,
                "{file}: part of another run, of {} and not {} parts",
                parts.unwrap_or(1),
                expected.unwrap_or(1)
            );
            shards.extend(shard.map(Shard::index));
            took += report.time.unwrap_or_default();
            report
                .test_suites
                .into_iter()
                .for_each(|suite| suites.add(suite));
        }
        if let Some(Some(count)) = count {
            let missing = (1..=count).filter(|index| !shards.contains(index));
            merged.missing = missing.map(|index| format!("{index}/{count}")).collect();
        }
        merged.report.set_time(took);
        for suite in suites.finish() {
            merged.count(&suite);
            merged.report.add_test_suite(suite);
        }
        Ok(merged)
    }

    fn count(&mut self, suite: &TestSuite) {
        for case in &suite.test_cases {
            let name = format!("{}.{}", suite.name.as_str(), case.name.as_str());
            match &case.status {
                TestCaseStatus::Success { .. } => self.counts.passed += 1,
                TestCaseStatus::Skipped { .. } => self.counts.skipped += 1,
                status if is_not_run(status) => self.counts.not_run += 1,
                TestCaseStatus::NonSuccess { .. } => {
                    self.counts.failed += 1;
                    self.failed.push(name.clone());
                }
            }
            if is_flaky(case) {
                self.flaky.push(name);
            }
        }
    }

    /// The merged report.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Numbers of cases by outcome.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether all parts have reports, and no case has failed.
    pub fn is_good(&self) -> bool {
        self.counts.is_good() && self.missing.is_empty()
    }

    /// What is wrong, a line for each kind.
    pub fn problems(&self) -> Vec<String> {
        let kinds = [
            ("failed", &self.failed),
            ("flaky", &self.flaky),
            ("parts without a report", &self.missing),
        ];
        let present = kinds.into_iter().filter(|(_, names)| !names.is_empty());
        present
            .map(|(kind, names)| format!("{kind}: {}", names.join(", ")))
            .collect()
    }
}

/// Suites in the order in which they first appeared, and their cases.
#[derive(Debug, Default)]
struct Suites {
    suites: Vec<TestSuite>,
    /// Where a suite and its cases are.
    places: BTreeMap<String, (usize, BTreeMap<String, usize>)>,
}

impl Suites {
    fn add(&mut self, mut suite: TestSuite) {
        let cases = std::mem::take(&mut suite.test_cases);
        let name = suite.name.as_str().to_owned();
        let next = self.suites.len();
        let (number, places) = self.places.entry(name).or_insert_with(|| {
            self.suites.push(TestSuite::new(suite.name.clone()));
            (next, BTreeMap::new())
        });
        let all = &mut self.suites[*number].test_cases;
        for case in cases {
            match places.get(case.name.as_str()) {
                Some(place) => combine(&mut all[*place], case),
                None => {
                    places.insert(case.name.as_str().to_owned(), all.len());
                    all.push(case);
                }
            }
        }
    }

    fn finish(self) -> impl Iterator<Item = TestSuite> {
        self.suites.into_iter().map(|mut suite| {
            // The suite counts them as they are added.
            let cases = std::mem::take(&mut suite.test_cases);
            suite.set_time(cases.iter().filter_map(|case| case.time).sum());
            suite.add_test_cases(cases);
            suite
        })
    }
}

/// Adds the result of another run of a case. A failure stays, and so do results of cases that were
/// run.
fn combine(first: &mut TestCase, second: TestCase) {
    if is_not_run(&second.status) {
        return;
    }
    if is_not_run(&first.status) {
        *first = second;
        return;
    }
    let is_bad = |case: &TestCase| matches!(case.status, TestCaseStatus::NonSuccess { .. });
    let differs = is_bad(first) != is_bad(&second);
    let is_flaky = differs || is_flaky(first) || is_flaky(&second);
    let mut failed = failed_runs(first);
    failed.extend(failed_runs(&second));
    if is_bad(&second) && !is_bad(first) {
        *first = second;
    }
    set_failed_runs(first, failed, is_flaky);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::tests::case;
    use crate::{CaseResult, Outcome, Run};

    /// A report of `cases` of the group `a`.
    fn report(shard: Option<&str>, cases: &[(&str, Outcome)]) -> (String, String) {
        let shard = shard.map(|text| text.parse().unwrap());
        let mut document = junit::Document::new(shard);
        for (name, outcome) in cases {
            let run = Run {
                outcome: outcome.clone(),
                took: Duration::from_secs(1),
                console: Vec::new(),
            };
            document.case("a", &CaseResult::new(case(name), run));
        }
        document.group_end("a", &[]);
        let text = document.finish(Duration::from_secs(2)).to_string().unwrap();
        ("r.xml".into(), text)
    }

    #[test]
    fn parts_make_one_report() {
        let merged = Merged::new(&[
            report(Some("1/2"), &[("a.one", Outcome::Passed)]),
            report(Some("2/2"), &[("a.two", Outcome::Skipped("no".into()))]),
        ])
        .unwrap();
        assert!(merged.is_good());
        assert_eq!(
            merged.counts().to_string(),
            "passed: 1, failed: 0, skipped: 1"
        );
        let text = merged.report().to_string().unwrap();
        let read = Report::deserialize_from_str(&text).unwrap();
        assert_eq!(
            (read.tests, read.skipped, read.test_suites.len()),
            (2, 1, 1)
        );
        assert_eq!(read.time, Some(Duration::from_secs(4)));
        // It can be merged again.
        assert!(Merged::new(&[("m.xml".into(), text)]).unwrap().is_good());
    }

    #[test]
    fn a_missing_part_is_no_success() {
        let merged = Merged::new(&[report(Some("2/3"), &[("a.b", Outcome::Passed)])]).unwrap();
        assert!(!merged.is_good());
        assert_eq!(merged.problems(), ["parts without a report: 1/3, 3/3"]);
    }

    #[test]
    fn a_case_that_failed_once_is_a_failure() {
        let passed = || report(None, &[("a.b", Outcome::Passed)]);
        let failed = || report(None, &[("a.b", Outcome::Failed("x".into()))]);
        for (reports, failures) in [
            (vec![passed(), failed()], 1),
            (vec![failed(), passed()], 1),
            (vec![passed(), failed(), passed()], 1),
            (vec![failed(), passed(), failed()], 2),
            (vec![failed(), failed(), passed()], 2),
        ] {
            let merged = Merged::new(&reports).unwrap();
            assert!(!merged.is_good());
            assert_eq!(
                merged.problems(),
                ["failed: ptrace_bts.a.b", "flaky: ptrace_bts.a.b"]
            );
            assert_eq!(
                merged.counts().to_string(),
                "passed: 0, failed: 1, skipped: 0"
            );
            let text = merged.report().to_string().unwrap();
            assert_eq!(text.matches("<flakyFailure ").count(), failures, "{text}");
            // The next merge still knows.
            let again = Merged::new(&[("m.xml".into(), text), passed()]).unwrap();
            assert_eq!(again.problems(), merged.problems());
        }
        let merged = Merged::new(&[failed(), failed()]).unwrap();
        assert_eq!(merged.problems(), ["failed: ptrace_bts.a.b"]);
        let text = merged.report().to_string().unwrap();
        assert_eq!(text.matches("<rerunFailure ").count(), 1, "{text}");
    }

    #[test]
    fn a_case_that_was_not_run_is_replaced() {
        let killed = || report(Some("1/1"), &[("a.b", Outcome::NotRun("killed".into()))]);
        let again = || report(Some("1/1"), &[("a.b", Outcome::Passed)]);
        assert!(Merged::new(&[killed(), again()]).unwrap().is_good());
        assert!(Merged::new(&[again(), killed()]).unwrap().is_good());
        let merged = Merged::new(&[killed()]).unwrap();
        assert!(!merged.is_good());
        assert_eq!(merged.counts().not_run, 1);
    }

    #[test]
    fn reports_of_different_runs_are_refused() {
        let error = |reports: &[(String, String)]| Merged::new(reports).unwrap_err().to_string();
        let two = report(Some("1/2"), &[]);
        let three = report(Some("1/3"), &[]);
        let whole = report(None, &[]);
        assert!(error(&[two.clone(), three]).contains("of 3 and not 2 parts"));
        assert!(error(&[two, whole]).contains("of 1 and not 2 parts"));
        assert!(error(&[("x".into(), "KTAP version 1".into())]).contains("x: no JUnit report"));
        let other = Report::new("nextest").to_string().unwrap();
        assert!(error(&[("y".into(), other)]).contains("y: no report of vbts test"));
    }
}
