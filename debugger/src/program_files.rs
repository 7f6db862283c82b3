//! The program and its libraries, for a client that has no files of them: from the recording.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use vbts_gdb::{FileStatus, Result, TargetError, TargetFile};
use vbts_recording::{Contents, FileContents};

/// EIO and ENOENT of Linux.
const EIO: u8 = 5;
pub(crate) const ENOENT: u8 = 2;

/// The files that the guest has read, and files of the host that are the same, for what it has not
/// read of them.
#[derive(Debug)]
pub struct ProgramFiles {
    contents: Rc<Contents>,
    host: HashMap<Vec<u8>, Rc<File>>,
    /// The working directory of the program.
    directory: Vec<u8>,
}

impl ProgramFiles {
    /// `host` has open files by the paths of [`Contents::files`].
    pub fn new(contents: Contents, host: HashMap<Vec<u8>, File>, directory: &str) -> Self {
        let host = host.into_iter().map(|(path, file)| (path, Rc::new(file)));
        Self {
            contents: Rc::new(contents),
            host: host.collect(),
            directory: directory.into(),
        }
    }

    /// Opens the file with a path of the guest.
    pub(crate) fn open(&self, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        let path = match path.first() {
            Some(b'/') => self.contents.resolve(path),
            _ => self.contents.resolve(&[&self.directory, path].join(&b'/')),
        };
        let path = path.filter(|path| self.contents.get(path).is_some());
        let path = path.ok_or(TargetError::Errno(ENOENT))?;
        Ok(Box::new(RecordedFile {
            contents: self.contents.clone(),
            host: self.host.get(&path).cloned(),
            path,
        }))
    }
}

/// A file that is open. A client can have many, so that they share the contents.
struct RecordedFile {
    contents: Rc<Contents>,
    path: Vec<u8>,
    host: Option<Rc<File>>,
}

impl RecordedFile {
    fn contents(&self) -> Result<&FileContents> {
        let contents = self.contents.get(&self.path);
        contents.ok_or(TargetError::Errno(ENOENT))
    }
}

impl TargetFile for RecordedFile {
    fn status(&mut self) -> Result<FileStatus> {
        let contents = self.contents()?;
        Ok(FileStatus {
            mode: contents.mode(),
            size: contents.size(),
            ..FileStatus::default()
        })
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let contents = self.contents()?;
        let rest = contents.size().saturating_sub(offset);
        let wanted = usize::try_from(rest).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let mut done = 0;
        while done < wanted {
            let at = offset.saturating_add(done as u64);
            let to = &mut buffer[done..wanted];
            let read = match (contents.at(at), &self.host) {
                (Some(part), _) => {
                    let len = part.len().min(to.len());
                    to[..len].copy_from_slice(&part[..len]);
                    len
                }
                (None, Some(host)) => {
                    let gap = contents.gap(at).and_then(|gap| usize::try_from(gap).ok());
                    let len = gap.unwrap_or(to.len()).min(to.len());
                    host.read_at(&mut to[..len], at).unwrap_or(0)
                }
                (None, None) => 0,
            };
            if read == 0 {
                break;
            }
            done += read;
        }
        match done {
            0 if wanted > 0 => Err(TargetError::Errno(EIO)),
            done => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// The file `/bin/x`, of which the guest has read the first 8 and the last 4 of 20 bytes, with
    /// the file of the host `host`.
    fn files(host: Option<File>) -> ProgramFiles {
        let message = |kind: u8, body: &[&[u8]]| {
            let body = body.concat();
            [&[0, 0, 0, 0, kind, 1, 0][..], &body].concat()
        };
        let fid = |n: u32| n.to_le_bytes();
        let mut contents = Contents::default();
        // Tattach, Twalk to bin/x, and Tread, each with its reply.
        contents.follow(&message(104, &[&fid(0), &[0; 12]]), &message(105, &[]));
        let names = [&b"\x02\0\x03\0bin\x01\0x"[..]].concat();
        let walk = message(110, &[&fid(0), &fid(1), &names]);
        contents.follow(&walk, &message(111, &[&[2, 0]]));
        for (offset, bytes) in [(0_u64, &b"\x7fELF...."[..]), (16, b"tail")] {
            let request = message(116, &[&fid(1), &offset.to_le_bytes(), &[0; 4]]);
            let len = (bytes.len() as u32).to_le_bytes();
            contents.follow(&request, &message(117, &[&len, bytes]));
        }
        let host = host.map(|file| (b"bin/x".to_vec(), file));
        ProgramFiles::new(contents, host.into_iter().collect(), "/bin")
    }

    /// The bytes that a read returns, or the error.
    fn read(files: &ProgramFiles, path: &str, offset: u64) -> std::result::Result<Vec<u8>, u8> {
        let errno = |error| match error {
            TargetError::Errno(number) => number,
            error => panic!("{error}"),
        };
        let mut file = files.open(path.as_bytes()).map_err(errno)?;
        assert_eq!(file.status().unwrap().size, 20);
        let mut buffer = [0; 64];
        let len = file.read_at(offset, &mut buffer).map_err(errno)?;
        Ok(buffer[..len].to_vec())
    }

    #[test]
    fn what_is_not_in_the_recording_is_an_error() {
        let files = files(None);
        assert_eq!(read(&files, "/bin/x", 0).unwrap(), b"\x7fELF....");
        assert_eq!(read(&files, "x", 4).unwrap(), b"....");
        assert_eq!(read(&files, "/bin/x", 8), Err(EIO));
        assert_eq!(read(&files, "/bin/../bin/x", 18).unwrap(), b"il");
        assert_eq!(read(&files, "/bin/x", 20).unwrap(), b"");
        assert_eq!(read(&files, "/bin/x", u64::MAX).unwrap(), b"");
        assert_eq!(read(&files, "/bin/y", 0), Err(ENOENT));
    }

    #[test]
    fn the_rest_is_that_of_the_same_file_of_the_host() {
        let mut host = tempfile::tempfile().unwrap();
        host.write_all(b"\x7fELF....12345678tail and more").unwrap();
        let files = files(Some(host));
        assert_eq!(read(&files, "/bin/x", 2).unwrap(), b"LF....12345678tail");
        assert_eq!(read(&files, "/bin/x", 10).unwrap(), b"345678tail");
    }
}
