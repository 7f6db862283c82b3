//! The limits of the processes that read symbols.

use std::io;

use rustix::process::{Resource, Signal, set_parent_process_death_signal};

use vbts_host::sandbox::limit;

/// Memory in bytes of the process that reads, without its program and what it maps of files.
const MAX_MEMORY: u64 = 640 << 20;
/// Address space in bytes of the process that reads.
const MAX_ADDRESS_SPACE: u64 = 2 << 30;
/// Number of open files: those whose inlined functions are known stay open.
const MAX_FILES: u64 = 1024;
/// Processor time in seconds for one request.
const REQUEST_SECONDS: i64 = 10;
/// Processor time in seconds of the processes that have died, after which no more are started.
const TOTAL_SECONDS: i64 = 120;

/// Signals that a terminal or a service manager sends to all processes of a run. They end vbts,
/// which still needs names for the rest of the trace, or ask it to stop, which the program may
/// refuse.
const OF_THE_RUN: [libc::c_int; 5] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGTSTP,
];

/// Prepares a process that starts others: it ends with the process that has started it, and not at
/// a signal that is meant for that one. It has standard descriptors only, and leaves no core dump.
///
/// # Errors
/// The host refuses.
pub(super) fn prepare() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for signal in OF_THE_RUN {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // vbts has open files for the traced program.
    // SAFETY: nothing in this process uses a descriptor other than the standard ones.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit(Resource::Core, 0)
}

/// Sets the limits of the process that reads.
///
/// # Errors
/// The host refuses.
pub(crate) fn confine_reader() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::Data, MAX_MEMORY)?;
    limit(Resource::As, MAX_ADDRESS_SPACE)?;
    limit(Resource::Fsize, 0)?;
    limit(Resource::Nofile, MAX_FILES)
}

/// Makes the request that begins now kill the process if it takes too long.
pub(crate) fn begin_request() {
    set_timer(REQUEST_SECONDS);
}

/// Ends the limit of time of a request.
pub(crate) fn end_request() {
    set_timer(0);
}

/// Makes SIGPROF kill this process after so many seconds of its processor time; 0 is never.
fn set_timer(seconds: i64) {
    let never = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: never,
        it_value: libc::timeval {
            tv_sec: seconds,
            ..never
        },
    };
    // SAFETY: the kernel reads `timer`, and writes no old value.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}

/// Returns whether the processes that were started have taken all the time that there is.
pub(crate) fn is_exhausted() -> bool {
    // SAFETY: all bytes zero are a valid value of this type of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to `usage`.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    usage.ru_utime.tv_sec + usage.ru_stime.tv_sec >= TOTAL_SECONDS
}
