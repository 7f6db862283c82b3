//! Names that a guest or a file has chosen, as text that cannot forge lines or change a terminal.
//!
//! Everything that vbts writes for people passes through here: labels of addresses, names of tasks,
//! paths, and messages.

use std::fmt::{self, Write};

/// Returns whether `c` shows as a character of its line. Control characters, line and paragraph
/// separators, bidirectional marks, other invisible characters and unassigned ones do not.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // The standard library knows what is printable in Unicode. A combining mark is: it belongs to
    // the character before it, so that it is tested behind one.
    let mut text = [0; 5];
    text[0] = b'a';
    let end = 1 + c.encode_utf8(&mut text[1..]).len();
    let text = text.get(..end).and_then(|text| str::from_utf8(text).ok());
    text.is_some_and(|text| text.escape_debug().count() == 2)
}

/// A name in one line: what is not printable is escaped, as `\n`, `\u{202e}` or, if it is not
/// UTF-8, `\xff`.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    push_printable(&mut out, name);
    out
}

/// Appends a name to `out` as [`printable`] does.
pub fn push_printable(out: &mut String, name: &[u8]) {
    for chunk in name.utf8_chunks() {
        // Writing to a `String` does not fail.
        let _ = write_escaped(out, chunk.valid(), is_printable);
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
}

/// The beginning of `text`, at most `length` bytes.
pub fn prefix(text: &str, length: usize) -> &str {
    let mut ends = (0..=length.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// A message that may have several lines. Other characters that are not printable are escaped.
#[derive(Debug, Clone, Copy)]
pub struct Message<T>(pub T);

impl<T: fmt::Display> fmt::Display for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Lines<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Lines<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                write_escaped(self.0, text, |c| is_printable(c) || c == '\n' || c == '\t')
            }
        }
        write!(Lines(f), "{}", self.0)
    }
}

fn write_escaped(out: &mut impl Write, text: &str, is_plain: impl Fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some(at) = rest.find(|c| !is_plain(c)) {
        let (plain, from) = rest.split_at(at);
        out.write_str(plain)?;
        let mut chars = from.chars();
        if let Some(c) = chars.next() {
            write!(out, "{}", c.escape_default())?;
        }
        rest = chars.as_str();
    }
    out.write_str(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_that_a_terminal_shows_as_it_is() {
        for (name, shown) in [
            (&b"/bin/ls -l \\n"[..], "/bin/ls -l \\n"),
            (
                b"a\nb\r\tc\x1b[2J\x7f\0",
                "a\\nb\\r\\tc\\u{1b}[2J\\u{7f}\\u{0}",
            ),
            (b"\xffa\xe2\x80", "\\xffa\\xe2\\x80"),
            // CSI in one character.
            ("\u{9b}2J".as_bytes(), "\\u{9b}2J"),
            // Overrides, isolates and marks of direction.
            (
                "a\u{202e}b\u{2066}c\u{200f}\u{61c}".as_bytes(),
                "a\\u{202e}b\\u{2066}c\\u{200f}\\u{61c}",
            ),
            // Line and paragraph separators, and what is invisible.
            (
                "\u{2028}\u{2029}\u{85}\u{200b}\u{feff}\u{a0}\u{ad}\u{e0041}".as_bytes(),
                "\\u{2028}\\u{2029}\\u{85}\\u{200b}\\u{feff}\\u{a0}\\u{ad}\\u{e0041}",
            ),
            // Private use, and not assigned.
            ("\u{e000}\u{378}".as_bytes(), "\\u{e000}\\u{378}"),
            (
                "größe 名前 अनुवाद e\u{301} 😀".as_bytes(),
                "größe 名前 अनुवाद e\u{301} 😀",
            ),
        ] {
            assert_eq!(printable(name), shown);
            assert!(printable(name).chars().all(is_printable));
        }
    }

    #[test]
    fn a_prefix_ends_between_characters() {
        for (length, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aö"), (9, "aöb")] {
            assert_eq!(prefix("aöb", length), expected);
        }
    }

    #[test]
    fn messages_keep_their_lines() {
        let name = "x\u{202e}\x1b[0m";
        let message = Message(format_args!("{name}:\n\tbad")).to_string();
        assert_eq!(message, "x\\u{202e}\\u{1b}[0m:\n\tbad");
    }
}
