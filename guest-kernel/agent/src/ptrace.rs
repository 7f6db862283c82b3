//! The ptrace requests that the agent uses, and `waitpid`.

use std::io;
use std::ptr;

use libc::{c_int, c_void, pid_t};
use vbts_protocol::{ExitStatus, RECORD_SIZE};

pub const BTS_O_TRACE: u64 = 0x1;
pub const BTS_O_SCHED: u64 = 0x2;
pub const BTS_O_SIGNAL: u64 = 0x4;
pub const BTS_O_CUT_SIZE: u64 = 0x8;
pub const BTS_O_KERNEL: u64 = 0x10;
pub const BTS_O_PAUSED: u64 = 0x20;
pub const BTS_O_VIRTUAL: u64 = 0x40;
pub const BTS_O_LOST: u64 = 0x80;
pub const BTS_O_SIGNR_SHIFT: u32 = 8;

const PTRACE_BTS_CONFIG: u32 = 40;
const PTRACE_BTS_STATUS: u32 = 41;
const PTRACE_BTS_SIZE: u32 = 42;
const PTRACE_BTS_CLEAR: u32 = 44;
const PTRACE_BTS_DRAIN: u32 = 45;

/// `struct ptrace_bts_virtual_config`. Without `BTS_O_VIRTUAL` the kernel reads and writes only the
/// fields before `virtual_size`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BtsConfig {
    /// Buffer size in bytes.
    pub size: u64,
    /// `BTS_O_*`.
    pub flags: u64,
    /// Size of the virtual buffer in bytes.
    pub virtual_size: u64,
}

/// A change of a child's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It has ended.
    Ended(ExitStatus),
    /// It has stopped as a tracee, with a signal and a `PTRACE_EVENT_*` or 0.
    Stopped { signal: c_int, event: c_int },
}

/// Becomes the tracer of `pid`. The tracee is killed with its tracer. It stops at each exec, at its
/// exit, and when it starts a task, which the kernel attaches to the tracer too, until [`detach`].
pub fn seize(pid: pid_t) -> io::Result<()> {
    let options = libc::PTRACE_O_EXITKILL
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE;
    // SAFETY: SEIZE takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            pid,
            ptr::null_mut::<c_void>(),
            options as usize,
        )
    })
}

/// Resumes a stopped tracee and delivers `signal` to it, or none if 0.
pub fn cont(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: CONT takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_CONT,
            pid,
            ptr::null_mut::<c_void>(),
            signal as usize,
        )
    })
}

/// Resumes a stopped tracee and stops tracing it.
pub fn detach(pid: pid_t) -> io::Result<()> {
    // SAFETY: DETACH takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, ptr::null_mut::<c_void>(), 0usize) })
}

/// Returns the ID of the task that a tracee has started. The tracee must be in the stop for that.
pub fn started_task(pid: pid_t) -> io::Result<u32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: GETEVENTMSG writes an unsigned long.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            pid,
            ptr::null_mut::<c_void>(),
            &raw mut message,
        )
    })?;
    u32::try_from(message).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Leaves a tracee in its group-stop until SIGCONT.
pub fn listen(pid: pid_t) -> io::Result<()> {
    // SAFETY: LISTEN takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_LISTEN, pid, ptr::null_mut::<c_void>(), 0usize) })
}

/// Configures the branch trace of a stopped tracee.
pub fn bts_config(pid: pid_t, config: &BtsConfig) -> io::Result<()> {
    // SAFETY: CONFIG reads at most a struct ptrace_bts_virtual_config.
    check(unsafe { libc::ptrace(PTRACE_BTS_CONFIG, pid, ptr::from_ref(config), 0usize) })
}

/// Returns the configuration and the status flags.
pub fn bts_status(pid: pid_t) -> io::Result<BtsConfig> {
    let mut config = BtsConfig::default();
    // SAFETY: STATUS writes at most a struct ptrace_bts_virtual_config.
    check(unsafe { libc::ptrace(PTRACE_BTS_STATUS, pid, &raw mut config, 0usize) })?;
    Ok(config)
}

/// Returns the number of records in the buffer.
pub fn bts_size(pid: pid_t) -> io::Result<usize> {
    // SAFETY: SIZE takes no pointers.
    let count = unsafe { libc::ptrace(PTRACE_BTS_SIZE, pid, ptr::null_mut::<c_void>(), 0usize) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Discards all records and clears `BTS_O_LOST`.
pub fn bts_clear(pid: pid_t) -> io::Result<()> {
    // SAFETY: CLEAR takes no pointers.
    check(unsafe { libc::ptrace(PTRACE_BTS_CLEAR, pid, ptr::null_mut::<c_void>(), 0usize) })
}

/// Moves records to `out`, oldest first, and returns their number. With a virtual buffer it moves
/// as many as fit. Without one it moves all, and fails if they do not fit.
pub fn bts_drain(pid: pid_t, is_virtual: bool, out: &mut [u8]) -> io::Result<usize> {
    let room = out.len() / RECORD_SIZE;
    if !is_virtual && bts_size(pid)? > room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: with a virtual buffer DRAIN writes at most `room` records. Without one it writes SIZE
    // records, and their number does not grow because the tracee is stopped.
    let count = unsafe { libc::ptrace(PTRACE_BTS_DRAIN, pid, out.as_mut_ptr(), room) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Returns the next child whose state has changed. Does not block.
pub fn wait_any() -> Option<(pid_t, Wait)> {
    let mut status = 0;
    // SAFETY: waitpid writes one int.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) };
    if pid <= 0 {
        return None;
    }
    let wait = if libc::WIFEXITED(status) {
        Wait::Ended(ExitStatus::Code(libc::WEXITSTATUS(status) as u8))
    } else if libc::WIFSIGNALED(status) {
        Wait::Ended(ExitStatus::Signal(libc::WTERMSIG(status) as u8))
    } else {
        Wait::Stopped {
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        }
    };
    Some((pid, wait))
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
