//! A file with a position of its own.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;

/// An open file, and a position in it that does not depend on others that read the same file.
#[derive(Debug)]
pub struct FileAt<F> {
    file: F,
    position: u64,
}

impl<F: Borrow<File>> FileAt<F> {
    /// `file`, from `position` on.
    pub fn new(file: F, position: u64) -> Self {
        Self { file, position }
    }
}

impl<F: Borrow<File>> Read for FileAt<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.borrow().read_at(bytes, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl<F: Borrow<File>> Seek for FileAt<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, distance) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(distance) => (self.position, distance),
            SeekFrom::End(distance) => (self.file.borrow().metadata()?.len(), distance),
        };
        let position = from.checked_add_signed(distance);
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_independent() {
        let path = std::env::current_exe().unwrap();
        let file = File::open(path).unwrap();
        let mut magic = [0; 4];
        for _ in 0..2 {
            FileAt::new(&file, 0).read_exact(&mut magic).unwrap();
            assert_eq!(&magic, b"\x7FELF");
        }
        let mut at = FileAt::new(&file, 0);
        let end = at.seek(SeekFrom::End(0)).unwrap();
        assert_eq!(at.read(&mut magic).unwrap(), 0);
        assert_eq!(at.seek(SeekFrom::Current(-1)).unwrap(), end - 1);
        assert_eq!(at.read(&mut magic).unwrap(), 1);
        assert!(at.seek(SeekFrom::Current(i64::MIN)).is_err());
    }
}
