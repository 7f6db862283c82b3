//! Failures of the agent, which it reports to the host.

use std::fmt;
use std::io;

use rustix::io::Errno;
use vbts_protocol::ErrorKind;

/// A failure of the agent, in the terms of [`vbts_protocol::ToHost::Error`].
#[derive(Debug)]
pub struct Failure {
    pub kind: ErrorKind,
    /// `errno`, or 0.
    pub errno: u32,
    pub text: String,
}

impl Failure {
    pub fn new(kind: ErrorKind, text: impl fmt::Display) -> Self {
        Self {
            kind,
            errno: 0,
            text: text.to_string(),
        }
    }

    /// The operation `what` failed with an error of the system.
    pub fn os(kind: ErrorKind, what: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let errno = error.raw_os_error().unwrap_or(0).unsigned_abs();
        // The number is in `errno`.
        let error = error.to_string();
        let error = error.split(" (os error").next().unwrap_or_default();
        Self {
            kind,
            errno,
            text: format!("{what}: {error}"),
        }
    }

    /// Whether it has this error of the system.
    pub fn is(&self, error: Errno) -> bool {
        self.errno == error.raw_os_error().unsigned_abs()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The result of a system call of libc, which is negative if `errno` has an error.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
