//! Reports: KTAP (the kernel's Documentation/dev-tools/ktap.rst), a line as each case ends; and
//! JUnit's XML, at the end.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::{Counts, Finished, Outcome};
use crate::exit::Failure;
use crate::host::{Output, OutputError};

/// A form of report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Kernel Test Anything Protocol, with a subtest for each group
    Ktap,
    /// An XML document, as continuous integration systems read it
    Junit,
}

/// All reports of a run, and their sums.
#[derive(Debug)]
pub struct Reports {
    all: Vec<(Output, Report)>,
    counts: Counts,
    failed: Vec<String>,
    trouble: Vec<String>,
    began: Instant,
}

#[derive(Debug)]
enum Report {
    Ktap,
    Junit(Junit),
}

impl Reports {
    /// Reports in these forms, each to its own output.
    pub fn new(outputs: Vec<(Output, Form)>) -> Self {
        let all = outputs
            .into_iter()
            .map(|(output, form)| {
                let report = match form {
                    Form::Ktap => Report::Ktap,
                    Form::Junit => Report::Junit(Junit::default()),
                };
                (output, report)
            })
            .collect();
        Self {
            all,
            counts: Counts::default(),
            failed: Vec::new(),
            trouble: Vec::new(),
            began: Instant::now(),
        }
    }

    /// How the cases have ended.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The names of those that have failed.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }

    /// What went wrong besides.
    pub fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// Nothing can be run, and why.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn nothing(&mut self, why: &str) -> Result<(), Failure> {
        self.ktap(|| format!("KTAP version 1\n1..0 # SKIP {}\n", line(why)))?;
        self.end()
    }

    /// There are so many groups.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn begin(&mut self, groups: usize) -> Result<(), Failure> {
        self.ktap(|| format!("KTAP version 1\n1..{groups}\n"))
    }

    /// A group of so many cases begins.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn group(&mut self, name: &str, cases: usize) -> Result<(), Failure> {
        self.ktap(|| format!("  KTAP version 1\n  # Subtest: {name}\n  1..{cases}\n"))
    }

    /// Case number `number` of its group has ended.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn case(&mut self, number: usize, finished: &Finished) -> Result<(), Failure> {
        self.counts.add(&finished.outcome);
        if !finished.outcome.is_good() && !matches!(finished.outcome, Outcome::NotRun(_)) {
            self.failed.push(finished.case.name.clone());
        }
        for (_, report) in &mut self.all {
            if let Report::Junit(junit) = report {
                junit.case(finished);
            }
        }
        self.ktap(|| ktap_case(number, finished))
    }

    /// Group number `number` has ended.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn group_end(
        &mut self,
        number: usize,
        name: &str,
        counts: &Counts,
        trouble: &[String],
    ) -> Result<(), Failure> {
        for what in trouble {
            self.trouble.push(format!("{name}: {what}"));
        }
        for (_, report) in &mut self.all {
            if let Report::Junit(junit) = report {
                junit.group_end(name, trouble);
            }
        }
        self.ktap(|| {
            let mut text = format!("# {name}: {counts}\n");
            for what in trouble {
                let _ = writeln!(text, "# {name}: {}", line(what));
            }
            let good = counts.failed == 0 && counts.not_run == 0 && trouble.is_empty();
            let result = if good { "ok" } else { "not ok" };
            let skipped = counts.skipped > 0 && counts.passed == 0;
            let directive = if good && skipped { " # SKIP" } else { "" };
            let _ = writeln!(text, "{result} {number} {name}{directive}");
            text
        })
    }

    /// All groups have ended.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn end(&mut self) -> Result<(), Failure> {
        let took = self.began.elapsed();
        for (output, report) in &mut self.all {
            if let Report::Junit(junit) = report {
                output
                    .write(junit.document(took).as_bytes())
                    .map_err(OutputError::into_failure)?;
            }
        }
        Ok(())
    }

    fn ktap(&mut self, text: impl Fn() -> String) -> Result<(), Failure> {
        for (output, report) in &mut self.all {
            if let Report::Ktap = report {
                output
                    .write(text().as_bytes())
                    .map_err(OutputError::into_failure)?;
            }
        }
        Ok(())
    }
}

