//! Performs requests: reads files, and finds what is at addresses.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use serde::Serialize;

use super::budget::Budget;
use super::object_file::ObjectFile;
use crate::protocol::{Action, Answer, Inlined, LineRow, MAX_PACKET, Refusal, Reply};

/// Size in bytes of answers after which they are sent. One answer has less than a quarter of it.
const FULL: usize = MAX_PACKET / 2;
/// Maximum number of pieces of code of one inlined call. An answer has less than half of a packet.
const MAX_CODE: usize = 1000;

/// Items of a reply, one after the other.
#[derive(Debug, Default)]
struct Items {
    count: u32,
    bytes: Vec<u8>,
}

impl Items {
    fn add(&mut self, item: &impl Serialize) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(item, bytes).map_err(io::Error::other)?;
        self.count += 1;
        Ok(())
    }

    /// Whether the reply has to be sent before another item is added.
    fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }
}

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
                    inlined: object.map_or(Inlined::None, ObjectFile::has_inlined),
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
                let mut places = Items::default();
                let found = self.files.get(&file).map(|f| f.places(absolute, &wanted));
                for place in found.into_iter().flatten() {
                    if places.is_full() {
                        break;
                    }
                    places.add(&place)?;
                }
                send(&Reply::Places {
                    count: places.count,
                    places: &places.bytes,
                })
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
        let mut functions = Items::default();
        let ranges = file.map(|file| file.function_ranges(absolute, first));
        for range in ranges.into_iter().flatten() {
            functions.add(&range)?;
            if functions.is_full() {
                break;
            }
        }
        send(&Reply::Functions {
            count: functions.count,
            functions: &functions.bytes,
        })
    }

    fn lines(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        range: std::ops::Range<u64>,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut rows, mut next) = (Items::default(), None);
        let mut last_path = String::new();
        let mut added = Ok(());
        if let Some(file) = file {
            file.line_rows(absolute, range, &mut |start, size, line, path| {
                if rows.is_full() {
                    next = Some(start);
                    return false;
                }
                let is_new = rows.count == 0 || path != last_path;
                added = rows.add(&LineRow {
                    start,
                    size,
                    line,
                    path: is_new.then_some(path),
                });
                if is_new {
                    path.clone_into(&mut last_path);
                }
                added.is_ok()
            });
        }
        added?;
        send(&Reply::Lines {
            count: rows.count,
            rows: &rows.bytes,
            next,
        })
    }

    fn inlined(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        range: std::ops::Range<u64>,
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rows = Items::default();
        let mut reply = |rows: &Items, is_last| {
            send(&Reply::Inlined {
                count: rows.count,
                rows: &rows.bytes,
                is_last,
            })
        };
        let mut sent = Ok(());
        if let Some(file) = file {
            file.inlined(absolute, range, &mut |mut inlined| {
                inlined.code.truncate(MAX_CODE);
                sent = rows.add(&inlined);
                if sent.is_ok() && rows.is_full() {
                    sent = reply(&std::mem::take(&mut rows), false);
                }
                sent.is_ok()
            });
        }
        sent?;
        reply(&rows, true)
    }

    fn find(
        &self,
        file: Option<&ObjectFile>,
        absolute: bool,
        addresses: &[u64],
        send: &mut dyn FnMut(&Reply<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut answers = Items::default();
        let mut reply = |answers: &Items| {
            send(&Reply::Found {
                count: answers.count,
                answers: &answers.bytes,
            })
        };
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
            answers.add(&Answer {
                function: function.as_ref().map(|(name, at)| (name.as_str(), *at)),
                line: line.as_ref().map(|(path, line)| (path.as_str(), *line)),
            })?;
            if answers.is_full() {
                reply(&std::mem::take(&mut answers))?;
            }
        }
        match answers.count {
            0 => Ok(()),
            _ => reply(&answers),
        }
    }
}
