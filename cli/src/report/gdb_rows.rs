//! Reports that gdb makes on a replay: a row for each time that the program stops.
//!
//! gdb evaluates expressions, because it knows the languages and the debugging information.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{anyhow, bail};
use serde_json::{Map, Value, json};
use vbts_host::Output;
use vbts_host::exit::{Failure, say};

use super::analysis::limit;
use super::tasks::TaskPattern;
use super::{ReportArgs, process};
use crate::debug::{Answer, Gdb, Stopped};
use crate::options::name_of;

/// Settings of gdb before the program runs.
const SETTINGS: [&str; 6] = [
    "set breakpoint pending off",
    "set confirm off",
    "set width 0",
    "set print thread-events off",
    "set print frame-arguments none",
    "handle all nostop noprint pass",
];
/// A moment at which the program has stopped.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Virtual time in ns.
    pub time: u64,
    pub task: u64,
    pub name: String,
    pub function: String,
    /// File and line, or the address.
    pub place: String,
    pub values: Vec<String>,
}

/// A session of gdb, and the rows that it has made.
pub(super) struct GdbRows<'a> {
    args: &'a ReportArgs,
    pub gdb: Gdb,
    pub rows: Vec<Row>,
    is_complete: bool,
    /// Virtual time in ns from which on there are no rows.
    end: u64,
}

impl<'a> GdbRows<'a> {
    /// Starts gdb, on the process that has the task of `--task`.
    ///
    /// # Errors
    /// gdb is not installed, or the recording cannot be debugged, or has no such task.
    pub(super) fn start(args: &'a ReportArgs) -> Result<Self, Failure> {
        let task = args.task.as_ref().map(TaskPattern::to_string);
        let mut options = vec!["--sandbox", name_of(&args.sandbox)];
        options.extend(task.iter().flat_map(|task| ["--process", task]));
        let mut gdb = Gdb::start(&args.file, &options)?;
        for setting in SETTINGS {
            done(gdb.console(setting)?)?;
        }
        Ok(Self {
            args,
            gdb,
            rows: Vec::new(),
            is_complete: false,
            end: u64::MAX,
        })
    }

    /// Goes to the first position of the report, that of `--from`.
    ///
    /// # Errors
    /// gdb has ended.
    pub(super) fn go_to_start(&mut self) -> Result<(), Failure> {
        self.end = match (self.args.to, self.args.time) {
            (Some(to), _) => self.time_of(to)?,
            (None, Some(time)) => time,
            (None, None) => u64::MAX,
        };
        if let Some(from) = self.args.from {
            return self.go_to_branch(from);
        }
        done(self.gdb.console("goto start")?)?;
        Ok(())
    }

    /// Goes to where the tasks of the program have executed `count` branches.
    ///
    /// # Errors
    /// gdb has ended.
    pub(super) fn go_to_branch(&mut self, count: u64) -> Result<(), Failure> {
        let command = format!("goto time {}", self.time_of(count)?);
        done(self.gdb.console(&command)?)?;
        Ok(())
    }

    /// Virtual time in ns at which the tasks of the program have executed `count` branches.
    fn time_of(&mut self, count: u64) -> Result<u64, Failure> {
        let text = done(self.gdb.console(&format!("monitor time-of {count}"))?)?;
        let time = text.trim().parse();
        Ok(time.map_err(|_| anyhow!("the replay says '{}'", text.trim().escape_debug()))?)
    }

    /// Runs the program, and adds a row, which `stopped` completes, for each stop for `reason`, up
    /// to the limit.
    ///
    /// # Errors
    /// gdb has ended, or `stopped` fails.
    pub(super) fn each_stop(
        &mut self,
        reason: &str,
        mut stopped: impl FnMut(&mut Gdb, &Stopped, &mut Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let task = match self.args.task {
            Some(TaskPattern::Id(id)) => Some(u64::from(id)),
            _ => None,
        };
        loop {
            let stop = self.gdb.resume()?;
            match stop.field("reason").as_deref() {
                Some(this) if this == reason => {
                    let mut row = row(&mut self.gdb)?;
                    if row.time >= self.end {
                        break;
                    }
                    if task.is_some_and(|task| task != row.task) {
                        continue;
                    }
                    if self.rows.len() == limit(self.args) {
                        return Ok(());
                    }
                    stopped(&mut self.gdb, &stop, &mut row)?;
                    self.rows.push(row);
                }
                // gdb gives no reason at the end of the recording.
                None | Some("no-history") => break,
                Some(end) if end.starts_with("exited") => break,
                Some(_) => {}
            }
        }
        self.is_complete = true;
        Ok(())
    }

    /// Writes the rows, with a note if there are more, or the text `none` if there are none.
    ///
    /// # Errors
    /// The output fails.
    pub(super) fn finish(
        self,
        columns: &[String],
        none: &str,
        output: Output,
    ) -> Result<(), Failure> {
        let text = match self.args.json {
            true => json_of(&self.rows, columns),
            false => table(&self.rows, columns),
        };
        process::write_whole(output, &text)?;
        if self.rows.is_empty() {
            say(format_args!("{none}"));
        } else if !self.is_complete {
            let count = self.rows.len();
            say(format_args!(
                "these are the first {count}: --limit N shows more"
            ));
        }
        Ok(())
    }
}

/// The expression of the report.
pub(super) fn text(args: &ReportArgs) -> anyhow::Result<&str> {
    let text = args.expression.as_ref().and_then(|text| text.to_str());
    one_line(args.what.name, text.unwrap_or_default())
}

/// Refuses a text that gdb would read as two commands.
pub(super) fn one_line<'a>(option: &str, text: &'a str) -> anyhow::Result<&'a str> {
    if text.trim().is_empty() || text.contains(char::is_control) {
        bail!("{option}: '{}' is no text of one line", text.escape_debug());
    }
    Ok(text.trim())
}

