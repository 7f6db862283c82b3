//! The arguments of system calls.

use syscalls::Sysno;

use super::arguments::{Memory, input, is_missing, output};
use super::{calls, structures};

/// System calls with the kinds of their arguments. `=address` at the end: the result is an address.
/// A number behind a colon is the argument that has the size, the flags or the command. Kinds with
/// `out` are what the kernel writes. Others are in `arguments` and `flags`.
const CALLS: &[&str] = &[
    "read fd out_bytes uint",
    "write fd bytes:2 uint",
    "open path open mode:1",
    "close fd",
    "stat path out_stat",
    "fstat fd out_stat",
    "lstat path out_stat",
    "poll poll:1 uint int",
    "lseek fd int whence",
    "mmap address uint protection mapping fd hex =address",
    "mprotect address uint protection",
    "munmap address uint",
    "brk address =address",
    "rt_sigaction signal sigaction out_sigaction uint",
    "rt_sigprocmask sigprocmask sigset out_sigset uint",
    "rt_sigreturn",
    "ioctl fd hex hex",
    "pread64 fd out_bytes uint int",
    "pwrite64 fd bytes:2 uint int",
    "readv fd pointer uint",
    "writev fd iovec:2 uint",
    "access path access",
    "pipe out_pair",
    "select int pointer pointer pointer pointer",
    "sched_yield",
    "mremap address uint uint hex =address",
    "msync address uint hex",
    "madvise address uint advice",
    "dup fd",
    "dup2 fd fd",
    "pause",
    "nanosleep timespec pointer",
    "alarm uint",
    "getpid",
    "sendfile fd fd pointer uint",
    "socket domain socket_type int",
    "connect fd sockaddr:2 uint",
    "accept fd pointer pointer",
    "sendto fd bytes:2 uint message sockaddr:5 uint",
    "recvfrom fd out_bytes uint message pointer pointer",
    "sendmsg fd pointer message",
    "recvmsg fd pointer message",
    "shutdown fd shutdown",
    "bind fd sockaddr:2 uint",
    "listen fd int",
    "getsockname fd pointer pointer",
    "getpeername fd pointer pointer",
    "socketpair domain socket_type int out_pair",
    "setsockopt fd int int pointer uint",
    "getsockopt fd int int pointer pointer",
    "clone hex hex hex hex hex",
    "fork",
    "vfork",
    "execve path strings environment",
    "exit int",
    "wait4 int out_status wait pointer",
    "kill int signal",
    "uname out_utsname",
    "fcntl fd fcntl hex",
    "flock fd int",
    "fsync fd",
    "fdatasync fd",
    "truncate path int",
    "ftruncate fd int",
    "getdents fd pointer uint",
    "getcwd out_path uint",
    "chdir path",
    "fchdir fd",
    "rename path path",
    "mkdir path mode",
    "rmdir path",
    "creat path mode",
    "link path path",
    "unlink path",
    "symlink path path",
    "readlink path out_bytes uint",
    "chmod path mode",
    "fchmod fd mode",
    "chown path int int",
    "fchown fd int int",
    "umask mode",
    "gettimeofday pointer pointer",
    "getrlimit resource out_rlimit",
    "getrusage int pointer",
    "getuid",
    "getgid",
    "setuid uint",
    "setgid uint",
    "geteuid",
    "getegid",
    "setpgid int int",
    "getppid",
    "getpgrp",
    "setsid",
    "getgroups int pointer",
    "getpgid int",
    "sigaltstack pointer pointer",
    "mknod path mode hex",
    "statfs path pointer",
    "fstatfs fd pointer",
    "prctl int hex hex hex hex",
    "arch_prctl arch_prctl address",
    "setrlimit resource rlimit",
    "gettid",
    "time pointer",
    "futex address futex uint pointer address uint",
    "sched_getaffinity int uint pointer",
    "epoll_create int",
    "getdents64 fd pointer uint",
    "set_tid_address address",
    "clock_gettime clock out_timespec",
    "clock_getres clock out_timespec",
    "clock_nanosleep clock int timespec pointer",
    "exit_group int",
    "epoll_wait fd pointer int int",
    "epoll_ctl fd int fd pointer",
    "tgkill int int signal",
    "waitid int int pointer wait pointer",
    "openat directory path open mode:2",
    "mkdirat directory path mode",
    "newfstatat directory path out_stat at",
    "unlinkat directory path at",
    "renameat directory path directory path",
    "linkat directory path directory path at",
    "symlinkat path directory path",
    "readlinkat directory path out_bytes uint",
    "fchmodat directory path mode",
    "faccessat directory path access",
    "pselect6 int pointer pointer pointer pointer pointer",
    "ppoll poll:1 uint timespec sigset uint",
    "set_robust_list address uint",
    "utimensat directory path pointer at",
    "epoll_pwait fd pointer int int pointer uint",
    "eventfd2 uint open",
    "epoll_create1 open",
    "dup3 fd fd descriptor",
    "pipe2 out_pair descriptor",
    "accept4 fd pointer pointer hex",
    "prlimit64 int resource rlimit out_rlimit",
    "getrandom out_bytes uint random",
    "memfd_create path hex",
    "execveat directory path strings environment at",
    "copy_file_range fd pointer fd pointer uint hex",
    "statx directory path at hex pointer",
    "rseq address hex hex hex",
    "clone3 pointer uint",
    "close_range uint uint hex",
    "faccessat2 directory path access at",
];
/// Registers for arguments.
const MAX_ARGUMENTS: usize = 6;

