//! `vbts report print`: values of expressions at places of a recorded program, after the fact.
//!
//! gdb evaluates the expressions, on a replay: it knows the languages and the debugging
//! information.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{anyhow, bail};
use serde_json::{Map, Value, json};
use vbts_host::Output;
use vbts_host::exit::{Failure, say};

use super::analysis::limit;
use super::{ReportArgs, process};
use crate::debug::{Answer, Gdb, Stopped, field, quoted};
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
struct Row {
    /// Virtual time in ns.
    time: u64,
    task: u64,
    name: String,
    function: String,
    /// File and line, or the address.
    place: String,
    values: Vec<String>,
}

/// Prints the values of expressions each time that a place is reached.
pub(super) fn print(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let expressions = split(text(args)?);
    if args.at.is_empty() {
        return Err(anyhow!("print: --at PLACE says where").into());
    }
    let mut gdb = start(args)?;
    for place in &args.at {
        let place = one_line("--at", place)?;
        if let Answer::Refused(why) = gdb.console(&format!("break {place}"))? {
            return Err(anyhow!("--at {place}: {why}").into());
        }
    }
    done(gdb.console("goto start")?)?;
    let mut rows = Vec::new();
    let mut errors = vec![None; expressions.len()];
    let is_complete = each_stop(&mut gdb, args, "breakpoint-hit", |gdb, stopped| {
        let mut row = row(gdb)?;
        row.function = stopped.field("func").unwrap_or_default();
        row.place = match (stopped.field("file"), stopped.field("line")) {
            (Some(file), Some(line)) => format!("{}:{line}", base(&file)),
            _ => stopped.field("addr").unwrap_or_default(),
        };
        for (expression, error) in expressions.iter().zip(&mut errors) {
            let command = format!("-data-evaluate-expression {}", quoted(expression));
            row.values.push(match gdb.execute(&command)? {
                Answer::Done { result, .. } => field(&result, "value").unwrap_or_default(),
                Answer::Refused(why) => {
                    let value = format!("<{}>", why.trim_end_matches('.'));
                    error.get_or_insert(why);
                    value
                }
            });
        }
        rows.push(row);
        Ok(())
    })?;
    drop(gdb);
    for ((n, expression), error) in expressions.iter().enumerate().zip(&errors) {
        // One that has a value somewhere is in scope there alone.
        let has_none = |row: &Row| {
            row.values
                .get(n)
                .is_some_and(|value| value.starts_with('<'))
        };
        if let Some(why) = error.as_ref().filter(|_| rows.iter().all(has_none)) {
            return Err(anyhow!("{expression}: {why}").into());
        }
    }
    finish(args, &rows, &expressions, is_complete, output)
}

/// The expression of the report.
fn text(args: &ReportArgs) -> anyhow::Result<&str> {
    let text = args.expression.as_ref().and_then(|text| text.to_str());
    one_line(args.what.name, text.unwrap_or_default())
}

/// Refuses a text that gdb would read as two commands.
fn one_line<'a>(option: &str, text: &'a str) -> anyhow::Result<&'a str> {
    if text.trim().is_empty() || text.contains(char::is_control) {
        bail!("{option}: '{}' is no text of one line", text.escape_debug());
    }
    Ok(text.trim())
}

fn start(args: &ReportArgs) -> Result<Gdb, Failure> {
    let sandbox = name_of(&args.sandbox);
    let mut gdb = Gdb::start(&args.file, &["--sandbox", sandbox])?;
    for setting in SETTINGS {
        done(gdb.console(setting)?)?;
    }
    Ok(gdb)
}

/// Text that a command has printed.
///
/// # Errors
/// gdb refuses the command.
fn done(answer: Answer) -> anyhow::Result<String> {
    match answer {
        Answer::Done { printed, .. } => Ok(printed),
        Answer::Refused(why) => Err(anyhow!("gdb: {why}")),
    }
}

/// Runs the program, and calls `stopped` at each stop for `reason`, up to the limit. Returns
/// whether these were all.
fn each_stop(
    gdb: &mut Gdb,
    args: &ReportArgs,
    reason: &str,
    mut stopped: impl FnMut(&mut Gdb, &Stopped) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut count = 0;
    loop {
        let stop = gdb.resume()?;
        match stop.field("reason").as_deref() {
            Some(this) if this == reason && count == limit(args) => return Ok(false),
            Some(this) if this == reason => {
                count += 1;
                stopped(gdb, &stop)?;
            }
            // gdb gives no reason at the end of the recording.
            None | Some("no-history") => return Ok(true),
            Some(end) if end.starts_with("exited") => return Ok(true),
            Some(_) => {}
        }
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
fn base(file: &str) -> &str {
    let name = Path::new(file).file_name().and_then(|name| name.to_str());
    name.unwrap_or(file)
}

/// The expressions in a text: commas inside of brackets and quotation marks separate none.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0_usize);
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (',', None) if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            ('\\', Some(_)) => {
                part.push(c);
                part.extend(chars.next());
                continue;
            }
            (c, Some(end)) if c == end => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    let parts = parts.iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

/// Writes the rows, with a note if there are more.
fn finish(
    args: &ReportArgs,
    rows: &[Row],
    columns: &[String],
    is_complete: bool,
    output: Output,
) -> Result<(), Failure> {
    let text = match args.json {
        true => json_of(rows, columns),
        false => table(rows, columns),
    };
    process::write_whole(output, &text)?;
    if rows.is_empty() {
        say(format_args!("the program never comes there"));
    } else if !is_complete {
        let count = rows.len();
        say(format_args!(
            "these are the first {count}: --limit N shows more"
        ));
    }
    Ok(())
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
    fn expressions_are_separated_by_commas_outside_of_brackets() {
        assert_eq!(split("x, y[i]"), ["x", "y[i]"]);
        assert_eq!(split("f(a, b), \"a,\\\",b\" ,'\\'', {1, 2}[0]").len(), 4);
        assert_eq!(split("a,,b)"), ["a", "b)"]);
        assert!(split(" , ").is_empty());
    }

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