/// Text that a command has printed.
///
/// # Errors
/// gdb refuses the command.
pub(super) fn done(answer: Answer) -> anyhow::Result<String> {
    match answer {
        Answer::Done { printed, .. } => Ok(printed),
        Answer::Refused(why) => Err(anyhow!("gdb: {why}")),
    }
}

/// The time and the task of the present stop, from the text of `monitor when`.
fn row(gdb: &mut Gdb) -> anyhow::Result<Row> {
    let text = done(
        gdb.console("monitor when")
            .map_err(|failure| anyhow!("{failure}"))?,
    )?;
    let parsed = || {
        let (time, rest) = text.split_once(" ns of virtual time, thread ")?;
        let (task, rest) = rest.split_once(" (")?;
        let (name, _) = rest.rsplit_once("), ")?;
        Some(Row {
            time: time.trim().parse().ok()?,
            task: task.parse().ok()?,
            name: name.into(),
            ..Row::default()
        })
    };
    parsed().ok_or_else(|| anyhow!("the replay says '{}'", text.trim().escape_debug()))
}

/// The name of a file without its directory.
pub(super) fn base(file: &str) -> &str {
    let name = Path::new(file).file_name().and_then(|name| name.to_str());
    name.unwrap_or(file)
}

fn json_of(rows: &[Row], columns: &[String]) -> String {
    let mut text = String::new();
    for row in rows {
        let values = columns.iter().zip(&row.values);
        let values: Map<String, Value> = values
            .map(|(column, value)| (column.clone(), value.as_str().into()))
            .collect();
        let object = json!({
            "time": row.time, "task": row.task, "name": row.name, "function": row.function,
            "place": row.place, "values": values,
        });
        // Writes to a string cannot fail.
        let _ = writeln!(text, "{object}");
    }
    text
}

fn table(rows: &[Row], columns: &[String]) -> String {
    let titles = ["time ns", "task", "place"].map(str::to_owned);
    let mut lines = vec![[&titles[..], columns].concat()];
    lines.extend(rows.iter().map(|row| {
        let place = match &*row.function {
            "" => row.place.clone(),
            function => format!("{function} {}", row.place),
        };
        let mut cells = vec![
            row.time.to_string(),
            format!("{} {}", row.task, row.name),
            place,
        ];
        cells.extend(row.values.iter().cloned());
        cells
    }));
    for cell in lines.iter_mut().flatten() {
        *cell = cell.replace(char::is_control, "?");
    }
    let width = |n: usize| {
        let cells = lines.iter().filter_map(|line| line.get(n));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len() + columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (n, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Numbers are on the right.
            let _ = match n {
                0 => write!(padded, "{cell:>width$}"),
                _ => write!(padded, "  {cell:width$}"),
            };
        }
        text += padded.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_columns_and_no_control_characters() {
        let row = |time, value: &str| Row {
            time,
            task: 30,
            name: "a\x1bb".into(),
            function: "f".into(),
            place: "a.c:1".into(),
            values: vec![value.into()],
        };
        let rows = [row(5, "1"), row(1234567890, "-1")];
        let expected = "   time ns  task    place    x\n         \
                        5  30 a?b  f a.c:1  1\n1234567890  30 a?b  f a.c:1  -1\n";
        assert_eq!(table(&rows, &["x".into()]), expected);
        let json = json_of(&rows, &["x".into()]);
        assert!(json.contains("\"values\":{\"x\":\"-1\"}") && json.lines().count() == 2);
    }
}
