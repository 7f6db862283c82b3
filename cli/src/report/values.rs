//! `vbts report print`: values of expressions at places of a recorded program, after the fact.

use anyhow::anyhow;
use vbts_host::Output;
use vbts_host::exit::Failure;

use super::ReportArgs;
use super::gdb_rows::{GdbRows, Row, base, one_line, text};
use crate::debug::{Answer, field, quoted};

/// Prints the values of expressions each time that a place is reached.
pub(super) fn print(args: &ReportArgs, output: Output) -> Result<(), Failure> {
    let expressions = split(text(args)?);
    if args.at.is_empty() {
        return Err(anyhow!("print: --at PLACE says where").into());
    }
    let mut session = GdbRows::start(args)?;
    for place in &args.at {
        let place = one_line("--at", place)?;
        if let Answer::Refused(why) = session.gdb.console(&format!("break {place}"))? {
            return Err(anyhow!("--at {place}: {why}").into());
        }
    }
    session.go_to_start()?;
    let mut errors = vec![None; expressions.len()];
    session.each_stop("breakpoint-hit", |gdb, stopped, row| {
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
        Ok(())
    })?;
    for ((n, expression), error) in expressions.iter().enumerate().zip(&errors) {
        // One that has a value somewhere is in scope there alone.
        let has_none = |row: &Row| {
            row.values
                .get(n)
                .is_some_and(|value| value.starts_with('<'))
        };
        if let Some(why) = error.as_ref().filter(|_| session.rows.iter().all(has_none)) {
            return Err(anyhow!("{expression}: {why}").into());
        }
    }
    session.finish(&expressions, "the program never comes there", output)
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
}
