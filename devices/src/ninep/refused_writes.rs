//! Writes to the files of a share that the host has refused, for a message to the user.
//!
//! The guest's kernel can write a file from its cache after the program has closed it. An error
//! then reaches a program only by fsync() or msync(), which most do not call.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

/// Most files that are kept.
const MAX_FILES: usize = 8;

/// The files that could not be written, in the order of their first errors.
#[derive(Debug, Default)]
pub struct RefusedFiles {
    /// Paths in the share, and the first error of each.
    pub files: Vec<(PathBuf, io::Error)>,
    /// There are more files.
    pub more: bool,
}

/// Takes note of writes that the host refuses. Clones share their notes.
#[derive(Debug, Clone, Default)]
pub struct RefusedWrites(Arc<Mutex<RefusedFiles>>);

impl RefusedWrites {
    /// Notes an error of a write to the file at `path`.
    pub(super) fn note(&self, path: Vec<u8>, error: Errno) {
        let path = PathBuf::from(OsString::from_vec(path));
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.files.iter().any(|(known, _)| *known == path) {
            return;
        }
        if refused.files.len() < MAX_FILES {
            refused.files.push((path, error.into()));
        } else {
            refused.more = true;
        }
    }

    /// Takes the files that were noted so far.
    pub fn take(&self) -> RefusedFiles {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
