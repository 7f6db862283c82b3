//! Source lines and inlined functions of an ELF file, from its debugging information. Other files
//! that it names (split DWARF) are not opened.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;

use addr2line::Context;
use gimli::{
    AbbreviationsCacheStrategy, DebugInfoOffset, Dwarf, EndianArcSlice, LittleEndian, SectionId,
};

use super::budget::Budget;
use super::debug_info::{Contents, WholeUnits};
use super::elf::{ElfFile, Section, optional};
use super::inlined::InlinedCalls;
use super::units::units;
use crate::protocol::{Inlined, InlinedRow, MAX_PATH, Refusal};
use vbts_host::escape::prefix;

/// Maximum size in bytes of a `.debug_info` that is decompressed to find inlined functions.
const MAX_COMPRESSED: u64 = 64 << 20;
/// The sections that describe lines, without `.debug_info`, of which little is read at first. The
/// others describe types, variables and macros.
const SECTIONS: [SectionId; 8] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// The contents of a section.
pub(super) type Data = EndianArcSlice<LittleEndian>;

/// The source lines of one file.
pub(super) struct Lines {
    context: Context<Data>,
    inlined: Option<RefCell<InlinedCalls>>,
    has_units: bool,
    /// The entries of functions are in other files.
    is_split: bool,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads the lines of `file`; `None` if it has none. Keeps the file open.
    ///
    /// # Errors
    /// They are malformed or too large.
    pub(super) fn read(file: File, budget: &mut Budget) -> Result<Option<Self>, Refusal> {
        let elf = ElfFile::open(&file)?;
        if find(&elf, SectionId::DebugLine).is_none() {
            return Ok(None);
        }
        let mut dwarf = Dwarf::load(|id| {
            let contents = match SECTIONS.contains(&id) {
                true => contents(&elf, id, budget)?,
                false => Arc::from([]),
            };
            Ok(Data::new(contents, LittleEndian))
        })?;
        let (mut whole, mut has_units) = (None, false);
        if let Some((section, is_old)) = find(&elf, SectionId::DebugInfo) {
            let mut stream = match is_old {
                true => elf.stream_gnu(section)?,
                false => elf.stream(section)?,
            };
            let units = units(&mut stream, &dwarf.debug_abbrev, budget)?;
            dwarf.debug_info = Data::new(Arc::from(units.first_entries), LittleEndian).into();
            has_units = !units.places.is_empty();
            let size = units
                .places
                .last()
                .map_or(0, |last| last.offset + last.size);
            let contents = match elf.place(section) {
                Some(place) if !is_old => Some(Contents::File(place)),
                // Files without inlined functions are still worth reading.
                _ if size > MAX_COMPRESSED => None,
                _ => self::contents(&elf, SectionId::DebugInfo, budget)
                    .ok()
                    .map(Contents::Memory),
            };
            whole = contents.map(|contents| (contents, units.places));
        }
        // Units can share a table of abbreviations.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        let dwarf = Arc::new(dwarf);
        let context = Context::from_arc_dwarf(dwarf.clone()).map_err(|_| Refusal::NotElf)?;
        let is_split = is_split(&dwarf);
        let inlined = whole.map(|(contents, places)| {
            let units = WholeUnits::new(dwarf, file, contents, places);
            RefCell::new(InlinedCalls::new(units))
        });
        Ok(Some(Self {
            context,
            inlined,
            has_units,
            is_split,
        }))
    }

    /// Whether [`Self::inlined`] can find something.
    pub(super) fn has_inlined(&self) -> Inlined {
        match &self.inlined {
            _ if self.is_split => Inlined::Split,
            Some(_) => Inlined::Known,
            None if self.has_units => Inlined::Compressed,
            None => Inlined::None,
        }
    }

    /// Calls `each` with the inlined calls that have code in `range`, the outer ones first. Ends
    /// when `each` returns false.
    pub(super) fn inlined(
        &self,
        range: std::ops::Range<u64>,
        each: &mut dyn FnMut(InlinedRow<'_>) -> bool,
    ) {
        let Some(inlined) = &self.inlined else {
            return;
        };
        // The library looks for what begins below the next address.
        let unit = range.start.checked_add(1).and_then(|_| {
            let unit = self.context.find_dwarf_and_unit(range.start);
            unit.skip_all_loads()
        });
        if let Some(unit) = unit
            && let Some(DebugInfoOffset(shortened)) = unit.header.debug_info_offset()
        {
            let mut inlined = inlined.borrow_mut();
            inlined.find(shortened as u64, &range, each);
        }
    }

    /// Calls `each` with the inlined calls of functions with a name for which `is_called` is true:
    /// where each begins, and its code.
    pub(super) fn inlined_calls(
        &self,
        is_called: impl Fn(&str) -> bool,
        each: &mut dyn FnMut(u64, &[std::ops::Range<u64>]),
    ) {
        if let Some(inlined) = &self.inlined {
            inlined.borrow_mut().calls(is_called, each);
        }
    }

    /// Source file and line of `address`, an address in the file.
    pub(super) fn find(&self, address: u64) -> Option<(String, u32)> {
        // The library looks for what begins below the next address.
        address.checked_add(1)?;
        let location = self.context.find_location(address).ok()??;
        Some((
            prefix(location.file?, MAX_PATH).to_owned(),
            location.line.filter(|line| *line != 0)?,
        ))
    }

    /// Calls `each` with the rows of the addresses in `range`: address, size, line and path. Ends
    /// when `each` returns false.
    pub(super) fn rows(
        &self,
        range: std::ops::Range<u64>,
        each: &mut dyn FnMut(u64, u64, u32, &str) -> bool,
    ) {
        let Ok(rows) = self.context.find_location_range(range.start, range.end) else {
            return;
        };
        for (start, size, location) in rows {
            if let (Some(path), Some(line @ 1..)) = (location.file, location.line)
                && !each(start, size, line, prefix(path, MAX_PATH))
            {
                return;
            }
        }
    }
}

/// Returns whether the first of the units with code has its entries in another file.
fn is_split(dwarf: &Dwarf<Data>) -> bool {
    let header = dwarf.units().next().ok().flatten();
    let unit = header.and_then(|header| dwarf.unit(header).ok());
    unit.is_some_and(|unit| unit.dwo_id.is_some())
}

/// The section `id`, and whether it is in the old compressed format.
fn find<'a>(elf: &'a ElfFile<'_>, id: SectionId) -> Option<(&'a Section, bool)> {
    let old = || elf.section(&id.name().replacen('.', ".z", 1));
    let section = elf.section(id.name()).map(|section| (section, false));
    section.or_else(|| old().map(|section| (section, true)))
}

/// The contents of a section, which are empty if the file has no such section.
fn contents(elf: &ElfFile<'_>, id: SectionId, budget: &mut Budget) -> Result<Arc<[u8]>, Refusal> {
    let bytes = match find(elf, id) {
        Some((section, false)) => optional(elf.decompressed(section))?,
        Some((section, true)) => optional(elf.decompressed_gnu(section))?,
        None => Vec::new(),
    };
    budget.take(bytes.len())?;
    Ok(Arc::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_address_has_no_line() {
        let exe = File::open(std::env::current_exe().unwrap()).unwrap();
        let lines = Lines::read(exe, &mut Budget::default());
        assert_eq!(lines.unwrap().unwrap().find(u64::MAX), None);
    }
}
