//! Program headers and build IDs of ELF files for x86 (ELF-64 Object File Format, version 1.5, and
//! the System V ABI for 32-bit files).
//!
//! The bytes can be anything: what is malformed is missing. [`object`] has the layouts. Parts of a
//! file are read as they are needed, each with a maximum size: the access to a mapped file that
//! becomes shorter raises SIGBUS.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use object::elf::{self, FileHeader32, FileHeader64};
use object::pod::{self, Pod};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader as _};

pub use object::LittleEndian as Le;

/// Size in bytes of the header of a 64-bit file. That of a 32-bit file is smaller.
pub const HEADER_SIZE: usize = size_of::<FileHeader64<Le>>();
/// Maximum size in bytes of a build ID.
pub const MAX_BUILD_ID: usize = 64;
/// Maximum size in bytes of the program headers. Linux starts no program that has more
/// (`load_elf_phdrs` of fs/binfmt_elf.c).
const MAX_PROGRAMS: usize = 64 << 10;
/// Maximum size in bytes of a segment with notes.
const MAX_NOTES: u64 = 64 << 10;

/// A segment, which maps offsets in the file to addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Size in the file in bytes.
    pub size: u64,
    /// Address.
    pub address: u64,
    /// Whether the segment contains code.
    pub is_code: bool,
}

/// The class of an ELF file for x86.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 32 bits.
    Elf32,
    /// 64 bits.
    Elf64,
}

impl Class {
    /// The class of the file that begins with these bytes. `None`: it is no ELF file for x86.
    pub fn of(start: &[u8]) -> Option<Self> {
        // The identification has the same layout in all classes.
        let ident = front::<FileHeader32<Le>>(start)?.e_ident();
        if ident.magic != elf::ELFMAG || ident.data != elf::ELFDATA2LSB {
            return None;
        }
        match ident.class {
            elf::ELFCLASS32 => Some(Self::Elf32),
            elf::ELFCLASS64 => Some(Self::Elf64),
            _ => None,
        }
    }
}

/// The structure at the front of `bytes`, if they are enough.
pub fn front<T: Pod>(bytes: &[u8]) -> Option<&T> {
    pod::from_bytes(bytes).ok().map(|(value, _)| value)
}

/// The structures of which `bytes` consists. A last one that is cut is left out.
pub fn all<T: Pod>(bytes: &[u8]) -> &[T] {
    let found = pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>());
    found.map_or(&[], |(values, _)| values)
}

/// Offset and size in bytes of the program headers. `None`: they are too large.
pub(crate) fn programs_place<H: FileHeader<Endian = Le>>(header: &H) -> Option<(u64, u64)> {
    let size = usize::from(header.e_phnum(Le)) * size_of::<H::ProgramHeader>();
    (size <= MAX_PROGRAMS).then_some((header.e_phoff(Le).into(), size as u64))
}

/// The segments of this type among the program headers of a file whose header is an `H`.
pub(crate) fn segments_of<H: FileHeader<Endian = Le>>(
    programs: &[u8],
    kind: elf::ProgramType,
) -> Vec<Segment> {
    all::<H::ProgramHeader>(programs)
        .iter()
        .filter(|program| program.p_type(Le) == kind)
        .map(|program| Segment {
            offset: program.p_offset(Le).into(),
            size: program.p_filesz(Le).into(),
            address: program.p_vaddr(Le).into(),
            is_code: program.p_flags(Le).contains(elf::PF_X),
        })
        .collect()
}

/// The segments of this type of a file, of which `read` returns parts.
fn segments_with(
    read: &impl Fn(u64, u64) -> Option<Vec<u8>>,
    kind: elf::ProgramType,
) -> Option<Vec<Segment>> {
    fn of_class<H: FileHeader<Endian = Le>>(
        start: &[u8],
        read: &impl Fn(u64, u64) -> Option<Vec<u8>>,
        kind: elf::ProgramType,
    ) -> Option<Vec<Segment>> {
        let (at, size) = programs_place(front::<H>(start)?)?;
        Some(segments_of::<H>(&read(at, size)?, kind))
    }
    let start = read(0, HEADER_SIZE as u64)?;
    match Class::of(&start)? {
        Class::Elf32 => of_class::<FileHeader32<Le>>(&start, read, kind),
        Class::Elf64 => of_class::<FileHeader64<Le>>(&start, read, kind),
    }
}