fn ktap_case(number: usize, finished: &Finished) -> String {
    let name = &finished.case.name;
    let result = |result: &str, directive: &str, why: &str| {
        format!("  {result} {number} {name} # {directive} {}\n", line(why))
    };
    match &finished.outcome {
        Outcome::Passed => format!("  ok {number} {name}\n"),
        Outcome::Skipped(why) => result("ok", "SKIP", why),
        Outcome::Failed(why) => {
            format!("  # {name}: {}\n  not ok {number} {name}\n", line(why))
        }
        Outcome::Crashed(why) => result("not ok", "ERROR", why),
        Outcome::TimedOut(why) => result("not ok", "TIMEOUT", why),
        Outcome::NotRun(why) => result("not ok", "ERROR", &format!("not run: {why}")),
    }
}

/// In one line, without what could confuse a terminal.
fn line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// A JUnit document in the making.
#[derive(Debug, Default)]
struct Junit {
    suites: String,
    /// Of the group that runs.
    cases: String,
    group: Sums,
    all: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
    took: Duration,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.tests += other.tests;
        self.failures += other.failures;
        self.errors += other.errors;
        self.skipped += other.skipped;
        self.took += other.took;
    }

    fn attributes(&self, took: Duration) -> String {
        format!(
            "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\"",
            self.tests,
            self.failures,
            self.errors,
            self.skipped,
            took.as_secs_f64()
        )
    }
}

impl Junit {
    fn case(&mut self, finished: &Finished) {
        self.group.tests += 1;
        self.group.took += finished.took;
        let _ = write!(
            self.cases,
            "    <testcase classname=\"ptrace_bts.{}\" name=\"{}\" time=\"{:.3}\"",
            xml(finished.case.group()),
            xml(finished.case.short_name()),
            finished.took.as_secs_f64()
        );
        let element = match &finished.outcome {
            Outcome::Passed => {
                self.cases.push_str("/>\n");
                return;
            }
            Outcome::Skipped(_) => {
                self.group.skipped += 1;
                "skipped"
            }
            Outcome::Failed(_) => {
                self.group.failures += 1;
                "failure"
            }
            Outcome::Crashed(_) | Outcome::TimedOut(_) | Outcome::NotRun(_) => {
                self.group.errors += 1;
                "error"
            }
        };
        let kind = match &finished.outcome {
            Outcome::Crashed(_) => " type=\"crash\"",
            Outcome::TimedOut(_) => " type=\"timeout\"",
            Outcome::NotRun(_) => " type=\"not run\"",
            _ => "",
        };
        let message = xml(finished.outcome.reason().unwrap_or_default());
        let _ = writeln!(
            self.cases,
            ">\n      <{element}{kind} message=\"{message}\"/>"
        );
        if !finished.outcome.is_good() && !finished.console.is_empty() {
            let console = xml_text(&finished.console.join("\n"));
            let _ = writeln!(self.cases, "      <system-out>{console}</system-out>");
        }
        self.cases.push_str("    </testcase>\n");
    }

    fn group_end(&mut self, name: &str, trouble: &[String]) {
        let name = xml(name);
        for what in trouble {
            self.group.tests += 1;
            self.group.errors += 1;
            let _ = writeln!(
                self.cases,
                "    <testcase classname=\"ptrace_bts.{name}\" name=\"(guest)\" time=\"0.000\">\n      \
                 <error message=\"{}\"/>\n    </testcase>",
                xml(what)
            );
        }
        let _ = writeln!(
            self.suites,
            "  <testsuite name=\"ptrace_bts.{name}\" {}>\n{}  </testsuite>",
            self.group.attributes(self.group.took),
            self.cases
        );
        self.all.add(&self.group);
        self.group = Sums::default();
        self.cases.clear();
    }

    fn document(&self, took: Duration) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"vbts test\" {}>\n{}</testsuites>\n",
            self.all.attributes(took),
            self.suites
        )
    }
}

