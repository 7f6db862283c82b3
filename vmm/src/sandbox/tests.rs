use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, XattrFlags, mkdirat, mknodat, removexattr, setxattr, unlinkat,
};

use super::*;
use crate::host::{Alarm, EventLoop};

/// Names the case for [`in_a_separate_process`].
const CASE: &str = "VBTS_SANDBOX_CASE";
/// Output of a case that reached its end.
const SURVIVED: &str = "survived";

/// Actions of an attacker who controls the process.
const FORBIDDEN: &[(&str, fn())] = &[
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
static EVENT_LOOP: Mutex<Option<EventLoop>> = Mutex::new(None);

fn alarm() -> Alarm {
    Alarm::new(Arc::default(), None).unwrap()
}

/// Actions of all machines.
const ALLOWED: &[(&str, fn())] = &[
    ("a file", || {
        assert!(!std::fs::read("/proc/self/status").unwrap().is_empty())
    }),
    ("memory", || drop(std::hint::black_box(vec![1u8; 64 << 20]))),
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
const ALLOWED_TO_WRITE: &[(&str, fn())] = &[("files", || {
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

/// Actions of the process that a thread of its own filter does without.
const NOT_FOR_THREADS: &[(&str, &str)] = &[
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

/// Actions of machines whose guest may write to a disk. Here there is no disk.
const ALLOWED_ON_DISKS: &[(&str, fn())] = &[
    ("a sector", || {
        call(libc::SYS_pwrite64, [u64::MAX, 0x1000, 512, 0, 0, 0])
    }),
    ("sectors discarded", || {
        call(libc::SYS_fallocate, [u64::MAX, 3, 0, 512, 0, 0])
    }),
    ("a flush", || call(libc::SYS_fdatasync, [u64::MAX; 6])),
];

const ALLOWED_FOR_TASK_FILES: &[(&str, fn())] = &[("a file of a task", || {
    // The flags are those of a new file, and none is left behind.
    std::fs::write("/dev/null", "x").unwrap();
})];

fn cases(access: Access) -> impl Iterator<Item = (&'static str, fn())> {
    let writing = if access == Access::ReadWrite {
        ALLOWED_TO_WRITE
    } else {
        &[]
    };
    ALLOWED.iter().chain(writing).copied()
}

#[test]
#[ignore = "the other tests run each case in a separate process"]
fn in_a_separate_process() {
    let case = std::env::var(CASE).unwrap();
    let mut kind = None;
    let (sandbox, name) = match case.split_once(':') {
        Some(("trace", name)) => {
            kind = Some(ThreadKind::Trace);
            let sandbox = Sandbox::new(Access::ReadWrite, false).with_writable_disks();
            (sandbox, name)
        }
        Some(("vcpu", name)) => {
            kind = Some(ThreadKind::Processor);
            (Sandbox::new(Access::ReadWrite, true), name)
        }
        Some(("rw", name)) => (Sandbox::new(Access::ReadWrite, false), name),
        Some(("files", name)) => (Sandbox::new(Access::ReadOnly, false).with_new_files(), name),
        Some((_, name)) => (
            Sandbox::new(Access::ReadOnly, false).with_writable_disks(),
            name,
        ),
        None => (Sandbox::new(Access::ReadOnly, false), case.as_str()),
    };
    *EVENT_LOOP.lock().unwrap() = Some(EventLoop::new(Arc::new(alarm())).unwrap());
    // A thread that starts before the sandbox is entered works and ends inside it, and is confined
    // too.
    let (ask, asked) = channel::<()>();
    let (answer, answered) = channel();
    let name = name.to_owned();
    let thread = std::thread::spawn(move || {
        answer.send(()).unwrap();
        asked.recv().unwrap();
        if let Some(kind) = kind {
            assert!(confine_thread(kind).unwrap());
        }
        let more = ALLOWED_ON_DISKS.iter().chain(ALLOWED_FOR_TASK_FILES);
        let mut all = FORBIDDEN
            .iter()
            .copied()
            .chain(cases(Access::ReadWrite))
            .chain(more.copied());
        all.find(|(n, _)| *n == name).unwrap().1();
    });
    answered.recv().unwrap();
    sandbox.enter().unwrap();
    ask.send(()).unwrap();
    thread.join().unwrap();
    let mut stdout = std::io::stdout();
    stdout.write_all(SURVIVED.as_bytes()).unwrap();
    stdout.flush().unwrap();
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn on_a_host_without_seccomp() {
    let rules = BTreeMap::from([(libc::SYS_seccomp, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    let failure = Sandbox::new(Access::ReadOnly, false).enter().unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    let message = failure.to_string();
    assert!(message.contains("Function not implemented"), "{message}");
    assert!(message.contains("--sandbox off"), "{message}");
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn on_a_host_without_landlock() {
    let rules = BTreeMap::from([(libc::SYS_landlock_create_ruleset, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    assert!(!can_restrict_files());
    restrict_files(FileRules::default(), false).unwrap();
    let failure = restrict_files(FileRules::default(), true).unwrap_err();
    assert_eq!(failure.status(), crate::exit::status::HOST);
    let message = failure.to_string();
    assert!(message.contains("Landlock"), "{message}");
    assert!(message.contains("--sandbox auto"), "{message}");
}

fn run(case: &str) -> Output {
    run_test("in_a_separate_process", case)
}

fn run_test(name: &str, case: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("sandbox::tests::{name}"),
            "--ignored",
            "--nocapture",
        ])
        .env(CASE, case)
        .env("RUST_BACKTRACE", "full")
        .output()
        .unwrap()
}

#[test]
fn other_calls_kill_the_process() {
    for (name, _) in FORBIDDEN {
        let output = run(name);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGSYS),
            "{name}: {output:?}"
        );
    }
}

#[test]
fn allowed_calls_do_not_kill_the_process() {
    for (prefix, access) in [
        ("", Access::ReadOnly),
        ("rw:", Access::ReadWrite),
        ("disk:", Access::ReadOnly),
        ("files:", Access::ReadOnly),
    ] {
        let more = match prefix {
            "disk:" => ALLOWED_ON_DISKS,
            "files:" => ALLOWED_FOR_TASK_FILES,
            _ => &[],
        };
        for (name, _) in cases(access).chain(more.iter().copied()) {
            let output = run(&format!("{prefix}{name}"));
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stdout).contains(SURVIVED),
                "{name}: {output:?}"
            );
        }
    }
}

#[test]
fn a_thread_can_do_less_than_the_process() {
    for (kind, name) in NOT_FOR_THREADS {
        let output = run(&format!("{kind}:{name}"));
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGSYS),
            "{kind} {name}: {output:?}"
        );
    }
    let is_withheld = |kind, name| NOT_FOR_THREADS.contains(&(kind, name));
    for kind in ["trace", "vcpu"] {
        for (name, _) in ALLOWED.iter().filter(|(name, _)| !is_withheld(kind, name)) {
            let output = run(&format!("{kind}:{name}"));
            assert!(output.status.success(), "{kind} {name}: {output:?}");
        }
    }
    let output = run("vcpu:files");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn only_threads_of_processors_use_kvm() {
    let sandbox = Sandbox::new(Access::ReadOnly, true);
    let ioctls = |kind: ThreadKind| match kind.calls(sandbox)[&libc::SYS_ioctl] {
        Check::OneOf(_, values) => values.to_vec(),
        check => panic!("{check:?}"),
    };
    let run = 0xAE80;
    assert!(ioctls(ThreadKind::Processor).contains(&run));
    assert!(!ioctls(ThreadKind::Processor).contains(&(libc::TCSETS as u32)));
    assert!(!ioctls(ThreadKind::Trace).contains(&run));
    assert!(!ioctls(ThreadKind::Service).contains(&run));
}

#[test]
fn writing_is_allowed_only_with_a_writable_device() {
    let files = ALLOWED_TO_WRITE.iter().chain(ALLOWED_FOR_TASK_FILES);
    for (name, _) in files.chain(ALLOWED_ON_DISKS) {
        assert_eq!(run(name).status.signal(), Some(libc::SIGSYS), "{name}");
    }
    // A writable disk does not allow opening files for writing, nor do files of tasks allow
    // creating directories.
    for name in ["disk:files", "disk:a file of a task", "files:files"] {
        let output = run(name);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}");
    }
}

#[test]
fn a_panic_is_reported_in_the_sandbox() {
    // No case has this name, so the thread panics.
    let output = run("nothing");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("sandbox/tests.rs"),
        "{output:?}"
    );
}

#[test]
fn a_host_without_seccomp_runs_no_machine() {
    let output = run_test("on_a_host_without_seccomp", "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_host_without_landlock_runs_no_strict_machine() {
    let output = run_test("on_a_host_without_landlock", "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn root_keeps_its_capabilities_over_files_only() {
    // Capabilities belong to a thread, so other tests are not affected.
    drop_capabilities().unwrap();
    let left = capabilities(None).unwrap();
    assert_eq!(left.permitted - KEPT_CAPABILITIES, CapabilitySet::empty());
    assert_eq!(left.effective - KEPT_CAPABILITIES, CapabilitySet::empty());
    assert_eq!(left.inheritable, CapabilitySet::empty());
}

#[test]
fn the_document_has_the_same_tables() {
    let document = include_str!("../../../docs/security.md");
    let has = |table: &str| {
        assert!(
            document.contains(table),
            "docs/security.md should have:\n{table}"
        );
    };
    for calls in [
        &[CALLS, COMMON_CALLS][..],
        &[KVM_CALLS],
        &[DISK_CALLS],
        &[NEW_FILE_CALLS],
        &[OPEN_FILE_CALLS],
        &[SYMBOL_CALLS],
        &[WRITING_CALLS],
        &[READER_CALLS, COMMON_CALLS],
        &[STARTER_CALLS],
    ] {
        let rows: String = calls.iter().copied().flatten().map(row).collect();
        has(&format!(
            "\n\n| call | arguments | purpose |\n|---|---|---|\n{rows}\n"
        ));
    }
    let name = |number: &i64| {
        let call = CALLS.iter().find(|call| call.number == *number);
        format!("`{}`", call.unwrap().name.trim_start_matches("SYS_"))
    };
    let thread = |(kind, thread, more): (ThreadKind, &str, &str)| {
        let names: Vec<_> = kind.withheld().iter().map(name).collect();
        format!("| {thread} | {}{more} |\n", names.join(", "))
    };
    has(&ThreadKind::DOCUMENTED.map(thread).concat());
}

fn row(call: &Call) -> String {
    let name = call.name.trim_start_matches("SYS_");
    let arguments = match (name, &call.check) {
        (_, Check::Any) => "any",
        ("openat" | "open_by_handle_at", Check::Clear(..)) => "no flag that writes or creates",
        ("mknodat", Check::Clear(..)) => "no device",
        (_, Check::Clear(..)) => "without PROT_EXEC",
        ("ioctl", Check::OneOf(_, values)) if values.len() > 10 => {
            "those above, and the 16 of KVM that a running virtual machine needs"
        }
        ("ioctl", Check::OneOf(..)) => {
            "TCGETS, TCSETS, TCSETSW, TCSETSF, their variants with 2, TIOCGWINSZ, TIOCGPGRP"
        }
        ("fcntl", Check::OneOf(..)) => "F_DUPFD_CLOEXEC, F_GETFD, F_GETFL",
        ("madvise", Check::OneOf(..)) => "MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE",
        ("prctl", Check::OneOf(_, values)) if values.contains(&(libc::PR_SET_PDEATHSIG as u32)) => {
            "PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS"
        }
        ("prctl", Check::OneOf(..)) => "PR_SET_NAME, PR_SET_NO_NEW_PRIVS",
        ("seccomp", Check::OneOf(..)) => "SECCOMP_SET_MODE_FILTER",
        (_, Check::OneOf(..)) => panic!("{name}: describe its arguments here"),
        (_, Check::OwnProcess(_)) => "this process",
    };
    format!("| `{name}` | {arguments} | {} |\n", call.why)
}
