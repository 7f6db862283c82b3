//! Code that a program has made while it ran, and its names: the files that JIT compilers write for
//! Linux perf.
//!
//! `/tmp/perf-PID.map` has a line for each function: address, size and name. `jit-PID.dump` has
//! the code, too, and can have source lines (`jitdump-specification.txt` in
//! `tools/perf/Documentation` of Linux). Both list what was made in the order of time. Where one
//! function has taken the place of another, the last one counts: branches have no times. The files
//! can be anything.

mod lines;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use self::lines::{Lines, Pending};

use super::changes::PAGE;
use super::code::{NO_CODE, Symbol, SymbolKind};
use crate::event::CodeSource;

/// Maximum size in bytes of the files and the code of all processes. Further ones are ignored.
pub const MAX_GENERATED: usize = 128 << 20;
/// Maximum number of functions of a process.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum size in bytes of a function.
const MAX_FUNCTION: u64 = 16 << 20;
/// `JiTD`, in the order of bytes of the processor that has made the code.
const MAGIC: u32 = 0x4A69_5444;
/// Size of the header of a record: its kind, its size, its time.
const RECORD: usize = 16;
const LOAD: u32 = 0;
const MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    end: u64,
    name: String,
}

/// What is known of the code that a process has made.
#[derive(Debug, Default)]
pub struct Generated {
    perf_map: Vec<u8>,
    jit_dump: Vec<u8>,
    /// By the address of their first byte. They do not overlap.
    functions: BTreeMap<u64, Function>,
    lines: Lines,
    pages: FxHashMap<u64, Box<[u8]>>,
    /// Functions that another one has replaced.
    replaced: u64,
}

impl Generated {
    /// Adds a part of a file, which follows the part before it.
    pub fn add(&mut self, source: CodeSource, bytes: &[u8]) {
        match source {
            CodeSource::PerfMap => self.perf_map.extend_from_slice(bytes),
            CodeSource::JitDump => self.jit_dump.extend_from_slice(bytes),
            CodeSource::Memory | CodeSource::Vdso => {}
        }
    }

    /// Reads the files that were added since the last call. The code that they have is compared
    /// with no other: the last one counts.
    pub fn read_files(&mut self) {
        let map = std::mem::take(&mut self.perf_map);
        let dump = std::mem::take(&mut self.jit_dump);
        for line in map.split(|byte| *byte == b'\n') {
            if let Some((start, size, name)) = perf_map_line(line) {
                self.insert(start, size, name);
            }
        }
        // The dump has the same functions once more.
        let replaced = self.replaced;
        if self.read_dump(&dump).is_some() && !map.is_empty() {
            self.replaced = replaced;
        }
    }

    /// Reads a dump; `None` if it is none.
    fn read_dump(&mut self, dump: &[u8]) -> Option<()> {
        if u32_at(dump, 0)? != MAGIC {
            return None;
        }
        let records = dump.get(u32_at(dump, 8)? as usize..)?;
        let infos = Records(records).filter(|(kind, _)| *kind == DEBUG_INFO);
        let shift = lines::shift(infos.map(|(_, body)| body));
        // The lines of a function precede it.
        let mut pending = None;
        for (kind, body) in Records(records) {
            match kind {
                LOAD => self.load(body, pending.take()),
                MOVE => self.move_function(body),
                DEBUG_INFO => {
                    pending = Pending::read(body, shift);
                    None
                }
                _ => None,
            };
        }
        Some(())
    }

