//! SHA-256 of files and of bytes.

use std::fs::File;
use std::io::{self, Read as _};

use sha2::{Digest as _, Sha256};

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 20;

/// The hash of `parts`, one after the other.
pub(crate) fn of_parts(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// The hash of the rest of `file`.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn of_file(file: &mut File) -> io::Result<Hash> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        let len = file.read(&mut piece)?;
        match piece.get(..len) {
            Some(bytes) if !bytes.is_empty() => hash.update(bytes),
            _ => return Ok(hash.finalize().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use vbts_symbols::elf::digits;

    #[test]
    fn hashes_are_those_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digits(&of_parts(&[b"a", b"bc"])), abc);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        File::create(&path).unwrap().write_all(b"abc").unwrap();
        let hash = of_file(&mut File::open(&path).unwrap()).unwrap();
        assert_eq!(digits(&hash), abc);
    }
}
