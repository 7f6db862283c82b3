//! The session and the process group of this process.
//!
//! A process in a PID namespace can belong to a session or a group whose leader is outside of the
//! namespace: the kernel then gives 0 as its ID (`pid_namespaces(7)`). Types that exclude 0 do not
//! fit, therefore the functions here return the numbers of the kernel.

use std::os::fd::{AsFd, AsRawFd};

/// The session of this process, or 0 if its leader is outside of the PID namespace.
pub fn session() -> libc::pid_t {
    // SAFETY: getsid takes no pointers.
    unsafe { libc::getsid(0) }
}

/// The process group of this process, or 0 if its leader is outside of the PID namespace.
pub fn group() -> libc::pid_t {
    // SAFETY: getpgrp takes no arguments.
    unsafe { libc::getpgrp() }
}

/// The foreground process group of `terminal`, or 0 if its leader is outside of the PID namespace.
/// `None` if the terminal does not control the session of this process.
pub(crate) fn foreground_group(terminal: impl AsFd) -> Option<libc::pid_t> {
    // SAFETY: tcgetpgrp takes no pointers, and the descriptor is open while it is borrowed.
    let group = unsafe { libc::tcgetpgrp(terminal.as_fd().as_raw_fd()) };
    (group >= 0).then_some(group)
}
