//! A file or a block device of the host as a disk. Accesses are within its sectors.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, OFlags, fallocate, flock, fstat};
use rustix::io::Errno;
use thiserror::Error;

/// Bytes in a sector.
pub const SECTOR: u64 = 512;

/// Zeros are written in pieces of this size if the file system has no operation for them.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Why a file cannot be a disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] io::Error),
    /// It is a directory, a pipe, a terminal or the like.
    #[error("it is neither a regular file nor a block device")]
    Kind,
    /// It is empty, or its last sector is incomplete.
    #[error("its size of {0} bytes is not a positive multiple of {SECTOR}")]
    Size(u64),
    /// Another process has locked it.
    #[error(
        "another program, such as a second vbts, is using it: a disk that is written can have one user only, one that is \
         only read (,ro) as many as like"
    )]
    InUse,
}

/// An open disk. While it is open, its lock (flock) excludes other processes that lock the same
/// file: all of them if the disk is writable, writers if it is read-only.
#[derive(Debug)]
pub struct Disk {
    file: File,
    sectors: u64,
    writable: bool,
}

impl Disk {
    /// Opens the file at `path`. The size of the disk is that of the file now.
    ///
    /// # Errors
    /// The file is not a disk, or is in use.
    pub fn open(path: &Path, writable: bool) -> Result<Self, DiskError> {
        // Without NONBLOCK, opening a pipe that has no writer would block.
        let mut file = OpenOptions::new()
            .read(true)
            .write(writable)
            .custom_flags(OFlags::NONBLOCK.union(OFlags::NOCTTY).bits() as i32)
            .open(path)?;
        let kind = FileType::from_raw_mode(fstat(&file).map_err(io::Error::from)?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(DiskError::Kind);
        }
        let lock = if writable {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        match flock(&file, lock) {
            // On a file system without locks no process can hold one.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => {}
            Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse),
            Err(error) => return Err(DiskError::Open(error.into())),
        }
        let size = file.seek(SeekFrom::End(0))?;
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(DiskError::Size(size));
        }
        Ok(Self {
            file,
            sectors: size / SECTOR,
            writable,
        })
    }

    /// The size in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Whether the disk is writable.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The byte offset of `len` bytes from `sector`, if they are whole sectors of this disk.
    pub fn locate(&self, sector: u64, len: u64) -> Option<u64> {
        let end = sector.checked_add(len / SECTOR)?;
        let inside = len.is_multiple_of(SECTOR) && end <= self.sectors;
        inside.then(|| sector * SECTOR)
    }

    /// Fills `data` from byte `offset`.
    ///
    /// # Errors
    /// The host cannot read the file, or the file has been shortened.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.check(offset, data.len() as u64)?;
        self.file.read_exact_at(data, offset)
    }

    /// Writes `data` at byte `offset`.
    ///
    /// # Errors
    /// The host cannot write the file, or the disk is read-only.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_writable(offset, data.len() as u64)?;
        self.file.write_all_at(data, offset)
    }

    /// Writes cached data to the host's disk.
    ///
    /// # Errors
    /// The host could not write all of it.
    pub fn flush(&self) -> io::Result<()> {
        if self.writable {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Returns the space of `len` bytes from `offset` to the host. A file system without this
    /// operation leaves the bytes unchanged.
    ///
    /// # Errors
    /// The operation failed, or the disk is read-only.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable(offset, len)?;
        match self.punch(offset, len) {
            Err(Errno::NOTSUP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Sets `len` bytes from `offset` to zero. With `unmap` their space may be returned to the
    /// host.
    ///
    /// # Errors
    /// The host cannot write them, or the disk is read-only.
    pub fn write_zeros(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check_writable(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let made = if unmap {
            self.punch(offset, len)
        } else {
            fallocate(&self.file, flags, offset, len)
        };
        match made {
            Err(Errno::NOTSUP | Errno::NOSYS) => {}
            done => return Ok(done?),
        }
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece = (end - at).min(ZEROS.len() as u64);
            self.file
                .write_all_at(ZEROS.get(..piece as usize).unwrap_or(&ZEROS), at)?;
            at += piece;
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> rustix::io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, offset, len)
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.sectors * SECTOR);
        if inside {
            Ok(())
        } else {
            Err(Errno::INVAL.into())
        }
    }

    fn check_writable(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(Errno::ROFS.into());
        }
        self.check(offset, len)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use tempfile::NamedTempFile;

    /// A temporary file.
    pub(crate) struct TemporaryFile(NamedTempFile);

    impl TemporaryFile {
        pub(crate) fn new(contents: &[u8]) -> Self {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(contents).unwrap();
            Self(file)
        }

        pub(crate) fn path(&self) -> &Path {
            self.0.path()
        }

        pub(crate) fn contents(&self) -> Vec<u8> {
            std::fs::read(self.path()).unwrap()
        }
    }

    /// A file of which each access at offset 0 fails with EIO: the memory of this process, in which
    /// nothing is mapped there.
    pub(crate) fn broken_file() -> File {
        let mut file = File::options();
        file.read(true).write(true).open("/proc/self/mem").unwrap()
    }

    impl Disk {
        /// A disk of a [`broken_file`].
        pub(crate) fn broken() -> Self {
            Self {
                file: broken_file(),
                sectors: 1 << 20,
                writable: true,
            }
        }
    }

    fn error(path: &Path, writable: bool) -> String {
        Disk::open(path, writable).unwrap_err().to_string()
    }

    #[test]
    fn other_files_are_refused() {
        assert!(error(Path::new("/"), false).contains("neither a regular file"));
        assert!(error(Path::new("/dev/null"), true).contains("neither a regular file"));
        assert!(error(Path::new("/nonexistent"), false).contains("No such file"));
        for size in [0, 511, 513] {
            let file = TemporaryFile::new(&vec![0; size]);
            assert!(error(file.path(), true).contains(&format!("size of {size} bytes")));
        }
    }

    #[test]
    fn a_disk_that_is_written_has_one_user() {
        let file = TemporaryFile::new(&[0; 512]);
        let writer = Disk::open(file.path(), true).unwrap();
        for writable in [false, true] {
            assert!(error(file.path(), writable).contains("is using it"));
        }
        drop(writer);
        let _reader = Disk::open(file.path(), false).unwrap();
        Disk::open(file.path(), false).unwrap();
        assert!(error(file.path(), true).contains("is using it"));
    }

    #[test]
    fn accesses_outside_the_disk_fail() {
        let file = TemporaryFile::new(&[7; 1024]);
        let disk = Disk::open(file.path(), true).unwrap();
        assert_eq!(disk.locate(1, 512), Some(512));
        assert_eq!(disk.locate(2, 0), Some(1024));
        for (sector, len) in [
            (1, 1024),
            (2, 512),
            (0, 511),
            (u64::MAX, 512),
            (u64::MAX, 0),
            (1 << 55, 0),
        ] {
            assert_eq!(disk.locate(sector, len), None, "{sector} {len}");
        }
        for offset in [1000, 1024, u64::MAX] {
            assert!(disk.read(offset, &mut [0; 64]).is_err());
            assert!(disk.write(offset, &[1; 64]).is_err());
            assert!(disk.discard(offset, 64).is_err());
            assert!(disk.write_zeros(offset, 64, false).is_err());
        }
        assert_eq!(file.contents(), [7; 1024]);
    }

    #[test]
    fn a_read_only_disk_is_not_written() {
        let file = TemporaryFile::new(&[7; 512]);
        let disk = Disk::open(file.path(), false).unwrap();
        assert!(disk.write(0, &[1]).is_err());
        assert!(disk.discard(0, 512).is_err());
        assert!(disk.write_zeros(0, 512, true).is_err());
        disk.flush().unwrap();
        assert_eq!(file.contents(), [7; 512]);
    }

    #[test]
    fn zeros_are_written_and_discarded_space_is_returned() {
        const SIZE: usize = 1 << 20;
        let file = TemporaryFile::new(&vec![7; SIZE]);
        let disk = Disk::open(file.path(), true).unwrap();
        disk.write_zeros(512, 512, false).unwrap();
        disk.write_zeros(2048, 1 << 19, true).unwrap();
        let contents = file.contents();
        assert_eq!(contents.len(), SIZE);
        for (range, byte) in [
            (0..512, 7),
            (512..1024, 0),
            (1024..2048, 7),
            (2048..2048 + (1 << 19), 0),
            (2048 + (1 << 19)..SIZE, 7),
        ] {
            assert!(
                contents[range.clone()].iter().all(|b| *b == byte),
                "{range:?}"
            );
        }
        let blocks = || std::fs::metadata(file.path()).unwrap().blocks();
        let before = blocks();
        disk.discard(0, SIZE as u64).unwrap();
        // Only if the file system can return space.
        if fallocate(
            &disk.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            4096,
        )
        .is_ok()
        {
            assert!(blocks() < before);
        }
        assert_eq!(file.contents().len(), SIZE);
    }
}
