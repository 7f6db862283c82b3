//! Threads that need less than the process: each enters a filter of its own, which adds to that of
//! the process.
//!
//! The thread that runs the guest on virtual time also serves all devices, and so does that of one
//! processor on the host's time: a device works when the guest writes to its register. Neither
//! needs all of the calls of the other. The thread of the trace writes files that are open, and
//! opens those that the guest names, for the process that reads symbols. The thread that records a
//! machine writes one file. It needs least.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use libc::c_long;
use vbts_devices::ninep::Access;

use super::Sandbox;
use super::calls::{Call, Check, PROCESSOR_IOCTLS};
use crate::exit::Failure;

/// The sandbox that this process has entered.
static ENTERED: OnceLock<Sandbox> = OnceLock::new();

thread_local! {
    /// This thread has a filter of its own.
    static IS_CONFINED: Cell<bool> = const { Cell::new(false) };
}

/// A kind of thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    /// Formats and writes the trace, with the names of addresses.
    Trace,
    /// Encodes a trace, or encodes and writes that of a machine.
    Record,
    /// Runs a processor on the host's time.
    Processor,
    /// Serves timers and the host's files while other threads run processors.
    Service,
}

/// What the thread of the trace does without.
#[rustfmt::skip]
const NOT_FOR_TRACE: &[c_long] = &[
    libc::SYS_pread64, libc::SYS_getdents64, libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at, libc::SYS_getxattr, libc::SYS_listxattr, libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_timerfd_settime, libc::SYS_seccomp,
    libc::SYS_arch_prctl,
];

/// Calls that the thread that records a machine does without, and one that only encodes.
#[rustfmt::skip]
const NOT_FOR_RECORD: &[c_long] = &[
    libc::SYS_pread64, libc::SYS_getdents64, libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at, libc::SYS_fstatfs, libc::SYS_readlinkat, libc::SYS_getxattr,
    libc::SYS_listxattr, libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait,
    libc::SYS_timerfd_settime, libc::SYS_seccomp, libc::SYS_arch_prctl,
];

/// What the thread of a processor does without.
#[rustfmt::skip]
const NOT_FOR_PROCESSOR: &[c_long] = &[
    libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_timerfd_settime,
    libc::SYS_getpgrp, libc::SYS_getpgid, libc::SYS_seccomp,
];

impl ThreadKind {
    /// Each kind with its name, the calls of the process that it does without, and what else it
    /// lacks.
    #[cfg(test)]
    pub(super) const DOCUMENTED: [(Self, &str, &str); 4] = [
        (
            Self::Trace,
            "`trace`",
            "; also those of KVM, of disks, of open files and of `:rw` shares",
        ),
        (
            Self::Record,
            "`record`, and `worker` while a guest runs",
            "; also those of KVM, of disks, of open files, of `:rw` shares and of symbols",
        ),
        (Self::Processor, "`vcpu0` …", "; also those of terminals"),
        (
            Self::Service,
            "main, on the host's time",
            "; also those of KVM",
        ),
    ];

    /// The calls that it does without.
    pub(super) fn withheld(self) -> &'static [c_long] {
        match self {
            Self::Trace => NOT_FOR_TRACE,
            Self::Record => NOT_FOR_RECORD,
            Self::Processor => NOT_FOR_PROCESSOR,
            Self::Service => &[libc::SYS_seccomp],
        }
    }

    /// Its calls in a process that has entered `sandbox`.
    pub(super) fn calls(self, sandbox: Sandbox) -> BTreeMap<c_long, &'static Check> {
        let sandbox = match self {
            Self::Trace => Sandbox {
                files: Access::ReadOnly,
                kvm: false,
                disks: false,
                open_files: false,
                ..sandbox
            },
            Self::Record => Sandbox::new(Access::ReadOnly, false),
            Self::Processor => sandbox,
            Self::Service => Sandbox {
                kvm: false,
                ..sandbox
            },
        };
        let mut calls: BTreeMap<_, _> = sandbox
            .calls()
            .filter(|call| !self.withheld().contains(&call.number))
            .map(Call::rule)
            .collect();
        if self == Self::Processor {
            match sandbox.kvm {
                true => calls.insert(libc::SYS_ioctl, &PROCESSOR_IOCTLS),
                false => calls.remove(&libc::SYS_ioctl),
            };
        }
        calls
    }
}

/// The process has entered `sandbox`.
pub(super) fn entered(sandbox: Sandbox) {
    // A process enters one sandbox.
    let _ = ENTERED.set(sandbox);
}

/// Confines this thread to the calls of `kind`, if the process is in its sandbox and this thread is
/// not confined yet. Returns whether it is confined now.
///
/// # Errors
/// The host refuses the filter.
pub fn confine_thread(kind: ThreadKind) -> Result<bool, Failure> {
    if IS_CONFINED.get() {
        return Ok(true);
    }
    let Some(sandbox) = ENTERED.get() else {
        return Ok(false);
    };
    let calls = kind.calls(*sandbox);
    let program = super::program(calls.into_iter())?;
    seccompiler::apply_filter(&program)?;
    IS_CONFINED.set(true);
    Ok(true)
}
