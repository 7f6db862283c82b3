//! Inlined functions: where their code is, and where they were called (DWARF 5, section 3.3.8.2).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, Reader as _, UnitOffset, UnitRef,
    constants as dw,
};

use super::debug_info::{WholeUnit, WholeUnits};
use super::demangle::{MAX_MANGLED, demangle};
use super::lines::Data;
use super::scopes::Scopes;
use crate::protocol::{InlinedRow, MAX_PATH};
use vbts_host::escape::prefix;

/// Maximum number of inlined calls that are kept, and of pieces of their code together.
const MAX_KEPT: usize = 1 << 21;
/// Maximum number of those of one unit.
const MAX_OF_UNIT: usize = 1 << 20;
/// Maximum size in bytes of a piece. The code of a function is smaller.
const MAX_PIECE: u64 = 16 << 20;
/// Maximum size in bytes of the names that are kept.
const MAX_NAMES: usize = 32 << 20;
/// Maximum number of entries between one of code and the one that has its name.
const MAX_ORIGINS: usize = 8;

type Entry = DebuggingInformationEntry<Data>;

/// A call that was inlined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    /// Address of its first instruction.
    entry: u64,
    /// Index of the inlined call in which it is.
    outer: Option<u32>,
    /// Number of the name.
    name: u32,
    /// Number of the path of the caller's source file.
    path: u32,
    /// Line of the call; 0 if it is not known.
    line: u32,
}

/// Code of an inlined call without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    /// Index of the call.
    call: u32,
}

/// The inlined calls of a unit.
#[derive(Debug, Default)]
struct UnitCalls {
    /// The outer ones first.
    calls: Vec<Call>,
    /// Sorted by their start.
    pieces: Vec<Piece>,
    /// For each piece, the largest end of it and of those before it.
    ends: Vec<u64>,
}

impl UnitCalls {
    /// Number of calls and pieces.
    fn len(&self) -> usize {
        self.calls.len() + self.pieces.len()
    }

    fn sort(&mut self) {
        self.pieces.sort_unstable_by_key(|piece| piece.start);
        let ends = self.pieces.iter().scan(0, |end: &mut u64, piece| {
            *end = (*end).max(piece.end);
            Some(*end)
        });
        self.ends = ends.collect();
    }

    /// The indices of the calls that have code in `range`, and of those around them, with that
    /// code.
    fn within(&self, range: &Range<u64>) -> BTreeMap<u32, Vec<(u64, u64)>> {
        let mut found: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        // A piece that begins before the range can reach into it.
        let first = self.ends.partition_point(|end| *end <= range.start);
        let pieces = self.pieces.iter().skip(first);
        for piece in pieces.take_while(|piece| piece.start < range.end) {
            if piece.end > range.start {
                let code = found.entry(piece.call).or_default();
                code.push((piece.start.max(range.start), piece.end.min(range.end)));
            }
        }
        let inner: Vec<u32> = found.keys().copied().collect();
        for call in inner {
            let mut at = call;
            while let Some(outer) = self.calls.get(at as usize).and_then(|call| call.outer)
                && !found.contains_key(&outer)
            {
                found.insert(outer, Vec::new());
                at = outer;
            }
        }
        found
    }
}

/// Texts by their numbers.
#[derive(Debug, Default)]
struct Texts {
    list: Vec<String>,
    numbers: HashMap<String, u32>,
    bytes: usize,
}

impl Texts {
    fn add(&mut self, text: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(text) {
            return Some(*number);
        }
        if self.bytes + text.len() > MAX_NAMES {
            return None;
        }
        self.bytes += text.len();
        let number = self.list.len() as u32;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        Some(number)
    }

    fn get(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", String::as_str)
    }
}

/// The inlined calls of a file.
pub(super) struct InlinedCalls {
    units: WholeUnits,
    /// Those of the units that were looked at.
    known: HashMap<usize, UnitCalls>,
    /// Number of calls and pieces in `known`.
    count: usize,
    texts: Texts,
    /// Names by the offset of the entry that has them.
    names: HashMap<u64, Option<u32>>,
    scopes: Scopes,
}

impl InlinedCalls {
    /// Those of `units`.
    pub(super) fn new(units: WholeUnits) -> Self {
        Self {
            units,
            known: HashMap::new(),
            count: 0,
            texts: Texts::default(),
            names: HashMap::new(),
            scopes: Scopes::default(),
        }
    }

