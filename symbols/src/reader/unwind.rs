//! Functions that have no names: where the unwind table (`.eh_frame`) says that they are. Files
//! without symbols have it, too, because exceptions need it. The functions that the dynamic linker
//! calls first and last in a file are not in it. They are sections.

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, LittleEndian,
    UnwindSection as _,
};

use super::budget::Budget;
use super::elf::{ElfFile, Section, optional};
use crate::protocol::Refusal;

/// The sections with the code of `DT_INIT` and `DT_FINI`.
const INIT_AND_FINI: [&str; 2] = [".init", ".fini"];

/// The addresses of the functions, sorted.
///
/// # Errors
/// They are too many.
pub(super) fn ranges(elf: &ElfFile<'_>, budget: &mut Budget) -> Result<Vec<Range<u64>>, Refusal> {
    let mut ranges = of_entries(elf, budget)?;
    let sections = INIT_AND_FINI
        .into_iter()
        .filter_map(|name| elf.section(name));
    ranges.extend(sections.map(Section::addresses));
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by_key(|range| range.start);
    Ok(ranges)
}

/// The addresses of the code of each entry of the unwind table. An entry that cannot be read is the
/// last one.
fn of_entries(elf: &ElfFile<'_>, budget: &mut Budget) -> Result<Vec<Range<u64>>, Refusal> {
    let Some(section) = elf.section(".eh_frame") else {
        return Ok(Vec::new());
    };
    let bytes = optional(elf.contents(section))?;
    let mut table = EhFrame::new(&bytes, LittleEndian);
    table.set_address_size(if elf.is_64() { 8 } else { 4 });
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    let mut entries = table.entries(&bases);
    let mut ranges = Vec::new();
    // Most entries share their common part with the one before.
    let mut last: Option<(usize, CommonInformationEntry<EndianSlice<'_, LittleEndian>>)> = None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|table, bases, offset| match &last {
            Some((at, cie)) if *at == offset.0 => Ok(cie.clone()),
            _ => {
                let cie = table.cie_from_offset(bases, offset)?;
                last = Some((offset.0, cie.clone()));
                Ok(cie)
            }
        });
        let Ok(entry) = parsed else {
            break;
        };
        let start = entry.initial_address();
        // A vector has at most twice as much memory as it needs.
        budget.take(2 * size_of::<Range<u64>>())?;
        ranges.push(start..start.saturating_add(entry.len()));
    }
    Ok(ranges)
}
