//! Loaded segments and build IDs of ELF files. What is malformed is missing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::{HEADER_SIZE, Header, Segment};

/// Maximum size in bytes of a segment with notes.
const MAX_NOTES: u64 = 64 << 10;

/// The header of a file, and its program headers.
fn headers<'a>(file: &File, bytes: &'a mut [u8; HEADER_SIZE]) -> Option<(Header<'a>, Vec<u8>)> {
    file.read_exact_at(bytes, 0).ok()?;
    let header = Header::parse(bytes)?;
    let (at, size) = header.programs_place()?;
    let mut programs = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut programs, at).ok()?;
    Some((header, programs))
}

/// The loaded segments of an ELF file; none if it is no such file.
pub fn segments(file: &File) -> Vec<Segment> {
    let mut bytes = [0; HEADER_SIZE];
    let headers = headers(file, &mut bytes);
    headers.map_or_else(Vec::new, |(header, programs)| header.loaded(&programs))
}

/// The build ID of an ELF file, if it has one.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    let mut bytes = [0; HEADER_SIZE];
    let (header, programs) = headers(file, &mut bytes)?;
    header.notes(&programs).find_map(|segment| {
        let mut notes = vec![0; segment.size.min(MAX_NOTES) as usize];
        file.read_exact_at(&mut notes, segment.offset).ok()?;
        super::build_id(&notes).map(<[u8]>::to_vec)
    })
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
    fn other_files_have_none() {
        let file = File::open("/etc/passwd").unwrap();
        assert_eq!(segments(&file), []);
        assert_eq!(build_id(&file), None);
    }
}
