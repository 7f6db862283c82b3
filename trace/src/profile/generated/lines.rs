//! Source lines of code that a program has made.
//!
//! A record of a jitdump has the lines of the function that follows: its address, their number, and
//! for each line where its code begins, its number, a discriminator, and the path. A path of one
//! byte 255 is that of the line before.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use rustc_hash::FxHashMap;

use super::{u32_at, u64_at};

/// Maximum number of lines of a process.
const MAX_LINES: usize = 1 << 20;
/// Size in bytes of the head of a record, and of a line without its path.
const HEAD: usize = 16;
const LINE: usize = 16;
/// The path of the line before.
const SAME: &[u8] = &[0xFF];
/// What V8 adds to the addresses of lines: perf puts the code behind the header of an ELF file.
const ELF_HEADER: u64 = 64;

/// Index of the path and number of code whose line is not known.
const NO_LINE: (u32, u32) = (0, 0);

/// Where the code of a line begins, its number, and its path.
type Entry<'a> = (u64, u32, &'a [u8]);

/// The lines of the next function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending<'a> {
    body: &'a [u8],
    /// What the addresses have too much.
    shift: u64,
}

impl<'a> Pending<'a> {
    /// The lines of a record.
    pub(super) fn read(body: &'a [u8], shift: u64) -> Option<Self> {
        (body.len() >= HEAD).then_some(Self { body, shift })
    }

    /// The address of the function.
    pub(super) fn function(&self) -> u64 {
        u64_at(self.body, 0).unwrap_or_default()
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        let count = u64_at(self.body, 8).unwrap_or_default();
        let mut rest = self.body.get(HEAD..).unwrap_or_default();
        let mut last: &[u8] = &[];
        let shift = self.shift;
        let next = move || {
            let (at, line) = (u64_at(rest, 0)?, u32_at(rest, 8)?);
            let text = rest.get(LINE..)?;
            let end = text.iter().position(|byte| *byte == 0)?;
            let path = text.get(..end)?;
            last = if path == SAME { last } else { path };
            rest = text.get(end + 1..)?;
            Some((at.wrapping_sub(shift), line, last))
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        std::iter::from_fn(next).take(count)
    }
}

/// What all addresses of lines in a dump have too much, from the records with lines. No other
/// compiler leaves the beginnings of all functions without lines.
pub(super) fn shift<'a>(records: impl Iterator<Item = &'a [u8]>) -> u64 {
    let distances = records.filter_map(|body| {
        let pending = Pending::read(body, 0)?;
        let (at, ..) = pending.entries().next()?;
        Some(at.wrapping_sub(pending.function()))
    });
    match distances.min() {
        Some(ELF_HEADER..) => ELF_HEADER,
        _ => 0,
    }
}

/// The lines of a process.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Index of the path, and number, by where the code begins.
    lines: BTreeMap<u64, (u32, u32)>,
    paths: Vec<String>,
    numbers: FxHashMap<String, u32>,
}

impl Lines {
    /// Adds the lines of a function.
    pub(super) fn add(&mut self, function: Range<u64>, lines: &Pending<'_>) {
        for (at, line, path) in lines.entries() {
            if !function.contains(&at) || line == 0 || self.lines.len() >= MAX_LINES {
                continue;
            }
            // V8 writes other bytes in the place of the path for some of its baseline code.
            let path = str::from_utf8(path).ok();
            let Some(path) = path.filter(|path| !path.contains(char::is_control)) else {
                self.lines.insert(at, NO_LINE);
                continue;
            };
            let number = match self.numbers.get(path) {
                Some(number) => *number,
                None => {
                    let number = self.paths.len() as u32;
                    self.paths.push(path.to_owned());
                    self.numbers.insert(path.to_owned(), number);
                    number
                }
            };
            self.lines.insert(at, (number, line));
        }
    }

    /// Removes the lines of a function. Returns them, with distances for addresses.
    pub(super) fn take(&mut self, function: Range<u64>) -> Vec<(u64, (u32, u32))> {
        let lines = self.lines.range(function.clone());
        let lines: Vec<_> = lines
            .map(|(at, line)| (at - function.start, *line))
            .collect();
        for (distance, _) in &lines {
            self.lines.remove(&(function.start + distance));
        }
        lines
    }

    /// Adds what was removed to the function that begins at `start`.
    pub(super) fn put(&mut self, start: u64, lines: Vec<(u64, (u32, u32))>) {
        let placed = lines.into_iter();
        let placed =
            placed.filter_map(|(distance, line)| Some((start.checked_add(distance)?, line)));
        self.lines.extend(placed);
    }

    fn path(&self, number: u32) -> &str {
        self.paths.get(number as usize).map_or("", String::as_str)
    }

    /// The line of the last address in `addresses`, which begin with that of its function.
    pub(super) fn at(&self, addresses: RangeInclusive<u64>) -> Option<(&str, u32)> {
        let (_, (path, line)) = self.lines.range(addresses).next_back()?;
        ((*path, *line) != NO_LINE).then(|| (self.path(*path), *line))
    }

    /// The lines of a function: where the code of each begins, its size, number and path.
    pub(super) fn rows(&self, function: Range<u64>) -> impl Iterator<Item = (u64, u64, u32, &str)> {
        let end = function.end;
        let mut lines = self.lines.range(function).peekable();
        let rows = std::iter::from_fn(move || {
            let (at, (path, line)) = lines.next()?;
            let next = lines.peek().map_or(end, |(next, _)| **next);
            Some((*at, next - at, *line, self.path(*path)))
        });
        rows.filter(|(_, _, line, _)| *line != NO_LINE.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_printable_text() {
        let entry = |at: u64, line: u32, path: &[u8]| {
            [
                &at.to_le_bytes()[..],
                &line.to_le_bytes(),
                &[0; 4],
                path,
                &[0],
            ]
            .concat()
        };
        let entries = [
            entry(0x1000, 5, b"a.js"),
            entry(0x1004, 6, b"\x1CS\x05"),
            entry(0x1008, 7, b"S\xFE"),
            entry(0x100C, 8, SAME),
        ];
        let head = [0x1000_u64, entries.len() as u64].map(u64::to_le_bytes);
        let body = [head.concat(), entries.concat()].concat();
        let mut lines = Lines::default();
        lines.add(0x1000..0x1010, &Pending::read(&body, 0).unwrap());
        assert_eq!(lines.at(0x1000..=0x1003), Some(("a.js", 5)));
        assert_eq!(lines.at(0x1000..=0x100C), None);
        let rows: Vec<_> = lines.rows(0x1000..0x1010).collect();
        assert_eq!(rows, [(0x1000, 4, 5, "a.js")]);
    }
}