    /// Calls `each` with the inlined calls that have code in `range`, the outer ones first.
    /// `shortened` is the offset of its unit among the shortened ones. Ends when `each` returns
    /// false.
    pub(super) fn find(
        &mut self,
        shortened: u64,
        range: &Range<u64>,
        each: &mut dyn FnMut(InlinedRow<'_>) -> bool,
    ) {
        let Some(index) = self.units.shortened(shortened) else {
            return;
        };
        self.look_at(index);
        let Some(unit) = self.known.get(&index) else {
            return;
        };
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for (number, (call, code)) in unit.within(range).into_iter().enumerate() {
            let Some(call_at) = unit.calls.get(call as usize) else {
                return;
            };
            let goes_on = each(InlinedRow {
                outer: call_at.outer.and_then(|outer| numbers.get(&outer).copied()),
                code,
                name: self.texts.get(call_at.name),
                call: (call_at.line != 0).then(|| (self.texts.get(call_at.path), call_at.line)),
            });
            if !goes_on {
                return;
            }
            numbers.insert(call, number as u32);
        }
    }

    /// Calls `each` with each inlined call of a function that `is_called` as it is wanted: where it
    /// begins, and its code.
    pub(super) fn calls(
        &mut self,
        is_called: impl Fn(&str) -> bool,
        each: &mut dyn FnMut(u64, &[Range<u64>]),
    ) {
        for index in 0..self.units.len() {
            self.look_at(index);
            let Some(unit) = self.known.get(&index) else {
                continue;
            };
            let mut code: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
            for piece in &unit.pieces {
                let call = unit.calls.get(piece.call as usize);
                if call.is_some_and(|call| is_called(self.texts.get(call.name))) {
                    let code = code.entry(piece.call).or_default();
                    code.push(piece.start..piece.end);
                }
            }
            for (call, code) in code {
                if let Some(call) = unit.calls.get(call as usize) {
                    each(call.entry, &code);
                }
            }
        }
    }

    /// Finds the inlined calls of a unit.
    fn look_at(&mut self, index: usize) {
        if self.known.contains_key(&index) {
            return;
        }
        if self.count >= MAX_KEPT {
            self.known.clear();
            self.count = 0;
        }
        let mut calls = UnitCalls::default();
        if let Some(unit) = self.units.get(index) {
            // What is malformed ends it.
            let _ = self.walk(&unit, &mut calls);
        }
        calls.sort();
        self.count += calls.len();
        self.known.insert(index, calls);
    }

    fn walk(&mut self, whole: &WholeUnit, calls: &mut UnitCalls) -> gimli::Result<()> {
        let unit = &whole.unit;
        let mut entries = unit.entries_raw(None)?;
        // The depths of the entries of inlined calls that are open, and their indices.
        let mut open: Vec<(isize, Option<u32>)> = Vec::new();
        while !entries.is_empty() {
            let (depth, at) = (entries.next_depth(), entries.next_offset());
            while open.last().is_some_and(|(outer, _)| *outer >= depth) {
                open.pop();
            }
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            for attribute in abbreviation.attributes() {
                // The library adds up the sizes of those that it skips, and the file chooses them.
                entries.read_attribute(*attribute)?;
            }
            if abbreviation.tag() != dw::DW_TAG_inlined_subroutine {
                continue;
            }
            if calls.len() >= MAX_OF_UNIT {
                return Ok(());
            }
            let outer = open.last().and_then(|(_, outer)| *outer);
            let call = self.add(whole, &unit.entry(at)?, outer, calls)?;
            if abbreviation.has_children() {
                open.push((depth, call.or(outer)));
            }
        }
        Ok(())
    }

    /// Adds the inlined call of an entry, if it has code and a name. Returns its index.
    fn add(
        &mut self,
        whole: &WholeUnit,
        entry: &Entry,
        outer: Option<u32>,
        calls: &mut UnitCalls,
    ) -> gimli::Result<Option<u32>> {
        let unit = UnitRef::new(self.units.dwarf(), &whole.unit);
        let (index, before) = (calls.calls.len() as u32, calls.pieces.len());
        let mut ranges = unit.die_ranges(entry)?;
        while let Some(range) = ranges.next()? {
            if range.begin < range.end && range.end - range.begin <= MAX_PIECE {
                calls.pieces.push(Piece {
                    start: range.begin,
                    end: range.end,
                    call: index,
                });
            }
            if calls.len() >= MAX_OF_UNIT {
                break;
            }
        }
        let origin = entry.attr_value(dw::DW_AT_abstract_origin);
        let name = origin.and_then(|origin| self.name(whole, &origin));
        let first = calls.pieces.get(before).map(|piece| piece.start);
        let Some((name, first)) = name.zip(first) else {
            calls.pieces.truncate(before);
            return Ok(None);
        };
        let unit = UnitRef::new(self.units.dwarf(), &whole.unit);
        let entry_pc = entry.attr_value(dw::DW_AT_entry_pc);
        let entry_pc = entry_pc.and_then(|value| unit.attr_address(value).ok()?);
        let line = entry.attr_value(dw::DW_AT_call_line);
        let line = line.and_then(|line| u32::try_from(line.udata_value()?).ok());
        let path = match entry.attr_value(dw::DW_AT_call_file) {
            Some(AttributeValue::FileIndex(file)) => path(unit, file),
            _ => None,
        };
        let path = path.and_then(|path| self.texts.add(prefix(&path, MAX_PATH)));
        calls.calls.push(Call {
            entry: entry_pc.unwrap_or(first),
            outer,
            name,
            path: path.unwrap_or_default(),
            line: path.and(line).unwrap_or_default(),
        });
        Ok(Some(index))
    }

    /// The number of the name of the function that `origin` leads to.
    fn name(&mut self, whole: &WholeUnit, origin: &AttributeValue<Data>) -> Option<u32> {
        let first = offset(whole, origin)?;
        if let Some(known) = self.names.get(&first) {
            return *known;
        }
        let number = self.find_name(first);
        self.names.insert(first, number);
        number
    }

    fn find_name(&mut self, first: u64) -> Option<u32> {
        let mut at = Some(first);
        let (mut short, mut last) = (None, None);
        for _ in 0..MAX_ORIGINS {
            let Some(offset) = at else {
                break;
            };
            let index = self.units.containing(offset)?;
            let whole = self.units.get(index)?;
            let unit = UnitRef::new(self.units.dwarf(), &whole.unit);
            let in_unit = usize::try_from(offset - whole.offset).ok()?;
            let entry = unit.entry(UnitOffset(in_unit)).ok()?;
            let text = |at| {
                let text = unit.attr_string(entry.attr_value(at)?).ok()?;
                Some(text.to_string_lossy().ok()?.into_owned())
            };
            let linkage = [dw::DW_AT_linkage_name, dw::DW_AT_MIPS_linkage_name];
            if let Some(mangled) = linkage.into_iter().find_map(text) {
                return self.texts.add(&demangle(prefix(&mangled, MAX_MANGLED)));
            }
            short = short.or_else(|| text(dw::DW_AT_name));
            let origins = [dw::DW_AT_abstract_origin, dw::DW_AT_specification];
            let origin = origins.into_iter().find_map(|at| entry.attr_value(at));
            at = origin.and_then(|origin| self::offset(&whole, &origin));
            last = Some((index, whole, in_unit));
        }
        // A definition refers to its declaration, which is in the scope of the function.
        let (index, whole, entry) = last?;
        let name = self
            .scopes
            .qualify(&self.units, (index, &whole), entry, &short?);
        self.texts.add(prefix(&name, MAX_MANGLED))
    }
}

/// The offset in `.debug_info` to which an attribute of a unit refers.
fn offset(whole: &WholeUnit, value: &AttributeValue<Data>) -> Option<u64> {
    match value {
        AttributeValue::UnitRef(UnitOffset(offset)) => whole.offset.checked_add(*offset as u64),
        AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => Some(*offset as u64),
        _ => None,
    }
}

/// The path of a source file of a unit.
fn path(unit: UnitRef<'_, Data>, file: u64) -> Option<String> {
    let text = |text: &Data| Some(text.to_string_lossy().ok()?.into_owned());
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(file)?;
    let mut path = PathBuf::new();
    if let Some(directory) = &unit.comp_dir {
        path.push(text(directory)?);
    }
    if file.directory_index() != 0
        && let Some(directory) = file.directory(header)
    {
        path.push(text(&unit.attr_string(directory).ok()?)?);
    }
    path.push(text(&unit.attr_string(file.path_name()).ok()?)?);
    path.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::super::object_file::tests::read;
    use crate::protocol::Inlined;

    #[inline(always)]
    fn an_inlined_function() -> u32 {
        std::hint::black_box(line!())
    }

    #[inline(never)]
    fn a_function_with_an_inlined_one() -> (u32, u32) {
        (line!(), an_inlined_function())
    }

    #[test]
    fn inlined_calls_of_this_program() {
        let (line, _) = std::hint::black_box(a_function_with_an_inlined_one());
        let file = read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(file.has_inlined(), Inlined::Known);
        let ranges = file.function_ranges(true, 0);
        let mut found = Vec::new();
        for range in ranges {
            let name = file.function(range.start).unwrap_or_default().0;
            if !name.contains("a_function_with_an_inlined_one") {
                continue;
            }
            let end = range.start + range.size;
            file.inlined(true, range.start..end, &mut |inlined| {
                let inside = |(start, after): &(u64, u64)| range.start <= *start && *after <= end;
                assert!(!inlined.code.is_empty() && inlined.code.iter().all(inside));
                let call = inlined.call.map(|(path, line)| (path.to_owned(), line));
                found.push((inlined.outer, inlined.name.to_owned(), call));
                true
            });
        }
        let (outer, name, call) = found.first().cloned().unwrap();
        assert_eq!(outer, None);
        assert!(name.ends_with("an_inlined_function"), "{name}");
        let (path, of_call) = call.unwrap();
        assert!(
            path.ends_with("reader/inlined.rs") && of_call == line,
            "{path}:{of_call}"
        );
        // What it calls is inlined, too.
        let inner = found.iter().find(|(outer, ..)| *outer == Some(0));
        assert!(
            inner.is_none_or(|(_, name, _)| name.contains("black_box")),
            "{found:?}"
        );
    }
}
