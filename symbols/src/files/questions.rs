//! Questions about a file to the process that reads symbols.

use std::ops::Range;

use serde::Deserialize;

use super::{FileId, Files, TOO_LARGE};
use crate::connection::Gone;
use crate::protocol::{
    Action, Answer, CodePlace, FunctionRange, InlinedRow, LineRow, MAX_ADDRESSES, Reply, Wanted,
};
use crate::source::Source;

/// What the name of an inlined function ends with, as in reports of `perf`.
pub const INLINED: &str = " (inlined)";

/// A call that was inlined, of whose code an address is a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlinedAt {
    /// The name of the function as in the source.
    pub function: String,
    /// Path and line of the call.
    pub call: Option<(String, u32)>,
}

/// The `count` items that follow each other in `bytes`.
///
/// # Errors
/// There are fewer.
fn all_of<'a, T: Deserialize<'a>>(count: u32, bytes: &'a [u8]) -> Result<Vec<T>, Gone> {
    let (mut rest, mut all) = (bytes, Vec::new());
    for _ in 0..count {
        let (item, more) = postcard::take_from_bytes(rest).map_err(|_| Gone::Closed)?;
        all.push(item);
        rest = more;
    }
    Ok(all)
}

impl Files {
    /// Finds what is at `addresses` of a file: offsets in it, or for the kernel its own addresses.
    /// Calls `each` with the index of an address and the answer. A file without names has no
    /// answers.
    pub(crate) fn find(
        &mut self,
        id: FileId,
        addresses: &[u64],
        each: &mut dyn FnMut(usize, &Answer<'_>),
    ) {
        let mut done = 0;
        while let Some(rest) = addresses.get(done..).filter(|rest| !rest.is_empty()) {
            if !self.is_loaded(id) {
                return;
            }
            let addresses = rest.get(..MAX_ADDRESSES).unwrap_or(rest);
            let before = done;
            let asked = self.ask(id, addresses, &mut |answer| {
                each(done, answer);
                done += 1;
            });
            match asked {
                Ok(()) if done > before => {}
                Ok(()) => self.give_up(id, TOO_LARGE),
                Err(gone) => self.failed(id, gone),
            }
        }
    }

    /// Makes requests of `work` for a file until one succeeds. Returns `None` for a file without
    /// symbols.
    fn request<T>(
        &mut self,
        id: FileId,
        mut work: impl FnMut(&mut Source) -> Result<T, Gone>,
    ) -> Option<T> {
        while self.is_loaded(id) {
            match work(&mut self.source) {
                Ok(done) => return Some(done),
                Err(gone) => self.failed(id, gone),
            }
        }
        None
    }

    /// The functions of a file, sorted by their start, at most `most`.
    pub(crate) fn functions(&mut self, id: FileId, most: usize) -> Vec<FunctionRange> {
        let mut all = Vec::new();
        while all.len() < most {
            let (absolute, first) = (self.is_kernel(id), all.len() as u64);
            let functions = self.request(id, |source| {
                let action = Action::Functions {
                    file: id,
                    absolute,
                    first,
                };
                source.send(action, None)?;
                match source.receive()? {
                    Reply::Functions { count, functions } => {
                        all_of::<FunctionRange>(count, functions)
                    }
                    _ => Err(Gone::Closed),
                }
            });
            match functions {
                Some(functions) if !functions.is_empty() => all.extend(functions),
                _ => break,
            }
        }
        all.truncate(most);
        // Those without names come last, and a hostile file can name any order.
        all.retain(|function: &FunctionRange| function.size > 0);
        all.sort_by_key(|function| function.start);
        all
    }

    /// The places of a file that have a name: offsets in it, or for the kernel its own addresses.
    pub(crate) fn resolve(&mut self, id: FileId, wanted: &Wanted) -> Vec<CodePlace> {
        let absolute = self.is_kernel(id);
        let places = self.request(id, |source| {
            let action = Action::Resolve {
                file: id,
                absolute,
                wanted: wanted.clone(),
            };
            source.send(action, None)?;
            match source.receive()? {
                Reply::Places { count, places } => all_of(count, places),
                _ => Err(Gone::Closed),
            }
        });
        places.unwrap_or_default()
    }

    /// Calls `each` with the source lines of a part of a file: where their code begins, its size,
    /// the number of the line and its path. Ends when `each` returns false.
    pub(crate) fn lines(
        &mut self,
        id: FileId,
        range: Range<u64>,
        each: &mut dyn FnMut(u64, u64, u32, &str) -> bool,
    ) {
        let absolute = self.is_kernel(id);
        let mut start = range.start;
        loop {
            let next = self.request(id, |source| {
                let action = Action::Lines {
                    file: id,
                    absolute,
                    start,
                    end: range.end,
                };
                source.send(action, None)?;
                let Reply::Lines { count, rows, next } = source.receive()? else {
                    return Err(Gone::Closed);
                };
                let (mut rest, mut path) = (rows, "");
                for _ in 0..count {
                    let (row, more): (LineRow<'_>, _) =
                        postcard::take_from_bytes(rest).map_err(|_| Gone::Closed)?;
                    rest = more;
                    path = row.path.unwrap_or(path);
                    if !each(row.start, row.size, row.line, path) {
                        return Ok(None);
                    }
                }
                Ok(next)
            });
            match next.flatten() {
                Some(next) if next > start => start = next,
                _ => return,
            }
        }
    }

    /// Calls `each` with the inlined calls that have code in a function of a file, or in a part of
    /// it, the outer ones first.
    pub(crate) fn inlined(
        &mut self,
        id: FileId,
        range: Range<u64>,
        each: &mut dyn FnMut(&InlinedRow<'_>),
    ) {
        let absolute = self.is_kernel(id);
        if !self.is_loaded(id) || !self.has_inlined(id) {
            return;
        }
        let packets = self.request(id, |source| {
            let action = Action::Inlined {
                file: id,
                absolute,
                start: range.start,
                end: range.end,
            };
            source.send(action, None)?;
            let mut packets = Vec::new();
            loop {
                let Reply::Inlined {
                    count,
                    rows,
                    is_last,
                } = source.receive()?
                else {
                    return Err(Gone::Closed);
                };
                packets.push((count, rows.to_vec()));
                if is_last {
                    return Ok(packets);
                }
            }
        });
        for (count, rows) in packets.unwrap_or_default() {
            let rows = all_of(count, &rows).unwrap_or_default();
            rows.iter().for_each(&mut *each);
        }
    }

    /// The inlined calls whose code is at a place of a file, the outermost first.
    pub(crate) fn inlined_at(&mut self, id: FileId, place: u64) -> Vec<InlinedAt> {
        // With the number of the call in which each is.
        let mut rows: Vec<(Option<u32>, bool, InlinedAt)> = Vec::new();
        self.inlined(id, place..place.saturating_add(1), &mut |row| {
            let call = InlinedAt {
                function: row.name.to_owned(),
                call: row.call.map(|(path, line)| (path.to_owned(), line)),
            };
            rows.push((row.outer, !row.code.is_empty(), call));
        });
        let mut calls = Vec::new();
        // The outer ones come first.
        let mut at = rows.iter().rposition(|(_, has_code, _)| *has_code);
        while let Some((outer, _, call)) = at.and_then(|at| rows.get(at)) {
            calls.push(call.clone());
            let outer = outer.map(|outer| outer as usize);
            at = outer.filter(|outer| Some(*outer) < at);
        }
        calls.reverse();
        calls
    }

    fn ask(
        &mut self,
        id: FileId,
        addresses: &[u64],
        each: &mut dyn FnMut(&Answer<'_>),
    ) -> Result<(), Gone> {
        let action = Action::Find {
            file: id,
            absolute: self.is_kernel(id),
            addresses: addresses.to_vec(),
        };
        self.source.send(action, None)?;
        let mut left = addresses.len();
        while left > 0 {
            let Reply::Found { count, answers } = self.source.receive()? else {
                return Err(Gone::Closed);
            };
            let mut answers = answers;
            let count = (count as usize).min(left);
            for _ in 0..count {
                let Ok((answer, rest)) = postcard::take_from_bytes(answers) else {
                    return Err(Gone::Closed);
                };
                each(&answer);
                answers = rest;
            }
            if count == 0 {
                return Err(Gone::Closed);
            }
            left -= count;
        }
        Ok(())
    }
}
