//! Debian's rr: it counts conditional branches, and needs each count to be the same in a replay.

use std::fmt::Write;

use anyhow::{Result, ensure};
use vbts_tests::machine::Machine;
use vbts_tests::programs;

use super::{Guest, run};
use crate::stock_kernel::file;

/// Commands of the root file system, which print something. `./threads` is ours.
const COMMANDS: [&str; 10] = [
    "echo one",
    "ls -l /etc",
    "sort -r /etc/passwd",
    "sed -n /root/p /etc/passwd",
    "gzip -c /etc/passwd",
    "sha256sum /bin/bash",
    "sh -c 'for n in 1 2 3; do (echo $n); done'",
    "bash -c 'trap \"echo signal\" USR1; kill -USR1 $$; echo end'",
    "perl -e 'fork or exit 3; wait; print $? >> 8, \"\\n\"'",
    "./threads",
];

/// Records commands and replays them: they print the same. In a replay, GDB goes back to where it
/// was.
pub(super) fn rr(machine: &Machine, guest: Guest) -> Result<()> {
    file("root")?;
    let directory = tempfile::tempdir()?;
    let threads = programs::gcc(
        &programs::source("rr_threads.c"),
        &directory.path().join("threads"),
        &["-O1", "-g", "-static", "-pthread"],
    )?;
    let gdb = directory.path().join("gdb");
    std::fs::write(&gdb, GDB)?;
    // rr and GDB talk over the loopback interface.
    let mut script = "export _RR_TRACE_DIR=/tmp/rr\nip link set lo up\n".to_owned();
    for (n, command) in COMMANDS.iter().enumerate() {
        writeln!(
            script,
            "rr record {command} >results/{n}.recorded 2>results/{n}.errors
             echo $? >results/{n}.status
             rr replay -a >results/{n}.replayed 2>>results/{n}.errors
             echo $? >>results/{n}.status"
        )?;
    }
    // The last recording is that of ./threads.
    script.push_str("rr replay -- -nx -q </tmp/gdb >results/gdb 2>&1\n");
    let files = [("threads", threads.as_path()), ("gdb", gdb.as_path())];
    let results = run(machine, guest, directory.path(), &script, &files)?;
    for (n, command) in COMMANDS.iter().enumerate() {
        let output = |what: &str| results.bytes(&format!("{n}.{what}"));
        let errors = results.read(&format!("{n}.errors"))?;
        let status = results.read(&format!("{n}.status"))?;
        ensure!(status == "0\n0\n", "{command}: {status}{errors}");
        let recorded = output("recorded")?;
        ensure!(!recorded.is_empty(), "{command}: {errors}");
        ensure!(recorded == output("replayed")?, "{command}: {errors}");
    }
    let text = results.read("gdb")?;
    let values: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(_, value)| value))
        .collect();
    // Forwards to the third call, back to the second, and forwards again.
    ensure!(values == ["0", "1", "2", "1", "2"], "{text}");
    Ok(())
}

/// Stops at a function that three threads call in turn.
const GDB: &str = "\
set confirm off
set pagination off
handle SIGUSR1 nostop noprint
break turn
continue
print turns
continue
print turns
continue
print turns
reverse-continue
print turns
continue
print turns
";