    /// A function is made: process, thread, address, address of the code, size, number, name, code.
    fn load(&mut self, body: &[u8], lines: Option<Pending<'_>>) -> Option<()> {
        let (start, size) = (u64_at(body, 16)?, u64_at(body, 24)?);
        let text = body.get(40..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        let name = String::from_utf8_lossy(text.get(..end)?).into_owned();
        let code = text.get(end + 1..)?;
        if self.insert(start, size, name) {
            self.write(start, code.get(..size as usize).unwrap_or(code));
            if let Some(lines) = lines.filter(|lines| lines.function() == start) {
                self.lines.add(start..start.saturating_add(size), &lines);
            }
        }
        Some(())
    }

    /// A function is moved: process, thread, address, old and new address of the code, size,
    /// number.
    fn move_function(&mut self, body: &[u8]) -> Option<()> {
        let (old, new, size) = (u64_at(body, 16)?, u64_at(body, 24)?, u64_at(body, 32)?);
        let function = self.functions.remove(&old)?;
        let code = self.bytes(old, size.min(function.end - old));
        let lines = self.lines.take(old..function.end);
        if self.insert(new, function.end - old, function.name) {
            self.write(new, &code);
            self.lines.put(new, lines);
        }
        Some(())
    }

    /// Adds a function in the place of those that are there. Returns whether there is room.
    fn insert(&mut self, start: u64, size: u64, name: String) -> bool {
        let Some(end) = start.checked_add(size) else {
            return false;
        };
        if !(1..=MAX_FUNCTION).contains(&size) || self.functions.len() >= MAX_FUNCTIONS {
            return false;
        }
        let new = Function { end, name };
        while let Some((at, old)) = self.functions.range(..end).next_back()
            && old.end > start
        {
            let at = *at;
            if at != start || *old != new {
                self.replaced += 1;
            }
            self.lines.take(at..old.end);
            self.functions.remove(&at);
        }
        self.functions.insert(start, new);
        true
    }

    /// Writes code to the pages.
    fn write(&mut self, start: u64, code: &[u8]) {
        let mut rest = code;
        let mut at = start;
        while !rest.is_empty() {
            let offset = (at % PAGE) as usize;
            let size = rest.len().min(PAGE as usize - offset);
            let (piece, left) = rest.split_at(size);
            let page = self.pages.entry(at - offset as u64);
            let page = page.or_insert_with(|| vec![NO_CODE; PAGE as usize].into());
            if let Some(bytes) = page.get_mut(offset..offset + size) {
                bytes.copy_from_slice(piece);
            }
            rest = left;
            let Some(next) = at.checked_add(size as u64) else {
                return;
            };
            at = next;
        }
    }

    fn bytes(&self, start: u64, size: u64) -> Vec<u8> {
        let byte = |at: u64| {
            let page = self.pages.get(&(at & !(PAGE - 1)));
            let byte = page.and_then(|page| page.get((at % PAGE) as usize));
            byte.copied().unwrap_or(NO_CODE)
        };
        (start..start.saturating_add(size)).map(byte).collect()
    }

    /// The code of the page at `page` that a dump has; nothing if it has none.
    pub fn page(&self, page: u64) -> &[u8] {
        self.pages.get(&page).map_or(&[], |bytes| bytes)
    }

    /// The functions, sorted by their start.
    pub fn symbols(&self) -> Vec<Symbol> {
        let symbol = |(start, function): (&u64, &Function)| Symbol {
            start: *start,
            end: function.end,
            kind: SymbolKind::Function,
        };
        self.functions.iter().map(symbol).collect()
    }

    /// The name of the function at an address, and the distance from its start.
    pub fn name(&self, address: u64) -> Option<(&str, u64)> {
        let (start, function) = self.functions.range(..=address).next_back()?;
        (address < function.end).then_some((function.name.as_str(), address - start))
    }

    /// The source line of an address: path and number.
    pub fn line(&self, address: u64) -> Option<(&str, u32)> {
        let (start, function) = self.functions.range(..=address).next_back()?;
        let inside = address < function.end;
        inside.then(|| self.lines.at(*start..=address))?
    }

    /// The source lines: where the code of each begins, its size, the number, and the path.
    pub fn lines(&self) -> impl Iterator<Item = (u64, u64, u32, &str)> {
        let functions = self.functions.iter();
        functions.flat_map(|(start, function)| self.lines.rows(*start..function.end))
    }

    /// Number of functions that others have replaced while the program ran.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Whether a file names functions.
    pub fn has_names(&self) -> bool {
        !self.functions.is_empty()
    }
}

/// The records of a dump: their kinds, and what follows their headers.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, size) = (u32_at(self.0, 0)?, u32_at(self.0, 4)?);
        let (record, next) = self.0.split_at_checked(size as usize)?;
        self.0 = next;
        Some((kind, record.get(RECORD..)?))
    }
}

