//! GDB's commands.

use vbts_gdb::{SessionEnd, SyscallFilter};

use crate::client::{gdb, gdb_with, gdb_with_core};

#[test]
fn connects_and_reads_the_program_from_the_target() {
    let Some(session) = gdb(&[
        "info registers rip",
        "x/2i $pc",
        "print text",
        "print $sp",
        "detach",
    ]) else {
        return;
    };
    session.shows(&[
        "_start () at",
        "<_start>",
        "=> ",
        "xor    %ebp,%ebp",
        "call",
        "<main>",
    ]);
    session.shows(&["the quick brown fox", "0x10000"]);
    assert!(
        matches!(session.end, Ok(SessionEnd::Detached)),
        "{:?}",
        session.end
    );
    assert!(session.target.detached);
}

#[test]
fn breaks_steps_and_finishes_in_both_directions() {
    let Some(session) = gdb(&[
        "break square",
        "continue",
        "backtrace",
        "print n",
        "delete",
        "finish",
        "next",
        "print last",
        "reverse-next",
        "reverse-step",
        "info line",
        "reverse-finish",
        "reverse-stepi",
        "monitor when",
    ]) else {
        return;
    };
    session.shows(&[
        "Breakpoint 1, square (n=0)",
        "#0  square (n=0)",
        "#1  ",
        "visit (n=0)",
        "#2  ",
        "main ()",
        "$1 = 0",
        "Value returned is $2 = 0",
        "total += last.y",
        "$3 = {x = 0, y = 0}",
        "last.y = square(n)",
        "square (n=0)",
        "visit (n=0)",
    ]);
    session.fails_with(&["step 22"]);
}

#[test]
fn a_watchpoint_finds_the_last_write() {
    let Some(session) = gdb(&[
        "continue",
        "print total",
        "watch total",
        "reverse-continue",
        "reverse-continue",
        "up",
        "print i",
        "continue",
        "delete",
        "reverse-continue",
    ]) else {
        return;
    };
    session.shows(&[
        "No more reverse-execution history",
        "$1 = 7",
        "Hardware watchpoint 1: total",
        "Old value = 7",
        "New value = 30",
        "Hardware watchpoint 1: total",
        "Old value = 30",
        "New value = 14",
        "$2 = 4",
        "Old value = 14",
        "New value = 30",
        "No more reverse-execution history",
        "_start ()",
    ]);
    session.fails_with(&["[continuing]"]);
}

#[test]
fn conditions_and_counts_of_breakpoints_hold_backward() {
    let Some(session) = gdb(&[
        "break visit if n == 3",
        "continue",
        "print counter",
        "tbreak visit",
        "disable 1",
        "reverse-continue",
        "print n",
        "hbreak recurse",
        "continue",
        "print depth",
        "info breakpoints",
    ]) else {
        return;
    };
    session.shows(&[
        "Breakpoint 1, visit (n=3)",
        "$1 = 3",
        "Temporary breakpoint 2, visit (n=2)",
    ]);
    session.shows(&[
        "$2 = 2",
        "Breakpoint 3, recurse (depth=3)",
        "$3 = 3",
        "hw breakpoint",
    ]);
}

#[test]
fn the_target_evaluates_conditions() {
    let Some(session) = gdb(&[
        "break square if n == 3 && total > 4",
        "tbreak visit if last.x * 2 == (char) 4 || $rsp == 0",
        "continue",
        "info breakpoints",
        "print last.x",
        "continue",
        "print total",
        "delete",
        "tbreak visit if n < -3 || (unsigned) n == counter && n % 2",
        "reverse-continue",
        "print n",
    ]) else {
        return;
    };
    session.shows(&["Temporary breakpoint 2, visit (n=3)"]);
    session.shows(&["stop only if n == 3 && total > 4 (target evals)", "$1 = 2"]);
    session.shows(&["Breakpoint 1, square (n=3)", "$2 = 5"]);
    session.shows(&["Temporary breakpoint 3, visit (n=3)", "$3 = 3"]);
    // Three of square and of visit each.
    assert_eq!(session.target.passed_conditions.get(), 6);
}

