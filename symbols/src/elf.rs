//! Headers and notes of ELF files for x86 (ELF-64 Object File Format, version 1.5, and the System V
//! ABI for 32-bit files).
//!
//! The bytes can be anything: what is malformed is missing.

pub mod file;

/// Size in bytes of the header of a 64-bit file. That of a 32-bit file is smaller.
pub const HEADER_SIZE: usize = 64;
/// Maximum size in bytes of a build ID.
pub const MAX_BUILD_ID: usize = 64;
/// Maximum size in bytes of the program headers. Linux starts no program that has more
/// (`load_elf_phdrs` of fs/binfmt_elf.c).
const MAX_PROGRAMS: u64 = 64 << 10;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// A segment, which maps offsets in the file to addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Size in the file in bytes.
    pub size: u64,
    /// Address.
    pub address: u64,
    /// It has code.
    pub is_code: bool,
}

/// Little-endian numbers at offsets.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// `N` bytes.
    pub fn bytes<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    /// A byte.
    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// A number of 16 bits.
    pub fn u16(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    /// A number of 32 bits.
    pub fn u32(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// A number of 64 bits.
    pub fn u64(self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// A number that has 8 bytes in 64-bit files, and 4 in others.
    pub fn word(self, is_64: bool, at_64: usize, at_32: usize) -> Option<u64> {
        match is_64 {
            true => self.u64(at_64),
            false => self.u32(at_32).map(u64::from),
        }
    }
}

/// The header of a file.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// Its fields.
    pub fields: Fields<'a>,
    /// It is that of a 64-bit file.
    pub is_64: bool,
}

impl<'a> Header<'a> {
    /// The header with these bytes. `None`: it is no ELF file for x86.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let is_64 = match fields.bytes::<6>(0)? {
            [0x7F, b'E', b'L', b'F', 2, 1] => true,
            [0x7F, b'E', b'L', b'F', 1, 1] => false,
            _ => return None,
        };
        Some(Self { fields, is_64 })
    }

    fn program_size(self) -> usize {
        if self.is_64 { 56 } else { 32 }
    }

    /// Offset and size in bytes of the program headers. `None`: they are too large, or the header
    /// is truncated.
    pub fn programs_place(self) -> Option<(u64, u64)> {
        let count = self.fields.u16(if self.is_64 { 56 } else { 44 })?;
        let size = u64::from(count) * self.program_size() as u64;
        let offset = self.fields.word(self.is_64, 32, 28)?;
        (size <= MAX_PROGRAMS).then_some((offset, size))
    }

    /// The loaded segments of the program headers.
    pub fn loaded(self, programs: &[u8]) -> Vec<Segment> {
        self.segments(programs, PT_LOAD).collect()
    }

    /// The segments with notes of the program headers.
    pub fn notes(self, programs: &[u8]) -> impl Iterator<Item = Segment> {
        self.segments(programs, PT_NOTE)
    }

    fn segments(self, programs: &[u8], kind: u32) -> impl Iterator<Item = Segment> {
        let is_64 = self.is_64;
        programs
            .chunks_exact(self.program_size())
            .filter_map(move |program| {
                let program = Fields(program);
                let flags = program.u32(if is_64 { 4 } else { 24 })?;
                (program.u32(0)? == kind).then_some(Segment {
                    offset: program.word(is_64, 8, 4)?,
                    size: program.word(is_64, 32, 16)?,
                    address: program.word(is_64, 16, 8)?,
                    is_code: flags & PF_X != 0,
                })
            })
    }
}

/// The build ID of a file with these contents, if it has one.
pub fn build_id_of(contents: &[u8]) -> Option<&[u8]> {
    let part = |offset, size| {
        let rest = contents.get(usize::try_from(offset).ok()?..)?;
        rest.get(..usize::try_from(size).ok()?)
    };
    let header = Header::parse(contents)?;
    let (offset, size) = header.programs_place()?;
    let mut notes = header.notes(part(offset, size)?);
    notes.find_map(|segment| build_id(part(segment.offset, segment.size)?))
}

/// The digits of a build ID.
pub fn digits(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build ID among `notes`, if they have one.
pub fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let header = Fields(notes);
        let name_size = header.u32(0)? as usize;
        let (size, kind) = (header.u32(4)? as usize, header.u32(8)?);
        let name = notes.get(12..)?.get(..name_size)?;
        let start = 12 + name_size.checked_next_multiple_of(4)?;
        let rest = notes.get(start..)?;
        let description = rest.get(..size)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && (2..=MAX_BUILD_ID).contains(&size) {
            return Some(description);
        }
        notes = rest.get(size.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_headers_have_a_maximum_size() {
        for (class, at, entry) in [(2, 56, 56), (1, 44, 32)] {
            let place = |count: u16| {
                let mut bytes = [0; HEADER_SIZE];
                bytes[..6].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, 1]);
                bytes[at..at + 2].copy_from_slice(&count.to_le_bytes());
                Header::parse(&bytes).unwrap().programs_place()
            };
            let most = MAX_PROGRAMS / entry;
            assert_eq!(place(most as u16), Some((0, most * entry)));
            assert_eq!(place(most as u16 + 1), None);
        }
    }

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |name: &[u8], kind: u32, bytes: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, bytes.len() as u32, kind] {
                note.extend_from_slice(&number.to_le_bytes());
            }
            note.extend_from_slice(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend_from_slice(bytes);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let mut notes = note(b"GNU\0", 1, &[0; 16]);
        notes.extend(note(b"GNU\0", NT_GNU_BUILD_ID, &[7; 19]));
        assert_eq!(build_id(&notes), Some(&[7; 19][..]));
        assert_eq!(build_id(&notes[..30]), None);
        let endless = note(&[], 0, &[]);
        assert_eq!(build_id(&endless.repeat(3)), None);
        assert_eq!(build_id(&[0xFF; 12]), None);
    }
}
