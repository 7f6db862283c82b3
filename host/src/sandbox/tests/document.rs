//! docs/security.md has the tables of the system calls.

use super::super::calls::{
    CALLS, COMMON_CALLS, Call, Check, DISK_CALLS, KVM_CALLS, NEW_FILE_CALLS, NOT_FOR_REPLAYS,
    NOT_FOR_REPORTS, OPEN_FILE_CALLS, READER_CALLS, STARTER_CALLS, SYMBOL_CALLS, WRITING_CALLS,
};
use super::super::threads::ThreadKind;

#[test]
fn the_document_has_the_same_tables() {
    let document = include_str!("../../../../docs/security.md");
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
    let names = |calls: &[i64]| calls.iter().map(name).collect::<Vec<_>>().join(", ");
    for (subject, withheld) in [("It", NOT_FOR_REPORTS), ("A replay", NOT_FOR_REPLAYS)] {
        has(&format!(
            "\n\n{subject} does without {}.\n",
            names(withheld)
        ));
    }
    let thread = |(kind, thread, more): (ThreadKind, &str, &str)| {
        format!("| {thread} | {}{more} |\n", names(kind.withheld()))
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
            let count = crate::sandbox::kvm_ioctls::WHILE_RUNNING.len();
            &format!("those above, and the {count} of KVM that a running virtual machine needs")
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
        ("arch_prctl", Check::OneOf(..)) => "ARCH_SET_GS",
        (_, Check::OneOf(..)) => panic!("{name}: describe its arguments here"),
        (_, Check::OwnProcess(_)) => "this process",
    };
    format!("| `{name}` | {arguments} | {} |\n", call.why)
}