/// For the value of an attribute.
fn xml(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            // As it is, it would be read as a space.
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            c => push_xml(&mut escaped, c),
        }
    }
    escaped
}

/// For text between tags.
fn xml_text(text: &str) -> String {
    let mut escaped = String::new();
    text.chars().for_each(|c| push_xml(&mut escaped, c));
    escaped
}

fn push_xml(escaped: &mut String, c: char) {
    match c {
        '&' => escaped.push_str("&amp;"),
        '<' => escaped.push_str("&lt;"),
        '>' => escaped.push_str("&gt;"),
        '"' => escaped.push_str("&quot;"),
        '\n' | '\t' => escaped.push(c),
        // XML 1.0 has no way to write these ("Characters", section 2.2).
        '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
        c => escaped.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::tests::case;

    fn finished(name: &str, outcome: Outcome) -> Finished {
        Finished {
            case: case(name),
            outcome,
            took: Duration::from_millis(1500),
            console: vec!["WARNING: <x> & \"y\"\x1b".into()],
        }
    }

    /// What a run with one case of each kind writes.
    fn written(form: Form) -> String {
        let path =
            std::env::temp_dir().join(format!("vbts-report-{}-{form:?}", std::process::id()));
        let mut reports = Reports::new(vec![(Output::create(&path).unwrap(), form)]);
        let outcomes = [
            Outcome::Passed,
            Outcome::Skipped("one processor only".into()),
            Outcome::Failed("a < b &&\nc".into()),
            Outcome::Crashed("Kernel panic".into()),
            Outcome::TimedOut("nothing after 60 s".into()),
            Outcome::NotRun("interrupted".into()),
        ];
        reports.begin(2).unwrap();
        reports.group("a", outcomes.len()).unwrap();
        let mut counts = Counts::default();
        for (number, outcome) in (1..).zip(outcomes) {
            counts.add(&outcome);
            reports
                .case(number, &finished(&format!("a.c{number}"), outcome))
                .unwrap();
        }
        reports.group_end(1, "a", &counts, &[]).unwrap();
        reports.group("b", 1).unwrap();
        reports
            .case(1, &finished("b.x", Outcome::Skipped("no".into())))
            .unwrap();
        let skipped = Counts {
            skipped: 1,
            ..Counts::default()
        };
        reports.group_end(2, "b", &skipped, &[]).unwrap();
        reports.end().unwrap();
        assert_eq!(reports.counts().failed, 3);
        assert_eq!(reports.failed(), ["a.c3", "a.c4", "a.c5"]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    }

    #[test]
    fn ktap_has_a_subtest_for_each_group() {
        assert_eq!(
            written(Form::Ktap),
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
  not ok 5 a.c5 # TIMEOUT nothing after 60 s
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
    fn junit_is_well_formed() {
        let text = written(Form::Junit);
        assert!(text.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites "));
        assert!(
            text.contains("tests=\"7\" failures=\"1\" errors=\"3\" skipped=\"2\""),
            "{text}"
        );
        assert!(
            text.contains("message=\"a &lt; b &amp;&amp;&#10;c\""),
            "{text}"
        );
        assert!(
            text.contains(
                "<system-out>WARNING: &lt;x&gt; &amp; &quot;y&quot;\u{fffd}</system-out>"
            ),
            "{text}"
        );
        assert!(text.contains("classname=\"ptrace_bts.a\" name=\"c1\" time=\"1.500\"/>"));
        // Every element that is opened is closed.
        let mut open = Vec::new();
        for tag in text
            .split('<')
            .skip(1)
            .map(|t| t.split('>').next().unwrap())
        {
            let name = tag.split([' ', '/']).next().unwrap();
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with(['/', '?']) => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn a_kernel_without_the_api_is_one_line() {
        let path = std::env::temp_dir().join(format!("vbts-nothing-{}", std::process::id()));
        let mut reports = Reports::new(vec![(Output::create(&path).unwrap(), Form::Ktap)]);
        reports.nothing("no\nAPI").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "KTAP version 1\n1..0 # SKIP no API\n");
    }
}
