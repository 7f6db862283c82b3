//! What a process or a thread in the sandbox tries to do.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, XattrFlags, mkdirat, mknodat, removexattr, setxattr, unlinkat,
};
use vbts_devices::ninep::Access;

use crate::EventLoop;

/// Actions of an attacker who controls the process.
pub(crate) const FORBIDDEN: &[(&str, fn())] = &[
    ("socket", || {
        call(
            libc::SYS_socket,
            [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0],
        )
    }),
    ("execve", || {
        call(
            libc::SYS_execve,
            [c"/bin/true".as_ptr() as u64, 0, 0, 0, 0, 0],
        )
    }),
    ("fork", || call(libc::SYS_fork, [0; 6])),
    ("clone", || {
        call(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0])
    }),
    ("ptrace", || {
        call(
            libc::SYS_ptrace,
            [u64::from(libc::PTRACE_TRACEME), 0, 0, 0, 0, 0],
        )
    }),
    ("executable memory", || {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        call(
            libc::SYS_mmap,
            [0, 4096, protection as u64, flags as u64, u64::MAX, 0],
        );
    }),
    ("memory made executable", || {
        call(
            libc::SYS_mprotect,
            [0x1000, 4096, libc::PROT_EXEC as u64, 0, 0, 0],
        );
    }),
    ("a file to write", || open(libc::O_WRONLY)),
    ("a file to empty", || open(libc::O_TRUNC)),
    ("a file without a name", || open(libc::O_TMPFILE)),
    ("openat2", || call(libc::SYS_openat2, [0; 6])),
    ("a file to write, by its handle", || {
        let flags = libc::O_WRONLY as u64;
        call(libc::SYS_open_by_handle_at, [u64::MAX, 0, flags, 0, 0, 0]);
    }),
    ("a device", || {
        let path = c"/tmp/vbts-sandbox-device".as_ptr() as u64;
        let mode = u64::from(libc::S_IFBLK | 0o600);
        call(libc::SYS_mknodat, [u64::MAX, path, mode, 0, 0, 0]);
    }),
    ("a new directory", || {
        call(
            libc::SYS_mkdirat,
            [u64::MAX, c"/tmp/x".as_ptr() as u64, 0, 0, 0, 0],
        )
    }),
    ("typing into the terminal", || {
        call(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0])
    }),
    ("a datagram to somewhere", || {
        call(libc::SYS_sendto, [0, 0, 0, 0, 0x1000, 16])
    }),
    ("killing", || call(libc::SYS_kill, [1, 0, 0, 0, 0, 0])),
    ("killing a thread of another process", || {
        call(libc::SYS_tgkill, [1, 1, 0, 0, 0, 0])
    }),
    ("a call of the x32 ABI", || {
        call(0x4000_0000 + libc::SYS_getpid, [0; 6])
    }),
];

/// The I/O loop of a case. It is created before the sandbox is entered, as in a machine.
pub(crate) static EVENT_LOOP: Mutex<Option<EventLoop>> = Mutex::new(None);

/// Actions of all machines.
pub(crate) const ALLOWED: &[(&str, fn())] = &[
    ("a file", || {
        assert!(!std::fs::read("/proc/self/status").unwrap().is_empty())
    }),
    ("memory", || drop(std::hint::black_box(vec![1u8; 64 << 20]))),
    ("the heap of a thread that shrinks", || {
        let pieces: Vec<_> = (0..500).map(|_| vec![1_u8; 64 << 10]).collect();
        drop(std::hint::black_box(pieces));
    }),
    ("a backtrace", || {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        assert!(trace.contains("sandbox"), "{trace}");
    }),
    ("a panic", || {
        std::panic::catch_unwind(|| panic!("on purpose")).unwrap_err();
    }),
    ("a pause", || std::thread::sleep(Duration::from_millis(1))),
    ("a wait in the I/O loop", || {
        let mut events = EVENT_LOOP.lock().unwrap();
        let limit = Some(Duration::from_millis(1));
        let stdin = std::io::stdin();
        let events = events.as_mut().unwrap();
        assert!(events.wait(&[], limit).unwrap().timer);
        let _ = events.wait(&[stdin.as_fd()], limit).unwrap();
    }),
    ("a hash table", || {
        assert!(std::collections::HashSet::from([1]).contains(&1));
    }),
    ("a part of a file", || {
        call(libc::SYS_pread64, [u64::MAX, 0, 0, 0, 0, 0]);
    }),
    ("a file by its handle", || {
        call(libc::SYS_name_to_handle_at, [u64::MAX, 0, 0, 0, 0, 0]);
        call(libc::SYS_open_by_handle_at, [u64::MAX, 0, 0, 0, 0, 0]);
    }),
    ("extended attributes", || {
        let _ = rustix::fs::listxattr("/", &mut [0; 8][..]);
        let _ = rustix::fs::getxattr("/", "user.x", &mut [0; 8][..]);
    }),
    ("names in a directory", || {
        assert!(std::fs::read_dir("/").unwrap().count() > 0);
    }),
    ("another filter", || {
        // There is no filter at this address.
        call(libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]);
    }),
    ("a terminal's size", || {
        let _ = rustix::termios::tcgetattr(std::io::stdin());
        let _ = rustix::termios::tcgetwinsize(std::io::stderr());
    }),
];

