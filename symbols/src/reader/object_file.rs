//! The symbols of an ELF file: functions, and what maps offsets in the file to them.

use std::fs::File;
use std::ops::Range;

use object::elf::{SHN_LORESERVE, SHN_UNDEF, SHN_XINDEX, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use vbts_trace::profile::modules::extend_32;

use super::budget::Budget;
use super::demangle::MAX_MANGLED;
use super::elf::{ElfFile, optional};
use super::lines::Lines;
use super::symbol_table::SymbolTable;
use super::unwind::{self, Unnamed};
use super::{linkage, switches};
use crate::elf::Segment;
use crate::protocol::{FunctionKind, FunctionRange, Inlined, InlinedRow, Refusal};

/// What a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    /// That of a symbol.
    #[default]
    Symbol,
    /// The stub of the procedure linkage table for the function with the name.
    Stub,
    /// Other code of the procedure linkage table. It has no name.
    Linkage,
    /// The header of the procedure linkage table. It has no name.
    LinkageHeader,
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Function {
    pub(super) start: u64,
    /// First address after it.
    pub(super) end: u64,
    /// Offset of its name in the strings.
    pub(super) name: u32,
    /// Index of the strings.
    pub(super) strings: u16,
    /// What it is.
    pub(super) kind: Kind,
}

/// The symbols of one ELF file.
#[derive(Debug, Default)]
pub struct ObjectFile {
    segments: Vec<Segment>,
    /// Sorted by start address. They can overlap if the file says so.
    functions: Vec<Function>,
    /// Functions with the address of another one of [`Self::functions`].
    aliases: Vec<Function>,
    /// Functions without names.
    unnamed: Vec<Unnamed>,
    /// Names with a zero at the end of each.
    strings: Vec<Vec<u8>>,
    lines: Option<Lines>,
    is_64: bool,
}

impl ObjectFile {
    /// Reads `file`. Returns the build ID, too, which may be empty.
    ///
    /// # Errors
    /// It is not an ELF file, or it is too large.
    pub fn open(file: &File, budget: &mut Budget) -> Result<(Self, Vec<u8>), Refusal> {
        let elf = ElfFile::open(file)?;
        let mut this = Self {
            segments: elf.segments.clone(),
            is_64: elf.is_64(),
            ..Self::default()
        };
        let [symbols, dynamic] = elf.symbol_tables()?;
        this.add_functions(&elf, symbols, budget)?;
        let stubs = linkage::stubs(&elf, &dynamic)?;
        let strings = this.strings.len() as u16;
        for stub in stubs {
            this.add(
                Function {
                    start: stub.start,
                    end: stub.start.saturating_add(stub.size),
                    name: stub.name.unwrap_or_default(),
                    strings,
                    kind: match (stub.name, stub.is_header) {
                        (Some(_), _) => Kind::Stub,
                        (None, false) => Kind::Linkage,
                        (None, true) => Kind::LinkageHeader,
                    },
                },
                budget,
            )?;
        }
        this.add_functions(&elf, dynamic, budget)?;
        this.unnamed = unwind::functions(&elf, budget)?;
        let build_id = elf.build_id()?;
        Ok((this, build_id))
    }

    /// Adds the symbols of `file`, the separate debug file of this one.
    ///
    /// # Errors
    /// It is not an ELF file, or it is too large.
    pub fn add_debug_file(&mut self, file: &File, budget: &mut Budget) -> Result<(), Refusal> {
        let elf = ElfFile::open(file)?;
        for table in elf.symbol_tables()? {
            self.add_functions(&elf, table, budget)?;
        }
        Ok(())
    }

    /// Reads the source lines of the first of `files` that has some, and keeps it open.
    ///
    /// # Errors
    /// They are too large.
    pub fn read_lines(
        &mut self,
        files: impl IntoIterator<Item = File>,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        for file in files {
            self.lines = optional(Lines::read(file, budget))?;
            if self.lines.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn add_functions(
        &mut self,
        elf: &ElfFile<'_>,
        table: SymbolTable,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        budget.take(table.strings.len())?;
        for symbol in (0..table.len()).filter_map(|index| table.get(index)) {
            let code = match symbol.kind {
                STT_FUNC | STT_GNU_IFUNC => true,
                // Entry points in assembly language often have no type.
                STT_NOTYPE => elf.is_code(symbol.section),
                _ => false,
            };
            // Such as SHN_ABS. SHN_XINDEX stands for other sections.
            let special = SHN_LORESERVE..SHN_XINDEX.0;
            let defined = symbol.section != SHN_UNDEF && !special.contains(&symbol.section.0);
            let first = table.strings.get(symbol.name as usize);
            // A name that begins with `$` says what the linker has there.
            let named = first.is_some_and(|c| *c != 0 && (symbol.kind != STT_NOTYPE || *c != b'$'));
            if code && defined && named {
                self.add(
                    Function {
                        start: symbol.value,
                        end: symbol.value.saturating_add(symbol.size),
                        name: symbol.name,
                        strings: self.strings.len() as u16,
                        kind: Kind::Symbol,
                    },
                    budget,
                )?;
            }
        }
        self.strings.push(table.strings);
        Ok(())
    }

    fn add(&mut self, function: Function, budget: &mut Budget) -> Result<(), Refusal> {
        // A vector has at most twice as much memory as it needs.
        budget.take(2 * size_of::<Function>())?;
        self.functions.push(function);
        Ok(())
    }

    /// Sorts the functions. A function without a size extends to the next one.
    pub fn finish(&mut self) {
        // Of several names for one address, a name with a size comes first, then that with the
        // fewest underscores at its beginning: a C library has internal names for what it exports.
        // Then the alphabet decides.
        let mut functions = std::mem::take(&mut self.functions);
        functions.sort_unstable_by(|a, b| {
            let by_place = (a.start, b.end).cmp(&(b.start, a.end));
            by_place.then_with(|| {
                let (a, b) = (self.name(a), self.name(b));
                underscores(a).cmp(&underscores(b)).then_with(|| a.cmp(b))
            })
        });
        let mut last = None;
        let (functions, aliases) = functions
            .into_iter()
            .partition(|f| last.replace(f.start) != Some(f.start));
        let mut functions: Vec<Function> = functions;
        self.aliases = aliases;
        let mut next = u64::MAX;
        for function in functions.iter_mut().rev() {
            if function.end == function.start {
                function.end = next;
            }
            next = function.start;
        }
        self.functions = functions;
        let mut unnamed = std::mem::take(&mut self.unnamed);
        unnamed.retain(|function| self.at(function.addresses.start).is_none());
        for Unnamed { addresses, .. } in &mut unnamed {
            let next = self
                .functions
                .partition_point(|f| f.start <= addresses.start);
            let next = self.functions.get(next).map_or(u64::MAX, |f| f.start);
            addresses.end = addresses.end.min(next);
        }
        self.unnamed = unnamed;
    }

    pub(super) fn name(&self, function: &Function) -> &[u8] {
        let strings = self.strings.get(usize::from(function.strings));
        let name = strings.and_then(|strings| strings.get(function.name as usize..));
        let name = name.unwrap_or_default();
        let name = name.get(..MAX_MANGLED).unwrap_or(name);
        name.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// All functions, those with the address of another one at the end.
    pub(super) fn named(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().chain(&self.aliases)
    }

    /// The function that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|f| f.start <= address);
        let function = self.functions.get(after.checked_sub(1)?);
        function.filter(|f| address < f.end)
    }

    /// Number of functions that have names.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// The address in the file of `absolute`, the address of a kernel in a trace.
    pub(crate) fn address_of_absolute(&self, absolute: u64) -> u64 {
        match self.is_64 {
            true => absolute,
            false => absolute & u64::from(u32::MAX),
        }
    }

    /// The address in a trace of a kernel's address in the file.
    pub(crate) fn absolute_of_address(&self, address: u64) -> u64 {
        match self.is_64 {
            true => address,
            false => extend_32(address),
        }
    }

    /// The address that the segment with `offset` in the file maps it to.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|s| offset.wrapping_sub(s.offset) < s.size)?;
        // The file can be malformed, so that the sum wraps.
        let distance = offset.wrapping_sub(segment.offset);
        Some(segment.address.wrapping_add(distance))
    }

    /// The function that contains `address`: its name as in the source, and the offset in it.
    pub fn function(&self, address: u64) -> Option<(String, u64)> {
        let function = self.at(address)?;
        let name = match function.kind {
            Kind::Linkage | Kind::LinkageHeader => ".plt".to_owned(),
            kind => {
                let name = str::from_utf8(self.name(function)).ok()?;
                let mut name = super::demangle::demangle(name);
                if kind == Kind::Stub {
                    name.push_str("@plt");
                }
                name
            }
        };
        Some((name, address - function.start))
    }

    /// The functions from number `first` on, at offsets in the file, or at their own addresses if
    /// `absolute`. Those without names come last.
    pub(crate) fn function_ranges(
        &self,
        absolute: bool,
        first: u64,
    ) -> impl Iterator<Item = FunctionRange> + '_ {
        // The names of those before it are not looked at.
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let functions = self.functions.iter().skip(first).map(|function| {
            let kind = match function.kind {
                Kind::Stub | Kind::Linkage => FunctionKind::Linkage,
                Kind::LinkageHeader => FunctionKind::LinkageHeader,
                Kind::Symbol => match self.name(function) {
                    name if linkage::is_resolver(name) => FunctionKind::Linkage,
                    name if is_part(name) => FunctionKind::Part,
                    name if switches::is_switch(name) => FunctionKind::Switch,
                    _ => FunctionKind::Named,
                },
            };
            (function.start..function.end, kind)
        });
        let before = first.saturating_sub(self.functions.len());
        let unnamed = self.unnamed.iter().skip(before);
        let unnamed = unnamed.map(|function| {
            let kind = match function.is_part {
                true => FunctionKind::Part,
                false => FunctionKind::Unnamed,
            };
            (function.addresses.clone(), kind)
        });
        functions.chain(unnamed).map(move |(range, kind)| {
            let size = range.end.saturating_sub(range.start);
            let (start, room) = match absolute {
                true => (Some(self.absolute_of_address(range.start)), size),
                false => self.offset_of_address(range.start),
            };
            FunctionRange {
                // The reply has an entry for each function.
                start: start.unwrap_or_default(),
                size: if start.is_some() { size.min(room) } else { 0 },
                kind,
            }
        })
    }

    /// The offset in the file of `address`, and how many bytes its segment has there.
    pub(super) fn offset_of_address(&self, address: u64) -> (Option<u64>, u64) {
        let segments = &mut self.segments.iter();
        let segment = segments.find(|s| address.wrapping_sub(s.address) < s.size);
        match segment {
            Some(segment) => {
                let distance = address.wrapping_sub(segment.address);
                let offset = segment.offset.wrapping_add(distance);
                (Some(offset), segment.size - distance)
            }
            None => (None, 0),
        }
    }

    /// Calls `each` with the source lines of the code in `range`: where they begin, their size, the
    /// line and the path. Ends when `each` returns false.
    pub(crate) fn line_rows(
        &self,
        absolute: bool,
        range: Range<u64>,
        each: &mut dyn FnMut(u64, u64, u32, &str) -> bool,
    ) {
        let Some(lines) = &self.lines else {
            return;
        };
        if absolute {
            let start = self.address_of_absolute(range.start);
            let range = start..start.saturating_add(range.end.saturating_sub(range.start));
            lines.rows(range, &mut |at, size, line, path| {
                each(self.absolute_of_address(at), size, line, path)
            });
            return;
        }
        for segment in &self.segments {
            let start = range.start.max(segment.offset);
            let end = range.end.min(segment.offset.saturating_add(segment.size));
            if start >= end {
                continue;
            }
            let address = segment.address.wrapping_add(start - segment.offset);
            let rows = address..address.saturating_add(end - start);
            let mut goes_on = true;
            lines.rows(rows, &mut |at, size, line, path| {
                goes_on = each(
                    start.wrapping_add(at.wrapping_sub(address)),
                    size,
                    line,
                    path,
                );
                goes_on
            });
            if !goes_on {
                return;
            }
        }
    }

    /// Whether [`Self::inlined`] can find something.
    pub(crate) fn has_inlined(&self) -> Inlined {
        self.lines
            .as_ref()
            .map_or(Inlined::None, Lines::has_inlined)
    }

    /// Calls `each` with the inlined calls that have code in `range`, the outer ones first, at
    /// offsets in the file, or at their own addresses if `absolute`. The range is that of a
    /// function, or a part of it. Ends when `each` returns false.
    pub fn inlined(
        &self,
        absolute: bool,
        range: Range<u64>,
        each: &mut dyn FnMut(InlinedRow<'_>) -> bool,
    ) {
        let start = match absolute {
            true => Some(self.address_of_absolute(range.start)),
            false => self.address_of_offset(range.start),
        };
        let (Some(lines), Some(start)) = (&self.lines, start) else {
            return;
        };
        let size = range.end.saturating_sub(range.start);
        // The range is in one segment.
        let back = |address: u64| range.start.wrapping_add(address.wrapping_sub(start));
        lines.inlined(start..start.saturating_add(size), &mut |mut inlined| {
            for (start, end) in &mut inlined.code {
                (*start, *end) = (back(*start), back(*end));
            }
            each(inlined)
        });
    }

    /// Calls `each` with the inlined calls of functions with a name for which `is_called` is true:
    /// where each begins, and its code, at their own addresses.
    pub(super) fn inlined_calls(
        &self,
        is_called: impl Fn(&str) -> bool,
        each: &mut dyn FnMut(u64, &[Range<u64>]),
    ) {
        if let Some(lines) = &self.lines {
            lines.inlined_calls(is_called, each);
        }
    }

    /// Source file and line of `address`.
    pub fn line(&self, address: u64) -> Option<(String, u32)> {
        self.lines.as_ref()?.find(address)
    }
}

/// Returns whether a name is that of a part of a function that a compiler has moved away because it
/// is rarely executed.
fn is_part(name: &[u8]) -> bool {
    let part = b".cold";
    let mut places = name.windows(part.len()).enumerate();
    places.any(|(at, found)| {
        let after = name.get(at + part.len());
        found == part && after.is_none_or(|after| *after == b'.')
    })
}

/// Number of underscores at the beginning of a name.
fn underscores(name: &[u8]) -> usize {
    name.iter().take_while(|byte| **byte == b'_').count()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    pub(crate) fn read(path: &Path) -> Result<ObjectFile, Refusal> {
        let file = File::open(path).unwrap();
        let mut budget = Budget::default();
        let (mut object, _) = ObjectFile::open(&file, &mut budget)?;
        object.finish();
        object.read_lines([file], &mut budget)?;
        Ok(object)
    }

    fn names(object: &ObjectFile) -> Vec<String> {
        let name = |f: &Function| object.function(f.start).unwrap_or_default().0;
        object.functions.iter().map(name).collect()
    }

    #[inline(never)]
    fn a_function_of_this_test() -> u32 {
        std::hint::black_box(line!())
    }

    #[test]
    fn functions_and_lines_of_this_program() {
        let line = a_function_of_this_test();
        let file = read(&std::env::current_exe().unwrap()).unwrap();
        let names = names(&file);
        let index = names
            .iter()
            .position(|name| name.contains("a_function_of_this_test"))
            .unwrap();
        let function = file.functions[index];
        let (name, offset) = file.function(function.start).unwrap();
        assert!(name.contains("a_function_of_this_test"));
        assert_eq!(offset, 0);
        assert_eq!(file.function(function.start + 1).unwrap().1, 1);
        // At least one instruction is on the line that the function returned. Others may be inlined
        // from elsewhere.
        let mut lines = (function.start..function.end).filter_map(|a| file.line(a));
        assert!(lines.any(|(path, n)| path.ends_with("object_file.rs") && n.abs_diff(line) <= 2));
    }

    #[test]
    fn functions_of_a_stripped_library_have_linkage_stubs() {
        // Such as `malloc@plt`: every dynamic program calls the C library.
        let shell = names(&read(Path::new("/bin/sh")).unwrap());
        assert!(shell.iter().any(|name| name.ends_with("@plt")), "{shell:?}");
    }

    #[test]
    fn functions_of_a_stripped_program_have_ranges() {
        // The shell exports no functions, so most of its code is in functions without names.
        let shell = read(Path::new("/bin/sh")).unwrap();
        let ranges: Vec<_> = shell.function_ranges(true, 0).collect();
        let unnamed = |range: &&FunctionRange| range.kind == FunctionKind::Unnamed;
        assert!(ranges.iter().filter(unnamed).count() > 100);
        for range in ranges.iter().filter(unnamed) {
            let address = range.start + range.size - 1;
            assert_eq!(shell.function(address), None, "{range:?}");
        }
        // They can be asked for in parts.
        let rest: Vec<_> = shell.function_ranges(true, 100).collect();
        assert_eq!(ranges[100..], rest);
        // The functions of a program with symbols are named.
        let own = read(&std::env::current_exe().unwrap()).unwrap();
        let ranges: Vec<_> = own.function_ranges(true, 0).collect();
        assert!(ranges.iter().filter(unnamed).count() < ranges.len() / 20);
    }

    #[test]
    fn files_that_are_not_elf_have_no_symbols() {
        for path in ["/etc/passwd", "/dev/null"] {
            let error = read(Path::new(path)).unwrap_err();
            assert_eq!(error, Refusal::NotElf, "{path}");
        }
        // The host has an error for a directory.
        assert_eq!(read(Path::new("/")).unwrap_err(), Refusal::Unreadable);
    }

    /// A file without sections.
    fn with(functions: &[(u64, u64, &str)]) -> ObjectFile {
        let mut file = ObjectFile::default();
        let mut strings = Vec::new();
        for (start, size, name) in functions {
            let function = Function {
                start: *start,
                end: start + size,
                name: strings.len() as u32,
                strings: 0,
                kind: Kind::Symbol,
            };
            file.add(function, &mut Budget::default()).unwrap();
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        file.strings.push(strings);
        file.finish();
        file
    }

    #[test]
    fn a_name_with_a_size_is_preferred() {
        let file = with(&[
            (0x10, 0, "start"),
            (0x10, 4, "b"),
            (0x10, 4, "a"),
            (0x20, 0, "open"),
            (0x30, 1, "last"),
            (0x40, 1, "_IO_puts"),
            (0x40, 1, "puts"),
        ]);
        let name = |address| file.function(address).map(|(name, _)| name);
        assert_eq!(name(0x10), Some("a".into()));
        assert_eq!(name(0x14), None);
        assert_eq!(name(0x2F), Some("open".into()));
        assert_eq!(name(0x30), Some("last".into()));
        assert_eq!(name(0x31), None);
        assert_eq!(name(0x40), Some("puts".into()));
    }

    #[test]
    fn offsets_become_addresses() {
        let file = ObjectFile {
            segments: vec![Segment {
                offset: 0x1000,
                size: 0x500,
                address: 0x40_1000,
                is_code: true,
            }],
            ..ObjectFile::default()
        };
        assert_eq!(file.address_of_offset(0x1234), Some(0x40_1234));
        assert_eq!(file.address_of_offset(0x1500), None);
        assert_eq!(file.address_of_offset(0xFFF), None);
    }
}
