//! Files that are read as a whole: kernels, initrds, and the programs of vbts's own guests.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FileType, OFlags, fstat};

/// Most bytes of such a file. The largest kernels with debug information have less.
const MAX_SIZE: u64 = 4 << 30;

/// Opens the regular file at `path`. Other files may have no end, or block.
///
/// # Errors
/// Those of `open`, and `InvalidInput` if it is another file or a very large one.
pub fn open(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe that has no writer would block.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.union(OFlags::NOCTTY).bits().cast_signed())
        .open(path)?;
    let status = fstat(&file)?;
    let what = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a pipe"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        _ => Some("a special file"),
    };
    let refuse = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    match what {
        Some(what) => refuse(format!("it is {what}, not a regular file")),
        None if status.st_size.cast_unsigned() > MAX_SIZE => {
            refuse(format!("it has more than {} GiB", MAX_SIZE >> 30))
        }
        None => Ok(file),
    }
}

/// Reads the regular file at `path`.
///
/// # Errors
/// Those of [`open`] and `read`.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    // It may grow meanwhile.
    open(path)?.take(MAX_SIZE).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), 0o600.into()).unwrap();
        File::create(path("huge"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        std::fs::write(path("file"), "contents").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        for (file, message) in [
            ("/dev/zero".into(), "it is a character device"),
            (path("pipe"), "it is a pipe"),
            (path("."), "it is a directory"),
            (path("huge"), "it has more than 4 GiB"),
            (path("nothing"), "No such file"),
        ] {
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(read(&path("link")).unwrap(), b"contents");
    }
}
