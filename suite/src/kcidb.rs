//! Reports in the format of KCIDB, KernelCI's database of results (its schema, version 5.3).

use quick_junit::{Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::{Value, json};

use super::junit::{is_flaky, is_not_run};

/// Version of the schema.
const VERSION: (u32, u32) = (5, 3);
/// Characters of a log that a test may have.
const MAX_LOG: usize = 16384;

/// The ID of a build in KCIDB: `ORIGIN:ID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildId {
    origin: String,
    id: String,
}

impl BuildId {
    /// Parses `ORIGIN:ID`.
    ///
    /// # Errors
    /// The schema does not allow it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_of_origin = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        match text.split_once(':') {
            Some((origin, id))
                if !origin.is_empty() && origin.bytes().all(is_of_origin) && !id.is_empty() =>
            {
                Ok(Self {
                    origin: origin.into(),
                    id: id.into(),
                })
            }
            _ => Err("it is ORIGIN:ID, with an origin of a-z, 0-9 and _".into()),
        }
    }
}

/// The document with the results of `report`, which are those of `build`.
pub fn document(report: &Report, build: &BuildId) -> String {
    let tests: Vec<Value> = report
        .test_suites
        .iter()
        .flat_map(|suite| suite.test_cases.iter().map(|case| test(suite, case, build)))
        .collect();
    let (major, minor) = VERSION;
    let document = json!({"version": {"major": major, "minor": minor}, "tests": tests});
    format!("{document:#}\n")
}

fn test(suite: &TestSuite, case: &TestCase, build: &BuildId) -> Value {
    let (suite, name) = (suite.name.as_str(), case.name.as_str());
    // The name of the kernel, if there are several.
    let (group, kernel) = match suite.split_once(" (") {
        Some((group, rest)) => (group, Some(rest.trim_end_matches(')'))),
        None => (suite, None),
    };
    let BuildId { origin, id } = build;
    let mut test = json!({
        "id": format!("{origin}:{id}/{suite}.{name}"),
        "origin": origin,
        "build_id": format!("{origin}:{id}"),
        "path": path(&format!("{group}.{name}")),
        "status": status(&case.status),
        "duration": case.time.unwrap_or_default().as_secs_f64(),
    });
    let mut set = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            test[field] = value;
        }
    };
    set("comment", message(&case.status).map(Value::from));
    set(
        "log_excerpt",
        case.system_out
            .as_ref()
            .map(|log| last(log.as_str()).into()),
    );
    set(
        "environment",
        kernel.map(|kernel| json!({"comment": kernel})),
    );
    // The schema has no status for it.
    set("misc", is_flaky(case).then(|| json!({"flaky": true})));
    test
}

/// `name` with a replacement for the characters that a path cannot have.
fn path(name: &str) -> String {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars()
        .map(|c| if is_of_path(c) { c } else { '_' })
        .collect()
}

fn status(status: &TestCaseStatus) -> &'static str {
    match status {
        TestCaseStatus::Success { .. } => "PASS",
        TestCaseStatus::Skipped { .. } => "SKIP",
        status if is_not_run(status) => "MISS",
        // A crash or a hang is the kernel's, too.
        TestCaseStatus::NonSuccess { .. } => "FAIL",
    }
}

fn message(status: &TestCaseStatus) -> Option<&str> {
    let message = match status {
        TestCaseStatus::Success { .. } => None,
        TestCaseStatus::Skipped { message, .. } => message.as_ref(),
        TestCaseStatus::NonSuccess { message, .. } => message.as_ref(),
    };
    message.map(|message| message.as_str())
}

/// The end of a log.
fn last(log: &str) -> &str {
    let start = log.char_indices().rev().nth(MAX_LOG - 1);
    &log[start.map_or(0, |(start, _)| start)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::tests::case;
    use crate::junit::Document;
    use crate::{CaseResult, Outcome, Run};
    use std::time::Duration;

    #[test]
    fn an_id_has_an_origin() {
        assert!(BuildId::parse("my_ci:6.12-3 x").is_ok());
        for bad in ["", "x", ":x", "x:", "My:x", "a-b:x"] {
            assert!(BuildId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_result_is_a_test() {
        let mut document = Document::new(None);
        for (name, outcome, console) in [
            ("a.passed", Outcome::Passed, "x"),
            ("a.skipped", Outcome::Skipped("why".into()), "x"),
            ("a.flaky", Outcome::Failed("what".into()), "log"),
            ("a.crashed", Outcome::Crashed("Oops".into()), "x"),
            ("a.missing", Outcome::NotRun("killed".into()), "x"),
        ] {
            let run = |outcome| Run {
                outcome,
                took: Duration::from_millis(1500),
                console: vec![console.into()],
            };
            let later = (name == "a.flaky").then(|| run(Outcome::Passed));
            let result = CaseResult {
                case: case(name),
                first: run(outcome),
                later: later.into_iter().collect(),
            };
            document.case("a (dir/vmlinux)", &result);
        }
        document.group_end("a (dir/vmlinux)", &[]);
        let build = BuildId::parse("ci:1").unwrap();
        let text = super::document(document.finish(Duration::ZERO), &build);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["version"], json!({"major": 5, "minor": 3}));
        let statuses: Vec<&str> = value["tests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|test| test["status"].as_str().unwrap())
            .collect();
        assert_eq!(statuses, ["PASS", "SKIP", "FAIL", "FAIL", "MISS"]);
        assert_eq!(
            value["tests"][2],
            json!({
                "id": "ci:1/ptrace_bts.a (dir/vmlinux).flaky",
                "origin": "ci",
                "build_id": "ci:1",
                "path": "ptrace_bts.a.flaky",
                "status": "FAIL",
                "duration": 1.5,
                "comment": "what",
                "log_excerpt": "log",
                "environment": {"comment": "dir/vmlinux"},
                "misc": {"flaky": true},
            })
        );
    }

    #[test]
    fn a_path_and_a_log_are_those_of_the_schema() {
        assert_eq!(path("kselftest.a/b c"), "kselftest.a_b_c");
        let log = format!("x{}", "\u{e9}".repeat(MAX_LOG));
        assert_eq!(last(&log).chars().count(), MAX_LOG);
        assert_eq!(last("short"), "short");
    }
}
