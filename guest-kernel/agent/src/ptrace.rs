//! The ptrace requests that the agent uses, and `waitid`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
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
pub const BTS_O_NSECS: u64 = 0x10000;
pub const BTS_O_MAPPED: u64 = 0x20000;

const PTRACE_BTS_CONFIG: u32 = 40;
const PTRACE_BTS_STATUS: u32 = 41;
const PTRACE_BTS_CLEAR: u32 = 44;
const PTRACE_BTS_DRAIN: u32 = 45;
const PTRACE_BTS_DRAIN_RUNNING: u32 = 46;
const PTRACE_BTS_MAP: u32 = 47;
const PTRACE_BTS_TAKE: u32 = 48;
const PTRACE_BTS_TAKE_RUNNING: u32 = 49;

/// The tracee is about to trace a task that has a tracer.
pub const EVENT_PTRACE: c_int = 8;
const O_TRACEPTRACE: c_int = 1 << EVENT_PTRACE;
/// The tracee reports tasks that it starts with `CLONE_UNTRACED`, too.
const O_TRACEUNTRACED: c_int = 1 << 22;

/// `struct ptrace_bts_virtual_config`. Without `BTS_O_VIRTUAL` and `BTS_O_MAPPED` the kernel reads
/// and writes only the words before the third.
type BtsWords = [usize; 3];

/// The configuration of a branch trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BtsConfig {
    /// Buffer size in bytes.
    pub size: u64,
    /// `BTS_O_*`.
    pub flags: u64,
    /// Size of the virtual buffer in bytes, or number of mapped segments.
    pub more: u64,
}

/// A change of a child's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It has ended. It remains a zombie until [`reap`].
    Ended(ExitStatus),
    /// It has stopped as a tracee, with a signal and a `PTRACE_EVENT_*` or 0.
    Stopped { signal: c_int, event: c_int },
}

/// The options of [`seize`].
const OPTIONS: c_int = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | O_TRACEPTRACE
    | O_TRACEUNTRACED;

/// Becomes the tracer of `pid`. The tracee is killed with its tracer. It stops at each exec, when
/// it is about to trace a traced task, and when it starts a task, which the kernel attaches to the
/// tracer with the same options, until [`detach`].
pub fn seize(pid: pid_t) -> io::Result<()> {
    // SAFETY: SEIZE takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            pid,
            ptr::null_mut::<c_void>(),
            OPTIONS as usize,
        )
    })
}

/// Makes a stopped tracee, and what it starts from now on, also stop at its exit. It still has its
/// files open in that stop.
pub fn stop_at_exit(pid: pid_t) -> io::Result<()> {
    // SAFETY: SETOPTIONS takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_SETOPTIONS,
            pid,
            ptr::null_mut::<c_void>(),
            (OPTIONS | libc::PTRACE_O_TRACEEXIT) as usize,
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

/// Resumes a stopped tracee, delivers `signal` to it, or none if 0, and stops tracing it.
pub fn detach(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: DETACH takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_DETACH,
            pid,
            ptr::null_mut::<c_void>(),
            signal as usize,
        )
    })
}

/// Makes a tracee stop, with `PTRACE_EVENT_STOP` if it has no other reason.
pub fn interrupt(pid: pid_t) -> io::Result<()> {
    // SAFETY: INTERRUPT takes no pointers.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_INTERRUPT,
            pid,
            ptr::null_mut::<c_void>(),
            0usize,
        )
    })
}

/// Returns the message of the event that a tracee has stopped for: a task's ID or an exit status.
pub fn event_message(pid: pid_t) -> io::Result<c_int> {
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
    c_int::try_from(message).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the signal that a tracee has stopped for.
pub fn signal_info(pid: pid_t) -> io::Result<libc::siginfo_t> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: GETSIGINFO writes a siginfo_t, for which all-zero bytes are valid, too.
    unsafe {
        check(libc::ptrace(
            libc::PTRACE_GETSIGINFO,
            pid,
            ptr::null_mut::<c_void>(),
            info.as_mut_ptr(),
        ))?;
        Ok(info.assume_init())
    }
}

/// Returns the user-mode registers of a stopped tracee.
pub fn registers(pid: pid_t) -> io::Result<libc::user_regs_struct> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: GETREGS writes a user_regs_struct, for which all-zero bytes are valid, too.
    unsafe {
        check(libc::ptrace(
            libc::PTRACE_GETREGS,
            pid,
            ptr::null_mut::<c_void>(),
            registers.as_mut_ptr(),
        ))?;
        Ok(registers.assume_init())
    }
}

/// Leaves a tracee in its group-stop until SIGCONT.
pub fn listen(pid: pid_t) -> io::Result<()> {
    // SAFETY: LISTEN takes no pointers.
    check(unsafe { libc::ptrace(libc::PTRACE_LISTEN, pid, ptr::null_mut::<c_void>(), 0usize) })
}

/// Configures the branch trace of a stopped tracee. Sizes that a 32-bit kernel cannot have are cut.
pub fn bts_config(pid: pid_t, config: &BtsConfig) -> io::Result<()> {
    let words: BtsWords = [config.size, config.flags, config.more]
        .map(|word| usize::try_from(word).unwrap_or(usize::MAX));
    // SAFETY: CONFIG reads at most a struct ptrace_bts_virtual_config.
    check(unsafe { libc::ptrace(PTRACE_BTS_CONFIG, pid, &raw const words, 0usize) })
}