/// A line of a perf map: address, size and name.
fn perf_map_line(line: &[u8]) -> Option<(u64, u64, String)> {
    let text = String::from_utf8_lossy(line);
    let mut fields = text.splitn(3, ' ');
    let mut number = || {
        let text = fields.next()?;
        u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    Some((start, size, fields.next()?.trim_end().to_owned()))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = (RECORD + body.len()) as u32;
        let mut bytes = [kind.to_le_bytes(), size.to_le_bytes()].concat();
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn load(start: u64, name: &str, code: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 8];
        for number in [start, start, code.len() as u64, 1] {
            body.extend(number.to_le_bytes());
        }
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(code);
        record(LOAD, &body)
    }

    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [MAGIC, 1, 40, 62, 0, 7, 0, 0, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(records.concat());
        bytes
    }

    fn generated(map: &[u8], dump: &[u8]) -> Generated {
        let mut generated = Generated::default();
        generated.add(CodeSource::PerfMap, map);
        // In parts, as they come.
        for part in dump.chunks(7) {
            generated.add(CodeSource::JitDump, part);
        }
        generated.read_files();
        generated
    }

    #[test]
    fn a_map_has_names() {
        let map = b"1000 10 add\n0x1010 20 a name with spaces\njunk\n2000 0 empty\n\
                    3000 ffffffffffffffff large\n";
        let generated = generated(map, b"");
        assert_eq!(generated.name(0x100F), Some(("add", 0xF)));
        assert_eq!(generated.name(0x1010), Some(("a name with spaces", 0)));
        assert_eq!(generated.name(0x1030), None);
        assert_eq!(generated.symbols().len(), 2);
        assert_eq!(generated.replaced(), 0);
        assert!(generated.page(0x1000).is_empty());
    }

    #[test]
    fn a_dump_has_code_and_moves_it() {
        let mut moved = vec![0; 8];
        for number in [0_u64, 0x1FFE, 0x5000, 4, 1] {
            moved.extend(number.to_le_bytes());
        }
        let records = [
            load(0x1FFE, "first", &[1, 2, 3, 4]),
            record(9, b"later version"),
            record(MOVE, &moved),
            load(0x2000, "second", &[5, 6]),
        ];
        let generated = generated(b"1ffe 4 first\n2000 2 second\n", &dump(&records));
        assert_eq!(generated.name(0x5001), Some(("first", 1)));
        assert_eq!(generated.name(0x1FFE), None);
        assert_eq!(generated.page(0x5000)[..5], [1, 2, 3, 4, NO_CODE]);
        assert_eq!(generated.page(0x2000)[..2], [5, 6]);
    }

    #[test]
    fn a_dump_has_source_lines() {
        let info = |start: u64, lines: &[(u64, u32, &str)]| {
            let mut body = start.to_le_bytes().to_vec();
            body.extend((lines.len() as u64).to_le_bytes());
            for (at, line, path) in lines {
                body.extend(at.to_le_bytes());
                body.extend(line.to_le_bytes());
                body.extend([0; 4]);
                body.extend(path.as_bytes());
                body.push(0);
            }
            record(DEBUG_INFO, &body)
        };
        let mut moved = vec![0; 8];
        for number in [0_u64, 0x1000, 0x3000, 4, 1] {
            moved.extend(number.to_le_bytes());
        }
        let two = [(0x1001, 7, "a.js"), (0x1003, 8, "b.js")];
        let mut records = vec![
            info(0x1000, &two),
            load(0x1000, "f", &[0x90; 4]),
            load(0x2000, "g", &[0xC3]),
        ];
        let first = generated(b"", &dump(&records));
        assert_eq!(first.line(0x1000), None);
        assert_eq!(first.line(0x1002), Some(("a.js", 7)));
        assert_eq!(first.line(0x1004), None);
        assert_eq!(first.line(0x2000), None);
        let rows: Vec<_> = first.lines().collect();
        assert_eq!(rows, [(0x1001, 2, 7, "a.js"), (0x1003, 1, 8, "b.js")]);
        // They move with their function, and another one in its place has none.
        records.push(record(MOVE, &moved));
        records.push(load(0x1000, "h", &[0x90; 4]));
        let second = generated(b"", &dump(&records));
        assert_eq!(second.line(0x3001), Some(("a.js", 7)));
        assert_eq!(second.line(0x1001), None);
        // V8 adds the size of an ELF header.
        let shifted = [
            info(0x1000, &[(0x1041, 7, "a.js")]),
            load(0x1000, "f", &[0x90; 4]),
        ];
        let shifted = generated(b"", &dump(&shifted));
        assert_eq!(shifted.line(0x1001), Some(("a.js", 7)));
    }

    #[test]
    fn the_last_function_at_an_address_counts() {
        let generated = generated(b"1000 10 a\n1010 10 b\n1008 10 c\n1008 10 c\n", b"");
        assert_eq!(generated.symbols().len(), 1);
        assert_eq!(generated.name(0x1010), Some(("c", 8)));
        assert_eq!(generated.replaced(), 2);
    }

    #[test]
    fn damaged_dumps_end_early() {
        let whole = dump(&[load(0x1000, "f", &[0xC3]), load(0x2000, "g", &[0xC3])]);
        for size in 0..whole.len() {
            let symbols = generated(b"", &whole[..size]).symbols();
            assert!(symbols.len() <= 1, "{size}");
        }
        assert_eq!(generated(b"", &whole).symbols().len(), 2);
        let mut endless = dump(&[]);
        endless.extend([0; 64]);
        assert!(!generated(b"", &endless).has_names());
    }
}