/// Reads a part of `file`.
fn part_of(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// The loaded segments of an ELF file; none if it is no such file.
pub fn segments(file: &File) -> Vec<Segment> {
    let read = |offset, size| part_of(file, offset, size);
    segments_with(&read, elf::PT_LOAD).unwrap_or_default()
}

/// The build ID of an ELF file, if it has one.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    let read = |offset, size| part_of(file, offset, size);
    let notes = segments_with(&read, elf::PT_NOTE)?;
    notes.iter().find_map(|segment| {
        let notes = read(segment.offset, segment.size.min(MAX_NOTES))?;
        build_id_among(&notes).map(<[u8]>::to_vec)
    })
}

/// The build ID of a file with these contents, if it has one.
pub fn build_id_of(contents: &[u8]) -> Option<&[u8]> {
    let part = |offset, size| {
        let rest = contents.get(usize::try_from(offset).ok()?..)?;
        rest.get(..usize::try_from(size).ok()?)
    };
    let read = |offset, size| part(offset, size).map(<[u8]>::to_vec);
    let notes = segments_with(&read, elf::PT_NOTE)?;
    let mut notes = notes.iter();
    notes.find_map(|segment| build_id_among(part(segment.offset, segment.size)?))
}

/// The digits of a build ID.
pub fn digits(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build ID among `notes`, if they have one. Files of both classes have the same notes.
pub(crate) fn build_id_among(notes: &[u8]) -> Option<&[u8]> {
    let notes = NoteIterator::<FileHeader64<Le>>::new(Le, 4, notes).ok()?;
    let is_build_id = |id: &&[u8]| (2..=MAX_BUILD_ID).contains(&id.len());
    notes
        .map_while(Result::ok)
        .filter(|note| note.n_type(Le) == elf::NT_GNU_BUILD_ID && note.name_bytes() == b"GNU\0")
        .map(|note| note.desc())
        .find(is_build_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_headers_have_a_maximum_size() {
        fn place<H: FileHeader<Endian = Le>>(at: usize, count: usize) -> Option<(u64, u64)> {
            let mut bytes = [0; HEADER_SIZE];
            bytes[at..at + 2].copy_from_slice(&(count as u16).to_le_bytes());
            programs_place(front::<H>(&bytes).unwrap())
        }
        for (place, at, entry) in [
            (place::<FileHeader64<Le>> as fn(_, _) -> _, 56, 56),
            (place::<FileHeader32<Le>>, 44, 32),
        ] {
            let most = MAX_PROGRAMS / entry;
            assert_eq!(place(at, most), Some((0, (most * entry) as u64)));
            assert_eq!(place(at, most + 1), None);
        }
    }

    #[test]
    fn other_processors_have_other_files() {
        for (ident, class) in [
            (b"\x7fELF\x01\x01", Some(Class::Elf32)),
            (b"\x7fELF\x02\x01", Some(Class::Elf64)),
            (b"\x7fELF\x02\x02", None),
            (b"\x7fELF\x03\x01", None),
            (b"\x7fELG\x02\x01", None),
        ] {
            let mut bytes = [0; HEADER_SIZE];
            bytes[..6].copy_from_slice(ident);
            assert_eq!(Class::of(&bytes), class);
        }
        assert_eq!(Class::of(b"\x7fELF\x02\x01"), None);
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
        let build_id = elf::NT_GNU_BUILD_ID.0;
        let mut notes = note(b"GNU\0", 1, &[0; 16]);
        notes.extend(note(b"GNU\0", build_id, &[7; 65]));
        notes.extend(note(b"GNU\0", build_id, &[7; 19]));
        assert_eq!(build_id_among(&notes), Some(&[7; 19][..]));
        assert_eq!(build_id_among(&notes[..30]), None);
        let endless = note(&[], 0, &[]);
        assert_eq!(build_id_among(&endless.repeat(3)), None);
        assert_eq!(build_id_among(&[0xFF; 12]), None);
    }

    #[test]
    fn this_program_has_segments() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let segments = segments(&file);
        assert!(
            segments.iter().any(|segment| segment.is_code),
            "{segments:?}"
        );
        let contents = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(build_id(&file).as_deref(), build_id_of(&contents));
    }

    #[test]
    fn other_files_have_none() {
        let file = File::open("/etc/passwd").unwrap();
        assert_eq!(segments(&file), []);
        assert_eq!(build_id(&file), None);
    }
}