/// Returns the configuration and the status flags.
pub fn bts_status(pid: pid_t) -> io::Result<BtsConfig> {
    let mut words = BtsWords::default();
    let size = size_of_val(&words);
    // SAFETY: STATUS writes at most `size` bytes.
    check(unsafe { libc::ptrace(PTRACE_BTS_STATUS, pid, &raw mut words, size) })?;
    let [size, flags, more] = words.map(|word| word as u64);
    Ok(BtsConfig { size, flags, more })
}

/// Discards all records and clears `BTS_O_LOST`.
pub fn bts_clear(pid: pid_t) -> io::Result<()> {
    // SAFETY: CLEAR takes no pointers.
    check(unsafe { libc::ptrace(PTRACE_BTS_CLEAR, pid, ptr::null_mut::<c_void>(), 0usize) })
}

/// Moves as many records of a stopped tracee as fit to `out`, oldest first, and returns their
/// number. The tracee must have a virtual buffer.
pub fn bts_drain(pid: pid_t, out: &mut [u8]) -> io::Result<usize> {
    let room = out.len() / RECORD_SIZE;
    // SAFETY: with a virtual buffer DRAIN writes at most `room` records.
    let count = unsafe { libc::ptrace(PTRACE_BTS_DRAIN, pid, out.as_mut_ptr(), room) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Moves as many records as fit to `out`, oldest first, and returns their number. The tracee may be
/// blocked, waiting for a processor, stopped, or a zombie.
///
/// # Errors
/// `EAGAIN` if it is on a processor.
pub fn bts_drain_running(pid: pid_t, out: &mut [u8]) -> io::Result<usize> {
    let room = out.len() / RECORD_SIZE;
    // SAFETY: DRAIN_RUNNING writes at most `room` records.
    let count = unsafe { libc::ptrace(PTRACE_BTS_DRAIN_RUNNING, pid, out.as_mut_ptr(), room) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Returns a file descriptor from which the segments of a stopped tracee's buffer can be mapped.
pub fn bts_map(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: MAP takes no pointers.
    let fd = unsafe { libc::ptrace(PTRACE_BTS_MAP, pid, ptr::null_mut::<c_void>(), 0usize) };
    match c_int::try_from(fd) {
        // SAFETY: MAP returns a new file descriptor.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What [`bts_take`] has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Where the records begin in the mapping, in bytes.
    pub offset: u64,
    /// The number of records. With 0, no segment was taken.
    pub records: usize,
}

/// Gives back the first `back` segments that were taken, and takes the one with records of a
/// tracee. The tracee is stopped; or it is `running`: blocked, waiting for a processor, stopped, or
/// a zombie.
///
/// # Errors
/// `EAGAIN` if it is on a processor. Nothing was given back then.
pub fn bts_take(pid: pid_t, running: bool, back: usize) -> io::Result<Taken> {
    let request = if running {
        PTRACE_BTS_TAKE_RUNNING
    } else {
        PTRACE_BTS_TAKE
    };
    let mut offset = 0u64;
    // SAFETY: TAKE writes a u64.
    let records = unsafe { libc::ptrace(request, pid, &raw mut offset, back) };
    match usize::try_from(records) {
        Ok(records) => Ok(Taken { offset, records }),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Returns the next child whose state has changed. Does not block. A child that has ended is
/// returned until it is reaped.
pub fn wait_any() -> Option<(pid_t, Wait)> {
    loop {
        let changes = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT;
        let (pid, code, status) = wait(libc::P_ALL, 0, changes)?;
        match code {
            libc::CLD_EXITED => return Some((pid, Wait::Ended(ExitStatus::Code(status as u8)))),
            libc::CLD_KILLED | libc::CLD_DUMPED => {
                return Some((pid, Wait::Ended(ExitStatus::Signal(status as u8))));
            }
            // A tracee (CLD_TRAPPED) or an untraced orphan (CLD_STOPPED) has stopped. It may have
            // been killed in the meantime.
            _ => {
                if let Some((pid, code, status)) = wait(libc::P_PID, pid, libc::WSTOPPED)
                    && code == libc::CLD_TRAPPED
                {
                    let (signal, event) = (status & 0xff, status >> 8);
                    return Some((pid, Wait::Stopped { signal, event }));
                }
            }
        }
    }
}

/// Returns whether a tracee is still in the stop that [`wait_any`] has returned last. Otherwise it
/// was killed, and may be in its exit stop.
pub fn is_in_last_stop(pid: pid_t) -> bool {
    event_message(pid).is_ok() && wait(libc::P_PID, pid, libc::WSTOPPED | libc::WNOWAIT).is_none()
}

/// Returns whether this process has children, among them the processes that it has inherited as
/// PID 1.
pub fn has_children() -> bool {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG | libc::__WALL;
    // SAFETY: waitid writes a siginfo_t or nothing. It fails only if there is no child.
    unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) == 0 }
}

/// Removes a zombie.
pub fn reap(pid: pid_t) {
    wait(libc::P_PID, pid, libc::WEXITED);
}

/// Returns the process ID, the `CLD_*` and the status of a child with one of `changes`. Does not
/// block.
fn wait(which: libc::idtype_t, pid: pid_t, changes: c_int) -> Option<(pid_t, c_int, c_int)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = changes | libc::WNOHANG | libc::__WALL;
    // SAFETY: waitid writes a siginfo_t or nothing. All-zero bytes are valid for it, and so are its
    // fields for SIGCHLD.
    let (result, info, pid, status) = unsafe {
        let result = libc::waitid(which, pid.unsigned_abs(), info.as_mut_ptr(), options);
        let info = info.assume_init();
        (result, info, info.si_pid(), info.si_status())
    };
    (result == 0 && pid != 0).then_some((pid, info.si_code, status))
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
