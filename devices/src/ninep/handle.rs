//! File handles, which name a file of a file system without a descriptor: name_to_handle_at(2).

use std::ffi::{c_int, c_uint};

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// Most bytes of a handle (MAX_HANDLE_SZ).
const MAX_BYTES: usize = 128;

/// `struct file_handle`, with room for every handle.
#[repr(C)]
struct FileHandle {
    len: c_uint,
    kind: c_int,
    bytes: [u8; MAX_BYTES],
}

/// The handle of a file. A file system gives no other file the same handle, also if it reuses the
/// inode number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handle {
    kind: c_int,
    bytes: Box<[u8]>,
}

impl Handle {
    /// Returns the handle of an open file and the ID of its mount, or `None` if its file system has
    /// no handles.
    pub(super) fn of(file: impl AsFd) -> Option<(Self, c_int)> {
        let mut raw = FileHandle {
            len: MAX_BYTES as c_uint,
            kind: 0,
            bytes: [0; MAX_BYTES],
        };
        let mut mount = 0;
        // SAFETY: the path is a C string, and the kernel writes at most `raw.len` bytes of the
        // handle and one number.
        let result = unsafe {
            libc::name_to_handle_at(
                file.as_fd().as_raw_fd(),
                c"".as_ptr(),
                (&raw mut raw).cast(),
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        let bytes = raw.bytes.get(..raw.len as usize)?;
        (result == 0).then(|| {
            let handle = Self {
                kind: raw.kind,
                bytes: bytes.into(),
            };
            (handle, mount)
        })
    }

    /// Opens the file for its place alone (`O_PATH`). `mount` is an open file of the same mount.
    ///
    /// # Errors
    /// EPERM without CAP_DAC_READ_SEARCH, ESTALE if the file was removed.
    pub(super) fn open(&self, mount: impl AsFd) -> Result<OwnedFd, Errno> {
        let mut raw = FileHandle {
            len: self.bytes.len() as c_uint,
            kind: self.kind,
            bytes: [0; MAX_BYTES],
        };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: the kernel reads `raw.len` bytes of the handle.
        let fd = unsafe {
            libc::open_by_handle_at(
                mount.as_fd().as_raw_fd(),
                (&raw mut raw).cast(),
                libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        // SAFETY: the kernel has just opened `fd`, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
