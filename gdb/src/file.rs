use crate::target::Result;

/// A file that the client reads ([`Target::open_file`](crate::Target::open_file)).
pub trait TargetFile {
    /// Returns the attributes of the file.
    fn status(&mut self) -> Result<FileStatus>;

    /// Reads from `offset` on, and returns the number of bytes that were read: 0 at the end.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// Attributes of a file, as `fstat` returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStatus {
    /// Type and permissions, as in Linux's `st_mode`.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of the device.
    pub device: u32,
    /// Number of the inode.
    pub inode: u64,
    /// Time of the last modification, in seconds since 1970.
    pub modified: u32,
}

/// A file with contents that are in memory.
impl TargetFile for Vec<u8> {
    fn status(&mut self) -> Result<FileStatus> {
        Ok(FileStatus {
            mode: 0o100_444,
            size: self.len() as u64,
            ..FileStatus::default()
        })
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        let length = buffer.len().min(self.len() - start);
        buffer[..length].copy_from_slice(&self[start..start + length]);
        Ok(length)
    }
}
