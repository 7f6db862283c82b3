//! Colours on a terminal, as git has them: for people, and not if they have said no.

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _, Write, stdout};

use clap::builder::styling::{AnsiColor, Style};

/// Set for a process whose output the user's pager shows, which is on a terminal.
pub(crate) const PAGER_IN_USE: &str = "VBTS_PAGER_IN_USE";

/// Returns whether reports on standard output have colours.
pub(crate) fn are_wanted() -> bool {
    let variable = std::env::var_os;
    (stdout().is_terminal() || variable(PAGER_IN_USE).is_some())
        && variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").as_deref() != Some(OsStr::new("dumb"))
}

/// Words at the beginning of a line, after its indentation, and their colours: of the two runs in a
/// comparison, and of calls and returns.
const WORDS: [(&str, AnsiColor); 6] = [
    ("first", AnsiColor::Red),
    ("second", AnsiColor::Green),
    ("call", AnsiColor::Green),
    ("return", AnsiColor::Blue),
    ("signal", AnsiColor::Red),
    ("stack:", AnsiColor::Yellow),
];
/// A word that only the heading of a table begins with.
const HEADING: &str = "instructions";

/// Gives the lines of a report colours.
#[derive(Debug)]
pub(crate) struct Coloured<W: Write> {
    to: W,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl<W: Write> Coloured<W> {
    /// A writer of coloured lines to `to`.
    pub(crate) fn new(to: W) -> Self {
        let line = Vec::new();
        Self { to, line }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(line) => self.to.write_all(coloured(line).as_bytes()),
            Err(_) => self.to.write_all(&line),
        }
    }
}

impl<W: Write> Write for Coloured<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    /// Writes a line that has no end, too.
    fn flush(&mut self) -> io::Result<()> {
        self.write_line()?;
        self.to.flush()
    }
}

/// A line with colours: a heading is bold, the place at the end is dim.
fn coloured(line: &str) -> String {
    let text = line.trim_end_matches('\n');
    let end = line.get(text.len()..).unwrap_or_default();
    let first = text.trim_start();
    if first.starts_with(HEADING) {
        let bold = Style::new().bold();
        return format!("{bold}{text}{bold:#}{end}");
    }
    let (indentation, mut rest) = text.split_at(text.len() - first.len());
    let mut out = indentation.to_owned();
    let word = WORDS.into_iter().find(|(word, _)| {
        let after = rest.strip_prefix(word);
        after.is_some_and(|after| after.is_empty() || after.starts_with(' '))
    });
    if let Some((word, colour)) = word {
        let style = Style::new().fg_color(Some(colour.into()));
        out += &format!("{style}{word}{style:#}");
        rest = rest.get(word.len()..).unwrap_or_default();
    }
    match rest.rfind(" (").filter(|_| rest.ends_with(')')) {
        Some(at) => {
            let (name, place) = rest.split_at(at);
            let dim = Style::new().dimmed();
            out += &format!("{name}{dim}{place}{dim:#}{end}");
        }
        None => out += &format!("{rest}{end}"),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_colours_by_their_form() {
        for (line, expected) in [
            (
                "  instructions   self\n",
                "\x1b[1m  instructions   self\x1b[0m\n",
            ),
            (
                "    10  20.9%  insert (a.c:5)\n",
                "    10  20.9%  insert\x1b[2m (a.c:5)\x1b[0m\n",
            ),
            (
                "   call f+0x1 -> g+0x0",
                "   \x1b[32mcall\x1b[0m f+0x1 -> g+0x0",
            ),
            ("  stack:\n", "  \x1b[33mstack:\x1b[0m\n"),
            ("  firstly\n", "  firstly\n"),
            ("\n", "\n"),
        ] {
            assert_eq!(coloured(line), expected);
        }
    }

    #[test]
    fn parts_of_lines_are_joined_and_other_bytes_pass() {
        let mut out = Vec::new();
        let mut writer = Coloured::new(&mut out);
        writer.write_all(b"  sta").unwrap();
        writer.write_all(b"ck:\n\xFF\nno end").unwrap();
        writer.flush().unwrap();
        assert_eq!(out, b"  \x1b[33mstack:\x1b[0m\n\xFF\nno end");
    }
}
