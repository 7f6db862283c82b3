//! Source lines of an ELF file, from its debugging information.
//!
//! The guest may have written the file. It is read, not mapped: the access to a mapped file that
//! becomes shorter raises SIGBUS. Other files that it names (split DWARF) are not opened: they
//! could be pipes or devices.

use std::fs::File;
use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use object::{Object, ObjectSection, ReadCache};

/// Maximum size in bytes of the debugging information that is read from one file.
const MAX_SIZE: u64 = 512 << 20;

/// The sections that describe lines. The others describe types, variables and macros.
const SECTIONS: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

type Data = EndianArcSlice<LittleEndian>;

/// The source lines of one file.
pub struct Lines(Context<Data>);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// Reads the lines of `file`; `None` if it has none.
    pub fn read(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).ok()?;
        if !object.is_little_endian() {
            return None;
        }
        object
            .section_by_name(SectionId::DebugLine.name())
            .or_else(|| object.section_by_name(".zdebug_line"))?;
        let mut left = MAX_SIZE;
        let dwarf = Dwarf::load(|id| {
            let wanted = SECTIONS.contains(&id);
            let data = wanted.then(|| section(&object, id.name(), &mut left));
            data.unwrap_or(Some(Arc::from([])))
                .map(|data| Data::new(data, LittleEndian))
                .ok_or(())
        });
        Context::from_dwarf(dwarf.ok()?).ok().map(Self)
    }

    /// Source file and line of `address`, an address in the file.
    pub fn find(&self, address: u64) -> Option<(String, u32)> {
        let location = self.0.find_location(address).ok()??;
        Some((
            location.file?.to_owned(),
            location.line.filter(|line| *line != 0)?,
        ))
    }
}

/// Returns the contents of a section, which are empty if the file has no such section; `None` if
/// the section is malformed or larger than `left`.
fn section<'a>(object: &impl Object<'a>, name: &str, left: &mut u64) -> Option<Arc<[u8]>> {
    let Some(section) = object.section_by_name(name) else {
        return Some(Arc::from([]));
    };
    // Decompression returns at most this size.
    let size = section.compressed_file_range().ok()?.uncompressed_size;
    *left = left.checked_sub(size)?;
    section.uncompressed_data().ok().map(Arc::from)
}
