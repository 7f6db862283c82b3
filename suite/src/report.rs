//! The reports of a run. KTAP is written as each case ends, the others at the end of the run.

use std::time::Instant;

use anyhow::Context as _;

use super::comparison::Comparison;
use super::junit::Document;
use super::kcidb::{self, BuildId};
use super::shard::Shard;
use super::{CaseResult, Counts, Outcome, ktap};
use vbts_host::exit::Failure;
use vbts_host::{Output, OutputError};

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportFormat {
    /// Kernel Test Anything Protocol, with a subtest for each group.
    Ktap,
    /// JUnit's XML.
    Junit,
    /// JSON for KernelCI's database.
    Kcidb,
}

/// Of what the results are.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// The part of all cases.
    pub shard: Option<Shard>,
    /// The build in KernelCI's database.
    pub build: Option<BuildId>,
}

/// Writes `report` in a format that is written as a whole.
///
/// # Errors
/// The library cannot write it, or the build of a report for KernelCI is not known.
pub fn document(
    report: &quick_junit::Report,
    format: ReportFormat,
    build: Option<&BuildId>,
) -> anyhow::Result<String> {
    Ok(match format {
        ReportFormat::Kcidb => {
            let build = build.context("--report kcidb needs --kcidb-build")?;
            kcidb::document(report, build)
        }
        ReportFormat::Junit | ReportFormat::Ktap => report.to_string()?,
    })
}

/// All reports of a run, and their sums.
#[derive(Debug)]
pub struct Reports {
    reports: Vec<(Output, Report)>,
    counts: Counts,
    failed: Vec<String>,
    flaky: Vec<String>,
    errors: Vec<String>,
    began: Instant,
    /// Name of the kernel or machine under test, if there are several.
    target: Option<String>,
    comparison: Comparison,
    /// Number of groups that have begun.
    groups: usize,
    subject: Subject,
}

#[derive(Debug)]
enum Report {
    Ktap,
    Whole(ReportFormat, Document),
}

impl Reports {
    /// Reports in these formats, each to its own output, of `subject`.
    pub fn new(outputs: Vec<(Output, ReportFormat)>, subject: Subject) -> Self {
        let reports = outputs
            .into_iter()
            .map(|(output, format)| {
                let report = match format {
                    ReportFormat::Ktap => Report::Ktap,
                    format => Report::Whole(format, Document::new(subject.shard)),
                };
                (output, report)
            })
            .collect();
        Self {
            reports,
            counts: Counts::default(),
            failed: Vec::new(),
            flaky: Vec::new(),
            errors: Vec::new(),
            began: Instant::now(),
            target: None,
            comparison: Comparison::default(),
            groups: 0,
            subject,
        }
    }

    /// The cases that follow run on the kernel or machine `name`, one of several. The reports then
    /// name it with each group. With `compare`, its outcomes are compared with those of the others.
    pub fn target(&mut self, name: &str, compare: bool) {
        self.target = Some(name.to_owned());
        if compare {
            self.comparison.add_kernel(name);
        }
    }

    /// What differs between the kernels.
    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// How many cases have ended, by outcome.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The names of the cases that have failed.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }

    /// The names of those of them that did not fail when they ran again.
    pub fn flaky(&self) -> &[String] {
        &self.flaky
    }

    /// Errors of guests that belong to no case.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Returns whether all cases have passed or were skipped, without an error of a guest.
    pub fn is_good(&self) -> bool {
        self.counts.is_good() && self.errors.is_empty()
    }

