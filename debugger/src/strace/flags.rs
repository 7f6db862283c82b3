//! Names of flags and numbers in arguments of system calls.

use vbts_host::exit::signal_name;

/// Bytes of a string or a buffer that are shown, at most.
pub(super) const SHOWN: usize = 32;

/// Flags by their bits, with the name of no flag.
type Flags = (&'static str, &'static [(u64, &'static str)]);

const OPEN: Flags = (
    "O_RDONLY",
    &[
        (0o1, "O_WRONLY"),
        (0o2, "O_RDWR"),
        (0o100, "O_CREAT"),
        (0o200, "O_EXCL"),
        (0o400, "O_NOCTTY"),
        (0o1000, "O_TRUNC"),
        (0o2000, "O_APPEND"),
        (0o4000, "O_NONBLOCK"),
        (0o4010000, "O_SYNC"),
        (0o10000, "O_DSYNC"),
        (0o20000, "FASYNC"),
        (0o40000, "O_DIRECT"),
        (0o100000, "O_LARGEFILE"),
        (0o400000, "O_NOFOLLOW"),
        (0o1000000, "O_NOATIME"),
        (0o2000000, "O_CLOEXEC"),
        (0o10000000, "O_PATH"),
        (0o20200000, "O_TMPFILE"),
        (0o200000, "O_DIRECTORY"),
    ],
);
const PROTECTION: Flags = (
    "PROT_NONE",
    &[(1, "PROT_READ"), (2, "PROT_WRITE"), (4, "PROT_EXEC")],
);
const MAPPING: Flags = (
    "0",
    &[
        (0x1, "MAP_SHARED"),
        (0x2, "MAP_PRIVATE"),
        (0x10, "MAP_FIXED"),
        (0x20, "MAP_ANONYMOUS"),
        (0x40, "MAP_32BIT"),
        (0x100000, "MAP_FIXED_NOREPLACE"),
        (0x100, "MAP_GROWSDOWN"),
        (0x800, "MAP_DENYWRITE"),
        (0x2000, "MAP_LOCKED"),
        (0x4000, "MAP_NORESERVE"),
        (0x8000, "MAP_POPULATE"),
        (0x20000, "MAP_STACK"),
        (0x40000, "MAP_HUGETLB"),
    ],
);
const ACCESS: Flags = ("F_OK", &[(4, "R_OK"), (2, "W_OK"), (1, "X_OK")]);
const AT: Flags = (
    "0",
    &[
        (0x100, "AT_SYMLINK_NOFOLLOW"),
        (0x200, "AT_REMOVEDIR"),
        (0x400, "AT_SYMLINK_FOLLOW"),
        (0x800, "AT_NO_AUTOMOUNT"),
        (0x1000, "AT_EMPTY_PATH"),
    ],
);
const WAIT: Flags = (
    "0",
    &[
        (1, "WNOHANG"),
        (2, "WSTOPPED"),
        (4, "WEXITED"),
        (8, "WCONTINUED"),
        (0x01000000, "WNOWAIT"),
    ],
);
/// Without the signal in the lowest byte.
const CLONE: Flags = (
    "0",
    &[
        (0x100, "CLONE_VM"),
        (0x200, "CLONE_FS"),
        (0x400, "CLONE_FILES"),
        (0x800, "CLONE_SIGHAND"),
        (0x2000, "CLONE_PTRACE"),
        (0x4000, "CLONE_VFORK"),
        (0x8000, "CLONE_PARENT"),
        (0x10000, "CLONE_THREAD"),
        (0x20000, "CLONE_NEWNS"),
        (0x40000, "CLONE_SYSVSEM"),
        (0x80000, "CLONE_SETTLS"),
        (0x100000, "CLONE_PARENT_SETTID"),
        (0x200000, "CLONE_CHILD_CLEARTID"),
        (0x1000000, "CLONE_CHILD_SETTID"),
    ],
);

const MESSAGE: Flags = (
    "0",
    &[
        (0x1, "MSG_OOB"),
        (0x2, "MSG_PEEK"),
        (0x4, "MSG_DONTROUTE"),
        (0x8, "MSG_CTRUNC"),
        (0x20, "MSG_TRUNC"),
        (0x40, "MSG_DONTWAIT"),
        (0x80, "MSG_EOR"),
        (0x100, "MSG_WAITALL"),
        (0x4000, "MSG_NOSIGNAL"),
        (0x8000, "MSG_MORE"),
        (0x40000000, "MSG_CMSG_CLOEXEC"),
    ],
);
const SIGACTION: Flags = (
    "0",
    &[
        (0x0400_0000, "SA_RESTORER"),
        (0x0800_0000, "SA_ONSTACK"),
        (0x1000_0000, "SA_RESTART"),
        (0x4000_0000, "SA_NODEFER"),
        (0x8000_0000, "SA_RESETHAND"),
        (0x4, "SA_SIGINFO"),
        (0x1, "SA_NOCLDSTOP"),
        (0x2, "SA_NOCLDWAIT"),
    ],
);
const RANDOM: Flags = (
    "0",
    &[
        (1, "GRND_NONBLOCK"),
        (2, "GRND_RANDOM"),
        (4, "GRND_INSECURE"),
    ],
);
/// Those of descriptors that a call makes, which have no access mode.
const DESCRIPTOR: Flags = (
    "0",
    &[
        (0o4000, "O_NONBLOCK"),
        (0o40000, "O_DIRECT"),
        (0o2000000, "O_CLOEXEC"),
    ],
);

/// Numbers with names.
pub(super) type Numbers = &'static [(u64, &'static str)];

const SHUTDOWN: Numbers = &[(0, "SHUT_RD"), (1, "SHUT_WR"), (2, "SHUT_RDWR")];
const RESOURCE: Numbers = &[
    (0, "RLIMIT_CPU"),
    (1, "RLIMIT_FSIZE"),
    (2, "RLIMIT_DATA"),
    (3, "RLIMIT_STACK"),
    (4, "RLIMIT_CORE"),
    (5, "RLIMIT_RSS"),
    (6, "RLIMIT_NPROC"),
    (7, "RLIMIT_NOFILE"),
    (8, "RLIMIT_MEMLOCK"),
    (9, "RLIMIT_AS"),
    (10, "RLIMIT_LOCKS"),
    (11, "RLIMIT_SIGPENDING"),
    (12, "RLIMIT_MSGQUEUE"),
    (13, "RLIMIT_NICE"),
    (14, "RLIMIT_RTPRIO"),
    (15, "RLIMIT_RTTIME"),
];
const WHENCE: Numbers = &[
    (0, "SEEK_SET"),
    (1, "SEEK_CUR"),
    (2, "SEEK_END"),
    (3, "SEEK_DATA"),
    (4, "SEEK_HOLE"),
];
const CLOCK: Numbers = &[
    (0, "CLOCK_REALTIME"),
    (1, "CLOCK_MONOTONIC"),
    (2, "CLOCK_PROCESS_CPUTIME_ID"),
    (3, "CLOCK_THREAD_CPUTIME_ID"),
    (4, "CLOCK_MONOTONIC_RAW"),
    (5, "CLOCK_REALTIME_COARSE"),
    (6, "CLOCK_MONOTONIC_COARSE"),
    (7, "CLOCK_BOOTTIME"),
];
const FCNTL: Numbers = &[
    (0, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (3, "F_GETFL"),
    (4, "F_SETFL"),
    (5, "F_GETLK"),
    (6, "F_SETLK"),
    (7, "F_SETLKW"),
    (1030, "F_DUPFD_CLOEXEC"),
];
const SIGPROCMASK: Numbers = &[(0, "SIG_BLOCK"), (1, "SIG_UNBLOCK"), (2, "SIG_SETMASK")];
const DOMAIN: Numbers = &[
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (16, "AF_NETLINK"),
];
const ARCH_PRCTL: Numbers = &[
    (0x1001, "ARCH_SET_GS"),
    (0x1002, "ARCH_SET_FS"),
    (0x1003, "ARCH_GET_FS"),
    (0x1004, "ARCH_GET_GS"),
    (0x3001, "0x3001 /* ARCH_??? */"),
];
const ADVICE: Numbers = &[
    (0, "MADV_NORMAL"),
    (1, "MADV_RANDOM"),
    (2, "MADV_SEQUENTIAL"),
    (3, "MADV_WILLNEED"),
    (4, "MADV_DONTNEED"),
    (8, "MADV_FREE"),
    (14, "MADV_HUGEPAGE"),
    (15, "MADV_NOHUGEPAGE"),
];
const FUTEX: Numbers = &[
    (0, "FUTEX_WAIT"),
    (1, "FUTEX_WAKE"),
    (2, "FUTEX_FD"),
    (3, "FUTEX_REQUEUE"),
    (4, "FUTEX_CMP_REQUEUE"),
    (5, "FUTEX_WAKE_OP"),
    (6, "FUTEX_LOCK_PI"),
    (7, "FUTEX_UNLOCK_PI"),
    (8, "FUTEX_TRYLOCK_PI"),
    (9, "FUTEX_WAIT_BITSET"),
    (10, "FUTEX_WAKE_BITSET"),
    (11, "FUTEX_WAIT_REQUEUE_PI"),
    (12, "FUTEX_CMP_REQUEUE_PI"),
    (13, "FUTEX_LOCK_PI2"),
];
const WAKE_OPERATION: Numbers = &[
    (0, "FUTEX_OP_SET"),
    (1, "FUTEX_OP_ADD"),
    (2, "FUTEX_OP_OR"),
    (3, "FUTEX_OP_ANDN"),
    (4, "FUTEX_OP_XOR"),
];
const WAKE_COMPARISON: Numbers = &[
    (0, "FUTEX_OP_CMP_EQ"),
    (1, "FUTEX_OP_CMP_NE"),
    (2, "FUTEX_OP_CMP_LT"),
    (3, "FUTEX_OP_CMP_LE"),
    (4, "FUTEX_OP_CMP_GT"),
    (5, "FUTEX_OP_CMP_GE"),
];
const POLL: Flags = (
    "0",
    &[
        (0x1, "POLLIN"),
        (0x2, "POLLPRI"),
        (0x4, "POLLOUT"),
        (0x40, "POLLRDNORM"),
        (0x100, "POLLWRNORM"),
        (0x80, "POLLRDBAND"),
        (0x200, "POLLWRBAND"),
        (0x8, "POLLERR"),
        (0x10, "POLLHUP"),
        (0x20, "POLLNVAL"),
        (0x400, "POLLMSG"),
        (0x1000, "POLLREMOVE"),
        (0x2000, "POLLRDHUP"),
    ],
);
const SOCKET_TYPE: Numbers = &[(1, "SOCK_STREAM"), (2, "SOCK_DGRAM"), (3, "SOCK_RAW")];
const SOCKET_FLAGS: Flags = (
    "",
    &[(0o4000, "SOCK_NONBLOCK"), (0o2000000, "SOCK_CLOEXEC")],
);

fn joined((none, flags): Flags, value: u64) -> String {
    let mut left = value;
    let mut names = Vec::new();
    for (bits, name) in flags {
        if left & bits == *bits {
            left &= !bits;
            names.push((*name).to_owned());
        }
    }
    if left != 0 {
        names.push(format!("{left:#x}"));
    }
    match names.is_empty() {
        true => none.to_owned(),
        false => names.join("|"),
    }
}

pub(super) fn named(names: Numbers, value: u64) -> String {
    let known = names.iter().find(|(number, _)| *number == value);
    known.map_or_else(|| format!("{value:#x}"), |(_, name)| (*name).to_owned())
}

/// The text of a number of this kind; `None` if it has no names.
pub(super) fn text(kind: &str, value: u64) -> Option<String> {
    let value32 = value & 0xFFFF_FFFF;
    Some(match kind {
        "open" => open(value32),
        "protection" => joined(PROTECTION, value),
        "mapping" => joined(MAPPING, value),
        "access" => joined(ACCESS, value32),
        "at" => joined(AT, value32),
        "message" => joined(MESSAGE, value32),
        "sa_flags" => joined(SIGACTION, value),
        "random" => joined(RANDOM, value32),
        "descriptor" => joined(DESCRIPTOR, value32),
        "shutdown" => named(SHUTDOWN, value32),
        "resource" => named(RESOURCE, value32),
        "wait" => joined(WAIT, value32),
        "whence" => named(WHENCE, value32),
        "clock" => named(CLOCK, value32),
        "fcntl" => named(FCNTL, value32),
        "sigprocmask" => named(SIGPROCMASK, value32),
        "domain" => named(DOMAIN, value32),
        "arch_prctl" => named(ARCH_PRCTL, value32),
        "advice" => named(ADVICE, value32),
        "futex" => futex(value32),
        "socket_type" => {
            let of_type = named(SOCKET_TYPE, value32 & 0xF);
            match joined(SOCKET_FLAGS, value32 & !0xF) {
                flags if flags.is_empty() => of_type,
                flags => format!("{of_type}|{flags}"),
            }
        }
        _ => return None,
    })
}

/// The operation of `futex`, with its flags.
fn futex(value: u64) -> String {
    const PRIVATE: u64 = 0x80;
    const CLOCK_REALTIME: u64 = 0x100;
    let mut text = named(FUTEX, value & !(PRIVATE | CLOCK_REALTIME));
    if value & PRIVATE != 0 {
        text.push_str("_PRIVATE");
    }
    if value & CLOCK_REALTIME != 0 {
        text.push_str("|FUTEX_CLOCK_REALTIME");
    }
    text
}

/// The operation of `FUTEX_WAKE_OP` on the second futex, and its comparison.
pub(super) fn wake_operation(value: u64) -> String {
    const SHIFT: u64 = 8;
    let operation = value >> 28 & 0xF;
    let of_argument = if operation & SHIFT != 0 {
        "FUTEX_OP_OPARG_SHIFT<<28|"
    } else {
        ""
    };
    format!(
        "{of_argument}{}<<28|{:#x}<<12|{}<<24|{:#x}",
        named(WAKE_OPERATION, operation & !SHIFT),
        value >> 12 & 0xFFF,
        named(WAKE_COMPARISON, value >> 24 & 0xF),
        value & 0xFFF
    )
}

/// Events of `poll`.
pub(super) fn poll(value: u64) -> String {
    joined(POLL, value)
}

/// The flags of `open`. Reading alone is no flag.
fn open(value: u64) -> String {
    let others = joined(("", OPEN.1), value & !0o3);
    let mode = joined(OPEN, value & 0o3);
    match others.is_empty() {
        true => mode,
        false => format!("{mode}|{others}"),
    }
}

/// The flags of `clone`, and the signal at the end of the child.
pub(super) fn clone(value: u64) -> String {
    let flags = joined(("", CLONE.1), value & !0xFF);
    let signal = match value & 0xFF {
        0 => String::new(),
        number => signal_name(number as i32),
    };
    match (flags.is_empty(), signal.is_empty()) {
        (true, true) => "0".into(),
        (true, false) => signal,
        (false, true) => flags,
        (false, false) => format!("{flags}|{signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_names_of_strace() {
        for (kind, value, expected) in [
            ("open", 0, "O_RDONLY"),
            ("open", 0o2000000, "O_RDONLY|O_CLOEXEC"),
            ("open", 0o1101, "O_WRONLY|O_CREAT|O_TRUNC"),
            ("protection", 0, "PROT_NONE"),
            ("protection", 3, "PROT_READ|PROT_WRITE"),
            ("mapping", 0x812, "MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE"),
            ("access", 4, "R_OK"),
            ("at", 0x1000, "AT_EMPTY_PATH"),
            ("socket_type", 0o2000001, "SOCK_STREAM|SOCK_CLOEXEC"),
            ("whence", 9, "0x9"),
        ] {
            assert_eq!(text(kind, value).as_deref(), Some(expected));
        }
        assert_eq!(
            clone(0x1200011),
            "CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD"
        );
    }
}