/// Actions of machines whose guest may write to a directory of the host.
pub(crate) const ALLOWED_TO_WRITE: &[(&str, fn())] = &[("files", || {
    let name = format!("vbts-sandbox-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    mkdirat(CWD, &path, Mode::RWXU).unwrap();
    let file = path.join("file");
    std::fs::write(&file, "x").unwrap();
    let _ = setxattr(&file, "user.x", b"x", XattrFlags::empty());
    let _ = removexattr(&file, "user.x");
    unlinkat(CWD, &file, AtFlags::empty()).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0).unwrap();
    unlinkat(CWD, &file, AtFlags::empty()).unwrap();
    unlinkat(CWD, &path, AtFlags::REMOVEDIR).unwrap();
})];

/// Actions of the process that a thread of its own filter does without.
pub(crate) const NOT_FOR_THREADS: &[(&str, &str)] = &[
    ("trace", "a part of a file"),
    ("trace", "names in a directory"),
    ("trace", "a file by its handle"),
    ("trace", "extended attributes"),
    ("trace", "a wait in the I/O loop"),
    ("trace", "a sector"),
    ("trace", "files"),
    ("trace", "another filter"),
    ("vcpu", "a wait in the I/O loop"),
    ("vcpu", "a terminal's size"),
    ("vcpu", "another filter"),
];

/// Actions of machines that a replay does without.
pub(crate) const NOT_FOR_REPLAYS: &[&str] = &[
    "a file",
    "a file by its handle",
    "extended attributes",
    "names in a directory",
];

/// Actions of machines whose guest may write to a disk. Here there is no disk.
pub(crate) const ALLOWED_ON_DISKS: &[(&str, fn())] = &[
    ("a sector", || {
        call(libc::SYS_pwrite64, [u64::MAX, 0x1000, 512, 0, 0, 0])
    }),
    ("sectors discarded", || {
        call(libc::SYS_fallocate, [u64::MAX, 3, 0, 512, 0, 0])
    }),
    ("a flush", || call(libc::SYS_fdatasync, [u64::MAX; 6])),
];

pub(crate) const ALLOWED_FOR_TASK_FILES: &[(&str, fn())] = &[("a file of a task", || {
    // The flags are those of a new file, and none is left behind.
    std::fs::write("/dev/null", "x").unwrap();
})];

pub(super) fn cases(access: Access) -> impl Iterator<Item = (&'static str, fn())> {
    let writing = if access == Access::ReadWrite {
        ALLOWED_TO_WRITE
    } else {
        &[]
    };
    ALLOWED.iter().chain(writing).copied()
}

fn call(number: i64, a: [u64; 6]) {
    // SAFETY: the filter kills the process before the kernel uses the arguments. If it does not,
    // the test fails, and no argument lets the kernel write to memory of this process that is in
    // use.
    unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
}

fn open(flags: i32) {
    let path = c"/dev/null".as_ptr() as u64;
    call(
        libc::SYS_openat,
        [libc::AT_FDCWD as u64, path, flags as u64, 0, 0, 0],
    );
}
