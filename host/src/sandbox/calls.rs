//! The system calls of a running machine, each with its reason.

use libc::c_long;

use super::kvm_ioctls::WHILE_RUNNING;
use vbts_cpu::ARCH_SET_GS;

/// A system call that stays allowed.
#[derive(Debug)]
pub(super) struct Call {
    /// As in `<sys/syscall.h>`.
    pub number: c_long,
    pub check: Check,
    /// Name and reason for the reader. `docs/security.md` has the same table.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "documentation that a test compares with docs/security.md"
        )
    )]
    pub name: &'static str,
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "documentation that a test compares with docs/security.md"
        )
    )]
    pub why: &'static str,
}

impl Call {
    /// Its number and its condition.
    pub(super) fn rule(&self) -> (c_long, &Check) {
        (self.number, &self.check)
    }
}

/// A condition on a call's arguments, which are numbered from 0.
#[derive(Debug)]
pub(super) enum Check {
    /// No condition.
    Any,
    /// None of these bits is set in the argument's lower half.
    Clear(u8, u32),
    /// The argument's lower half is one of these values.
    OneOf(u8, &'static [u32]),
    /// The argument is the ID of this process.
    OwnProcess(u8),
}

use Check::{Any, Clear, OneOf, OwnProcess};

macro_rules! calls {
    ($($number:ident, $check:expr, $why:literal;)*) => {
        &[$(Call { number: libc::$number, check: $check, name: stringify!($number), why: $why }),*]
    };
}

/// Flags of `openat` that create, truncate or write a file. O_TRUNC also truncates a file that is
/// opened for reading only.
const OPEN_WRITES: u32 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u32 | TMPFILE;
/// O_TMPFILE without O_DIRECTORY, which is part of it.
const TMPFILE: u32 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// The bit of a file's type that character and block devices have, and pipes, sockets and regular
/// files do not.
const DEVICE: u32 = libc::S_IFCHR;

const EXECUTABLE: u32 = libc::PROT_EXEC as u32;

/// Ioctls that read and change the settings of a terminal, and read its size and its foreground
/// process group. TIOCSTI, which puts
/// input into a terminal, must stay out.
const TERMINAL: &[u32] = &[
    libc::TCGETS as u32,
    libc::TCSETS as u32,
    libc::TCSETSW as u32,
    libc::TCSETSF as u32,
    libc::TCGETS2 as u32,
    libc::TCSETS2 as u32,
    libc::TCSETSW2 as u32,
    libc::TCSETSF2 as u32,
    libc::TIOCGWINSZ as u32,
    libc::TIOCGPGRP as u32,
];

const THREAD: &[u32] = &[libc::PR_SET_NAME as u32, libc::PR_SET_NO_NEW_PRIVS as u32];

const FCNTL: &[u32] = &[
    libc::F_DUPFD_CLOEXEC as u32,
    libc::F_GETFD as u32,
    libc::F_GETFL as u32,
];

/// The ioctls of KVM and those of [`TERMINAL`], because a call has one row.
const TERMINAL_AND_KVM: &[u32] = &{
    let mut all = [0; TERMINAL.len() + WHILE_RUNNING.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < TERMINAL.len() {
            TERMINAL[i]
        } else {
            WHILE_RUNNING[i - TERMINAL.len()]
        };
        i += 1;
    }
    all
};

/// The ioctls of a thread that runs a processor on KVM.
pub(super) const PROCESSOR_IOCTLS: Check = OneOf(1, &WHILE_RUNNING);

const ADVICE: &[u32] = &[
    libc::MADV_DONTNEED as u32,
    libc::MADV_FREE as u32,
    libc::MADV_HUGEPAGE as u32,
];

const PROCESS_SETTINGS: &[u32] = &[
    libc::PR_SET_PDEATHSIG as u32,
    libc::PR_SET_NO_NEW_PRIVS as u32,
];

/// The calls of every process of vbts.
#[rustfmt::skip]
pub(super) const COMMON_CALLS: &[Call] = calls! {
    // Memory. None of it can become executable.
    SYS_brk, Any, "the heap";
    SYS_mmap, Clear(2, EXECUTABLE), "memory";
    SYS_mprotect, Clear(2, EXECUTABLE), "growing heaps";
    SYS_mremap, Any, "growing buffers";
    SYS_munmap, Any, "memory that is no longer needed";
    SYS_madvise, OneOf(2, ADVICE), "returning memory to the host";
    SYS_getrandom, Any, "keys of hash tables";

    // Waits and signals.
    SYS_restart_syscall, Any, "continuing a wait after a stop (Ctrl-Z)";
    SYS_rt_sigreturn, Any, "the end of a signal handler";
    SYS_rt_sigaction, Any, "abort()";

    // The end of the process, also by abort().
    SYS_getpid, Any, "abort()";
    SYS_gettid, Any, "abort()";
    SYS_exit_group, Any, "the end";
};

/// The calls that every machine needs, besides [`COMMON_CALLS`]. No other call may be made once the
/// guest runs.
#[rustfmt::skip]
pub(super) const CALLS: &[Call] = calls! {
    // Descriptors. Everything that vbts writes to is already open: the trace, the console's copy,
    // standard output and standard error.
    SYS_read, Any, "standard input, names of functions, frames from a TAP device";
    SYS_pread64, Any, "files for the guest";
    SYS_write, Any, "the trace, the program's output, messages, a perf map, frames to a TAP device";
    SYS_pwritev2, Any, "a long trace, past the page cache";
    SYS_ftruncate, Any, "cutting a trace that cannot go on at its last whole line; file sizes";
    SYS_writev, Any, "messages of the C library when it aborts";
    SYS_lseek, Any, "directories for the guest";
    SYS_close, Any, "files that the guest has closed";
    SYS_fcntl, OneOf(1, FCNTL), "a duplicate of the root when the guest mounts it";
    SYS_ioctl, OneOf(1, TERMINAL), "the modes of the terminal, its size, its foreground job";
    SYS_getpgrp, Any, "whether vbts is the foreground job";
    SYS_getpgid, Any, "whether vbts is the foreground job, in other C libraries";

    // Files for the guest and for symbols, below the shared directories: read-only.
    SYS_openat, Clear(2, OPEN_WRITES), "files for the guest and for symbols, read-only";
    SYS_fstat, Any, "files for the guest";
    SYS_newfstatat, Any, "`fstat` in newer C libraries";
    SYS_statx, Any, "`fstat` in Rust's library";
    SYS_fstatfs, Any, "file systems for the guest, and which of them are refused";
    SYS_name_to_handle_at, Any, "what identifies a file for the guest while it is closed";
    SYS_open_by_handle_at, Clear(2, OPEN_WRITES), "opening such a file again, if root started vbts";
    SYS_getxattr, Any, "extended attributes for the guest";
    SYS_listxattr, Any, "names of extended attributes for the guest";
    SYS_getdents64, Any, "directories for the guest";
    SYS_readlinkat, Any, "symbolic links for the guest";
    SYS_readlink, Any, "/proc/self/exe, for a backtrace";
    SYS_getcwd, Any, "file names in a backtrace";

    // Time and waiting. A clock that the vDSO does not have is a system call.
    SYS_clock_gettime, Any, "the clock, where the vDSO has none";
    SYS_clock_nanosleep, Any, "pauses";
    SYS_nanosleep, Any, "pauses, in older C libraries";
    SYS_futex, Any, "locks, and the wait for the time limit";
    SYS_poll, Any, "waiting for the rest of a pipe's data, or for room in a pipe";
    SYS_ppoll, Any, "waiting for the rest of a pipe's data, or for room in a pipe";
    SYS_epoll_ctl, Any, "the descriptors that the I/O loop watches";
    SYS_epoll_wait, Any, "waiting in the I/O loop";
    SYS_epoll_pwait, Any, "waiting in the I/O loop, in other C libraries";
    SYS_timerfd_settime, Any, "the timer of the I/O loop";
    SYS_sched_yield, Any, "locks, and a processor that waits for another";

    // Signals. A handler wakes the I/O loop through an eventfd.
    SYS_rt_sigprocmask, Any, "abort(), the end of a thread";
    SYS_sigaltstack, Any, "the beginning and the end of a thread";

    // The first and last calls of threads that were started before.
    SYS_set_robust_list, Any, "the beginning of a thread";
    SYS_rseq, Any, "the beginning of a thread";
    SYS_prctl, OneOf(0, THREAD), "the name of a thread, a thread's filter";
    SYS_seccomp, OneOf(0, &[libc::SECCOMP_SET_MODE_FILTER]), "a thread's filter, which adds to this one";
    SYS_arch_prctl, OneOf(0, &[ARCH_SET_GS as u32]), "the base of GS for native code, where WRGSBASE is not enabled";
    SYS_sched_getaffinity, Any, "number of malloc()'s heaps";
    SYS_exit, Any, "the end of a thread";

    // The end of the process, also by abort().
    SYS_tgkill, OwnProcess(0), "abort(), and ending KVM_RUN";
};

/// What `vbts report` does without: it serves no guest.
#[rustfmt::skip]
pub(super) const NOT_FOR_REPORTS: &[c_long] = &[
    libc::SYS_getdents64, libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at,
    libc::SYS_getxattr, libc::SYS_listxattr, libc::SYS_epoll_ctl, libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait, libc::SYS_timerfd_settime, libc::SYS_getpgrp, libc::SYS_getpgid,
    libc::SYS_prctl, libc::SYS_seccomp, libc::SYS_arch_prctl,
];

/// What `vbts replay` does without: all that opens, names or describes a file.
#[rustfmt::skip]
pub(super) const NOT_FOR_REPLAYS: &[c_long] = &[
    libc::SYS_openat, libc::SYS_fstatfs, libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at, libc::SYS_getxattr, libc::SYS_listxattr, libc::SYS_getdents64,
    libc::SYS_readlinkat, libc::SYS_readlink, libc::SYS_getcwd,
];

/// Further calls of a machine that KVM executes.
#[rustfmt::skip]
pub(super) const KVM_CALLS: &[Call] = calls! {
    SYS_ioctl, OneOf(1, TERMINAL_AND_KVM), "as above; guest entry, processor state, interrupts";
};

/// Further calls of a trace that shows names of functions.
#[rustfmt::skip]
pub(super) const SYMBOL_CALLS: &[Call] = calls! {
    SYS_sendmsg, Any, "files for the process that reads symbols";
    SYS_shutdown, Any, "the end of the socket to it";
    SYS_wait4, Any, "its end";
};

/// The calls of the process that reads symbols, besides [`COMMON_CALLS`].
#[rustfmt::skip]
pub(super) const READER_CALLS: &[Call] = calls! {
    SYS_recvmsg, Any, "requests, and files that are open";
    SYS_sendto, Any, "answers";
    SYS_pread64, Any, "the contents of files";
    SYS_close, Any, "files that are no longer needed";
    SYS_fcntl, OneOf(1, FCNTL), "a check of what is closed, in debug builds";
    SYS_setitimer, Any, "the time limit of a request";
    SYS_futex, Any, "locks";
    SYS_rt_sigprocmask, Any, "abort()";
    SYS_sigaltstack, Any, "the end";
    SYS_write, Any, "the message of a panic, to nowhere";
    SYS_tgkill, Any, "abort()";
};

/// Further calls of the process that starts it.
#[rustfmt::skip]
pub(super) const STARTER_CALLS: &[Call] = calls! {
    SYS_clone, Any, "a process that reads symbols";
    SYS_fork, Any, "a process that reads symbols, in other C libraries";
    SYS_set_robust_list, Any, "the beginning of a process";
    SYS_rseq, Any, "the beginning of a process";
    SYS_wait4, Any, "its end";
    SYS_getrusage, Any, "the time that it has taken";
    SYS_prctl, OneOf(0, PROCESS_SETTINGS), "its end with this one, and its filter";
    SYS_prlimit64, Any, "its limits";
    SYS_seccomp, Any, "its filter";
};

/// Further calls of a machine whose guest may write to a disk.
#[rustfmt::skip]
pub(super) const DISK_CALLS: &[Call] = calls! {
    SYS_pwrite64, Any, "writing sectors";
    SYS_fallocate, Any, "discarding and zeroing sectors";
    SYS_fdatasync, Any, "flushing";
};

/// Further calls of a trace with a file for each task.
#[rustfmt::skip]
pub(super) const NEW_FILE_CALLS: &[Call] = calls! {
    SYS_openat, Any, "as above; a file for each task of the trace";
};

/// Further calls of a machine whose guest has regular files that this process has open.
#[rustfmt::skip]
pub(super) const OPEN_FILE_CALLS: &[Call] = calls! {
    SYS_pwrite64, Any, "contents of the program's open files";
    SYS_fsync, Any, "flushing them";
};

/// Further calls of a machine whose guest may write to a directory of the host.
#[rustfmt::skip]
pub(super) const WRITING_CALLS: &[Call] = calls! {
    SYS_openat, Any, "files for the guest, also for writing";
    SYS_pwrite64, Any, "file contents";
    SYS_fsync, Any, "flushing files";
    SYS_mkdirat, Any, "new directories";
    SYS_mknodat, Clear(2, DEVICE), "new pipes, sockets and regular files";
    SYS_symlinkat, Any, "new symbolic links";
    SYS_linkat, Any, "new hard links";
    SYS_unlinkat, Any, "removing names";
    SYS_renameat, Any, "renaming";
    SYS_fchmodat, Any, "permissions";
    SYS_fchownat, Any, "owners";
    SYS_utimensat, Any, "times";
    SYS_setxattr, Any, "extended attributes";
    SYS_removexattr, Any, "removing extended attributes";
};