/// What a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Returns {
    /// A signed number.
    Number,
    /// An address.
    Address,
}

/// The kinds of a call's arguments and of its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call(Option<&'static str>);

impl Call {
    /// The call with this number.
    pub(super) fn of(number: u64) -> Self {
        let known = usize::try_from(number).ok().and_then(Sysno::new);
        let row = known.and_then(|call| {
            let is_it = |row: &&&str| row.split(' ').next() == Some(call.name());
            CALLS.iter().find(is_it).copied()
        });
        Self(row)
    }

    /// What its result is.
    pub(super) fn returns(self) -> Returns {
        match self.0.is_some_and(|row| row.ends_with(" =address")) {
            true => Returns::Address,
            false => Returns::Number,
        }
    }

    /// The kinds of its arguments. An unknown call has all that there can be.
    fn kinds(self) -> Vec<&'static str> {
        match self.0 {
            Some(row) => {
                let kinds = row.split(' ').skip(1);
                kinds.filter(|kind| !kind.starts_with('=')).collect()
            }
            None => vec!["hex"; MAX_ARGUMENTS],
        }
    }

    /// The texts of the arguments in `values` that the kernel reads, when the call begins; `None`
    /// for others. An argument that the call does not have this time is left out at the end.
    pub(super) fn inputs(
        self,
        values: &[u64; MAX_ARGUMENTS],
        memory: Option<&Memory<'_>>,
    ) -> Vec<Option<String>> {
        let kinds = self.kinds().into_iter().zip(values);
        let texts = kinds.map_while(|(kind, value)| {
            if kind.starts_with("out_") {
                return Some(None);
            }
            let (kind, other) = parts(kind, values);
            let text = input(kind, *value, other, memory)?;
            Some(Some(text).filter(|text| !is_missing(kind, *value, text)))
        });
        texts.collect()
    }

    /// The texts of all arguments when the call has returned `result`.
    pub(super) fn outputs(
        self,
        values: &[u64; MAX_ARGUMENTS],
        texts: Vec<Option<String>>,
        result: i64,
        memory: Option<&Memory<'_>>,
    ) -> Vec<String> {
        let whole = calls::arguments(self.name(), values, result, memory);
        if let Some(texts) = whole {
            return texts;
        }
        let kinds = self.kinds().into_iter().zip(values).zip(texts);
        let texts = kinds.map(|((kind, value), text)| {
            text.unwrap_or_else(|| match kind.starts_with("out_") {
                true => output(kind, *value, result, memory),
                false => {
                    let (kind, other) = parts(kind, values);
                    input(kind, *value, other, memory).unwrap_or_default()
                }
            })
        });
        texts.collect()
    }

    /// The texts of all arguments of a call that has not returned.
    pub(super) fn unfinished(
        self,
        values: &[u64; MAX_ARGUMENTS],
        texts: Vec<Option<String>>,
    ) -> Vec<String> {
        if let Some(texts) = calls::arguments(self.name(), values, -1, None) {
            return texts;
        }
        let texts = texts.into_iter().zip(values);
        let texts = texts.map(|(text, value)| text.unwrap_or_else(|| format!("{value:#x}")));
        texts.collect()
    }

    /// The name of the call; empty if it is not in the table.
    fn name(self) -> &'static str {
        let name = self.0.and_then(|row| row.split(' ').next());
        name.unwrap_or_default()
    }

    /// Text that strace adds to the result in parentheses.
    pub(super) fn remark(
        self,
        values: &[u64; MAX_ARGUMENTS],
        result: i64,
        memory: Option<&Memory<'_>>,
    ) -> Option<String> {
        let [list, count, timeout, ..] = *values;
        let found = || structures::poll_result(list, count, memory?);
        match self.name() {
            "poll" | "ppoll" if result == 0 => Some("Timeout".into()),
            "poll" if result > 0 => found(),
            "ppoll" if result > 0 && timeout == 0 => found(),
            "ppoll" if result > 0 => {
                let left = input("timespec", timeout, None, memory)?;
                Some(format!("{}, left {left}", found()?))
            }
            _ => None,
        }
    }
}

/// The kind itself, and the argument on which it depends.
fn parts<'a>(kind: &'a str, values: &[u64; MAX_ARGUMENTS]) -> (&'a str, Option<u64>) {
    let (kind, other) = kind.split_once(':').unwrap_or((kind, ""));
    let other = other
        .parse()
        .ok()
        .and_then(|n: usize| values.get(n).copied());
    (kind, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_of_the_table_exist_once() {
        let mut names: Vec<&str> = CALLS
            .iter()
            .filter_map(|row| row.split(' ').next())
            .collect();
        let all = || (0..1000).filter_map(Sysno::new);
        for name in &names {
            assert!(all().any(|call| call.name() == *name), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_mode_counts_only_if_a_file_is_created() {
        let texts = |flags| {
            let texts = Call::of(2).inputs(&[0, flags, 0o644, 0, 0, 0], None);
            texts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        };
        assert_eq!(texts(0), "NULL, O_RDONLY");
        assert_eq!(texts(0o101), "NULL, O_WRONLY|O_CREAT, 0644");
    }
}
