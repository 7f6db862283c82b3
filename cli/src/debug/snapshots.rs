//! Files in the user's cache with the snapshots of recordings: the first session of a recording
//! replays it to its end, and the second one does not.
//!
//! The process that replays is in a sandbox, in which it names no files. A process beside it, the
//! keeper, gives the new file its name when it is complete, and removes it if the session ends
//! before, in whichever way: the connection between them is closed then.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use vbts_debugger::{SnapshotFile, SnapshotFiles};
use vbts_host::HeldSignals;
use vbts_host::child::fork;
use vbts_host::output::survive_file_size_limit;
use vbts_recording::REPLAY_VERSION;
use vbts_symbols::elf::digits;
use vbts_vmm::machine::SnapshotKey;

use crate::cache;
use crate::sha256::{of_file, of_parts};

/// The directory in the cache.
const DIRECTORY: &str = "snapshots";
/// Bytes of all files at most, except the last one.
const MAX_SIZE: u64 = 2 << 30;
/// Message to the keeper that the file is complete, and its answer.
const COMPLETE: u8 = 1;

/// A file that the keeper names when it is complete.
#[derive(Debug)]
struct Unfinished {
    file: BufWriter<File>,
    /// The connection to the keeper. The sandbox allows the system calls of files.
    keeper: File,
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl SnapshotFile for Unfinished {
    fn keep(mut self: Box<Self>) -> io::Result<()> {
        self.file.flush()?;
        self.keeper.write_all(&[COMPLETE])?;
        // A later session finds the file when this one is open.
        self.keeper.read_exact(&mut [0])
    }
}

/// The files for the snapshots of `recording`. `None` if the user has no cache, or it cannot be
/// written. This process has one thread.
///
/// # Errors
/// The recording cannot be read, or the host starts no more processes.
pub(super) fn open(recording: &Path) -> anyhow::Result<Option<SnapshotFiles>> {
    let Some(directory) = cache::directory(DIRECTORY) else {
        return Ok(None);
    };
    let cannot_read = || format!("Cannot read {}", recording.display());
    let (key, name) = identity(recording).with_context(cannot_read)?;
    let path = directory.join(&name);
    let old = File::open(&path).ok();
    if let Some(old) = &old {
        // The file can be used without.
        let _ = cache::note_use(old);
    }
    let unfinished = directory.join(format!("{name}.{}", std::process::id()));
    let (ours, keepers) = UnixStream::pair()?;
    let held = HeldSignals::hold();
    // Before the file exists: a session that is killed at any time leaves none.
    if fork()
        .context("Cannot start a process for the snapshots")?
        .is_none()
    {
        drop(ours);
        keep(keepers, &unfinished, &path, &directory);
        std::process::exit(0);
    }
    drop(held);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let Ok(file) = options.open(&unfinished) else {
        return Ok(None);
    };
    survive_file_size_limit();
    let new = Unfinished {
        file: BufWriter::new(file),
        keeper: OwnedFd::from(ours).into(),
    };
    Ok(Some(SnapshotFiles {
        key,
        old,
        new: Box::new(new),
    }))
}

/// Names the file `unfinished` `path` when it is complete, or else removes it when the session
/// ends.
fn keep(mut session: UnixStream, unfinished: &PathBuf, path: &Path, directory: &Path) {
    let mut message = [0];
    let is_complete = session.read_exact(&mut message).is_ok() && message == [COMPLETE];
    if is_complete && fs::rename(unfinished, path).is_ok() {
        cache::shrink(directory, path, MAX_SIZE);
        // The session may have ended.
        let _ = session.write_all(&[COMPLETE]);
    } else {
        // A full cache may have lost it.
        let _ = fs::remove_file(unfinished);
    }
}

/// The identity of the replays of a recording by this program, and the name of their file.
fn identity(recording: &Path) -> io::Result<(SnapshotKey, String)> {
    let contents = of_file(&mut File::open(recording)?)?;
    let version = format!("{}-{REPLAY_VERSION}", env!("CARGO_PKG_VERSION"));
    let name = format!("{}-{version}.snapshots", digits(&contents[..16]));
    // Programs in development have the same version, and other states.
    let program = fs::metadata(std::env::current_exe()?)?;
    let built = program.modified()?.duration_since(UNIX_EPOCH);
    let built = built.unwrap_or_default().as_nanos();
    let program = [
        program.len().to_le_bytes().to_vec(),
        built.to_le_bytes().to_vec(),
    ]
    .concat();
    let key = of_parts(&[&contents, version.as_bytes(), &program]);
    Ok((key, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_recording_has_another_identity() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let identity_of = |contents: &[u8]| {
            fs::write(&path, contents).unwrap();
            identity(&path).unwrap()
        };
        let (key, name) = identity_of(b"one");
        assert_eq!((key, name.clone()), identity_of(b"one"));
        let (other_key, other_name) = identity_of(b"two");
        assert!(key != other_key && name != other_name);
        assert!(identity(&directory.path().join("nothing")).is_err());
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let (unfinished, path) = (directory.path().join("a.1"), directory.path().join("a"));
        let end = |message: &[u8]| {
            fs::write(&unfinished, "contents").unwrap();
            let (mut session, keeper) = UnixStream::pair().unwrap();
            session.write_all(message).unwrap();
            session.shutdown(std::net::Shutdown::Write).unwrap();
            keep(keeper, &unfinished, &path, directory.path());
            let mut answer = Vec::new();
            session.read_to_end(&mut answer).unwrap();
            assert!(!unfinished.exists());
            answer
        };
        assert!(end(&[]).is_empty() && !path.exists());
        assert!(end(&[9]).is_empty() && !path.exists());
        assert_eq!(end(&[COMPLETE]), [COMPLETE]);
        assert_eq!(fs::read(&path).unwrap(), b"contents");
    }
}