#[test]
fn shows_threads_processes_and_files() {
    let Some(session) = gdb(&[
        "info threads",
        "thread 2",
        "print $xmm0.uint128",
        "print $rip",
        "thread 1",
        "info os processes",
        "info auxv",
        "info proc mappings",
        "info proc exe",
    ]) else {
        return;
    };
    session.shows(&[
        "* 1    Thread 40.40 \"tour\" (running)",
        "2    Thread 40.41 \"<&>\" (waiting)",
        "Switching to thread 2",
        "<unavailable>",
        "<_start>",
        "Switching to thread 1",
        "tour \"a\" <b>",
        "AT_PAGESZ",
        "4096",
        "0x10000",
        "/guest/tour",
        "exe = '/guest/tour'",
    ]);
}

#[test]
fn shows_registers_of_all_kinds() {
    let Some(session) = gdb(&[
        "break recurse",
        "continue",
        "info registers",
        "print ratio",
        "print $xmm0.v2_double[0]",
        "print $ymm0.v4_double[0]",
        "info float",
        "print $cr0",
        "print $efer",
        "print $orig_rax",
        "print $fs_base",
        "info registers eflags",
        "print $mxcsr",
    ]) else {
        return;
    };
    session.shows(&["rax", "rbx", "rip", "<recurse+", "cr0", "PG"]);
    session.shows(&[
        "$1 = 7.5",
        "$2 = 7.5",
        "$3 = 7.5",
        "R7: Empty",
        "$4 = [ PE ET NE WP PG ]",
        "$5 = [ SCE LME LMA NXE ]",
    ]);
    session.shows(&[
        "$6 = -1",
        "$7 = 0",
        "eflags",
        "PF",
        "$8 = [ IM DM ZM OM UM PM ]",
    ]);
}

#[test]
fn writes_registers_and_memory() {
    let Some(session) = gdb(&[
        "set var counter = 77",
        "print counter",
        "set var $rbx = 0x123456789",
        "print/x $rbx",
        "set var $xmm1.v4_float[0] = 1.5",
        "print $xmm1.v4_float[0]",
        "print $cs = 0x33",
        "set var text = \"}#$*}#$*}#$*}#$*}#$*}#$*}#$*012\"",
        "print text",
        "find /w &counter, +400, 77",
        "find &text, +sizeof(text), '}', '#', '$', '*', '0'",
        "print &text[24]",
        "find &text, +sizeof(text), 'n', 'o'",
        "compare-sections .text",
        "thread 2",
        "set var $rbx = 1",
        "x/4x 0x100000",
        "x/20c 0x3fffc",
    ]) else {
        return;
    };
    session.shows(&["$1 = 77", "$2 = 0x123456789", "$3 = 1.5", "= 51"]);
    session.shows(&[
        "}#$*}#$*}#$*}#$*}#$*}#$*}#$*012",
        "<counter>",
        "1 pattern found",
    ]);
    session.shows(&[
        "<text+24>",
        "1 pattern found",
        "<text+24>",
        "Pattern not found",
    ]);
    session.shows(&["Section .text", "matched"]);
    session.shows(&["0x3fffc:", "0 '\\000'"]);
    session.fails_with(&[
        "Could not write register \"rbx\"",
        "this thread cannot be changed",
    ]);
    session.fails_with(&["memory at address 0x100000", "memory at address 0x40000"]);
}

#[test]
fn runs_commands_of_the_target() {
    let commands = [
        "monitor when",
        "stepi 3",
        "monitor when",
        "monitor fail",
        "monitor unknown",
    ];
    let Some(session) = gdb(&commands) else {
        return;
    };
    session.fails_with(&["step 0", "step 3", "no such place"]);
    session.fails_with(&["Target does not support this command"]);
}