    /// Reports that no case can be run; `why` is the reason.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn skip_all(&mut self, why: &str) -> Result<(), Failure> {
        self.write_ktap(|| ktap::skip_all(why))?;
        self.end()
    }

    /// Begins a run of `groups` groups.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn begin(&mut self, groups: usize) -> Result<(), Failure> {
        self.write_ktap(|| ktap::head(groups))
    }

    /// Begins the group `name` of `cases` cases.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn group(&mut self, name: &str, cases: usize) -> Result<(), Failure> {
        self.groups += 1;
        let title = self.title(name);
        self.write_ktap(|| ktap::group_head(&title, cases))
    }

    /// `name`, of a group or a case, with the kernel or machine if there are several.
    fn title(&self, name: &str) -> String {
        match &self.target {
            Some(target) => format!("{name} ({target})"),
            None => name.to_owned(),
        }
    }

    /// Reports case `number` of its group, the first of which is 1.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn case(&mut self, number: usize, result: &CaseResult) -> Result<(), Failure> {
        let outcome = result.outcome();
        self.counts.add(outcome);
        if !outcome.is_good() && !matches!(outcome, Outcome::NotRun(_)) {
            self.failed.push(self.title(&result.case.name));
        }
        if result.is_flaky() {
            self.flaky.push(self.title(&result.case.name));
        }
        if self.comparison.kernels() > 0 {
            self.comparison.add(&result.case.name, outcome);
        }
        let group = self.title(result.case.group());
        self.documents()
            .for_each(|document| document.case(&group, result));
        self.write_ktap(|| ktap::case(number, result))
    }

    /// Ends the group that has begun last. `errors` are those of its guests.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub(crate) fn group_end(
        &mut self,
        name: &str,
        counts: &Counts,
        errors: &[String],
    ) -> Result<(), Failure> {
        let (number, title) = (self.groups, self.title(name));
        let named = errors.iter().map(|error| format!("{title}: {error}"));
        self.errors.extend(named);
        self.documents()
            .for_each(|document| document.group_end(&title, errors));
        self.write_ktap(|| ktap::group_end(number, &title, counts, errors))
    }

    /// Ends the run: writes the reports that are written as a whole.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn end(&mut self) -> Result<(), Failure> {
        let took = self.began.elapsed();
        for (output, report) in &mut self.reports {
            if let Report::Whole(format, results) = report {
                let build = self.subject.build.as_ref();
                let text = document(results.finish(took), *format, build)?;
                output
                    .write(text.as_bytes())
                    .map_err(OutputError::into_failure)?;
            }
        }
        Ok(())
    }

    fn documents(&mut self) -> impl Iterator<Item = &mut Document> {
        self.reports
            .iter_mut()
            .filter_map(|(_, report)| match report {
                Report::Whole(_, document) => Some(document),
                Report::Ktap => None,
            })
    }

    fn write_ktap(&mut self, text: impl Fn() -> String) -> Result<(), Failure> {
        for (output, report) in &mut self.reports {
            if let Report::Ktap = report {
                output
                    .write(text().as_bytes())
                    .map_err(OutputError::into_failure)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;
    use crate::case::tests::case;
    use std::time::Duration;

    fn result(name: &str, outcome: Outcome) -> CaseResult {
        let run = Run {
            outcome,
            took: Duration::from_millis(1500),
            console: Vec::new(),
        };
        CaseResult::new(case(name), run)
    }

    /// What `run` writes to a report.
    fn written(format: ReportFormat, run: impl FnOnce(&mut Reports)) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let output = Output::create(file.path()).unwrap();
        let mut reports = Reports::new(vec![(output, format)], Subject::default());
        run(&mut reports);
        std::fs::read_to_string(file.path()).unwrap()
    }

    /// A run with one case of each outcome.
    fn run(reports: &mut Reports) {
        let outcomes = [
            Outcome::Passed,
            Outcome::Skipped("one processor only".into()),
            Outcome::Failed("a < b &&\nc".into()),
            Outcome::Crashed("Kernel panic".into()),
            Outcome::TimedOut("no result after 60 s".into()),
            Outcome::NotRun("interrupted".into()),
        ];
        reports.begin(2).unwrap();
        reports.group("a", outcomes.len()).unwrap();
        let mut counts = Counts::default();
        for (number, outcome) in (1..).zip(outcomes) {
            counts.add(&outcome);
            let result = result(&format!("a.c{number}"), outcome);
            reports.case(number, &result).unwrap();
        }
        reports.group_end("a", &counts, &[]).unwrap();
        reports.group("b", 1).unwrap();
        let skipped = Outcome::Skipped("no".into());
        reports.case(1, &result("b.x", skipped)).unwrap();
        let skipped = Counts {
            skipped: 1,
            ..Counts::default()
        };
        reports.group_end("b", &skipped, &[]).unwrap();
        reports.end().unwrap();
        assert_eq!(reports.counts().failed, 3);
        assert_eq!(reports.failed(), ["a.c3", "a.c4", "a.c5"]);
        assert!(!reports.is_good());
    }

    #[test]
    fn ktap_has_a_subtest_for_each_group() {
        assert_eq!(
            written(ReportFormat::Ktap, run),
            "KTAP version 1
1..2
  KTAP version 1
  # Subtest: a
  1..6
  ok 1 a.c1
  ok 2 a.c2 # SKIP one processor only
  # a.c3: a < b && c
  not ok 3 a.c3
  not ok 4 a.c4 # ERROR Kernel panic
  not ok 5 a.c5 # TIMEOUT no result after 60 s
  not ok 6 a.c6 # ERROR not run: interrupted
# a: passed: 1, failed: 3, skipped: 1, not run: 1
not ok 1 a
  KTAP version 1
  # Subtest: b
  1..1
  ok 1 b.x # SKIP no
# b: passed: 0, failed: 0, skipped: 1
ok 2 b # SKIP
"
        );
    }

    #[test]
    fn junit_has_all_cases() {
        let text = written(ReportFormat::Junit, run);
        let report = quick_junit::Report::deserialize_from_str(&text).unwrap();
        assert_eq!((report.tests, report.test_suites.len()), (7, 2));
    }

    #[test]
    fn a_kernel_without_the_api_gives_one_line() {
        let text = written(ReportFormat::Ktap, |reports| {
            reports.skip_all("no\nAPI").unwrap();
        });
        assert_eq!(text, "KTAP version 1\n1..0 # SKIP no API\n");
    }

    #[test]
    fn an_error_of_a_guest_makes_a_run_bad() {
        let text = written(ReportFormat::Ktap, |reports| {
            let counts = Counts::default();
            let errors = ["after the last case: Oops".to_owned()];
            reports.group("a", 0).unwrap();
            reports.group_end("a", &counts, &errors).unwrap();
            assert_eq!(reports.errors(), ["a: after the last case: Oops"]);
            assert!(!reports.is_good());
        });
        assert!(text.ends_with("# a: after the last case: Oops\nnot ok 1 a\n"));
    }
}
