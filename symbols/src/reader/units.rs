//! The units of `.debug_info`, as far as source lines need them.
//!
//! A unit is a tree of entries. The first one has the unit's name, and where its lines are; all
//! others are types, functions and variables. They are nearly all of the debugging information of a
//! kernel, which can be larger than the memory of this process. Only the first ones are read, and
//! where the units are, so that one can be read whole later.

use gimli::{DebugInfo, EndianSlice, LittleEndian, UnitHeader, UnitType};

use super::budget::Budget;
use super::lines::Data;
use super::stream::Stream;
use crate::protocol::Refusal;

/// Sizes in bytes of what is read of a unit for its first entry: one that is often enough, and the
/// largest one.
const HEADS: [u64; 2] = [1 << 10, 1 << 16];
/// What the length of a unit begins with if it has 64 bits (DWARF 5, section 7.4).
const WIDE: u32 = 0xFFFF_FFFF;
/// Maximum number of units of one file. Large programs have about 50,000.
const MAX_UNITS: usize = 1 << 17;
/// About the memory in bytes that a unit takes.
const UNIT: usize = 1024;

/// Where a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitPlace {
    /// Its offset in `.debug_info`.
    pub offset: u64,
    /// Its size in bytes, with the field of its length.
    pub size: u64,
    /// Its offset in [`Units::first_entries`], if it has code.
    pub shortened: Option<u64>,
}

/// The units of a file.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// The units that have code, each with its first entry alone. References to other places of
    /// `.debug_info` are wrong in it.
    pub first_entries: Vec<u8>,
    /// All units, by their offsets.
    pub places: Vec<UnitPlace>,
}

/// Reads the units of `.debug_info`. What is malformed ends them.
///
/// # Errors
/// They are too large, or the host cannot read them.
pub(crate) fn units(
    info: &mut Stream<'_>,
    abbreviations: &gimli::DebugAbbrev<Data>,
    budget: &mut Budget,
) -> Result<Units, Refusal> {
    let mut units = Units::default();
    let mut offset = 0_u64;
    let mut unit = Vec::new();
    loop {
        unit.clear();
        let Some(length) = length(info, &mut unit)? else {
            return Ok(units);
        };
        budget.take(UNIT)?;
        if units.places.len() >= MAX_UNITS {
            return Err(Refusal::TooLarge);
        }
        let field = unit.len();
        let mut place = UnitPlace {
            offset,
            size: length.saturating_add(field as u64),
            shortened: None,
        };
        let mut read = 0;
        for size in HEADS {
            let more = size.min(length) - read;
            if !info.read(more, &mut unit)? {
                return Ok(units);
            }
            read += more;
            set_length(&mut unit, field);
            if let Some(end) = first_entry(&unit, abbreviations) {
                unit.truncate(end);
                // The end of its children, of which there are none.
                unit.push(0);
                set_length(&mut unit, field);
                budget.take(unit.len())?;
                place.shortened = Some(units.first_entries.len() as u64);
                units.first_entries.extend_from_slice(&unit);
                break;
            }
        }
        units.places.push(place);
        offset = offset.saturating_add(place.size);
        if !info.skip(length - read)? {
            return Ok(units);
        }
    }
}

/// Reads the length of a unit to `unit`; `None` at the end.
fn length(info: &mut Stream<'_>, unit: &mut Vec<u8>) -> Result<Option<u64>, Refusal> {
    if !info.read(4, unit)? {
        return Ok(None);
    }
    let short = unit
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if short != WIDE {
        return Ok(Some(short.into()));
    }
    let is_there = info.read(8, unit)?;
    let wide = unit.get(4..).and_then(|bytes| bytes.first_chunk());
    Ok(wide
        .map(|bytes| u64::from_le_bytes(*bytes))
        .filter(|_| is_there))
}

/// Sets the length of a unit, whose field has so many bytes, to what is there.
fn set_length(unit: &mut [u8], field: usize) {
    let length = (unit.len() - field) as u64;
    let width = if field == 4 { 4 } else { 8 };
    let bytes = length.to_le_bytes();
    if let Some(place) = unit.get_mut(field - width..field) {
        place.copy_from_slice(&bytes[..width]);
    }
}

/// Where the first entry of a unit ends, if the unit has code and the entry is complete.
fn first_entry(unit: &[u8], abbreviations: &gimli::DebugAbbrev<Data>) -> Option<usize> {
    let info = DebugInfo::from(EndianSlice::new(unit, LittleEndian));
    let header: UnitHeader<_> = info.units().next().ok()??;
    if !matches!(
        header.type_(),
        UnitType::Compilation | UnitType::Skeleton(_)
    ) {
        return None;
    }
    let table = abbreviations
        .abbreviations(header.debug_abbrev_offset())
        .ok()?;
    let mut entries = header.entries_raw(&table, None).ok()?;
    let entry = entries.read_abbreviation().ok()??;
    for attribute in entry.attributes() {
        // The library adds up the sizes of those that it skips, and the file chooses them.
        entries.read_attribute(*attribute).ok()?;
    }
    Some(entries.next_offset().0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gimli::{DebugAbbrev, constants};

    use super::*;

    /// A unit of version 4, whose entry has attributes of these forms and this contents.
    fn end_of_entry(forms: &[u16], contents: &[u8]) -> Option<usize> {
        let mut abbreviations = vec![1, constants::DW_TAG_compile_unit.0 as u8, 0];
        for form in forms {
            abbreviations.extend([constants::DW_AT_name.0 as u8, *form as u8]);
        }
        abbreviations.extend([0; 3]);
        let abbreviations = DebugAbbrev::from(Data::new(Arc::from(abbreviations), LittleEndian));
        let head = [&[4, 0], &[0; 4][..], &[8, 1], contents].concat();
        let length = (head.len() as u32).to_le_bytes();
        first_entry(&[&length[..], &head].concat(), &abbreviations)
    }

    #[test]
    fn sizes_of_attributes_do_not_add_up_to_too_much() {
        let (block, data) = (constants::DW_FORM_block.0, constants::DW_FORM_data8.0);
        let small = [&[2, 7, 7][..], &[0; 8]].concat();
        assert_eq!(end_of_entry(&[block, data], &small), Some(12 + small.len()));
        // The largest size that there is.
        let large = [&[0xFF; 9][..], &[1], &[0; 8]].concat();
        assert_eq!(end_of_entry(&[block, data], &large), None);
    }
}
