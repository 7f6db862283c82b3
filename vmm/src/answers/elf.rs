//! Program headers of ELF files for x86: loaded segments, and the build ID.
//!
//! ELF-64 Object File Format, version 1.5, and the System V ABI for 32-bit files. A file can be
//! hostile: what is malformed is missing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Types of segments.
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// Type of the note with the build ID, of GNU.
const NT_GNU_BUILD_ID: u32 = 3;
/// Sizes in bytes of a build ID, as in [`crate::trace::symbols`].
const BUILD_ID_SIZES: std::ops::RangeInclusive<usize> = 2..=64;
/// Maximum size in bytes of a segment with notes.
const MAX_NOTES: u64 = 64 << 10;

/// A segment of an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    kind: u32,
    segment: Segment,
}

/// A loaded segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the file.
    pub offset: u64,
    /// Its size in the file in bytes.
    pub size: u64,
    /// The address that it is linked to.
    pub address: u64,
    /// It has code.
    pub is_code: bool,
}

/// The number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    let digits = bytes.iter().rev();
    Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn headers(file: &File) -> Option<Vec<Header>> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    let is_64 = match header {
        [0x7F, b'E', b'L', b'F', 2, 1, ..] => true,
        [0x7F, b'E', b'L', b'F', 1, 1, ..] => false,
        _ => return None,
    };
    // The layouts of the two classes differ.
    let word = |bytes: &[u8], at_64: usize, at_32: usize| match is_64 {
        true => number(bytes, at_64, 8),
        false => number(bytes, at_32, 4),
    };
    let (count_at, size) = if is_64 { (56, 56) } else { (44, 32) };
    let count = number(&header, count_at, 2)? as usize;
    let mut programs = vec![0; count * size];
    let at = word(&header, 32, 28)?;
    file.read_exact_at(&mut programs, at).ok()?;
    let headers = programs.chunks_exact(size).filter_map(|program| {
        let flags = number(program, if is_64 { 4 } else { 24 }, 4)?;
        Some(Header {
            kind: number(program, 0, 4)? as u32,
            segment: Segment {
                offset: word(program, 8, 4)?,
                size: word(program, 32, 16)?,
                address: word(program, 16, 8)?,
                is_code: flags & 1 != 0,
            },
        })
    });
    Some(headers.collect())
}

/// The loaded segments of an ELF file; none if it is no such file.
pub fn segments(file: &File) -> Vec<Segment> {
    let headers = headers(file).unwrap_or_default().into_iter();
    headers
        .filter(|header| header.kind == PT_LOAD)
        .map(|header| header.segment)
        .collect()
}

/// The build ID of an ELF file, if it has one.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    let headers = headers(file)?.into_iter();
    let mut notes = headers.filter(|header| header.kind == PT_NOTE);
    notes.find_map(|header| {
        let size = header.segment.size.min(MAX_NOTES) as usize;
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, header.segment.offset).ok()?;
        in_notes(&bytes).map(<[u8]>::to_vec)
    })
}

/// The build ID among `notes`.
fn in_notes(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let name_size = number(notes, 0, 4)? as usize;
        let (size, kind) = (number(notes, 4, 4)? as usize, number(notes, 8, 4)? as u32);
        let name = notes.get(12..)?.get(..name_size)?;
        let rest = notes.get(12_usize.checked_add(name_size.checked_next_multiple_of(4)?)?..)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && BUILD_ID_SIZES.contains(&size) {
            return rest.get(..size);
        }
        notes = rest.get(size.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_segments() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let segments = segments(&file);
        assert!(
            segments.iter().any(|segment| segment.is_code),
            "{segments:?}"
        );
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
        assert_eq!(in_notes(&notes), Some(&[7; 19][..]));
        assert_eq!(in_notes(&notes[..30]), None);
        let endless = note(&[], 0, &[]);
        assert_eq!(in_notes(&endless.repeat(3)), None);
        assert_eq!(in_notes(&[0xFF; 12]), None);
    }

    #[test]
    fn other_files_have_none() {
        let file = File::open("/etc/passwd").unwrap();
        assert_eq!(segments(&file), []);
        assert_eq!(build_id(&file), None);
    }
}
