//! LLDB's commands, as far as its version has them: it does not execute backward before version 20.

use crate::client::lldb;

#[test]
fn connects_breaks_and_steps() {
    let Some(session) = lldb(&[
        "breakpoint set --name square",
        "continue",
        "thread backtrace",
        "frame variable n",
        "register read rip rsp",
        "memory read --size 1 --format c --count 9 &text",
        "finish",
        "thread step-inst",
        "thread list",
        "watchpoint set variable total",
        "breakpoint delete --force",
        "continue",
        "print total",
        "print counter",
        "process detach",
    ]) else {
        return;
    };
    session.shows(&["stop reason = signal SIGTRAP", "tour`_start at tour.c"]);
    session.shows(&["stop reason = breakpoint 1.1", "tour`square(n=0)"]);
    session.shows(&[
        "frame #1",
        "tour`visit(n=0)",
        "frame #2",
        "tour`main",
        "(int) n = 0",
    ]);
    session.shows(&["rip = 0x", "tour`square + ", "rsp = 0x", "the quick"]);
    session.shows(&[
        "Return value: (int) $1 = 0",
        "instruction step",
        "tid = 0x0029",
    ]);
    session.shows(&[
        "Watchpoint 1 hit",
        "old value: 0",
        "new value: 1",
        "(long) $2 = 1",
    ]);
    session.shows(&["(int) $3 = 2", "Process 40 detached"]);
    assert!(session.target.detached);
}
