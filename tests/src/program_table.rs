//! The table of programs that are run on the host and traced in a guest
//! (`tests/real_programs/table`), and the page of the documents that is made from it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// What the page says before its tables.
const INTRODUCTION: &str = "\
# Programs

Everyday programs that the tests of vbts trace, and what their traces contain.

";

/// What the page says about the tables.
const EXPLANATION: &str = "\
Each row is a test: `ci/test-all` runs all rows, `ci/test` those that are marked with *. The test
runs the command on the host and under `vbts trace`. Standard output, standard error and the exit
status must be the same. In the trace, every process and thread (*task*) must have a start, an end
and records, no record may be lost, and the number of records of all tasks must be that of the
summary.

`tests/real_programs/table` has the command of each row, and this page is made from it. The numbers
of tasks and records are those of Debian 12: other versions of a program have others. The test
expects at least as many tasks, and records of the same order of magnitude.

    VBTS_BIN=$PWD/target/release/vbts cargo test -p vbts-tests --test guests real_programs::quick
    VBTS_BIN=$PWD/target/release/vbts cargo test -p vbts-tests --test guests real_programs::slow::java

Each row is also recorded (`vbts record`) and replayed, with the same output and twice with the same
branches: `real_programs::slow::recorded`.

Most programs need none of vbts's options. A row that needs more memory than the default names
`--memory`.
";

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The section of the page.
    pub kind: String,
    /// Debian packages that have the programs.
    pub packages: Vec<String>,
    /// Lines for a shell.
    pub run: String,
    /// Lines for a shell that are run on the host before.
    pub prepare: Option<String>,
    /// Programs that the trace must show as executed.
    pub executes: Vec<String>,
    /// Number of tasks, at least.
    pub tasks: usize,
    /// Order of magnitude of the number of records.
    pub records: u64,
    /// Whether `ci/test` runs it.
    pub quick: bool,
    /// The guest's memory, if it is not the default.
    pub memory: Option<String>,
    /// Why tasks of the program are not traced.
    pub untraced: Option<String>,
    /// Files on a writable share, which must be the same after both runs.
    pub keeps: Vec<String>,
    /// For the page.
    pub note: Option<String>,
}

/// The directory with the table and with the files that the programs use.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("real_programs")
}

/// The rows of the table.
///
/// # Errors
/// The table cannot be read, or has a mistake.
pub fn rows() -> Result<Vec<Row>> {
    let path = directory().join("table");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text)
}

/// Parses a table: paragraphs of fields, as in Debian's control files.
fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for line in paragraph.lines().filter(|line| !line.starts_with('#')) {
            if let Some(more) = line.strip_prefix(' ') {
                let (_, value) = fields.last_mut().context("a value without a field")?;
                if !value.is_empty() {
                    value.push('\n');
                }
                value.push_str(more);
            } else {
                let (name, value) = (line.split_once(':')).with_context(|| line.to_owned())?;
                fields.push((name, value.trim().to_owned()));
            }
        }
        if !fields.is_empty() {
            let shown = format!("{fields:?}");
            rows.push(Row::new(fields).context(shown)?);
        }
    }
    Ok(rows)
}

impl Row {
    fn new(fields: Vec<(&str, String)>) -> Result<Self> {
        let mut row = Self::default();
        let words = |value: &str| value.split_whitespace().map(Into::into).collect();
        for (name, value) in fields {
            match name {
                "Name" => row.name = value,
                "Kind" => row.kind = value,
                "Packages" => row.packages = words(&value),
                "Run" => row.run = value,
                "Prepare" => row.prepare = Some(value),
                "Executes" => row.executes = words(&value),
                "Tasks" => row.tasks = value.parse()?,
                "Records" => row.records = value.parse()?,
                "Tier" => row.quick = value == "quick",
                "Memory" => row.memory = Some(value),
                "Untraced" => row.untraced = Some(value),
                "Keeps" => row.keeps = words(&value),
                "Note" => row.note = Some(value),
                _ => bail!("an unknown field: {name}"),
            }
        }
        ensure!(
            !row.name.is_empty() && !row.kind.is_empty() && !row.run.is_empty(),
            "no name, kind or command"
        );
        ensure!(row.tasks > 0 && row.records > 0, "no tasks or records");
        Ok(row)
    }

    /// Its name as part of a test's name.
    #[must_use]
    pub fn test_name(&self) -> String {
        let tier = if self.quick { "quick" } else { "slow" };
        let name = self.name.replace("++", "pp");
        let words = name.split(|c: char| !c.is_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        format!("{tier}::{}", words.join("_"))
    }

    fn notes(&self) -> String {
        let memory = (self.memory.as_ref()).map(|memory| format!("`--memory {memory}`"));
        let untraced = (self.untraced.as_ref()).map(|why| format!("not all tasks: {why}"));
        let notes = [memory, untraced, self.note.clone()];
        notes.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// A power of ten in digits, with commas.
fn digits(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The page for `rows`.
#[must_use]
pub fn page(rows: &[Row]) -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut kind = "";
    for row in rows {
        if row.kind != kind {
            if !kind.is_empty() {
                page.push('\n');
            }
            kind = &row.kind;
            // Writing to a `String` does not fail.
            let _ = write!(page, "## {kind}\n\n| program | tasks | records | notes |\n");
            page.push_str("|---|---:|---:|---|\n");
        }
        let star = if row.quick { " *" } else { "" };
        let _ = writeln!(
            page,
            "| {}{star} | {} | {} | {} |",
            row.name.replace('|', "\\|"),
            row.tasks,
            digits(row.records),
            row.notes()
        );
    }
    page.push_str("\n## What the tests check\n\n");
    page.push_str(EXPLANATION);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `VBTS_UPDATE_DOCS` writes the page.
    #[test]
    fn the_page_is_that_of_the_table() {
        let path = directory().join("../../docs/programs.md");
        let page = page(&rows().unwrap());
        if std::env::var_os("VBTS_UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(
            written == page,
            "docs/programs.md is not that of the table: run this test with VBTS_UPDATE_DOCS=1"
        );
    }

    #[test]
    fn names_are_unique() {
        let rows = rows().unwrap();
        let mut names: Vec<_> = rows.iter().map(Row::test_name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn a_row_continues_on_lines_with_a_space() {
        let text = "# about\n\nName: a b\nKind: Shells\nRun:\n one\n  two\nTasks: 2\nRecords: 10000\n\
                    Tier: quick\n\nName: b\nKind: Shells\nRun: x: y\nTasks: 1\nRecords: 1\n";
        let rows = parse(text).unwrap();
        assert_eq!(rows[0].run, "one\n two");
        assert_eq!(rows[0].test_name(), "quick::a_b");
        assert_eq!(rows[1].run, "x: y");
        assert!(!rows[1].quick);
        assert!(parse("Name: a\nKind: b\nRun: c\n").is_err());
        assert!(parse(&text.replace("Tier", "Teir")).is_err());
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!(
            [100, 1000, 1_000_000].map(digits),
            ["100", "1,000", "1,000,000"]
        );
    }
}
