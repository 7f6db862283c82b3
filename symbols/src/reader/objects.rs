//! Performs requests: reads files, and finds what is at addresses.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use super::budget::Budget;
use super::object_file::ObjectFile;
use crate::protocol::{Action, Answer, InlinedRow, LineRow, MAX_PACKET, Refusal, Reply};

/// Size in bytes of answers after which they are sent. One answer has less than a quarter of it.
const FULL: usize = MAX_PACKET / 2;
/// Maximum number of pieces of code of one inlined call. An answer has less than half of a packet.
const MAX_CODE: usize = 1000;

/// The files that were read.
#[derive(Debug, Default)]
pub struct Objects {
    budget: Budget,
    files: HashMap<u32, ObjectFile>,
    /// A file that is open but not finished.
    opened: Option<(u32, ObjectFile, File)>,
}

impl Objects {
    /// Performs `action`, with the file that came with it, and sends the replies.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn perform(
        &mut self,
        action: Action,
        file: Option<File>,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        match action {
            Action::Open { file: id } => {
                let opened = file.ok_or(Refusal::NotElf).and_then(|file| {
                    let (object, build_id) = self
                        .budget
                        .spend(|budget| ObjectFile::open(&file, budget))?;
                    self.opened = Some((id, object, file));
                    Ok(build_id)
                });
                send(&Reply::Opened {
                    refused: opened.as_ref().err().copied(),
                    build_id: opened.as_deref().unwrap_or_default(),
                })
            }
            Action::Finish { file: id, lines } => {
                let (refused, functions) = self.finish(id, file, lines);
                let object = self.files.get(&id);
                send(&Reply::Finished {
                    refused,
                    functions,
                    has_inlined: object.is_some_and(ObjectFile::has_inlined),
                })
            }
            Action::Find {
                file,
                absolute,
                addresses,
            } => self.find(self.files.get(&file), absolute, &addresses, send),
            Action::Functions {
                file,
                absolute,
                first,
            } => self.functions(self.files.get(&file), absolute, first, send),
            Action::Resolve {
                file,
                absolute,
                wanted,
            } => {
                let (mut places, mut count) = (Vec::new(), 0);
                let found = self.files.get(&file).map(|f| f.places(absolute, &wanted));
                for place in found.into_iter().flatten() {
                    if places.len() >= FULL {
                        break;
                    }
                    places = postcard::to_extend(&place, places).map_err(io::Error::other)?;
                    count += 1;
                }
                let places = &places;
                send(&Reply::Places { count, places })
            }
            Action::Lines {
                file,
                absolute,
                start,
                end,
            } => self.lines(self.files.get(&file), absolute, start..end, send),
            Action::Inlined {
                file,
                absolute,
                start,
                end,
            } => self.inlined(self.files.get(&file), absolute, start..end, send),
            Action::Forget => {
                *self = Self::default();
                Ok(())
            }
        }
    }

    /// Finishes the file that was opened. Returns why something of it is missing, and the number of
    /// its functions.
    fn finish(&mut self, id: u32, debug_file: Option<File>, lines: bool) -> (Option<Refusal>, u64) {
        let Some((_, mut object, file)) = self.opened.take().filter(|opened| opened.0 == id) else {
            return (Some(Refusal::NotElf), 0);
        };
        let budget = &mut self.budget;
        let mut refused = None;
        if let Some(debug_file) = &debug_file {
            // A debug file that is none is missing.
            let added = object.add_debug_file(debug_file, budget);
            refused = added.err().filter(|refusal| *refusal != Refusal::NotElf);
        }
        object.finish();
        if lines {
            let files = debug_file.into_iter().chain([file]);
            let read = budget.spend(|budget| object.read_lines(files, budget));
            refused = refused.or(read.err());
        }
        let functions = object.functions() as u64;
        self.files.insert(id, object);
        (refused, functions)
    }

    fn functions(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        first: u64,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut functions, mut count) = (Vec::new(), 0);
        let ranges = file.map(|file| file.function_ranges(absolute, first));
        for range in ranges.into_iter().flatten() {
            functions = postcard::to_extend(&range, functions).map_err(io::Error::other)?;
            count += 1;
            if functions.len() >= FULL {
                break;
            }
        }
        let functions = &functions;
        send(&Reply::Functions { count, functions })
    }

    fn lines(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        range: std::ops::Range<u64>,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut rows, mut count, mut next) = (Vec::new(), 0, None);
        let mut last_path = String::new();
        let mut failure = None;
        if let Some(file) = file {
            file.line_rows(absolute, range, &mut |start, size, line, path| {
                if rows.len() >= FULL {
                    next = Some(start);
                    return false;
                }
                let is_new = count == 0 || path != last_path;
                let row = LineRow {
                    start,
                    size,
                    line,
                    path: is_new.then_some(path),
                };
                match postcard::to_extend(&row, std::mem::take(&mut rows)) {
                    Ok(more) => rows = more,
                    Err(error) => failure = Some(error),
                }
                if is_new {
                    path.clone_into(&mut last_path);
                }
                count += 1;
                failure.is_none()
            });
        }
        match failure {
            Some(error) => Err(io::Error::other(error)),
            None => {
                let rows = &rows;
                send(&Reply::Lines { count, rows, next })
            }
        }
    }

    fn inlined(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        range: std::ops::Range<u64>,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut rows, mut count, mut failure) = (Vec::new(), 0, None);
        if let Some(file) = file {
            file.inlined(absolute, range, &mut |inlined| {
                let mut code = inlined.code.as_slice();
                code = code.get(..MAX_CODE).unwrap_or(code);
                let row = InlinedRow {
                    outer: inlined.outer,
                    code: code.to_vec(),
                    name: inlined.name,
                    call: inlined.call,
                };
                let added = postcard::to_extend(&row, std::mem::take(&mut rows));
                let sent = added.map_err(io::Error::other).and_then(|more| {
                    rows = more;
                    count += 1;
                    if rows.len() < FULL {
                        return Ok(());
                    }
                    let (full, is_last) = (std::mem::take(&mut rows), false);
                    send(&Reply::Inlined {
                        count: std::mem::take(&mut count),
                        rows: &full,
                        is_last,
                    })
                });
                failure = sent.err();
                failure.is_none()
            });
        }
        match failure {
            Some(error) => Err(error),
            None => send(&Reply::Inlined {
                count,
                rows: &rows,
                is_last: true,
            }),
        }
    }

    fn find(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        addresses: &[u64],
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut answers = Vec::new();
        let mut count = 0;
        for address in addresses {
            let place = file.and_then(|file| {
                let address = match absolute {
                    true => Some(file.address_of_absolute(*address)),
                    false => file.address_of_offset(*address),
                };
                Some((file, address?))
            });
            let function = place.and_then(|(file, address)| file.function(address));
            let line = place.and_then(|(file, address)| file.line(address));
            let answer = Answer {
                function: function.as_ref().map(|(name, at)| (name.as_str(), *at)),
                line: line.as_ref().map(|(path, line)| (path.as_str(), *line)),
            };
            answers = postcard::to_extend(&answer, answers).map_err(io::Error::other)?;
            count += 1;
            if answers.len() >= FULL {
                let answers = &std::mem::take(&mut answers);
                send(&Reply::Found { count, answers })?;
                count = 0;
            }
        }
        match count {
            0 => Ok(()),
            _ => send(&Reply::Found {
                count,
                answers: &answers,
            }),
        }
    }
}
