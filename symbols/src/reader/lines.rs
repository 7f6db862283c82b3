//! Source lines of an ELF file, from its debugging information. Other files that it names (split
//! DWARF) are not opened.

use std::fs::File;
use std::sync::Arc;

use addr2line::Context;
use gimli::{AbbreviationsCacheStrategy, Dwarf, EndianArcSlice, LittleEndian, SectionId};

use super::budget::Budget;
use super::elf::{ElfFile, Section, optional};
use super::units::first_entries;
use crate::protocol::{MAX_PATH, Refusal};
use vbts_host::escape::prefix;

/// The sections that describe lines, without `.debug_info`, of which little is read. The others
/// describe types, variables and macros, or where the entries that are not read begin.
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
pub(super) struct Lines(Context<Data>);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads the lines of `file`; `None` if it has none.
    ///
    /// # Errors
    /// They are malformed or too large.
    pub(super) fn read(file: &File, budget: &mut Budget) -> Result<Option<Self>, Refusal> {
        let elf = ElfFile::open(file)?;
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
        if let Some((section, is_old)) = find(&elf, SectionId::DebugInfo) {
            let mut stream = match is_old {
                true => elf.stream_gnu(section)?,
                false => elf.stream(section)?,
            };
            let entries = first_entries(&mut stream, &dwarf.debug_abbrev, budget)?;
            dwarf.debug_info = Data::new(Arc::from(entries), LittleEndian).into();
        }
        // Units can share a table of abbreviations.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        let context = Context::from_dwarf(dwarf);
        context
            .map(|context| Some(Self(context)))
            .map_err(|_| Refusal::NotElf)
    }

    /// Source file and line of `address`, an address in the file.
    pub(super) fn find(&self, address: u64) -> Option<(String, u32)> {
        // The library looks for what begins below the next address.
        address.checked_add(1)?;
        let location = self.0.find_location(address).ok()??;
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
        let Ok(rows) = self.0.find_location_range(range.start, range.end) else {
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
        let lines = Lines::read(&exe, &mut Budget::default());
        assert_eq!(lines.unwrap().unwrap().find(u64::MAX), None);
    }
}