#[test]
fn selects_system_calls_and_signals() {
    let Some(session) = gdb(&[
        "handle SIGUSR1 nostop noprint pass",
        "handle SIGSEGV nostop noprint pass",
        "catch syscall write",
        "catch syscall 60",
        "stepi",
        "print $_siginfo.si_signo",
        "print $_siginfo._sifields._sigfault.si_addr",
    ]) else {
        return;
    };
    session.shows(&["$1 = 11", "$2 = (void *) 0x1234"]);
    let both = SyscallFilter::Numbers(vec![1, 60]);
    assert!(
        session.target.caught.contains(&both),
        "{:?}",
        session.target.caught
    );
    assert_eq!(session.target.caught.last(), Some(&SyscallFilter::None));
    let passed = session.target.passed_signals.unwrap();
    // SIGUSR1 and SIGSEGV, and SIGCHLD as always. SIGTRAP and SIGINT are never passed.
    for (signal, is_passed) in [(10, true), (11, true), (17, true), (5, false), (2, false)] {
        assert_eq!(passed >> (signal - 1) & 1 == 1, is_passed, "{signal}");
    }
}

#[test]
fn records_branches_from_a_place_on() {
    let Some(session) = gdb(&[
        "break visit",
        "continue",
        "record btrace bts",
        "info record",
        "next",
        "next",
        "info record",
        "next",
        "record instruction-history 1,+100",
        "record function-call-history /ilc",
        "info record",
        "reverse-stepi",
        "info record",
        "stepi",
        "record stop",
        "stepi",
        "monitor when",
    ]) else {
        return;
    };
    session.shows(&["Recording format: Branch Trace Store", "Buffer size: 64kB"]);
    session.shows(&[
        "Recorded 0 instructions in 0 functions",
        "Recorded ",
        "in 1 functions",
    ]);
    session.shows(&[
        "<visit+",
        "call",
        "<square>",
        "<square+0>",
        "ret",
        "<visit+",
    ]);
    session.shows(&["1\tvisit", "2\t  square", "3\tvisit", "in 3 functions"]);
    session.shows(&["Replay in progress.  At instruction", "stopped"]);
    assert!(!session.errors.contains("corrupted"), "{}", session.errors);
    assert!(!session.errors.contains("incomplete"), "{}", session.errors);
}

#[test]
fn shows_branches_from_before_the_recording() {
    let session = gdb_with(
        &[
            "break recurse if depth == 0",
            "continue",
            "set record btrace bts buffer-size 1048576",
            "record btrace bts",
            "record function-call-history /ic 1,+100",
            "record goto begin",
            "backtrace",
            "record goto end",
            "info record",
        ],
        |target| target.all_branches = true,
    );
    let Some(session) = session else { return };
    session.shows(&[
        "1\tmain",
        "2\t  visit",
        "3\t    square",
        "4\t  visit",
        "5\tmain",
    ]);
    session.shows(&["recurse", "#0  main ()", "Buffer size: 1MB"]);
    assert!(!session.errors.contains("corrupted"), "{}", session.errors);
}

#[test]
fn an_old_client_without_features_is_served() {
    let Some(session) = gdb(&[
        "set remote multiprocess-feature-packet off",
        "set remote noack-packet off",
        "set remote swbreak-feature-packet off",
        "set remote verbose-resume-packet off",
        "set remote threads-packet off",
        "disconnect",
    ]) else {
        return;
    };
    assert!(
        matches!(session.end, Ok(SessionEnd::Disconnected)),
        "{:?}",
        session.end
    );
}

#[test]
fn kills_the_target() {
    let Some(session) = gdb(&["kill"]) else {
        return;
    };
    session.shows(&["[Inferior 1 (process 40) killed]"]);
    assert!(session.target.killed);
}

#[test]
fn shows_variables_of_threads_and_libraries() {
    let Some(session) = gdb_with_core(&[
        "backtrace",
        "info sharedlibrary",
        "print own",
        "print name",
        "print errno",
        "print (int) barrier.__size[0]",
        "thread 2",
        "print own",
        "print errno",
        "frame function second",
        "print *(int *) argument",
        "continue",
        "set var own = 1",
    ]) else {
        return;
    };
    session.shows(&["stop_here () at", "#1 ", "main () at", "libc.so.6"]);
    session.shows(&["$1 = 42", "$2 = \"first", "$3 = 9", "Switching to thread 2"]);
    session.shows(&["$5 = 7", "$6 = 28", "$7 = 28"]);
    session.fails_with(&["does not execute"]);
}
